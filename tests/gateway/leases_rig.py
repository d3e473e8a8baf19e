"""Workers and their authority, the code of both together on a simulated loop, with the wires between them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from headrace.control.authority import Authority
from headrace.core.errors import HeadraceError
from headrace.core.fleet import Deployment, EngineTraits, FleetSnapshot, Replica
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.leases import LeaseAsking, Lending, Shadowed
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import Principal, TenantLimits
from headrace.core.usage import TokenUsage, UsageSource
from headrace.engines.openai_compatible import DIALECTS
from headrace.gateway.dispatch import Slot
from headrace.gateway.leased_dispatch import LeasedDispatch
from headrace.gateway.shadow import judge
from headrace.gateway.walk import Signal, Walk
from headrace.policies.admission import QueueBounds
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import HealthRules
from headrace.policies.shadow import ShadowLimiter
from tests.gateway.budgets_rig import leased_reservations
from tests.simulation.loop import LoopClock, SimulatedLoop

MODEL, OTHER = MODELS = ("chat", "embeddings")  # both on every replica
RULES = HealthRules(failures_to_eject=3, ejection_s=4.0, ejection_max_s=16.0)
BOUNDS = QueueBounds(length_max=6, bytes_max=10**9, wait_max_s=60.0)
NARROW = TenantLimits(requests_per_minute=0, requests_burst=1, concurrency_max=5)
WIDE = TenantLimits(requests_per_minute=0, requests_burst=1, concurrency_max=0)
LIMITS = {"narrow": NARROW, "wide": WIDE}
UNUSED = TokenUsage()


def replica(name: str, *, slots: int, has_caches: bool = False) -> Replica:
    traits = DIALECTS["embedded"] if has_caches else EngineTraits()
    return Replica(ReplicaId(name), "127.0.0.1", 1, slots, traits)


def fleet(*replicas: Replica) -> FleetSnapshot:
    offers = {model: Deployment(model, model, frozenset(), "unpinned", replicas) for model in MODELS}
    return FleetSnapshot(deployments=offers)


class Wire:
    """One direction of a link: what is sent arrives in order, after a moment and `delay_s`."""

    def __init__(self, loop: SimulatedLoop, chance: Random, receive: Callable[[Any], None]) -> None:
        self._loop = loop
        self._chance = chance
        self._receive = receive
        self._free_s = 0.0
        self.delay_s = 0.0
        self.is_cut = False

    def send(self, message: Any) -> None:
        takes_s = self.delay_s + 0.002 * self._chance.random()
        self._free_s = max(self._free_s + 1e-5, self._loop.time() + takes_s)
        self._loop.call_at(self._free_s, self._arrive, message)

    def _arrive(self, message: Any) -> None:
        if not self.is_cut:
            self._receive(message)


class SimulatedWorker:
    """A worker's dispatch, its two wires, and its requests: `running` by replica and by tenant."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self.up = Wire(world.loop, world.chance, lambda message: world.received(number, message))
        self.down = Wire(world.loop, world.chance, lambda message: self.received(message))
        self.running: Counter[str] = Counter()
        self.walks: dict[Walk, None] = {}
        self.dispatch = LeasedDispatch(
            Dispatcher(bounds=BOUNDS, health=RULES, chance=world.chance, workers=world.count, is_lent=True),
            leased_reservations(self.up.send, clock=world.clock),
            send=self.up.send,
            sharers=world.count,
            queue_length_max=BOUNDS.length_max,
            queue_wait_max_s=BOUNDS.wait_max_s,
            on_circuit=lambda replica, circuit: None,
            clock=world.clock,
        )

    def received(self, message: Lending | FleetSnapshot) -> None:
        if isinstance(message, FleetSnapshot):
            self.dispatch.publish(message)
        else:
            self.dispatch.received(message)

    def ask(
        self,
        *,
        model: str = MODEL,
        tenant: str = "wide",
        held_s: float = 0.1,
        principal: Principal | None = None,
        prompt_tokens: int = 3,
        output_tokens_max: int | None = None,
        used: TokenUsage = UNUSED,
        time_s: float = 300.0,
        ended: Callable[[HeadraceError | None], None] = lambda error: None,
    ) -> None:
        """One request with so much time, which will hold its slot for so long, and will have used so much."""
        now_s = self._world.clock.now_s()
        request = InferenceRequest(
            id=RequestId("req"),
            principal=principal or Principal(TenantId(tenant), KeyId("key"), LIMITS[tenant]),
            endpoint=Endpoint.CHAT_COMPLETIONS,
            model=model,
            canonical=b"",
            wire_fields={},
            is_streaming=False,
            wants_usage=False,
            prompt_bytes=4 * prompt_tokens,
            output_tokens_max=output_tokens_max,
            choices=1,
            arrived_s=now_s,
            arrived_wall_s=0.0,
            deadline_s=now_s + time_s,
        )
        walk = Walk(self._walk(request, held_s, used, ended), on_end=lambda: self.walks.pop(walk))
        self.walks[walk] = None
        walk.start()

    async def _walk(
        self,
        request: InferenceRequest,
        held_s: float,
        used: TokenUsage,
        ended: Callable[[HeadraceError | None], None],
    ) -> None:
        slot, refusal = self.dispatch.slot(request), None
        usage = UNUSED
        try:
            with slot:
                if not slot.is_held:
                    await slot.wait()
                usage = TokenUsage(source=UsageSource.UNKNOWN)
                counted = (str(slot.replica.id), str(request.principal.tenant))
                self.running.update(counted)
                self._world.caches.use(slot)
                over = Signal()
                timer = self._world.loop.call_later(held_s, over.set)
                try:
                    await over
                    slot.fill()
                finally:
                    timer.cancel()
                    self.running.subtract(counted)
                    self._world.caches.leave(slot)
                usage = used
                slot.give_back(AttemptOutcome.COMPLETED)
            self._world.ends["done"] += 1
        except HeadraceError as error:
            self._world.ends[error.reason] += 1
            refusal = error
        finally:
            if slot.ticket.receipt is not None:
                self.dispatch.settle(slot.ticket.receipt, usage)
        ended(refusal)


