"""The composition root: builds the service from its configuration, starts and stops its parts in order."""

import asyncio
import concurrent.futures
import gc
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import headrace
from headrace.config import Config, resolve_secret
from headrace.control.api import AdminServer, admin_token
from headrace.control.launchers import ProcessLauncher
from headrace.control.reconciler import Reconciler
from headrace.control.replica import EngineSpec
from headrace.control.status import ReplicaStatus, announcement
from headrace.control.upstreams import Upstream as UpstreamServer
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError, leaves
from headrace.core.fleet import Deployment, FleetSnapshot, Replica, ReplicaState
from headrace.core.tenant import TenantLimits
from headrace.engines.outbox import Outbox
from headrace.gateway.auth import Authenticator
from headrace.gateway.dispatch import Dispatch
from headrace.gateway.server import Gateway, PortLimits
from headrace.gateway.upstream import RetryRules, Upstream
from headrace.gateway.usage import UsageCloser
from headrace.gateway.watch import AttemptLimits
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import HealthRules
from headrace.policies.limits import TenantLimiter
from headrace.stores import sqlite, tenants
from headrace.stores.ledger import Ledger
from headrace.stores.registry import StoredModel
from headrace.telemetry.logfile import RotatingFile
from headrace.telemetry.logs import LineStream, Log
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.strays import capture_strays

KEY_CHECK_S = 0.25
ON_LOOP_LIMIT_S = 2.0

Tell = Callable[[str], None]


