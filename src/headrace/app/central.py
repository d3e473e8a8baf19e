"""What has a gateway to do with the database that all of them share? It copies tenants and keys down, and ships records up.

Both happen beside the requests, each on a thread and connections of its own, so that nothing that is served ever waits for
that database: while it can't be had, the copy is gone by and the records wait on the local disk.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
from headrace.config import StoresConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.stores import keys, mirror, opening, schema, shipping, tenants
from headrace.stores.mirror import Mirror
from headrace.stores.shipping import Shipper
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

LOOK_EVERY_S = 0.25
RETRY_MAX_S = 5.0
HEARTBEAT_EVERY_S = 5.0
# Longer than that without an answer, and the next look begins anew.
KEYS_PATIENCE_S = 2.0
LEDGER_PATIENCE_S = 10.0
LAG_TOLD_S = 60.0
FINISH_LIMIT_S = 5.0

_HEARTBEAT = (
    "INSERT INTO gateway (id, host, pid, version, schema_number, seen_s)"
    " VALUES (?, ?, ?, ?, ?, extract(epoch FROM clock_timestamp())) ON CONFLICT (id) DO UPDATE SET host = excluded.host,"
    " pid = excluded.pid, version = excluded.version, schema_number = excluded.schema_number, seen_s = excluded.seen_s"
)


class _Part:
    """One of the two things that need the central database, and how it fares: `failed_at_s` while it can't be had."""

    def __init__(self, name: str, *, metrics: Metrics, log: Log, clock: Clock) -> None:
        self.name = name
        self.error = ""
        self.failed_at_s: float | None = None
        self.delay_s = LOOK_EVERY_S
        self._metrics = metrics
        self._log = log
        self._clock = clock
        metrics.central_failing.labels(name).set(0)

    def failed(self, error: Exception) -> None:
        self.error = str(error) if isinstance(error, ConfigError) else type(error).__name__
        self.delay_s = min(RETRY_MAX_S, self.delay_s * 2)
        if self.failed_at_s is None:
            self.failed_at_s = self._clock.now_s()
            self._metrics.central_failing.labels(self.name).set(1)
            self._log.event("central.failing", part=self.name, error=self.error)

    def succeeded(self) -> None:
        self.delay_s = LOOK_EVERY_S
        if self.failed_at_s is not None:
            self._log.event(
                "central.recovered", part=self.name, outage_s=self._clock.now_s() - self.failed_at_s
            )
            self._metrics.central_failing.labels(self.name).set(0)
            self.failed_at_s = None
            self.error = ""


