"""What has each engine counted by now? Its own counters, read again and again, for the books to be checked against."""

import asyncio
from collections.abc import Callable, Sequence

from headrace.control import probes
from headrace.control.probes import Address
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, UpstreamError
from headrace.core.fleet import FleetSnapshot, Replica
from headrace.core.ids import ReplicaId
from headrace.engines import tls
from headrace.engines.counters import COUNTERS, totals
from headrace.policies.engine_counts import Reading, Stretch, read_on

READ_LIMIT_S = 5.0


class CounterWatch:
    """Reads the counters of every replica that is offered and counts. Owner of `_last`, the newest stretch of each.

    Args:
        stretch_s: About how long a stretch is.
        save: Gets the stretches that `round` has begun or made longer; called in a thread, and may wait for a disk.
        failed: Told what `save` raised, once until it works again.
    """

    def __init__(
        self,
        *,
        stretch_s: float,
        save: Callable[[Sequence[Stretch]], None],
        failed: Callable[[ConfigError], None],
        clock: Clock,
    ) -> None:
        self._stretch_s = stretch_s
        self._save = save
        self._failed = failed
        self._clock = clock
        self._replicas: dict[ReplicaId, Replica] = {}
        self._last: dict[ReplicaId, Stretch] = {}
        self._has_failed = False

    def publish(self, snapshot: FleetSnapshot) -> None:
        """Replicas come and go; what an engine counted after its last reading is not compared with anything."""
        self._replicas = {
            replica.id: replica
            for deployment in snapshot.deployments.values()
            for replica in deployment.replicas
            if replica.traits.name in COUNTERS
        }
        for gone in self._last.keys() - self._replicas.keys():
            del self._last[gone]

    async def round(self) -> None:
        """Reads every one of them once."""
        readings = await asyncio.gather(*map(self._read, list(self._replicas.values())))
        stretches = [
            read_on(self._last.get(reading.replica), reading, stretch_s=self._stretch_s)
            for reading in readings
            if reading is not None
        ]
        if not stretches:
            return
        try:
            await asyncio.to_thread(self._save, stretches)
        except ConfigError as error:
            if not self._has_failed:
                self._failed(error)
            self._has_failed = True
            return  # the next round ends the same stretches later
        self._has_failed = False
        self._last.update((stretch.replica, stretch) for stretch in stretches)

    async def _read(self, replica: Replica) -> Reading | None:
        """None where it doesn't answer: that is the probes' business."""
        try:
            text = await probes.metrics_text(await _address(replica), timeout_s=READ_LIMIT_S)
        except (UpstreamError, ConfigError):  # a file of authorities may be gone by now
            return None
        found = totals(text, COUNTERS[replica.traits.name])
        if found is None:
            return None
        return Reading(replica.id, replica.generation, self._clock.wall_s(), *found)


async def _address(replica: Replica) -> Address:
    """Where it is. Raises ConfigError where its authorities can't be read, which takes milliseconds and another thread."""
    context = None
    if replica.is_secure:
        context = await asyncio.to_thread(tls.client_context, replica.ca_file, key="upstreams.ca_file")
    return Address(replica.host, replica.port, replica.path_prefix, replica.authorization, context)
