"""The control plane, put together: replicas and upstreams kept true, and each change of them told and counted."""

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.app import system_key
from headrace.app.acceptance import AcceptanceChild
from headrace.app.replica_news import ReplicaNews
from headrace.app.rollout_news import RolloutNews
from headrace.app.scale_news import ScaleNews
from headrace.app.supplier import ModelSupplier, server_of
from headrace.config import Config, resolve_secret
from headrace.control.autoscaler import ScaleByLoad
from headrace.control.cold_starts import ColdStarts
from headrace.control.engine_spec import EngineSpec
from headrace.control.engine_watch import EngineLimits
from headrace.control.fleet import Before, Fleet
from headrace.control.launchers import Launcher
from headrace.control.launches import Adopted, Launches
from headrace.control.lease import sole_controller
from headrace.control.lives import Kept
from headrace.control.offers import Offers
from headrace.control.reconciler import Reconciler, refuse_twins
from headrace.control.remote import RemoteReplica
from headrace.control.replica import EngineReplica
from headrace.control.rollouts import GatedRollouts
from headrace.control.status import ColdStart, ReplicaStatus
from headrace.control.upstreams import UNPINNED, Remembered
from headrace.control.upstreams import Upstream as UpstreamServer
from headrace.control.wanted import WantedVersions
from headrace.core.clock import Clock
from headrace.core.deployments import AppliedVersion, EngineKind
from headrace.core.fleet import Deployment, FleetSnapshot
from headrace.core.ids import ReplicaId
from headrace.core.isolation import CacheIsolation
from headrace.core.load import PlaneLoad
from headrace.policies.replica_life import Restarts
from headrace.stores.database import DatabaseUnavailable
from headrace.stores.deployments import open_deployments
from headrace.stores.fleet import FleetStore, open_fleet
from headrace.stores.registry import StoredModel
from headrace.telemetry import hardware
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