class Central:
    """Keeps one service and the central database in step. `begin`, `run` and `finish`, in that order."""

    def __init__(self, stores: StoresConfig, data: Path, *, metrics: Metrics, log: Log, clock: Clock) -> None:
        """Opens what is local; the central database is asked by `begin` first. Raises ConfigError."""
        self._stores = stores
        self._data = data
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._local = opening.open_local(data)
        # For the event loop alone: on a connection that a thread works with it would wait until that has finished.
        self._watched = opening.open_local(data)
        self._central = opening.connect_central(stores.database, patience_s=KEYS_PATIENCE_S)
        shipped_to = opening.connect_central(stores.database, patience_s=LEDGER_PATIENCE_S)
        self.name = self._central.name
        note_every_s = min(mirror.NOTE_EVERY_S, stores.stale_max_s / 4)
        self._mirror = Mirror(opening.open_local(data), self._central, clock=clock, note_every_s=note_every_s)
        self._shipper = Shipper(opening.open_local(data), shipped_to, clock=clock)
        self._keys = _Part("keys", metrics=metrics, log=log, clock=clock)
        self._ledger = _Part("ledger", metrics=metrics, log=log, clock=clock)
        self._id = opening.own_id(data)
        self._beat_s = float("-inf")
        self._uses_sent_s = 0.0
        self._is_stale_told = self._is_lag_told = False

    def begin(self) -> None:
        """Makes the copy, or goes on with the one that is there. Raises ConfigError where there is none, or it isn't ours."""
        try:
            opening.migrate_central(self._stores.database, self._data)
            tenants.open_tenants(self._data, clock=self._clock).close()  # is its pepper ours?
            self._refresh()
        except ConfigError as error:
            if mirror.seen_s(self._local) is None:
                raise
            self._keys.failed(error)

    async def run(self) -> None:
        """Until cancelled. Whatever the central database does, this goes on."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._keys, self._refresh), name="keys")
            tasks.create_task(self._repeat(self._ledger, self._ship), name="shipping")

    def finish(self) -> None:
        """Ships what is left, if that is soon done, and closes everything. What isn't shipped waits for the next start."""
        until_s = self._clock.now_s() + FINISH_LIMIT_S
        try:
            if self._ledger.failed_at_s is None:
                while not self._ship() and self._clock.now_s() < until_s:
                    pass
            if self._keys.failed_at_s is None:
                self._central.execute("DELETE FROM gateway WHERE id = ?", (self._id,))
        except ConfigError as error:
            self._ledger.failed(error)
        finally:
            self.close()

    def close(self) -> None:
        self._mirror.close()
        self._shipper.close()
        self._local.close()
        self._watched.close()

    def fill_gauges(self) -> None:
        """Sets the gauges whose facts are kept here."""
        self._metrics.keys_age_seconds.labels().set(self._age_s())
        self._metrics.ledger_lag_seconds.labels().set(self._lag_s())

    def status(self) -> dict[str, Any]:
        """What `headrace status` shows of it."""
        return {
            "name": self.name,
            "keys_error": self._keys.error,
            "keys_age_s": self._age_s(),
            "ledger_error": self._ledger.error,
            "ledger_lag_s": self._lag_s(),
        }

    async def _repeat(self, part: _Part, step: Callable[[], bool]) -> None:
        is_done = True
        while True:
            if is_done:
                await asyncio.sleep(part.delay_s)
            try:
                is_done = await asyncio.to_thread(step)
                part.succeeded()
            except Exception as error:  # noqa: BLE001 -- the task's edge: the service outlives that database
                if not isinstance(error, ConfigError):
                    self._log.internal_error(error, where=f"central {part.name}")
                part.failed(error)
                is_done = True
            if part is self._keys:
                self._tell_staleness()

    def _refresh(self) -> bool:
        self._mirror.refresh()
        if self._clock.now_s() - self._beat_s >= HEARTBEAT_EVERY_S:
            self._central.execute(
                _HEARTBEAT, (self._id, socket.gethostname(), os.getpid(), headrace.__version__, schema.NEWEST)
            )
            self._send_uses()
            self._beat_s = self._clock.now_s()
        return True

    def _send_uses(self) -> None:
        """When keys were last used here; of all gateways' moments the latest stays."""
        rows = self._local.rows(
            "SELECT key_id, used_s FROM key_use WHERE used_s > ? ORDER BY used_s", (self._uses_sent_s,)
        )
        if rows:
            with self._central.transaction():
                keys.note_uses(self._central, dict(rows))
            self._uses_sent_s = rows[-1][1]

    def _ship(self) -> bool:
        """One step. Returns whether nothing is left to do now."""
        shipment = self._shipper.step()
        self._metrics.ledger_shipped.labels().add(shipment.records)
        for row in shipment.refused:
            self._log.event("ledger.row_refused", request_id=row.partition(":")[0])
        if not shipment.is_last:
            self._tell_lag()
            return False
        self._is_lag_told = False
        self._shipper.forget(keep_s=self._stores.shipped_keep_s)
        return True

    def _tell_lag(self) -> None:
        lag_s = self._shipper.lag_s()
        if lag_s > LAG_TOLD_S and not self._is_lag_told:
            self._is_lag_told = True
            self._log.event("ledger.lagging", lag_s=lag_s)

    def _tell_staleness(self) -> None:
        age_s = self._age_s()
        is_stale = age_s > self._stores.stale_max_s
        if is_stale and not self._is_stale_told:
            self._log.event("keys.stale", age_s=age_s)
        self._is_stale_told = is_stale

    def _lag_s(self) -> float:
        return shipping.lag_s(self._watched, now_s=self._clock.wall_s())

    def _age_s(self) -> float:
        if self._keys.failed_at_s is None:
            return 0.0
        seen_s = mirror.seen_s(self._watched)
        return 0.0 if seen_s is None else max(0.0, self._clock.wall_s() - seen_s)
