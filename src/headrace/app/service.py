"""The composition root: builds the service from its configuration, starts and stops its parts in order."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import headrace
from headrace.app import admin, control_plane, reloading, system_key
from headrace.app.budgets import begin_budgets
from headrace.app.central import Central
from headrace.app.controller_seat import ControllerSeat
from headrace.app.data_plane import DataPlane
from headrace.app.front import Front
from headrace.app.process import calm_the_collector
from headrace.app.reconciliation import Reconciliation
from headrace.app.records import OwnRecords, journals, open_journal
from headrace.app.reloading import Read, Reloading
from headrace.app.shared_limits import begin_shared_rates
from headrace.app.status import REQUEST_COUNTS, ended_requests, service_status
from headrace.app.tenant_use import LimitsInForce
from headrace.app.workers import Workers
from headrace.config import Config
from headrace.control.api import AdminServer, admin_token
from headrace.control.issuers import Issuers, LookRules
from headrace.control.shared_rates import SharedRates
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError, leaves
from headrace.core.fleet import Deployment, FleetSnapshot
from headrace.policies.refusal_history import RefusalHistory, Refused
from headrace.policies.reloading import Reloaded, told
from headrace.stores import audit, opening, prices, sqlite, tenants
from headrace.stores.ledger import Adoption, Ledger
from headrace.stores.registry import StoredModel
from headrace.telemetry.logfile import RotatingFile
from headrace.telemetry.logs import LineStream, Log
from headrace.telemetry.merging import MetricsState, state_of
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.strays import capture_strays

ON_LOOP_LIMIT_S = 2.0
FIRST_REPORT_S = 10.0
LOAD_EVERY_S = 0.25

T = TypeVar("T")
Tell = Callable[[str], None]


class Service:
    """One running provider. Built and run on one event loop; `tell` gets lines for the person who started it.

    Args:
        models: The embedded engines' models, already in the store.
        log_to: A file, or None for standard error.
        make_key: The command that makes a first key, shown while there is none.
        file: What the configuration's file alone said, where it is not the whole of it.
        read: The configuration as the operator asks for it now; None where there is no file to read again.
    """

    def __init__(
        self,
        config: Config,
        data: Path,
        *,
        models: Sequence[StoredModel],
        log_to: Path | None,
        tell: Tell,
        make_key: str,
        file: Config | None = None,
        read: Read | None = None,
    ) -> None:
        self._config = config
        self._data = data
        self._tell = tell
        self._make_key = make_key
        self._clock: Clock = SystemClock()
        # Seeded once from the system: reading the system's generator for every id would give the interpreter's lock away.
        chance = random.Random(os.urandom(32))
        self._started_s = self._clock.now_s()
        self._refusals = RefusalHistory(wall_s=self._clock.wall_s())
        self._port = 0
        self._stop = asyncio.Event()
        self._reload_asked = asyncio.Event()
        stream: LineStream = RotatingFile(log_to) if log_to is not None else sys.stderr
        self._log = Log(stream, self._clock)
        capture_strays(self._log)
        self._metrics = Metrics()
        self._ledger_failures = 0  # written by the ledger's thread alone
        # Before `run` nothing is lent, and what was spent is read after the journals.
        self._tell_adoption: Callable[[Adoption], object] = lambda adoption: None
        self._ledger = Ledger(
            data / sqlite.DATABASE_NAME,
            clock=self._clock,
            queue_max=config.ledger.records_max,
            is_lenient=config.ledger.is_lenient,
            is_shipped=bool(config.stores.database),
            on_failure=self._ledger_failed,
            on_recovery=lambda outage_s: self._log.event("ledger.recovered", outage_s=outage_s),
            on_commit=lambda settled: self._tell_commit(settled),
            on_adoption=self._ledger_adopted,
        )
        control_plane.check(config, models)
        opening.prepare(data, config.stores.database)
        system_key.renew(data)
        self._central = self._begin_central()
        self._ledger.start(journals(data))
        self._budgets = begin_budgets(
            config, data, self._ledger, metrics=self._metrics, log=self._log, clock=self._clock
        )
        self._shared_rates = self._begin_shared_rates()
        self._own_records: OwnRecords | None = None
        self._tell_commit: Callable[[int], None]  # set with the front, before any record can come
        self._issuers = self._build_issuers()
        self._front = self._build_front(chance)
        self._reconciliation = self._build_reconciliation()
        self._control = self._build_control(models, chance)
        # For the admin port; the gateway has connections of its own.
        self._identity = tenants.open_changed(data, clock=self._clock)
        self._prices = prices.open_served(data, clock=self._clock)
        self._reloading = self._build_reloading(file or config, read)
        self._admin = self._build_admin()

    async def run(self) -> None:
        """Serves until SIGTERM, SIGINT or a closed terminal (SIGHUP), then drains. SIGUSR1 has the configuration read again.

        Raises ConfigError where a port or file can't be had, HeadraceError where usage records were lost at the end.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGUSR1, self._reload_asked.set)
        calm_the_collector()
        self._log.event(
            "service.starting", version=headrace.__version__, pid=os.getpid(), data=str(self._data)
        )
        self._metrics.on_scrape(lambda: self._on_loop(self._fill_gauges()))
        self._loop = loop
        self._tell_adoption = lambda adoption: loop.call_soon_threadsafe(
            self._budgets.adopted, adoption.path, [usage for usage, _ in adoption.entries]
        )
        try:
            self._admin_port = self._admin.start()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._control.run(), name="control"),
                    tasks.create_task(self._serve(), name="front"),
                    tasks.create_task(self._tell_loads(), name="loads"),
                    tasks.create_task(self._issuers.run(), name="issuers"),
                    tasks.create_task(self._budgets.run(), name="budgets"),
                    tasks.create_task(self._reconciliation.run(), name="reconciliation"),
                    tasks.create_task(self._reload_when_asked(), name="reloads"),
                ]
                if self._shared_rates is not None:
                    running.append(tasks.create_task(self._shared_rates.run(), name="shared rates"))
                if self._central is not None:
                    running.append(tasks.create_task(self._central.run(), name="central"))
                await self._stop.wait()
                cut = await self._drain()
                for task in running:
                    task.cancel()
        except* Exception as errors:
            for error in leaves(errors):
                if not isinstance(error, HeadraceError):
                    self._log.internal_error(error, where="service")
            raise
        finally:
            await asyncio.to_thread(self._ledger.stop)
            if self._own_records is not None:
                self._own_records.close()
            if self._central is not None:
                await asyncio.to_thread(self._central.finish)
            self._admin.stop()
            self._identity.close()
            self._prices.close()
            self._front.close()
            self._control.close()
            (self._data / "run" / "service.json").unlink(missing_ok=True)
        self._log.event(
            "service.stopped", reason="signal", cut=cut, uptime_s=self._clock.now_s() - self._started_s
        )
        self._tell(f"stopped, {cut} requests cut" if cut else "stopped, nothing cut")
        if lost := self._ledger.backlog:
            raise HeadraceError(f"{lost} usage records were never written: {self._ledger.failed}")

    def _build_issuers(self) -> Issuers:
        auth = self._config.auth
        return Issuers(
            auth.issuers,
            LookRules(auth.keys_refresh_s, auth.keys_gap_s, auth.keys_keep_s),
            publish=lambda key_set: self._front.take_keys(key_set),
            metrics=self._metrics,
            log=self._log,
            clock=self._clock,
        )

    def _begin_central(self) -> Central | None:
        """In step with the central database, where there is one."""
        stores = self._config.stores
        if not stores.database:
            return None
        central = Central(stores, self._data, metrics=self._metrics, log=self._log, clock=self._clock)
        try:
            central.begin()
        except BaseException:
            central.close()
            raise
        return central

    def _begin_shared_rates(self) -> SharedRates | None:
        return begin_shared_rates(
            self._config, self._data, metrics=self._metrics, log=self._log, clock=self._clock
        )

    def _build_front(self, chance: random.Random) -> Front:
        if self._config.server.workers == 1 and self._shared_rates is None:
            journal = open_journal(self._data, os.getpid(), self._config)
            records = OwnRecords(self._ledger, journal, is_lenient=self._config.ledger.is_lenient)
            self._own_records = records
            self._tell_commit = records.committed
            return DataPlane(
                self._config,
                self._data,
                records=records,
                budgets=self._budgets,
                metrics=self._metrics,
                log=self._log,
                clock=self._clock,
                chance=chance,
                key_missing=self._issuers.missing,
            )
        workers = Workers(
            self._config,
            self._data,
            ledger=self._ledger,
            budgets=self._budgets,
            shared_rates=self._shared_rates,
            metrics=self._metrics,
            log=self._log,
            tell=self._tell,
            key_missing=self._issuers.missing,
            clock=self._clock,
            chance=chance,
        )
        self._tell_commit = workers.committed
        return workers

    def _build_control(self, models: Sequence[StoredModel], chance: random.Random) -> ControllerSeat:
        return ControllerSeat(
            self._config,
            self._data,
            models,
            publish=self._publish,
            found=self._front.found,
            tell=self._tell,
            first_ready=self._first_ready,
            metrics=self._metrics,
            log=self._log,
            clock=self._clock,
            chance=chance,
        )

    def _build_reconciliation(self) -> Reconciliation:
        ledger = self._config.ledger
        return Reconciliation(
            self._data,
            every_s=ledger.reconcile_every_s,
            read_every_s=ledger.counters_every_s,
            metrics=self._metrics,
            log=self._log,
            clock=self._clock,
        )

    def _build_reloading(self, file: Config, read: Read | None) -> Reloading:
        return Reloading(
            self._config,
            file,
            read,
            check=reloading.check,
            control=self._control,
            front=self._front,
            switch=self._switch,
            publish=self._publish,
            record=lambda act: audit.append(self._data, act),
            metrics=self._metrics,
            log=self._log,
            clock=self._clock,
        )

    def _build_admin(self) -> AdminServer:
        server = self._config.server
        return AdminServer(
            server.admin_host,
            server.admin_port,
            admin_token(self._data / "run"),
            metrics=self._metrics,
            elsewhere=lambda: self._on_loop(self._counted()),
            status=lambda: self._on_loop(self._status()),
            heartbeat=lambda: self._clock.now_s() - self._front.ticked_s,
            log=self._log,
            routes=admin.routes(
                self._identity,
                self._prices,
                lambda: self._config,
                self._data,
                ask_use=lambda limits: self._on_loop(self._use(limits)),
                ask_deployments=lambda: self._on_loop(self._deployments()),
                ask_refused=lambda model, since_s: self._on_loop(self._refused(model, since_s)),
                ask_reload=lambda actor: self._on_loop(self._reload(actor), limit_s=reloading.ANSWER_LIMIT_S),
                clock=self._clock,
            ),
            find=admin.finder(self._identity),
        )

    async def _serve(self) -> None:
        """The port opens once it is known what is offered, so that the first caller finds the models; but not much later for
        a controller that doesn't get there."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_REPORT_S):
                await self._control.first_report.wait()
        await self._front.run(opened=self._opened)

    async def _tell_loads(self) -> None:
        """The controller ends a replica once nobody uses it, and judges versions by how they fare."""
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            load = self._front.load()
            self._control.loaded(load)
            self._refusals.saw(load, wall_s=self._clock.wall_s())

    async def _reload_when_asked(self) -> None:
        """By a signal, whose sender gets no answer: the log has it, and whoever started the service."""
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            with contextlib.suppress(ConfigError):
                await self._reload("signal")

    async def _reload(self, actor: str) -> Reloaded:
        try:
            done = await self._reloading.reload(actor)
        except ConfigError as error:
            self._tell(f"not reloaded: {error.message}")
            raise
        self._tell("\n".join(told(done)))
        return done

    async def _drain(self) -> int:
        server = self._config.server
        in_flight = sum(report.in_progress for report in await self._front.reports())
        self._log.event("service.draining", reason="signal", in_flight=in_flight, drain_s=server.drain_s)
        self._tell(
            f"draining: {in_flight} requests in progress (at most {server.drain_s:.0f} s; Ctrl-C again ends at once)"
        )
        return await self._front.drain()

    # Called back.

    def _publish(self, snapshot: FleetSnapshot) -> None:
        self._front.publish(snapshot)
        self._reconciliation.publish(snapshot)

    def _switch(self, config: Config, version: int, snapshot: FleetSnapshot) -> None:
        self._config = config
        self._front.reload(config, version, snapshot)
        self._reconciliation.publish(snapshot)

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            self._front.end_drain()
        self._stop.set()

    def _opened(self, port: int) -> None:
        self._port = port
        server = self._config.server
        facts = {
            "pid": os.getpid(),
            "public_host": server.host,
            "public_port": port,
            "public_scheme": server.scheme,
            "admin_host": server.admin_host,
            "admin_port": self._admin_port,
            "started_s": self._clock.wall_s(),
        }
        path = self._data / "run" / "service.json"
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(facts), encoding="utf-8")
        draft.replace(path)
        self._tell(f"public port  {server.scheme}://{server.host}:{port}/v1")
        self._tell(
            f"admin port   http://{server.admin_host}:{self._admin_port}  (token in {self._data}/run/admin.token)"
        )
        if not self._front.key_count:
            self._tell(f"no key yet   make one with: {self._make_key}")

    def _first_ready(self) -> None:
        elapsed_s = self._clock.now_s() - self._started_s
        server = self._config.server
        self._log.event(
            "service.ready",
            host=server.host,
            port=self._port,
            admin_host=server.admin_host,
            admin_port=self._admin_port,
            elapsed_s=elapsed_s,
        )

    def _ledger_failed(self, message: str) -> None:
        self._ledger_failures += 1
        self._metrics.ledger_failures.labels().add()
        self._log.event("ledger.failing", error=message, backlog=self._ledger.backlog)
        if self._own_records is not None:
            self._own_records.changed()

    def _ledger_adopted(self, adoption: Adoption) -> None:
        self._metrics.ledger_adopted.labels().add(len(adoption.entries))
        self._metrics.ledger_orphans.labels().add(len(adoption.orphans))
        self._tell_adoption(adoption)
        if adoption.entries or adoption.orphans or adoption.torn:
            self._log.event(
                "ledger.adopted",
                records=len(adoption.entries),
                orphans=len(adoption.orphans),
                torn=adoption.torn,
                path=None if adoption.kept is None else str(adoption.kept),
            )

    # Asked from the admin port's thread.

    def _on_loop(self, ask: Coroutine[Any, Any, T], *, limit_s: float = ON_LOOP_LIMIT_S) -> T:
        """What `ask` returns, run on the service's loop, so that it sees no change half made."""
        return asyncio.run_coroutine_threadsafe(ask, self._loop).result(timeout=limit_s)

    async def _fill_gauges(self) -> None:
        if isinstance(self._front, DataPlane):
            self._front.fill_gauges()
        self._budgets.fill_gauges()
        self._reloading.fill_gauges()
        if self._central is not None:
            self._central.fill_gauges()
        self._metrics.ledger_backlog.labels().set(self._ledger.backlog)
        self._metrics.ledger_committed.labels().set(self._ledger.committed)
        self._metrics.ledger_failing.labels().set(self._ledger.failed is not None)

    async def _use(self, limits: LimitsInForce) -> dict[str, Any]:
        uses = await self._front.limit_uses(limits.levels)
        budgets = self._budgets.rows(limits.name)
        return {**limits.shown(uses, self._front.shadow_view(limits.name)), "budgets": budgets}

    async def _refused(self, model: str, since_s: float) -> Refused:
        return self._refusals.since(model, since_s, wall_s=self._clock.wall_s())

    async def _deployments(self) -> Mapping[str, Deployment]:
        return self._control.deployments

    async def _counted(self) -> Sequence[MetricsState]:
        return [*await self._front.counted(), *self._control.counted()]

    async def _status(self) -> dict[str, Any]:
        counted = await self._front.counted()
        return service_status(
            await self._front.reports(),
            self._control.deployments,
            self._control.replicas(),
            uptime_s=self._clock.now_s() - self._started_s,
            config=self._reloading.status(),
            controller=self._control.status(),
            rollouts=self._control.rows(),
            workers=self._front.rows(),
            budgets=self._budgets.rows(),
            central=None if self._central is None else self._central.status(),
            limit_store=None if self._shared_rates is None else self._shared_rates.status(),
            requests=ended_requests([state_of(self._metrics, names=REQUEST_COUNTS), *counted]),
            ledger={
                "backlog": self._ledger.backlog,
                "committed": self._ledger.committed,
                "failed": self._ledger_failures,
                "rejected": self._ledger.rejected,
                "duplicates": self._ledger.duplicates,
            },
        )
