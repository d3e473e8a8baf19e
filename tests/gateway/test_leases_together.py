"""Claims about workers and their authority, the code of both together on a simulated loop: whatever is on its way between them,
no replica gets more than its slots and no tenant more than its limit, and whoever can be served is."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from headrace.control.authority import Authority
from headrace.core.errors import HeadraceError
from headrace.core.fleet import Deployment, EngineTraits, FleetSnapshot, Replica
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.leases import Deny, Lending, Want, slots_of
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import Principal, TenantLimits
from headrace.engines.openai_compatible import DIALECTS
from headrace.gateway.dispatch import Slot
from headrace.gateway.leased_dispatch import LeasedDispatch
from headrace.gateway.walk import Signal, Walk
from headrace.policies.admission import QueueBounds
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import HealthRules
from tests.simulation.loop import LoopClock, SimulatedLoop

MODEL, OTHER = MODELS = ("chat", "embeddings")  # both on every replica
RULES = HealthRules(failures_to_eject=3, ejection_s=4.0, ejection_max_s=16.0)
BOUNDS = QueueBounds(length_max=6, bytes_max=10**9, wait_max_s=60.0)
NARROW = TenantLimits(requests_per_minute=0, requests_burst=1, concurrency_max=5)
WIDE = TenantLimits(requests_per_minute=0, requests_burst=1, concurrency_max=0)
LIMITS = {"narrow": NARROW, "wide": WIDE}


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
        self.up = Wire(world.loop, world.chance, lambda asking: world.authority.received(number, asking))
        self.down = Wire(world.loop, world.chance, lambda message: self.received(message))
        self.running: Counter[str] = Counter()
        self.walks: dict[Walk, None] = {}
        self.dispatch = LeasedDispatch(
            Dispatcher(bounds=BOUNDS, health=RULES, chance=world.chance, is_leased=True),
            send=self.up.send,
            workers=world.count,
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

    def ask(self, *, model: str = MODEL, tenant: str = "wide", held_s: float = 0.1) -> None:
        """One request, which will hold its slot for so long."""
        now_s = self._world.clock.now_s()
        request = InferenceRequest(
            id=RequestId("req"),
            principal=Principal(TenantId(tenant), KeyId("key"), LIMITS[tenant]),
            endpoint=Endpoint.CHAT_COMPLETIONS,
            model=model,
            canonical=b"",
            wire_fields={},
            is_streaming=False,
            wants_usage=False,
            prompt_bytes=10,
            output_tokens_max=None,
            choices=1,
            arrived_s=now_s,
            arrived_wall_s=0.0,
            deadline_s=now_s + 300.0,
        )
        walk = Walk(self._walk(request, held_s), on_end=lambda: self.walks.pop(walk))
        self.walks[walk] = None
        walk.start()

    async def _walk(self, request: InferenceRequest, held_s: float) -> None:
        ends = self._world.ends
        try:
            with self.dispatch.slot(request) as slot:
                if not slot.is_held:
                    await slot.wait()
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
                slot.give_back(AttemptOutcome.COMPLETED)
            ends["done"] += 1
        except HeadraceError as error:
            ends[error.reason] += 1


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
        self.authority.publish(snapshot)
        self.snapshot = snapshot
        self.slots = {str(replica.id): replica.slots for replica in snapshot.deployments[MODEL].replicas}
        self.workers = [self.join(number) for number in range(workers)]

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


Story = Callable[[World], Awaitable[None]]


def play(story: Story, snapshot: FleetSnapshot, *, workers: int = 2, seed: str = "1") -> None:
    """What happens, until nobody asks for anything any more; the laws hold in every turn."""
    world = World(seed, snapshot, workers=workers)

    def obey_laws() -> None:
        for name, count in world.slots.items():
            assert world.running(name) <= count, f"{world.running(name)} of {count} slots of {name}"
        assert world.running("narrow") <= NARROW.concurrency_max
        assert all(world.queue_length(model) <= BOUNDS.length_max for model in MODELS)

    async def whole() -> None:
        await asyncio.sleep(0.1)
        await story(world)
        await world.rest()

    world.loop.on_turn = obey_laws
    try:
        world.loop.run_until_complete(whole())
    finally:
        world.loop.close()


async def fill_narrow(world: World) -> tuple[SimulatedWorker, SimulatedWorker]:
    """The first worker has all that the tenant may have in progress, for a second."""
    first, second = world.workers
    for _ in range(NARROW.concurrency_max):
        first.ask(tenant="narrow", held_s=1.0)
    await asyncio.sleep(0.3)
    assert first.running["narrow"] == NARROW.concurrency_max
    return first, second


async def expect_service(world: World, worker: SimulatedWorker, *, tenant: str) -> None:
    before = world.ends["done"]
    worker.ask(tenant=tenant)
    await asyncio.sleep(0.5)
    assert world.ends["done"] == before + 1, f"{tenant} is barred: {world.ends}"


def test_a_denial_that_crosses_a_question_bars_nobody() -> None:
    """A worker asks again in the very turn in which it hears that there is nothing to be had."""

    async def story(world: World) -> None:
        _, second = await fill_narrow(world)
        received = second.received

        def ask_first(message: Lending | FleetSnapshot) -> None:
            if isinstance(message, Deny):
                second.ask(tenant="narrow")
            received(message)

        second.received = ask_first  # type: ignore[method-assign]
        second.ask(tenant="narrow")
        await asyncio.sleep(2.0)
        assert world.ends == {"done": NARROW.concurrency_max, "concurrency_limited": 2}
        await expect_service(world, second, tenant="narrow")

    play(story, fleet(replica("a", slots=64)))


def test_a_denial_that_comes_after_the_question_was_withdrawn_bars_nobody() -> None:
    """T54: the authority was slower than anybody waits."""

    async def story(world: World) -> None:
        _, second = await fill_narrow(world)
        second.down.delay_s = 0.2
        second.ask(tenant="narrow")
        await asyncio.sleep(0.1)
        second.ask(tenant="narrow")
        await asyncio.sleep(2.0)
        second.down.delay_s = 0.0
        await expect_service(world, second, tenant="narrow")

    play(story, fleet(replica("a", slots=64)))


def test_slots_returned_while_their_replica_was_out_are_not_used_when_it_is_back() -> None:
    """Its last work ended between the news that it is out and the recall of its slots."""
    a, b = replica("a", slots=2), replica("b", slots=1)

    async def story(world: World) -> None:
        first, _ = world.workers
        for _ in range(3):
            first.ask(held_s=0.5)
        await asyncio.sleep(0.4)
        assert (world.running("a"), world.running("b")) == (2, 1)
        first.ask(held_s=5.0)
        for worker in world.workers:
            worker.down.send(fleet(b))
        first.down.delay_s = 0.5
        world.authority.publish(fleet(b))
        await asyncio.sleep(1.0)
        first.down.delay_s = 0.0
        assert (world.running("a"), world.running("b")) == (0, 1)
        for worker in world.workers:
            for _ in range(3):
                worker.ask(held_s=5.0)
        await asyncio.sleep(0.1)
        world.publish(fleet(a, b))
        await asyncio.sleep(0.1)
        assert world.running("a") == 2

    play(story, fleet(a, b))


def test_a_question_about_slots_that_are_gone_leaves_nothing_behind() -> None:
    """It crossed the news; when the replica is back its slots are lent one by one again."""
    a, b = replica("a", slots=2, has_caches=True), replica("b", slots=1, has_caches=True)

    async def story(world: World) -> None:
        world.publish(fleet(b))
        await asyncio.sleep(0.1)
        world.authority.received(0, Want(slots_of(a), 1))
        world.publish(fleet(a, b))
        await asyncio.sleep(0.1)
        for _ in range(3):
            world.workers[0].ask()
        await asyncio.sleep(0.05)
        assert (world.running("a"), world.running("b")) == (2, 1)

    play(story, fleet(a, b))


def test_a_silence_ends_although_nobody_waits_for_an_answer() -> None:
    """T54: who asked was refused meanwhile, so there is nobody left to answer; the next one is served."""

    async def story(world: World) -> None:
        _, second = await fill_narrow(world)
        await asyncio.sleep(1.0)
        second.up.delay_s = 0.2
        second.ask(tenant="narrow")
        await asyncio.sleep(0.01)
        second.up.delay_s = (
            0.0  # all that it says comes to the authority in one moment, when that can work again
        )
        await asyncio.sleep(1.0)
        assert world.ends["concurrency_limited"] == 1
        await expect_service(world, second, tenant="narrow")

    play(story, fleet(replica("a", slots=64)))


def test_who_waits_gets_the_slots_of_a_replica_that_joins() -> None:
    """They were offered to another worker, which has no use for them, and nobody comes anew who would ask."""
    a, b = replica("a", slots=1), replica("b", slots=1)

    async def story(world: World) -> None:
        last = world.workers[-1]
        for _ in range(2):
            last.ask(held_s=5.0)
        await asyncio.sleep(0.1)
        world.publish(fleet(a, b))
        await asyncio.sleep(0.1)
        assert (world.running("a"), world.running("b")) == (1, 1)

    play(story, fleet(a))


def test_who_waits_gets_the_slots_of_a_replica_that_was_out_while_it_had_work() -> None:
    """What it asked for before is forgotten with the replica, by both sides."""
    a, b = replica("a", slots=1), replica("b", slots=1)

    async def story(world: World) -> None:
        last = world.workers[-1]
        for held_s in (0.5, 0.5, 5.0):
            last.ask(held_s=held_s)
        await asyncio.sleep(0.1)
        assert (world.running("a"), world.running("b")) == (1, 1)
        world.publish(fleet(b))
        await asyncio.sleep(1.0)
        assert (world.running("a"), world.running("b")) == (0, 1)
        world.publish(fleet(a, b))
        await asyncio.sleep(0.1)
        last.ask(held_s=5.0)
        await asyncio.sleep(0.1)
        assert (world.running("a"), world.running("b")) == (1, 1)

    play(story, fleet(a, b))


def test_the_end_of_one_model_s_work_lets_another_worker_begin_with_the_other_model() -> None:
    """The slots are the replica's, whichever model holds them and whichever worker."""

    async def story(world: World) -> None:
        first, second = world.workers
        for _ in range(2):
            first.ask(model=MODEL, held_s=0.5)
        await asyncio.sleep(0.1)
        second.ask(model=OTHER, held_s=5.0)
        first.ask(model=OTHER, held_s=5.0)
        await asyncio.sleep(0.1)
        assert (first.running["a"], second.running["a"], world.queued) == (2, 0, 2)
        await asyncio.sleep(0.5)
        assert (first.running["a"], second.running["a"], world.queued) == (1, 1, 0)

    play(story, fleet(replica("a", slots=2)))


