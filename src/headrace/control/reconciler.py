"""What runs, compared with what should run: one task for each engine and upstream, one snapshot out of them all."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headrace.control import upstreams as upstream_servers
from headrace.control.engine_spec import EngineSpec
from headrace.control.engine_watch import EngineLimits
from headrace.control.launchers import Launcher
from headrace.control.replica import EngineReplica
from headrace.control.status import ReplicaStatus
from headrace.control.upstreams import Remembered, Upstream, UpstreamLimits, UpstreamWatch
from headrace.control.weights import Weights
from headrace.core.chance import Chance
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.fleet import FleetSnapshot
from headrace.core.ids import ReplicaId
from headrace.engines.kinds import KINDS
from headrace.engines.starting import Kind
from headrace.policies.replica_life import Restarts

# Longer than a server that is there needs; a change doesn't wait longer for one that isn't.
FIRST_ANSWER_LIMIT_S = 0.5
NOTHING = FleetSnapshot()
NOBODY: Mapping[ReplicaId, Remembered] = {}


class Reconciler:
    """Keeps the engines running, watches the upstreams, and publishes each change of what the gateway may use.

    Args:
        publish: Gets a whole new snapshot, its version one higher, whenever deployments or replicas change.
        observe: Gets the status of a replica whenever it changes or was scraped.
        found: Gets the id of a server that answers a probe after it had not answered one.
        before: What an earlier controller has published, and what is in force.
        remembered: What it knew of the upstreams.
    Raises:
        ConfigError: Two engines of one name, an upstream given twice, or a URL that can't be served.
    """

    def __init__(
        self,
        engines: Sequence[EngineSpec],
        upstreams: Sequence[Upstream],
        *,
        launcher: Launcher,
        clock: Clock,
        chance: Chance,
        publish: Callable[[FleetSnapshot], None],
        observe: Callable[[ReplicaStatus], None],
        found: Callable[[ReplicaId], None] = lambda _: None,
        before: FleetSnapshot = NOTHING,
        remembered: Mapping[ReplicaId, Remembered] = NOBODY,
        engine_limits: EngineLimits | None = None,
        upstream_limits: UpstreamLimits | None = None,
        restarts: Restarts | None = None,
        kinds: Mapping[str, Kind] = KINDS,
        weights: Weights | None = None,
    ) -> None:
        self._publish = publish
        self._observe = observe
        self._found = found
        self._upstream_limits = upstream_limits or UpstreamLimits()
        self._tasks: asyncio.TaskGroup | None = None
        self._watching: dict[UpstreamWatch, asyncio.Task[None]] = {}
        self._version = before.version
        self._deployments = before.deployments
        self._engines = [
            EngineReplica(
                spec,
                launcher=launcher,
                clock=clock,
                chance=chance,
                limits=engine_limits or EngineLimits(),
                restarts=restarts or Restarts(),
                changed=self._changed,
                kinds=kinds,
                weights=weights,
            )
            for spec in engines
        ]
        self._upstreams = [
            UpstreamWatch(
                upstream,
                limits=self._upstream_limits,
                changed=self._changed,
                found=found,
                remembered=remembered,
            )
            for upstream in upstreams
        ]
        refuse_twins("engine", [spec.deployment for spec in engines])
        refuse_twins("upstream", [watch.id for watch in self._upstreams])

    async def run(self) -> None:
        """Until cancelled; then every engine is stopped within its grace."""
        self._refresh()
        async with asyncio.TaskGroup() as tasks:
            for engine in self._engines:
                tasks.create_task(engine.run(), name=f"engine {engine.id}")
            self._tasks = tasks
            for watch in self._upstreams:
                self._watch(watch)
            await (
                asyncio.get_running_loop().create_future()
            )  # also with nothing to run: the end is a cancellation

    def _watch(self, watch: UpstreamWatch) -> None:
        assert self._tasks is not None, "nothing is watched before `run`"
        self._watching[watch] = self._tasks.create_task(watch.run(), name=f"upstream {watch.id}")

    def change(self, upstreams: Sequence[Upstream]) -> "UpstreamChange":
        """Those shall be the upstreams; the new ones are asked at once. Raises ConfigError as the constructor does."""
        same = {watch.upstream: watch for watch in self._upstreams}
        wanted = [same.get(upstream) or self._watch_of(upstream) for upstream in upstreams]
        refuse_twins("upstream", [watch.id for watch in wanted])
        new = [watch for watch in wanted if watch not in self._watching]
        if self._tasks is not None:
            for watch in new:
                self._watch(watch)
        return UpstreamChange(wanted, new, self._go_by)

    def _watch_of(self, upstream: Upstream) -> UpstreamWatch:
        """It goes on from what is known of that server already."""
        watch = UpstreamWatch(
            upstream,
            limits=self._upstream_limits,
            changed=self._changed,
            found=self._found,
            remembered=self.remember(),
        )
        for before in self._upstreams:
            if before.id == watch.id and not upstream.is_used_as(before.upstream):
                watch.begin_generation()
        return watch

    def _go_by(self, wanted: list[UpstreamWatch]) -> list[ReplicaStatus]:
        """Returns the last statuses of servers that are watched no longer."""
        before, self._upstreams = self._upstreams, wanted
        ids = {watch.id for watch in wanted}
        for watch in before:
            if watch not in wanted and (task := self._watching.pop(watch, None)) is not None:
                task.cancel()
        if all(watch.has_answered for watch in wanted):
            # What nobody lists any more isn't to come back to; while one hasn't said what it has, nobody knows.
            kept = {engine.deployment().name for engine in self._engines}
            self._deployments = {
                name: known
                for name, known in self._deployments.items()
                if name in kept or any(watch.lists(name) for watch in wanted)
            }
        self._refresh(is_due=True)
        return [status for watch in before if watch.id not in ids for status in watch.statuses()]

    def status(self) -> tuple[ReplicaStatus, ...]:
        """Every replica at this moment."""
        return (
            *(engine.status() for engine in self._engines),
            *(status for watch in self._upstreams for status in watch.statuses()),
        )

    def remember(self) -> dict[ReplicaId, Remembered]:
        """What is known of the upstreams, for the next one in this one's place."""
        return {watch.id: watch.remember() for watch in self._upstreams}

    def _changed(self, status: ReplicaStatus) -> None:
        self._observe(status)
        self._refresh()

    def _refresh(self, *, is_due: bool = False) -> None:
        """Publishes what is offered now, if it differs from what was published last, or `is_due`.

        A name once offered stays, without replicas: its callers should come back, not look for another model. An
        engine of ours goes before an upstream's model of the same name, because it is what the operator asked for.
        """
        offered = {
            name: replace(offer, locations=self._locations(name))
            for name, offer in upstream_servers.joined(
                offer for watch in self._upstreams for offer in watch.offers()
            ).items()
        }
        offered |= {deployment.name: deployment for deployment in (e.deployment() for e in self._engines)}
        gone = {name: replace(known, replicas=()) for name, known in self._deployments.items()}
        deployments = gone | offered
        if is_due or deployments != self._deployments:
            self._deployments = deployments
            self._version += 1
            self._publish(FleetSnapshot(version=self._version, deployments=deployments))

    def _locations(self, model: str) -> tuple[str, ...]:
        """Also of the servers that are out: what they may serve again can't be refused for good."""
        return tuple(sorted({watch.location for watch in self._upstreams if watch.lists(model)}))


class UpstreamChange:
    """Other upstreams, which are asked already and don't count yet."""

    def __init__(
        self,
        wanted: list[UpstreamWatch],
        new: list[UpstreamWatch],
        go_by: Callable[[list[UpstreamWatch]], list[ReplicaStatus]],
    ) -> None:
        self._wanted = wanted
        self._new = new
        self._go_by = go_by

    async def answered(self) -> None:
        """Waits until each of the new ones was asked once, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER_LIMIT_S):
                for watch in self._new:
                    await watch.asked.wait()

    def switch(self) -> list[ReplicaStatus]:
        """They count now, and the others don't. Returns the last statuses of servers that are watched no longer."""
        return self._go_by(self._wanted)

    def silent(self) -> list[str]:
        """Those of the new ones that can't be used yet."""
        return [watch.id for watch in self._new if not watch.offers()]


def refuse_twins(kind: str, names: Sequence[str]) -> None:
    """Raises ConfigError where one is given twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"{kind} {name!r} is given {count} times; each may be given once")