class Service:
    """One running provider. Built and run on one event loop; `tell` gets lines for the person who started it.

    Args:
        models: The embedded engines' models, already in the store.
        log_to: A file, or None for standard error.
        make_key: The command that makes a first key, shown while there is none.
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
    ) -> None:
        self._config = config
        self._data = data
        self._tell = tell
        self._make_key = make_key
        self._clock: Clock = SystemClock()
        # Seeded once from the system: reading the system's generator for every id would give the interpreter's lock away.
        self._chance = random.Random(os.urandom(32))
        self._started_s = self._clock.now_s()
        self._port = 0
        self._stop = asyncio.Event()
        self._was_ready = False
        self._seen: dict[tuple[str, str], tuple[ReplicaState, int, bool]] = {}  # by replica and model
        self._deployments: dict[str, Deployment] = {}
        stream: LineStream = RotatingFile(log_to) if log_to is not None else sys.stderr
        self._log = Log(stream, self._clock)
        capture_strays(self._log)
        self._metrics = Metrics()
        self._ledger_failures = 0  # written by the ledger's thread alone
        self._ledger = Ledger(
            data / sqlite.DATABASE_NAME,
            clock=self._clock,
            on_failure=self._ledger_failed,
            on_recovery=lambda outage_s: self._log.event("ledger.recovered", outage_s=outage_s),
        )
        self._ledger.start()
        self._tenants = tenants.open_tenants(data, clock=self._clock)
        self._auth = Authenticator(tenants.load_pepper(data / tenants.PEPPER_NAME), clock=self._clock)
        self._auth.replace(self._tenants.key_ring(_default_limits(config)))
        self._keys_revision = self._tenants.ring_revision
        self._gateway = self._build_gateway()
        self._engines = frozenset(model.name for model in models)
        self._reconciler = self._build_reconciler(models)
        self._admin = self._build_admin()

    async def run(self) -> None:
        """Serves until SIGTERM, SIGINT or a closed terminal (SIGHUP), then drains.

        Raises ConfigError where a port or file can't be had, HeadraceError where usage records were lost at the end.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                loop.add_signal_handler(number, self._asked_to_stop)
        _calm_the_collector()
        self._log.event(
            "service.starting", version=headrace.__version__, pid=os.getpid(), data=str(self._data)
        )
        self._metrics.on_scrape(lambda: self._on_loop(self._fill_gauges))
        self._loop = loop
        try:
            self._admin_port = self._admin.start()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._serve(), name="gateway"),
                    tasks.create_task(self._reconciler.run(), name="control"),
                    tasks.create_task(self._watch_keys(), name="keys"),
                ]
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
            self._admin.stop()
            self._tenants.close()
            (self._data / "run" / "service.json").unlink(missing_ok=True)
        self._log.event(
            "service.stopped", reason="signal", cut=cut, uptime_s=self._clock.now_s() - self._started_s
        )
        self._tell(f"stopped, {cut} requests cut" if cut else "stopped, nothing cut")
        if lost := self._ledger.backlog:
            raise HeadraceError(f"{lost} usage records were never written: {self._ledger.failed}")

    # Parts.

    def _build_gateway(self) -> Gateway:
        config, clock = self._config, self._clock
        request, health = config.request, config.health
        rules = HealthRules(health.failures_to_eject, health.ejection_s, health.ejection_max_s)
        dispatcher = Dispatcher(
            queue_length_max=config.admission.queue_length_max, health=rules, chance=self._chance
        )
        outbox = Outbox()
        return Gateway(
            auth=self._auth,
            outbox=outbox,
            dispatch=Dispatch(
                dispatcher,
                TenantLimiter(),
                clock=clock,
                queue_wait_max_s=config.admission.queue_wait_max_s,
                on_ejected=self._ejected,
            ),
            upstream=Upstream(
                rules=RetryRules(request.attempts_max, request.retry_ratio, request.retry_floor_per_s),
                limits=AttemptLimits(
                    request.first_event_limit_s, request.stall_limit_s, request.write_stall_limit_s
                ),
                outbox=outbox,
                metrics=self._metrics,
                log=self._log,
                clock=clock,
            ),
            usage=UsageCloser(self._ledger, self._metrics, self._log, clock=clock),
            limits=PortLimits(
                connections_max=config.server.connections_max,
                header_timeout_s=config.server.header_timeout_s,
                idle_timeout_s=config.server.idle_timeout_s,
                write_stall_limit_s=request.write_stall_limit_s,
                body_bytes_per_s_min=config.server.body_bytes_per_s_min,
                body_bytes_max=config.server.body_bytes_max,
                deadline_s=request.deadline_s,
                deadline_max_s=request.deadline_max_s,
                heartbeat_s=request.heartbeat_s,
            ),
            accepts_work=lambda: not self._ledger.is_behind,
            metrics=self._metrics,
            log=self._log,
            clock=clock,
            chance=self._chance,
        )

    def _build_reconciler(self, models: Sequence[StoredModel]) -> Reconciler:
        engine = self._config.engine
        return Reconciler(
            [
                EngineSpec(
                    deployment=model.name,
                    model_path=model.path,
                    model_sha256=model.sha256,
                    task=model.task,
                    slots=engine.slots,
                    context_tokens=engine.context_tokens,
                    threads=engine.threads,
                )
                for model in models
            ],
            [
                UpstreamServer(
                    upstream.url,
                    upstream.slots,
                    f"Bearer {resolve_secret(upstream.api_key, key=f'upstreams[{index}].api_key')}"
                    if upstream.api_key
                    else "",
                )
                for index, upstream in enumerate(self._config.upstreams)
            ],
            launcher=ProcessLauncher(logs=self._data / "logs"),
            clock=self._clock,
            chance=self._chance,
            publish=self._published,
            observe=self._observed,
        )

    def _build_admin(self) -> AdminServer:
        server = self._config.server
        return AdminServer(
            server.admin_host,
            server.admin_port,
            admin_token(self._data / "run"),
            metrics=self._metrics,
            status=lambda: self._on_loop(self._status),
            heartbeat=lambda: self._clock.now_s() - self._gateway.ticked_s,
            log=self._log,
        )

    # Tasks.

    async def _serve(self) -> None:
        server = self._config.server
        try:
            await self._gateway.serve(server.host, server.port, opened=self._opened)
        except* OSError as errors:
            if self._port:
                raise
            raise ConfigError(
                f"public port {server.host}:{server.port} can't be opened: {errors.exceptions[0]}; "
                "choose another with --port or `server.port`"
            ) from None

    async def _watch_keys(self) -> None:
        """Keys and limits changed by a command are in force within a second; those that can't be read stay as they are."""
        was_read = True
        while True:
            await asyncio.sleep(KEY_CHECK_S)
            try:
                if await asyncio.to_thread(self._tenants.changed):
                    ring = await asyncio.to_thread(self._tenants.key_ring, _default_limits(self._config))
                    self._auth.replace(ring)
                    self._keys_revision = self._tenants.ring_revision
                    self._log.event("keys.reloaded", keys=len(ring))
                was_read = True
            except Exception as error:  # noqa: BLE001 -- the task's edge: the service outlives its database
                self._metrics.internal_errors.labels("keys").add()
                if was_read:
                    self._log.event("keys.failing", error=f"{type(error).__name__}: {error}")
                was_read = False

    async def _drain(self) -> int:
        server = self._config.server
        in_flight = self._gateway.in_progress
        self._log.event("service.draining", reason="signal", in_flight=in_flight, drain_s=server.drain_s)
        self._tell(
            f"draining: {in_flight} requests in progress (at most {server.drain_s:.0f} s; Ctrl-C again ends at once)"
        )
        return await self._gateway.drain(server.drain_s)

    # Called back.

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            self._gateway.end_drain()
        self._stop.set()

    def _opened(self, port: int) -> None:
        self._port = port
        server = self._config.server
        facts = {
            "pid": os.getpid(),
            "public_host": server.host,
            "public_port": port,
            "admin_host": server.admin_host,
            "admin_port": self._admin_port,
            "started_s": self._clock.wall_s(),
        }
        path = self._data / "run" / "service.json"
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(facts), encoding="utf-8")
        draft.replace(path)
        self._tell(f"public port  http://{server.host}:{port}/v1")
        self._tell(
            f"admin port   http://{server.admin_host}:{self._admin_port}  (token in {self._data}/run/admin.token)"
        )
        if not self._auth.key_count:
            self._tell(f"no key yet   make one with: {self._make_key}")

    def _published(self, snapshot: FleetSnapshot) -> None:
        self._deployments = snapshot.deployments
        self._gateway.publish(snapshot)

    def _observed(self, status: ReplicaStatus) -> None:
        """A replica changed or was scraped: gauges, and for changes a log line and a word to the terminal."""
        metrics, labels = self._metrics, (status.deployment, status.replica)
        metrics.replica_ready.labels(*labels).set(status.state is ReplicaState.READY)
        metrics.replica_restarts.labels(*labels).set(status.restarts)
        for family, gauge in (
            (metrics.engine_requests_processing, "requests_processing"),
            (metrics.engine_requests_deferred, "requests_deferred"),
            (metrics.engine_prompt_tokens, "prompt_tokens_total"),
            (metrics.engine_generated_tokens, "tokens_predicted_total"),
            (metrics.engine_cached_tokens, "prompt_tokens_cached_total"),
        ):
            if gauge in status.gauges:
                family.labels(*labels).set(status.gauges[gauge])
        key = (status.replica, status.deployment)
        # An engine that ended is first withdrawn, and only then is it known why; other reasons come and go untold.
        is_explained = status.state is ReplicaState.PENDING and status.reason != ""
        if self._seen.get(key) == (status.state, status.generation, is_explained):
            return
        self._seen[key] = (status.state, status.generation, is_explained)
        self._replica_changed(status)
        if line := announcement(status, is_ours=status.deployment in self._engines):
            self._tell(line)

    def _replica_changed(self, status: ReplicaStatus) -> None:
        facts: dict[str, Any] = {
            "replica": status.replica,
            "model": status.deployment,
            "generation": status.generation,
        }
        match status.state:
            case ReplicaState.STARTING:
                self._log.event("replica.starting", **facts, pid=status.pid, restarts=status.restarts)
            case ReplicaState.READY:
                cold = status.cold_start
                stages = (
                    {}
                    if cold is None
                    else {"launch_s": cold.launch_s, "load_s": cold.load_s, "warm_s": cold.warm_s}
                )
                self._log.event("replica.ready", **facts, pid=status.pid, **stages)
                for stage, seconds in stages.items():
                    self._metrics.replica_cold_start_seconds.labels(
                        status.deployment, status.replica, stage.removesuffix("_s")
                    ).set(seconds)
                self._first_ready()
            case ReplicaState.FAILED:
                self._log.event("replica.failed", **facts, reason=status.reason, restarts=status.restarts)
            case ReplicaState.PENDING if status.reason:
                self._log.event("replica.lost", **facts, reason=status.reason, restarts=status.restarts)
            case _:
                pass

    def _first_ready(self) -> None:
        if self._was_ready:
            return
        self._was_ready = True
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

    def _ejected(self, replica: Replica) -> None:
        self._log.event(
            "replica.ejected", replica=replica.id, generation=replica.generation, reason="failures in a row"
        )

    def _ledger_failed(self, message: str) -> None:
        self._ledger_failures += 1
        self._metrics.ledger_failures.labels().add()
        self._log.event("ledger.failing", error=message, backlog=self._ledger.backlog)

    # Asked from the admin port's thread.

    def _on_loop(self, ask: Callable[[], Any]) -> Any:
        """What `ask` returns, called on the gateway's loop, so that it sees no change half made."""
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def call() -> None:
            try:
                answer.set_result(ask())
            except Exception as error:  # noqa: BLE001 -- handed over to the asking thread
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return answer.result(timeout=ON_LOOP_LIMIT_S)

    def _fill_gauges(self) -> None:
        metrics, gateway = self._metrics, self._gateway
        metrics.connections.labels().set(gateway.connection_count)
        metrics.streams_open.labels().set(gateway.streams_open)
        metrics.ledger_backlog.labels().set(self._ledger.backlog)
        metrics.ledger_committed.labels().set(self._ledger.committed)
        now_s = self._clock.now_s()
        for model in self._deployments:
            metrics.queue_length.labels(model).set(gateway.dispatch.queue_length(model))
        metrics.in_flight.clear()
        metrics.replica_ejected.clear()
        for model, load in gateway.dispatch.loads():
            metrics.in_flight.labels(model, load.replica.id).set(load.outstanding)
            metrics.replica_ejected.labels(model, load.replica.id).set(load.health.is_ejected(now_s))

    def _status(self) -> dict[str, Any]:
        """The service as `headrace status` shows it."""
        gateway, now_s = self._gateway, self._clock.now_s()
        loads = {(model, load.replica.id): load for model, load in gateway.dispatch.loads()}
        replicas: dict[str, list[dict[str, Any]]] = {name: [] for name in self._deployments}
        for status in self._reconciler.status():
            load = loads.get((status.deployment, status.replica))
            cold = status.cold_start
            replicas.setdefault(status.deployment, []).append(
                {
                    "id": status.replica,
                    "state": status.state.value,
                    "reason": status.reason,
                    "generation": status.generation,
                    "restarts": status.restarts,
                    "slots": load.slots if load else 0,
                    "in_flight": load.outstanding if load else 0,
                    "ejected": bool(load and load.health.is_ejected(now_s)),
                    "pid": status.pid,
                    "cold_start_s": cold
                    and {"launch": cold.launch_s, "load": cold.load_s, "warm": cold.warm_s},
                    "gauges": dict(status.gauges),
                }
            )
        return {
            "version": headrace.__version__,
            "uptime_s": now_s - self._started_s,
            "ready": gateway.is_ready,
            "connections": gateway.connection_count,
            "in_flight": gateway.in_progress - gateway.dispatch.waiting,
            "queued": gateway.dispatch.waiting,
            "deployments": [
                {
                    "model": name,
                    "tasks": sorted(task.value for task in deployment.tasks),
                    "revision": deployment.revision,
                    "ready": len(deployment.replicas),
                    "queued": gateway.dispatch.queue_length(name),
                    "replicas": replicas[name],
                }
                for name, deployment in self._deployments.items()
            ]
            # Servers that have never answered, so that nobody knows what they offer.
            + [
                {"model": None, "tasks": [], "revision": "", "ready": 0, "queued": 0, "replicas": unknown}
                for name, unknown in replicas.items()
                if name not in self._deployments
            ],
            "keys": {"count": self._auth.key_count, "revision": self._keys_revision},
            "ledger": {
                "backlog": self._ledger.backlog,
                "committed": self._ledger.committed,
                "failed": self._ledger_failures,
                "rejected": self._ledger.rejected,
                "duplicates": self._ledger.duplicates,
            },
        }


def _default_limits(config: Config) -> TenantLimits:
    defaults = config.tenant_defaults
    return TenantLimits(defaults.requests_per_minute, defaults.requests_burst, defaults.concurrency_max)


def _calm_the_collector() -> None:
    """What is alive now (modules, tables) lives as long as the process: it is never looked at again for cycles, and the
    rest less often. The request path makes hardly any cycles; at the default thresholds the collector took 5 % of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
