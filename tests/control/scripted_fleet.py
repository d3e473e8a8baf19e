"""The real loop of the fleet over real books, on a machine without processes: engines that come, stay and go as a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from headrace.control.engine_spec import EngineSpec
from headrace.control.fleet import Before
from headrace.control.fleet import Fleet as RealFleet
from headrace.control.launchers import Held, Launcher
from headrace.control.launches import Adopted, Launches
from headrace.control.offers import Offers
from headrace.control.status import ReplicaStatus
from headrace.control.steering import Bounds, DeploymentSeen, Scaled, Steering, TargetSeen
from headrace.control.wanted import WantedVersions
from headrace.core.clock import ManualClock
from headrace.core.deployment_terms import LifecycleTerms
from headrace.core.deployments import AppliedVersion, DeploymentSpec, EngineKind, Identity, Revision
from headrace.core.errors import ConfigError
from headrace.core.fleet import Deployment, FleetSnapshot, Replica, ReplicaState, Task
from headrace.core.ids import ReplicaId
from headrace.core.load import PlaneLoad, ReplicaUse
from headrace.engines.openai_compatible import DIALECTS
from headrace.stores import opening
from headrace.stores.deployments import open_deployments
from headrace.stores.fleet import FleetStore, LeaseLost, ReplicaRow

DRAIN_S = 600.0
CHAT = AppliedVersion(
    "chat",
    0,
    DeploymentSpec(Identity("chat", EngineKind.SCRIPTED), lifecycle=LifecycleTerms(drain_s=DRAIN_S)),
    Revision(Task.CHAT, EngineKind.SCRIPTED),
    0.0,
    "test",
)
SPEC = EngineSpec("chat", None, "", Task.CHAT, slots=4, context_tokens=2048, threads=1)
LOOKS = 4  # a few: what one of them decides, the next one sees done


class Machine:
    """What runs on it, by replica with the token of its launch; it outlives controllers.

    With `lingers`, what is told to end goes on holding its memory until `freed`.
    """

    def __init__(self, *, lingers: bool = False) -> None:
        self.running: dict[ReplicaId, str] = {}
        self.launched: list[ReplicaId] = []
        self.fenced: list[ReplicaId] = []
        self.freed = asyncio.Event()
        if not lingers:
            self.freed.set()

    async def adopt(self, replica: ReplicaId, token: str) -> Any:
        return SimpleNamespace(let_go=lambda: None) if self.running.get(replica) == token else None

    def inventory(self) -> tuple[Held, ...]:
        return tuple(Held(id_, True, token, None, None) for id_, token in sorted(self.running.items()))

    async def fence(self, replica: ReplicaId) -> None:
        self.fenced.append(replica)
        self.running.pop(replica, None)

    def forget(self, replica: ReplicaId) -> None:
        assert replica not in self.running, "its files are all that is known of a process that runs"


class Engine:
    """One replica that does nothing by itself: `becomes` says what is seen of it."""

    slots = 4

    def __init__(
        self,
        machine: Machine,
        id_: ReplicaId,
        launches: Launches,
        changed: Callable[[ReplicaStatus], None],
        adopted: Adopted | None,
        before: Deployment | None,
    ) -> None:
        self._machine = machine
        self._id = id_
        self._launches = launches
        self._changed = changed
        self._is_adopted = adopted is not None
        self._is_left = False
        self._state = ReplicaState.PENDING
        self._reason = ""
        self.generation = 0
        self.has_begun = asyncio.Event()
        if before is not None and adopted is not None:
            self._state, self.generation = ReplicaState.READY, before.replicas[0].generation

    def status(self) -> ReplicaStatus:
        return ReplicaStatus("chat", self._id, self.generation, self._state, self._reason)

    def deployment(self) -> Deployment:
        mine = Replica(
            self._id, "127.0.0.1", 1, slots=self.slots, traits=DIALECTS["vllm"], generation=self.generation
        )
        return Deployment(
            name="chat",
            upstream_model="chat",
            tasks=frozenset({Task.CHAT}),
            revision="sha256:1",
            replicas=(mine,) if self._state is ReplicaState.READY else (),
        )

    def becomes(self, state: ReplicaState, reason: str = "") -> None:
        self._state, self._reason = state, reason
        self._changed(self.status())

    async def launches_again(self) -> None:
        """Its process has died, and the next one is started."""
        self.becomes(ReplicaState.PENDING, "killed by SIGSEGV")
        await self._launch()

    async def run(self) -> None:
        try:
            if not self._is_adopted:
                await self._launch()
            self.has_begun.set()
            await asyncio.get_running_loop().create_future()
        finally:
            self.has_begun.set()
            if not self._is_left:
                await self._machine.freed.wait()
                self._machine.running.pop(self._id)
                self.becomes(ReplicaState.STOPPED)

    async def _launch(self) -> None:
        self.generation, self._machine.running[self._id] = await self._launches.next(self._id)
        self._machine.launched.append(self._id)
        self.becomes(ReplicaState.STARTING)

    def leave(self) -> None:
        self._is_left = True

    def end(self) -> None:
        self._is_left = False


class Wished:
    """Autoscaler and driver of rollouts in one: as many replicas as it was told."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def scale(self, target: TargetSeen, kept: str, *, now_s: float, wall_s: float) -> Scaled:
        return Scaled(kept, self.replicas, now_s)

    def forget(self, key: str) -> None:
        """It knows nothing."""

    def steer(
        self, seen: DeploymentSeen, scaled: Mapping[int, Scaled], kept: str, *, now_s: float, wall_s: float
    ) -> Steering:
        return Steering(kept, None, None, {0: Bounds()})

    def begun(self, accepted: int) -> str:
        return "{}"

    def versions(self, kept: str) -> frozenset[int]:
        return frozenset()

    async def run(self) -> None:
        """It has no work of its own."""


