"""Claims about workers and their authority, the code of both together on a simulated loop: whatever is on its way between them,
no replica gets more than its slots and no tenant more than its limit, and whoever can be served is."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from headrace.core.fleet import FleetSnapshot, Replica
from headrace.core.ids import KeyId, TenantId
from headrace.core.leases import ANSWER_LIMIT_S, OTHERS_LIMIT_S, Deny, Lending, Want, slots_of
from headrace.core.tenant import Principal, TenantLimits
from tests.gateway.leases_rig import (
    BOUNDS,
    LIMITS,
    MODEL,
    MODELS,
    NARROW,
    OTHER,
    WIDE,
    SimulatedWorker,
    World,
    fleet,
    replica,
)

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
    await asyncio.sleep(1.0)
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
        second.down.delay_s = 2 * ANSWER_LIMIT_S
        second.ask(tenant="narrow")
        await asyncio.sleep(ANSWER_LIMIT_S + 0.05)
        second.ask(tenant="narrow")
        await asyncio.sleep(3.0)
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


@pytest.mark.parametrize(("own_s", "others_s"), [(0.2, 0.0), (0.0, 0.08), (0.08, 0.08)])
def test_who_is_late_is_waited_for(own_s: float, others_s: float) -> None:
    """The service or another worker gets no core for a moment, as on a busy machine: nobody is refused for that."""

    async def story(world: World) -> None:
        first, second = await fill_narrow(world)
        await asyncio.sleep(1.0)
        second.up.delay_s = second.down.delay_s = own_s
        first.up.delay_s = first.down.delay_s = others_s
        await expect_service(world, second, tenant="narrow")

    play(story, fleet(replica("a", slots=64)))


def test_a_worker_that_is_stuck_is_waited_for_no_longer_than_who_asks_waits_itself() -> None:
    """So what it holds is denied, by an authority that is there, and the next request need not find out anew."""
    assert 2 * OTHERS_LIMIT_S < ANSWER_LIMIT_S

    async def story(world: World) -> None:
        first, second = await fill_narrow(world)
        await asyncio.sleep(1.0)
        first.up.delay_s = 10.0
        second.ask(tenant="narrow")
        await asyncio.sleep(OTHERS_LIMIT_S + 0.05)
        assert world.ends["concurrency_limited"] == 1
        second.ask(tenant="narrow")
        assert world.ends["concurrency_limited"] == 2

    play(story, fleet(replica("a", slots=64)))


def test_who_has_less_time_than_the_authority_takes_is_refused_at_its_deadline_and_alone() -> None:
    """Nothing follows from it about the authority: who has more time waits for the same answer."""

    async def story(world: World) -> None:
        _, second = await fill_narrow(world)
        await asyncio.sleep(1.0)
        second.up.delay_s = 0.3
        second.ask(tenant="narrow", time_s=0.05)
        await asyncio.sleep(0.06)
        assert world.ends["concurrency_limited"] == 1
        await expect_service(world, second, tenant="narrow")

    play(story, fleet(replica("a", slots=64)))


def test_a_silence_ends_although_nobody_waits_for_an_answer() -> None:
    """T54: who asked was refused meanwhile, so there is nobody left to answer; the next one is served."""

    async def story(world: World) -> None:
        _, second = await fill_narrow(world)
        await asyncio.sleep(1.0)
        second.up.delay_s = 2 * ANSWER_LIMIT_S
        second.ask(tenant="narrow")
        await asyncio.sleep(0.01)
        second.up.delay_s = (
            0.0  # all that it says comes to the authority in one moment, when that can work again
        )
        await asyncio.sleep(2.0)
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
            chance.choice((worker.up, worker.down)).delay_s = chance.choice((0.0, 0.01, 0.6))
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
                await asyncio.sleep(1.5)  # until what was late is there
                await world.expect_no_idle_slot()
        world.publish(fleet(*replicas))
        for worker in world.workers:
            worker.up.delay_s = worker.down.delay_s = 0.0
        await asyncio.sleep(1.5)
        await world.rest()
        for worker in world.workers:
            for tenant in LIMITS:
                await expect_service(world, worker, tenant=tenant)

    play(story, fleet(*replicas), workers=chance.randint(2, 4), seed=str(seed))