class ControlPlane:
    """Publishes what is offered, to one data plane or to many.

    State: `_offers`, what the fleet offers, and `_servers`, what servers do that others run; together they are the snapshot.

    Args:
        lifeline_fd: The reading end of the service's lifeline.
        before: What an earlier controller of this service has left.
        remembered: What it knew of the upstreams.
        publish: Gets every new snapshot.
        found: Gets the id of a server that answers a probe after it had not answered one.
        tell: Gets lines for the person who started the service.
        changed: Called after each change of a replica, once it is told and counted.
    """

    def __init__(
        self,
        config: Config,
        data: Path,
        models: Sequence[StoredModel],
        *,
        lifeline_fd: int,
        before: Before,
        remembered: Mapping[ReplicaId, Remembered],
        publish: Callable[[FleetSnapshot], None],
        found: Callable[[ReplicaId], None],
        tell: Callable[[str], None],
        changed: Callable[[], None],
        metrics: Metrics,
        log: Log,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._data = data
        self._publish = publish
        self._found = found
        self._changed = changed
        self._log = log
        self._clock = clock
        self._chance = chance
        self._news = ReplicaNews(
            frozenset(model.name for model in models), tell=tell, metrics=metrics, log=log
        )
        self._rollout_news = RolloutNews(tell=tell, metrics=metrics, log=log)
        self._supplier = ModelSupplier(config, data, models, log)
        self._scale_news = ScaleNews(metrics=metrics, log=log)
        self._launcher = Launcher(
            run=data / "run" / "replicas", logs=data / "logs", lifeline_fd=lifeline_fd, clock=clock
        )
        self._acceptance = AcceptanceChild(
            url=lambda: _public_url(data),
            key=f"file:{data / 'run' / system_key.NAME}",
            data=data,
            certificate=config.server.tls_certificate,
        )
        self._before = before
        self._snapshot = before.snapshot
        self._offers = Offers({}, {})
        self._servers = _of_servers(before.snapshot)
        self._fleet: Fleet | None = None
        self._store: FleetStore  # these two as soon as nobody else acts
        self._cold_starts: ColdStarts
        self._is_settled = False
        self._is_switching = False
        self.epoch = 0
        self.problem = ""
        self._reconciler = Reconciler(
            [],
            _upstreams(config),
            launcher=self._launcher,
            clock=clock,
            chance=chance,
            publish=self._servers_offer,
            observe=self._observed,
            found=found,
            before=self._servers,
            remembered=remembered,
        )
        for status in (*self._reconciler.status(), *before.statuses.values()):
            if status.replica in remembered or status.replica in before.statuses:  # told by who learned it
                self._news.know(status)

    async def run(self) -> None:
        """Until cancelled; engines go on, unless `end` was called before. Waits until no other controller acts."""
        async with sole_controller(self._data / "run"), contextlib.AsyncExitStack() as opened:
            store = open_fleet(self._data, clock=self._clock)
            opened.callback(store.close)
            deployments = open_deployments(self._data, clock=self._clock, actor="controller")
            opened.callback(deployments.close)
            self.epoch = store.take_lease(f"pid {os.getpid()}")
            self._store = store
            self._cold_starts = ColdStarts(hardware=hardware.in_words(), stored=store.all_starts())
            wanted = WantedVersions(deployments, self._supplier.implicit())
            self._fleet = Fleet(
                wanted=wanted,
                store=store,
                supplier=self._supplier,
                make=self._make,
                launcher=self._launcher,
                autoscaler=ScaleByLoad(
                    figures=self._cold_starts.figures,
                    decided=self._scale_news.decided,
                    forgotten=self._scale_news.forget,
                ),
                rollouts=GatedRollouts(
                    applied=wanted.version,
                    run_acceptance=self._acceptance,
                    want=deployments.want,
                    observed=self._rollout_news.observed,
                ),
                before=self._before,
                publish=self._fleet_offers,
                observe=self._observed,
                started=self._started,
                gone=self._gone,
                failing=self._failing,
                clock=self._clock,
            )
            await self._run_both(self._fleet)

    async def reconfigure(self, config: Config) -> list[str]:
        """Upstreams as that configuration has them. What is offered then is in `snapshot` and is not published by itself: whoever
        asked puts it in force together with the rest. Returns the upstreams that have not answered yet.

        Raises ConfigError for a secret that isn't there, or a file that can't be read; then all stays as it was.
        """
        change = self._reconciler.change(_upstreams(config))
        await change.answered()
        self._is_switching = True
        try:
            for status in change.switch():
                self._news.forget(status)
            self._refresh()
        finally:
            self._is_switching = False
        self._changed()
        return change.silent()

    @property
    def snapshot(self) -> FleetSnapshot:
        """What is offered."""
        return self._snapshot

    async def _run_both(self, fleet: Fleet) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fleet.run(), name="fleet")
            tasks.create_task(self._reconciler.run(), name="upstreams")

    def end(self) -> None:
        """The engines shall end when this is cancelled."""
        if self._fleet is not None:
            self._fleet.end()

    def loaded(self, load: PlaneLoad) -> None:
        """What the data planes do now, all together."""
        if self._fleet is not None:
            self._fleet.loaded(load)

    @property
    def is_settled(self) -> bool:
        """Whether it is known what is offered."""
        return self._is_settled

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Every replica at this moment."""
        ours = () if self._fleet is None else self._fleet.statuses()
        return (*ours, *self._reconciler.status())

    def rows(self) -> list[dict[str, Any]]:
        """Every deployment as status shows it."""
        return [] if self._fleet is None else self._fleet.rows()

    def remember(self) -> dict[ReplicaId, Remembered]:
        """What is known of the upstreams, for the next one in this one's place."""
        return self._reconciler.remember()

    def _make(
        self,
        spec: EngineSpec,
        id: ReplicaId,
        *,
        launches: Launches,
        adopted: Adopted | None,
        before: Deployment | None,
        changed: Callable[[ReplicaStatus], None],
    ) -> Kept:
        if spec.engine == EngineKind.REMOTE:
            return RemoteReplica(
                spec,
                server_of(spec),
                id=id,
                launches=launches,
                before=before,
                changed=changed,
                found=self._found,
            )
        return EngineReplica(
            spec,
            id=id,
            launches=launches,
            adopted=adopted,
            launcher=self._launcher,
            clock=self._clock,
            chance=self._chance,
            limits=EngineLimits(),
            restarts=Restarts(),
            weights=self._supplier.weights,
            changed=changed,
        )

    def _observed(self, status: ReplicaStatus) -> None:
        self._news.take(status)
        self._changed()

    def _started(self, applied: AppliedVersion, cold: ColdStart) -> None:
        """Measured starts are kept, for the autoscaler, plans, and callers who are told when to come back."""
        stages = {stage.removesuffix("_s"): seconds for stage, seconds in cold.stages().items()}
        start = self._cold_starts.note(applied, stages, at_s=self._clock.wall_s())
        if start is not None:
            with contextlib.suppress(DatabaseUnavailable):  # the next start is as good
                self._store.note_start(start)

    def _gone(self, status: ReplicaStatus) -> None:
        self._news.forget(status)
        self._changed()

    def _failing(self, error: str) -> None:
        self.problem = error
        if error:
            self._log.event("controller.failing", error=error)
        self._changed()

    def _fleet_offers(self, offers: Offers) -> int:
        self._offers = offers
        self._is_settled = True
        return self._refresh()

    def _servers_offer(self, servers: FleetSnapshot) -> None:
        self._servers = servers
        if self._is_settled:  # before, what is in force has engines that aren't known here yet
            self._refresh()

    def _refresh(self) -> int:
        """Publishes what is offered now, if that is anything else. What was applied goes before a server's model of its name."""
        deployments = self._servers.deployments | self._offers.deployments
        routes = self._offers.routes
        if (deployments, routes) != (self._snapshot.deployments, self._snapshot.routes):
            self._snapshot = FleetSnapshot(self._snapshot.version + 1, deployments, routes)
            if not self._is_switching:
                self._publish(self._snapshot)
            self._changed()
        return self._snapshot.version


def check(config: Config, models: Sequence[StoredModel]) -> None:
    """Raises ConfigError for what no control plane could keep true, before anything is started."""
    refuse_twins("engine", [model.name for model in models])
    for upstream in _upstreams(config):
        upstream.address()


def _public_url(data: Path) -> str:
    """Where the service's port is, as its file says; "" while it isn't open."""
    try:
        facts = json.loads((data / "run" / "service.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    # A wildcard is an address to listen on, not one to connect to.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(facts["public_host"], facts["public_host"])
    return f"{facts['public_scheme']}://{host}:{facts['public_port']}/v1"


def _of_servers(snapshot: FleetSnapshot) -> FleetSnapshot:
    """The part of it that servers offer which others run."""
    offered = {key: each for key, each in snapshot.deployments.items() if each.revision == UNPINNED}
    return FleetSnapshot(snapshot.version, offered)


def _upstreams(config: Config) -> list[UpstreamServer]:
    """Raises ConfigError for a secret that isn't there."""
    return [
        UpstreamServer(
            upstream.url,
            upstream.slots,
            f"Bearer {resolve_secret(upstream.api_key, key=f'upstreams[{index}].api_key')}"
            if upstream.api_key
            else "",
            upstream.ca_file,
            None if upstream.cache_isolation == "auto" else CacheIsolation(upstream.cache_isolation),
            upstream.shared_cache_reason,
            upstream.location or config.server.location,
        )
        for index, upstream in enumerate(config.upstreams)
    ]