def test_a_limit_that_was_lifted_and_set_again_is_decided_anew() -> None:
    """What a worker heard of the old limit doesn't bar the tenant under the new one."""

    def changed(world: World, revision: int, limits: TenantLimits) -> None:
        LIMITS["narrow"] = limits
        for worker in world.workers:
            worker.dispatch.limits_changed(
                [Principal(TenantId("narrow"), KeyId("key"), limits)], revision=revision
            )

    async def story(world: World) -> None:
        _, second = await fill_narrow(world)
        second.ask(tenant="narrow")
        await asyncio.sleep(0.1)
        assert world.ends["concurrency_limited"] == 1
        changed(world, 1, WIDE)
        await asyncio.sleep(2.0)
        changed(world, 2, NARROW)
        await asyncio.sleep(0.1)
        await expect_service(world, second, tenant="narrow")

    try:
        play(story, fleet(replica("a", slots=64)))
    finally:
        LIMITS["narrow"] = NARROW


async def something_happens(world: World, replicas: tuple[Replica, ...]) -> None:
    chance = world.chance
    worker = chance.choice(world.workers)
    match chance.randrange(20):
        case 0:
            world.publish(fleet(*(each for each in replicas if chance.random() < 0.6)))
        case 1:
            world.publish(fleet(*replicas))
        case 2:
            world.replace(chance.randrange(world.count))
        case 3:
            chance.choice((worker.up, worker.down)).delay_s = chance.choice((0.0, 0.01, 0.1))
        case 4 | 5 if worker.walks:
            chance.choice(list(worker.walks)).cancel()
        case 6 | 7:
            await asyncio.sleep(chance.random() * 0.5)
        case _:
            for _ in range(chance.choice((1, 1, 3))):
                model, tenant = chance.choice(MODELS), chance.choice(("narrow", "wide"))
                worker.ask(model=model, tenant=tenant, held_s=chance.choice((0.001, 0.05, 0.5)))
            await asyncio.sleep(chance.random() * 0.01)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_nothing_is_used_twice_and_nothing_is_lost(seed: int) -> None:
    """T51, T53: replicas come and go, workers die, callers leave, messages are late; then all is as in the beginning."""
    chance = Random(f"{seed}/shape")
    replicas = tuple(
        replica(name, slots=chance.randint(1, 4), has_caches=chance.random() < 0.5) for name in ("a", "b")
    )

    async def story(world: World) -> None:
        for _ in range(150):
            await something_happens(world, replicas)
            if chance.random() < 0.05:
                for worker in world.workers:
                    worker.up.delay_s = worker.down.delay_s = 0.0
                await asyncio.sleep(0.5)
                await world.expect_no_idle_slot()
        world.publish(fleet(*replicas))
        for worker in world.workers:
            worker.up.delay_s = worker.down.delay_s = 0.0
        await asyncio.sleep(0.5)
        await world.rest()
        for worker in world.workers:
            for tenant in LIMITS:
                await expect_service(world, worker, tenant=tenant)

    play(story, fleet(*replicas), workers=chance.randint(2, 4), seed=str(seed))