class Caches:
    """What engines with partitioned caches would see: who uses which slot, and who used it before."""

    def __init__(self) -> None:
        self._users: dict[tuple[ReplicaId, int], str] = {}
        self._busy: set[tuple[ReplicaId, int]] = set()

    def use(self, slot: Slot) -> None:
        grant, tenant = slot.ticket.grant, str(slot.ticket.tenant)
        if grant is None:
            return
        place = (slot.replica.id, grant.index)
        assert place not in self._busy, f"{place} is used twice"
        assert not grant.may_reuse or self._users.get(place) == tenant, (
            f"{place} has another tenant's prompts"
        )
        self._busy.add(place)
        self._users[place] = tenant

    def leave(self, slot: Slot) -> None:
        if slot.ticket.grant is not None:
            self._busy.remove((slot.replica.id, slot.ticket.grant.index))


class World:
    """An authority and its workers."""

    def __init__(self, seed: str, snapshot: FleetSnapshot, *, workers: int) -> None:
        self.loop = SimulatedLoop(seed)
        self.chance = Random(seed)
        self.clock = LoopClock(self.loop)
        self.count = workers
        self.ends: Counter[str] = Counter()
        self.caches = Caches()
        self.authority = Authority(workers=workers, clock=self.clock)
        self.shadow = ShadowLimiter(lambda who, model, reason: self.verdicts.update([reason]))
        self.verdicts: Counter[str] = Counter()
        self.authority.publish(snapshot)
        self.snapshot = snapshot
        self.slots = {str(replica.id): replica.slots for replica in snapshot.deployments[MODEL].replicas}
        self.workers = [self.join(number) for number in range(workers)]

    def received(self, number: int, message: LeaseAsking | Shadowed) -> None:
        if isinstance(message, Shadowed):
            judge(self.shadow, number, message)
        else:
            self.authority.received(number, message)

    def join(self, number: int) -> SimulatedWorker:
        worker = SimulatedWorker(self, number)
        worker.down.send(self.snapshot)
        self.authority.joined(number, worker.down.send)
        return worker

    def replace(self, number: int) -> None:
        """That worker dies, and the next one takes its place."""
        dead = self.workers[number]
        dead.up.is_cut = dead.down.is_cut = True
        for walk in list(dead.walks):
            walk.cancel()
        self.authority.lost(number)
        self.shadow.lost(number, now_s=self.clock.now_s())
        self.workers[number] = self.join(number)

    def publish(self, snapshot: FleetSnapshot) -> None:
        self.snapshot = snapshot
        for worker in self.workers:
            worker.down.send(snapshot)
        self.authority.publish(snapshot)

    def running(self, name: str) -> int:
        return sum(worker.running[name] for worker in self.workers)

    def queue_length(self, model: str) -> int:
        return sum(worker.dispatch.queue_length(model) for worker in self.workers)

    @property
    def queued(self) -> int:
        return sum(map(self.queue_length, MODELS))

    async def expect_no_idle_slot(self) -> None:
        """While anybody waits, no slot is free for longer than it takes to lend it to who waits."""
        idle = {replica.id for replica in self.snapshot.deployments[MODEL].replicas}
        for _ in range(20):
            idle = {each for each in idle if self.queued and self.running(str(each)) < self.slots[str(each)]}
            await asyncio.sleep(0.005)
        assert not idle, f"{self.queued} wait, and slots of {idle} are free"

    async def rest(self) -> None:
        while any(worker.walks for worker in self.workers):  # noqa: ASYNC110 -- each look is a moment of simulated time
            await asyncio.sleep(1.0)