class Books(FleetStore):
    """The real ones; `looked` is set by each look of the loop that they belong to."""

    looked: asyncio.Event

    def hold(self) -> None:
        self.looked.set()
        super().hold()


class Controller:
    """One at work. `snapshots` is all that it published: by version the generation of each replica that is offered."""

    def __init__(
        self, data: Path, machine: Machine, clock: ManualClock, *, replicas: int, before: Before
    ) -> None:
        self.machine = machine
        self.wished = Wished(replicas)
        self.engines: dict[ReplicaId, Engine] = {}
        self.snapshots = [before.snapshot]
        self.gone: list[ReplicaId] = []
        self.was_replaced = asyncio.Event()
        self.lacks = ""
        self.books = Books(opening.open_local(data), clock=clock)
        self.books.looked = asyncio.Event()
        self._deployments = open_deployments(data, clock=clock)
        self.epoch = self.books.take_lease("controller")
        self.fleet = RealFleet(
            wanted=WantedVersions(self._deployments, {"chat": CHAT}),
            store=self.books,
            supplier=self,
            make=self._make,
            launcher=cast(Launcher, machine),
            autoscaler=self.wished,
            rollouts=self.wished,
            before=before,
            publish=self._publish,
            observe=lambda _: None,
            started=lambda *_: None,
            gone=lambda status: self.gone.append(status.replica),
            failing=lambda _: None,
            clock=clock,
        )

    def close(self) -> None:
        self.books.close()
        self._deployments.close()

    async def prepare(self, applied: AppliedVersion) -> EngineSpec:
        if self.lacks:
            raise ConfigError(self.lacks)
        return SPEC

    def _make(
        self,
        spec: EngineSpec,
        id: ReplicaId,
        *,
        launches: Launches,
        adopted: Adopted | None,
        before: Deployment | None,
        changed: Callable[[ReplicaStatus], None],
    ) -> Engine:
        self.engines[id] = Engine(self.machine, id, launches, changed, adopted, before)
        return self.engines[id]

    def _publish(self, offers: Offers) -> int:
        last = self.snapshots[-1]
        if offers.deployments != last.deployments:
            self.snapshots.append(replace(last, version=last.version + 1, deployments=offers.deployments))
        return self.snapshots[-1].version

    # What tests do and see

    async def looks(self, times: int = LOOKS) -> None:
        """Until it has looked so often again, and done what followed from it."""
        for _ in range(times):
            self.books.looked.clear()
            self.fleet.wake()
            await self.books.looked.wait()
            for engine in list(self.engines.values()):
                await engine.has_begun.wait()  # the number of a launch is written by another thread

    async def wants(self, replicas: int) -> None:
        self.wished.replicas = replicas
        await self.looks()

    async def ready(self, *numbers: int) -> None:
        for number in numbers:
            self.engines[ReplicaId(f"chat-{number}")].becomes(ReplicaState.READY)
        await self.looks()

    async def hears(self, *uses: tuple[int, int, int], version: int | None = None) -> None:
        """The data planes tell what they do: (replica, generation, requests in flight), from that snapshot or the newest."""
        newest = self.snapshots[-1].version if version is None else version
        rows = [ReplicaUse(ReplicaId(f"chat-{number}"), *rest) for number, *rest in uses]
        self.fleet.loaded(PlaneLoad(newest, [], rows))
        await self.looks()

    def generation(self, number: int) -> int:
        return self.engines[ReplicaId(f"chat-{number}")].generation

    @property
    def offered(self) -> set[str]:
        return {each.id for found in self.snapshots[-1].deployments.values() for each in found.replicas}

    @property
    def rows(self) -> dict[str, ReplicaRow]:
        return {row.id: row for row in self.books.replicas()}


@contextlib.asynccontextmanager
async def controller(
    data: Path,
    machine: Machine,
    clock: ManualClock,
    *,
    replicas: int,
    snapshot: FleetSnapshot | None = None,
    lacks: str = "",
) -> AsyncIterator[Controller]:
    """At work until the end of the block, when it goes as one that is killed: what runs stays.

    Args:
        snapshot: What the one before it had in force; without it there was none before.
        lacks: Why nothing can be prepared.
    """
    made = Controller(
        data,
        machine,
        clock,
        replicas=replicas,
        before=Before(snapshot is None, snapshot or FleetSnapshot(), {}),
    )
    made.lacks = lacks
    running = asyncio.create_task(_at_work(made))
    try:
        await made.looks()
        yield made
    finally:
        running.cancel()
        machine.freed.set()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        made.close()


async def _at_work(made: Controller) -> None:
    try:
        await made.fleet.run()
    except* LeaseLost:
        made.was_replaced.set()
