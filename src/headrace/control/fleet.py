"""Are there as many replicas of each version as there should be, and do requests go where they should? Looked at again and again.

Every look goes the same way, whatever happened before it: read what is wanted, ask how that is to be reached
(control/steering.py), store the answer, publish the routes, then start and end replicas. A step that fails, or a controller
that dies between two of them, leaves nothing that the next look doesn't see.

A replica goes in two phases. First it is left out of the snapshot; once every data plane serves from that snapshot and none
has a request on it any more, or its time for that is over, its engine is ended.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from headrace.control.engine_spec import EngineSpec
from headrace.control.launchers import Launcher
from headrace.control.launches import Adopted, Launches
from headrace.control.lives import Kept, Life, StoredLaunches
from headrace.control.offers import Offers, offered_before, offers_of
from headrace.control.sight import Sight
from headrace.control.status import ColdStart, ReplicaStatus
from headrace.control.steering import (
    Autoscaler,
    Bounds,
    DeploymentSeen,
    Rollouts,
    Scaled,
    Steering,
    TargetSeen,
)
from headrace.control.supplies import Supplier, Supplies
from headrace.control.wanted import WantedVersions
from headrace.core.clock import Clock
from headrace.core.deployments import AppliedVersion
from headrace.core.errors import HeadraceError
from headrace.core.fleet import Deployment, FleetSnapshot, target_key
from headrace.core.ids import ReplicaId
from headrace.core.load import PlaneLoad
from headrace.policies.replica_plan import Plan, Present, plan
from headrace.stores.database import DatabaseUnavailable
from headrace.stores.fleet import Change, DeploymentRow, FleetStore, ReplicaRow, lowest_free

LOOK_EVERY_S = 0.1
# States that only count time are stored this often; what a crash takes of them is made up for by the next look.
KEEP_EVERY_S = 10.0
AGAIN_S = 1.0

TargetId = tuple[str, int]


class MakesReplicas(Protocol):
    """Makes what keeps one engine of a version running."""

    def __call__(
        self,
        spec: EngineSpec,
        id: ReplicaId,
        *,
        launches: Launches,
        adopted: Adopted | None,
        before: Deployment | None,
        changed: Callable[[ReplicaStatus], None],
    ) -> Kept: ...


class Before(NamedTuple):
    """What an earlier controller of this service has left; with `is_first` there was none, and what runs is of a service that has
    ended.

    Attributes:
        snapshot: What is in force.
        statuses: What it last said of its replicas.
    """

    is_first: bool
    snapshot: FleetSnapshot
    statuses: Mapping[ReplicaId, ReplicaStatus]


class _Look(NamedTuple):
    """What one look has found out, before any of it is in force."""

    change: Change
    steered: dict[str, Steering]
    scaled: dict[TargetId, Scaled]


class Fleet:
    """Keeps what runs as it should be until cancelled. Engines outlive it, unless `end` was called before.

    State, all of it the loop's: `_lives`, by replica; `_fenced`, ids under which something is being ended; `_kept`, `_scaled` and `_steered`, what was last answered for each
    deployment or target, stored before it stands here.

    Args:
        publish: Gets everything that is offered whenever it may have changed; returns the version of the snapshot.
        observe: Gets the status of a replica whenever it changes or was scraped.
        started: Gets what a start took, once it is ready.
        gone: Gets its last one when nothing is left of it.
        failing: Gets what goes wrong with the store or a replica's files, and "" when it goes right again.
    """

    def __init__(
        self,
        *,
        wanted: WantedVersions,
        store: FleetStore,
        supplier: Supplier,
        make: MakesReplicas,
        launcher: Launcher,
        autoscaler: Autoscaler,
        rollouts: Rollouts,
        before: Before,
        publish: Callable[[Offers], int],
        observe: Callable[[ReplicaStatus], None],
        started: Callable[[AppliedVersion, ColdStart], None],
        gone: Callable[[ReplicaStatus], None],
        failing: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._wanted = wanted
        self._store = store
        self._supplies = Supplies(supplier, self.wake)
        self._make = make
        self._launcher = launcher
        self._autoscaler = autoscaler
        self._rollouts = rollouts
        self._before = before
        self._publish = publish
        self._observe = observe
        self._started = started
        self._gone = gone
        self._failing = failing
        self._clock = clock
        self._wake = asyncio.Event()
        self._tasks: asyncio.TaskGroup
        self._lives: dict[ReplicaId, Life] = {}
        self._fenced: set[ReplicaId] = set()
        self._sight = Sight(wanted)
        self._kept: dict[str, DeploymentRow] = {}
        self._kept_scales: dict[TargetId, str] = {}
        self._steered: dict[str, Steering] = {}
        self._scaled: dict[TargetId, Scaled] = {}
        self._stored_s = float("-inf")
        self._error = ""
        self._has_looked = False

    async def run(self) -> None:
        """Until cancelled. Raises LeaseLost when another controller has taken over, DatabaseUnavailable where nothing can be read."""
        async with asyncio.TaskGroup() as self._tasks:
            await self._recover()
            self._tasks.create_task(self._rollouts.run(), name="rollouts")
            while True:
                self._wake.clear()
                await self._look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S if self._error else LOOK_EVERY_S):
                        await self._wake.wait()

    def end(self) -> None:
        """The engines shall end when this is cancelled."""
        for life in self._lives.values():
            if life.engine is not None:
                life.engine.end()

    def wake(self) -> None:
        """Something may have changed."""
        self._wake.set()

    def loaded(self, load: PlaneLoad) -> None:
        """What the data planes do now, all together."""
        self._sight.load, self._sight.load_s = load, self._clock.now_s()
        self.wake()

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """Every replica at this moment."""
        return tuple(life.status() for life in self._lives.values())

    def rows(self) -> list[dict[str, Any]]:
        """Every deployment as status shows it."""
        return [
            {
                "name": name,
                "wanted": None if (wanted := self._wanted.get(name)) is None else wanted.version,
                "accepted": steering.accepted,
                "rollout": dict(steering.summary),
                "scale": {
                    str(version): dict(self._scaled[name, version].summary) for version in steering.replicas
                },
            }
            for name, steering in sorted(self._steered.items())
        ]

    # From the controller before.

    async def _recover(self) -> None:
        """Goes on with every engine that is known, and ends every other one."""
        self._wanted.read()
        self._kept = self._store.deployments()
        self._kept_scales = self._store.scales()
        gone = Change()
        running: list[tuple[Life, Adopted | None]] = []
        for row in self._store.replicas():
            applied = self._wanted.version(row.deployment, row.version)
            adopted = None if self._before.is_first or applied is None else await self._adopt(row)
            if applied is None or (row.is_draining and adopted is None):
                gone.replicas[row.id] = None
                continue
            # The clock of an earlier boot may be ahead.
            life = self._hold(row._replace(decided_s=min(row.decided_s, self._clock.now_s())), applied)
            if adopted is not None or (applied.revision.urls and not self._before.is_first):
                running.append((life, adopted))
        for life, adopted in running:
            await self._go_on(life, adopted)
        if gone:
            self._store.write(gone)
        for held in await asyncio.to_thread(self._launcher.inventory):
            if held.replica not in self._lives:
                self._fenced.add(held.replica)
                self._tasks.create_task(self._fence(held.replica), name=f"fence {held.replica}")

    async def _adopt(self, row: ReplicaRow) -> Adopted | None:
        engine = await self._launcher.adopt(row.id, row.token) if row.token else None
        if engine is None:
            return None
        offered = offered_before(self._before.snapshot, row.id, row.generation)
        return Adopted(engine, offered, self._before.statuses.get(row.id))

    async def _go_on(self, life: Life, adopted: Adopted | None) -> None:
        try:
            spec = await self._supplies.now(life.applied)
            self._start(life, spec, adopted)
        except HeadraceError:  # the next look asks again, and launches it anew
            if adopted is not None:
                adopted.engine.let_go()
            return
        is_offered = offered_before(self._before.snapshot, life.id, life.row.generation) is not None
        if is_offered:
            life.ready_s = self._clock.now_s()
        if is_offered or life.row.is_draining:
            life.offered = life.row.generation

    async def _fence(self, replica: ReplicaId) -> None:
        """Nobody knows what it is: it must hold no memory and answer nobody. Until then its id is taken: what is launched under
        it meanwhile would be ended too."""
        while True:
            try:
                await self._launcher.fence(replica)
                break
            except OSError as error:
                self._failing(f"replica {replica} can't be ended: {error}")
                await asyncio.sleep(AGAIN_S)
        self._launcher.forget(replica)
        self._fenced.discard(replica)

    # One look.

    async def _look(self) -> None:
        try:
            self._store.hold()
            self._wanted.read()
            look = self._steer_all()
            self._plan_all(look)
            if look.change:
                await asyncio.to_thread(self._store.write, look.change)
        except DatabaseUnavailable as error:
            # Nothing follows from what could not be stored; what is in force stays.
            if not self._error:
                self._failing(str(error))
            self._error = str(error)
            return
        if self._error:
            self._error = ""
            self._failing("")
        self._carry_out(look)

    def _steer_all(self) -> _Look:
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        is_time = now_s - self._stored_s >= KEEP_EVERY_S
        look = _Look(Change(), {}, {})
        held = {life.row.deployment for life in self._lives.values()}
        for name in sorted({*self._wanted.names(), *self._kept, *held}):
            kept = self._kept_of(name)
            also = {*self._rollouts.versions(kept), *self._kept_versions(name)}
            seen = self._sight.of(name, self._lives_of(name), also=also)
            if not seen.targets:
                look.change.deployments[name] = None
                continue
            for version, target in seen.targets.items():
                look.scaled[name, version] = self._size(target, now_s, wall_s)
            sizes = {version: look.scaled[name, version] for version in seen.targets}
            steering = look.steered[name] = self._steer(seen, sizes, kept, now_s, wall_s)
            self._note(look.change, name, steering, sizes, is_time=is_time)
        for key in self._kept_scales.keys() - look.scaled.keys():
            look.change.scales[key] = None
        return look

    def _size(self, target: TargetSeen, now_s: float, wall_s: float) -> Scaled:
        key = target.applied.name, target.applied.version
        known = self._scaled.get(key)
        kept = self._kept_scales.get(key, "") if known is None else known.kept
        return self._autoscaler.scale(target, kept, now_s=now_s, wall_s=wall_s)

    def _steer(
        self, seen: DeploymentSeen, sizes: Mapping[int, Scaled], kept: str, now_s: float, wall_s: float
    ) -> Steering:
        if not self._rollouts.versions(kept) <= seen.targets.keys():
            kept = ""  # it speaks of what headrace.toml offers no more
        begun = self._rollouts.begun(0)
        if seen.wanted is not None and seen.wanted.version == 0 and kept in ("", begun):
            return Steering(begun, 0, None, {0: Bounds()}, is_news=not kept)
        return self._rollouts.steer(seen, sizes, kept, now_s=now_s, wall_s=wall_s)

    def _kept_of(self, name: str) -> str:
        if name in self._steered:
            return self._steered[name].kept
        return self._kept[name].rollout if name in self._kept else ""

    def _kept_versions(self, name: str) -> tuple[int, ...]:
        return self._steered[name].kept_versions if name in self._steered else ()

    def _lives_of(self, name: str) -> list[Life]:
        return [life for life in self._lives.values() if life.row.deployment == name]

    def _note(
        self, change: Change, name: str, steering: Steering, sizes: Mapping[int, Scaled], *, is_time: bool
    ) -> None:
        """What of it is stored before anything follows from it."""
        row = DeploymentRow(name, steering.accepted, steering.kept)
        if row != self._kept.get(name) and (steering.is_news or is_time):
            change.deployments[name] = row
        change.decisions.extend(steering.decisions)
        for version, size in sizes.items():
            is_other = size.kept != self._kept_scales.get((name, version), "")
            if is_other and (size.is_news or is_time):
                change.scales[name, version] = size.kept
            change.decisions.extend(size.decisions)

    def _plan_all(self, look: _Look) -> None:
        """Rows of replicas that shall start, of those that shall go, and of those that are gone."""
        now_s, replicas = self._clock.now_s(), look.change.replicas
        for life in self._lives.values():
            if life.has_ended:
                replicas[life.id] = None
        taken = {*self._lives, *self._fenced}
        for name in {*look.steered, *look.change.deployments}:
            steering = look.steered.get(name)
            present = self._lives_of(name)
            versions = {life.row.version for life in present} | (
                steering.replicas.keys() if steering else set()
            )
            for version in sorted(versions):
                steps = self._plan(name, version, steering, look.scaled.get((name, version)))
                for _ in range(steps.starts):
                    id_ = lowest_free(name, taken)
                    taken.add(id_)
                    replicas[id_] = ReplicaRow(id_, name, version, decided_s=now_s)
                for id_ in steps.removals:
                    replicas[id_] = self._lives[id_].row._replace(is_draining=True, decided_s=now_s)

    def _plan(self, name: str, version: int, steering: Steering | None, scaled: Scaled | None) -> Plan:
        mine = [
            Present(
                life.id,
                life.is_ready,
                self._sight.load.in_flight(life.id, life.row.generation),
                life.row.decided_s,
            )
            for life in self._lives_of(name)
            if life.row.version == version and not life.row.is_draining
        ]
        bounds = None if steering is None else steering.replicas.get(version)
        applied = self._wanted.version(name, version)
        if bounds is None or scaled is None or applied is None:
            return plan(mine, 0)
        if urls := applied.revision.urls:  # as many as there are servers, however much there is to do
            return plan(mine, 0 if bounds.most == 0 else len(urls))
        # An autoscaler that hasn't seen a replica yet, because a rollout wanted it meanwhile, has nothing against it.
        has_seen = all(each.decided_s <= scaled.looked_s for each in mine)
        wished = scaled.replicas if has_seen else max(scaled.replicas, len(mine))
        return plan(mine, bounds.hold(wished), first=scaled.remove)

    # What follows from it.

    def _carry_out(self, look: _Look) -> None:
        """Routes first, then replicas. All of it is stored."""
        now_s = self._clock.now_s()
        if now_s - self._stored_s >= KEEP_EVERY_S:
            self._stored_s = now_s
        for name, state in look.change.deployments.items():
            if state is None:
                self._kept.pop(name, None)
            else:
                self._kept[name] = state
        for key, scale in look.change.scales.items():
            if scale is None:
                self._kept_scales.pop(key, None)
                self._autoscaler.forget(target_key(*key))
            else:
                self._kept_scales[key] = scale
        self._steered, self._scaled = look.steered, look.scaled
        self._has_looked = True
        for id_, row in look.change.replicas.items():
            self._take(id_, row, now_s)
        version = self._offer()
        for life in self._lives.values():
            if life.row.is_draining:
                life.hidden_from = life.hidden_from or version
                if not life.is_ending and life.may_end(self._sight.load, now_s=now_s):
                    life.end()
            elif life.engine is None:
                spec = self._supplies.ask(life.applied, self._tasks)
                life.problem = self._supplies.problem(life.applied)
                if spec is not None:
                    try:
                        self._start(life, spec, None)
                    except (
                        HeadraceError
                    ) as error:  # such as a key that has gone since; asked again by the next look
                        life.problem = str(error)

    def _take(self, id_: ReplicaId, row: ReplicaRow | None, now_s: float) -> None:
        if row is None:
            gone = self._lives.pop(id_)
            self._launcher.forget(id_)
            self._gone(gone.status())
        elif (life := self._lives.get(id_)) is None:
            applied = self._wanted.version(row.deployment, row.version)
            assert applied is not None, "a row is made of a target that was seen"
            self._observe(self._hold(row, applied).status())
        else:
            life.row = life.row._replace(is_draining=row.is_draining, decided_s=row.decided_s)
            life.must_end_s = now_s + life.applied.spec.lifecycle.drain_s
            self._observe(life.status())

    def _hold(self, row: ReplicaRow, applied: AppliedVersion) -> Life:
        life = self._lives[row.id] = Life(row, applied, changed=self._changed, clock=self._clock)
        if row.is_draining:
            life.must_end_s = self._clock.now_s() + applied.spec.lifecycle.drain_s
        return life

    def _start(self, life: Life, spec: EngineSpec, adopted: Adopted | None) -> None:
        def changed(status: ReplicaStatus) -> None:
            is_new = not life.is_ready
            life.observed(status)
            self._observe(life.status())
            if is_new and life.is_ready and status.cold_start is not None:
                self._started(life.applied, status.cold_start)

        life.problem = ""
        if urls := life.applied.revision.urls:
            peers = sorted(
                each.id for each in self._lives_of(life.row.deployment) if each.row.version == spec.version
            )
            spec = replace(spec, url=urls[peers.index(life.id) % len(urls)])
        life.engine = self._make(
            spec,
            life.id,
            launches=StoredLaunches(self._store, life),
            adopted=adopted,
            before=offered_before(self._before.snapshot, life.id, life.row.generation),
            changed=changed,
        )
        life.engine.leave()
        life.task = self._tasks.create_task(life.engine.run(), name=f"replica {life.id}")
        life.task.add_done_callback(lambda _: self.wake())

    def _changed(self) -> None:
        """A replica is ready, or is not any more: the snapshot doesn't wait for the next look."""
        if self._has_looked:
            self._offer()
        self.wake()

    def _offer(self) -> int:
        everything = Offers({}, {})
        for name, steering in self._steered.items():
            lives = self._lives_of(name)
            numbers = {each for each_name, each in self._scaled if each_name == name}
            versions = {number: self._wanted.version(name, number) for number in numbers}
            offers = offers_of(
                name,
                steering,
                {number: each for number, each in versions.items() if each is not None},
                lives,
                {number: self._scaled[name, number] for number in numbers},
                cold_start_s={
                    number: self._sight.cold_start_s[name, number]
                    for number in numbers
                    if (name, number) in self._sight.cold_start_s
                },
            )
            everything.deployments.update(offers.deployments)
            everything.routes.update(offers.routes)
        return self._publish(everything)
