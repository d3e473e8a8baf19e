"""Claims about rates over several workers, their code and the authority's together on a simulated loop: no level of limits is
passed by more than the leases, nearly all of it is to be had by those who ask for it, and nothing is lost with a worker."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from headrace.core.errors import HeadraceError
from headrace.core.ids import KeyId, TenantId
from headrace.core.tenant import Principal, RateUnit, TenantLimits, TenantTerms
from headrace.core.usage import TokenUsage, UsageSource
from headrace.policies.levels import levels_of
from tests.gateway.leases_rig import MODEL, World, fleet, replica

WORKERS = 4
RATE = 1200
TICK_S = 0.25
LEASE_PART = 0.05  # of a minute's, all workers together

NO_LIMITS = TenantLimits()


def caller(
    limits: TenantLimits = NO_LIMITS,
    *,
    key: TenantLimits | None = None,
    model: TenantLimits | None = None,
    key_id: str = "key",
) -> Principal:
    terms = TenantTerms(model_limits={} if model is None else {MODEL: model})
    return Principal(TenantId("acme"), KeyId(key_id), limits, terms=terms, key_limits=key)


class Crowd:
    """Callers of one principal at whichever worker. State: `admitted`, when and how many tokens, as they were used in the end;
    `most`, the most that were in progress at once."""

    def __init__(self, world: World, who: Principal, *, max_tokens: int = 0, uses: int = 0) -> None:
        self._world = world
        self._who = who
        self._max_tokens = max_tokens
        self._usage = TokenUsage(0, uses, source=UsageSource.FINAL)
        self.admitted: list[float] = []
        self.refused = 0
        self.in_progress = self.most = 0
        self.is_over = False

    def start(self, count: int) -> None:
        for _ in range(count):
            self._ask()

    def _ask(self) -> None:
        if self.is_over:
            return
        world = self._world
        asked_s = world.loop.time()

        def ended(error: HeadraceError | None) -> None:
            wait_s = 0.001
            if error is None:
                self.admitted.append(asked_s)
            else:
                self.refused += 1
                wait_s = error.retry_after_s or 1.0
            world.loop.call_later(wait_s * (1.0 + 0.2 * world.chance.random()), self._ask)

        world.chance.choice(world.workers).ask(
            principal=self._who,
            held_s=0.02,
            prompt_tokens=0,
            output_tokens_max=self._max_tokens,
            used=self._usage,
            ended=ended,
        )

    def check(self, *, per_minute: float, burst: float, lease: float) -> None:
        """T51: in any window no more than the limit, what may come at once, and what is lent ahead; in the whole at least
        0.97 of the limit, which enough have asked for."""
        times_s = sorted(self.admitted)
        for first in range(0, len(times_s), 7):
            for last in range(first, len(times_s), 11):
                window_s = times_s[last] - times_s[first]
                assert last - first + 1 <= burst + lease + per_minute * window_s / 60 + 1
        elapsed_s = times_s[-1] - times_s[0]
        assert len(times_s) >= 0.97 * per_minute * elapsed_s / 60, f"{len(times_s)} in {elapsed_s:.0f} s"


def play(story: Callable[[World], Awaitable[None]], *, seed: str = "1", slots: int = 10_000) -> None:
    """What happens, while every worker ticks as the gateway does."""
    world = World(seed, fleet(replica("a", slots=slots)), workers=WORKERS)

    def tick() -> None:
        for worker in world.workers:
            worker.dispatch.wake()
        world.loop.call_later(TICK_S, tick)

    async def whole() -> None:
        await asyncio.sleep(0.1)
        tick()
        await story(world)
        await world.rest()

    try:
        world.loop.run_until_complete(whole())
    finally:
        world.loop.close()


DURATIONS = pytest.mark.parametrize(
    "time_s", [10.0, pytest.param(600.0, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
LIMITED = TenantLimits(RATE, 20)


@pytest.mark.slow
@DURATIONS
@pytest.mark.parametrize(
    "who",
    [
        caller(LIMITED),
        caller(key=LIMITED),
        caller(model=LIMITED),
        caller(LIMITED, key=LIMITED, model=LIMITED),
    ],
    ids=["tenant", "key", "model", "all"],
)
def test_a_rate_of_requests_is_one_limit_for_all_workers_at_every_level(
    who: Principal, time_s: float
) -> None:
    """T51."""

    async def story(world: World) -> None:
        crowd = Crowd(world, who)
        crowd.start(100)
        await asyncio.sleep(time_s)
        crowd.is_over = True
        crowd.check(per_minute=RATE, burst=20, lease=LEASE_PART * RATE)

    play(story)


@pytest.mark.slow
@DURATIONS
@pytest.mark.parametrize(("max_tokens", "uses"), [(100, 100), (400, 20), (1500, 30)])
def test_a_rate_of_tokens_is_one_limit_by_what_was_used_in_the_end(
    max_tokens: int, uses: int, time_s: float
) -> None:
    """T51: whether requests use all that is taken for them or a fiftieth, which is then taken by others at once; also where
    a lease is smaller than one request."""
    per_minute = 60_000

    async def story(world: World) -> None:
        crowd = Crowd(
            world, caller(TenantLimits(0, 1, 0, per_minute, 6000)), max_tokens=max_tokens, uses=uses
        )
        crowd.start(100)
        await asyncio.sleep(time_s)
        crowd.is_over = True
        crowd.check(per_minute=per_minute / uses, burst=6000 / uses, lease=LEASE_PART * per_minute / uses)

    play(story)


def test_requests_as_large_as_the_bucket_get_through_although_every_worker_has_crumbs_of_it() -> None:
    """What is left of a lease goes back as soon as it is too little for who waits."""

    async def story(world: World) -> None:
        crowd = Crowd(world, caller(TenantLimits(0, 1, 0, 6000, 1000)), max_tokens=1000, uses=1000)
        crumbs = Crowd(world, caller(TenantLimits(0, 1, 0, 6000, 1000)), max_tokens=10, uses=10)
        crumbs.start(4)
        await asyncio.sleep(2.0)
        crumbs.is_over = True
        crowd.start(1)
        await asyncio.sleep(60.0)
        crowd.is_over = True
        assert len(crowd.admitted) >= 4

    play(story)


def test_the_concurrency_of_a_key_and_of_a_model_is_exact_and_comes_back_with_a_killed_worker() -> None:
    """T53: what a dead worker held is free within the lease's time."""
    who = caller(key=TenantLimits(concurrency_max=5), model=TenantLimits(concurrency_max=8))
    other = caller(model=TenantLimits(concurrency_max=8), key_id="other")

    async def story(world: World) -> None:
        def ask(principal: Principal, worker: int) -> None:
            world.workers[worker].ask(principal=principal, held_s=60.0)

        for number in range(20):
            ask(who, number % WORKERS)
        await asyncio.sleep(0.5)
        assert world.running("acme") == 5
        assert world.ends["key_concurrency_limited"] == 15
        for number in range(20):
            ask(other, number % WORKERS)
        await asyncio.sleep(0.5)
        assert world.running("acme") == 8
        assert world.ends["model_concurrency_limited"] == 17
        for number in range(WORKERS):
            world.replace(number)
        await asyncio.sleep(1.0)
        assert world.running("acme") == 0
        for number in range(20):
            ask(who, number % WORKERS)
        await asyncio.sleep(0.5)
        assert world.running("acme") == 5
        for number in range(WORKERS):
            world.replace(number)

    play(story)


def test_a_caller_who_leaves_before_it_has_a_place_in_the_queue_gets_its_tokens_back_once() -> None:
    """It was counted in, and then had to ask for a place: what it took was given back when it asked."""
    who = caller(TenantLimits(0, 1, 0, 60, 1000))
    [level] = levels_of(who, MODEL)

    async def story(world: World) -> None:
        first = world.workers[0]
        for _ in range(2):
            first.ask(principal=who, held_s=50.0, prompt_tokens=0, output_tokens_max=300)
            await asyncio.sleep(0.02)
        assert (world.running("acme"), world.queued) == (1, 1)
        left = world.authority.view(level, RateUnit.TOKENS)
        second = world.workers[1]
        second.ask(principal=who, held_s=50.0, prompt_tokens=0, output_tokens_max=300)
        await asyncio.sleep(0.001)
        second.up.delay_s = second.down.delay_s = 0.03
        await asyncio.sleep(0.01)
        for walk in list(second.walks):
            walk.cancel()
        await asyncio.sleep(1.0)
        after = world.authority.view(level, RateUnit.TOKENS)
        assert left is not None
        assert after is not None
        assert left.remaining <= after.remaining <= left.remaining + 3
        for worker in world.workers:
            for walk in list(worker.walks):
                walk.cancel()

    play(story, slots=1)


def test_shadow_limits_judge_what_all_workers_let_in_as_one() -> None:
    """Nobody is refused; of 40 at once five would have been let in, whichever workers have them, and the same again once
    these have ended, or their workers have died."""
    terms = TenantTerms(shadow=TenantLimits(concurrency_max=5))
    who = Principal(TenantId("acme"), KeyId("key"), NO_LIMITS, terms=terms)

    async def story(world: World) -> None:
        for round_ in (1, 2, 3):
            for number in range(40):
                world.workers[number % WORKERS].ask(principal=who, held_s=2.0)
            await asyncio.sleep(1.0)
            assert world.running("acme") == 40
            assert world.verdicts == {"": 5 * round_, "concurrency_limited": 35 * round_}
            if round_ == 1:
                await asyncio.sleep(2.0)
            else:
                for number in range(WORKERS):
                    world.replace(number)
                await asyncio.sleep(0.5)
                for worker in world.workers:  # they get slots when they have work
                    worker.ask(held_s=0.01)
                await asyncio.sleep(0.5)
        assert world.shadow.view(TenantId("acme"), now_s=world.loop.time()).requests == 120

    play(story)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_no_token_is_given_twice_and_none_is_lost(seed: int) -> None:
    """Workers die, callers leave, messages are late, limits are asked for at all levels; then every bucket fills and all
    of it is to be had, and nothing is in progress."""
    who = caller(
        TenantLimits(600, 10, 0, 6000, 1000), key=TenantLimits(0, 1, 12), model=TenantLimits(0, 1, 0, 6000)
    )
    chance = Random(f"{seed}/rates")
    admitted: list[tuple[float, int]] = []

    def ask(world: World, tokens: int, *, held_s: float) -> None:
        started_s = world.loop.time()

        def ended(error: HeadraceError | None) -> None:
            if error is None:
                admitted.append((started_s, tokens))

        world.chance.choice(world.workers).ask(
            principal=who,
            held_s=held_s,
            prompt_tokens=0,
            output_tokens_max=chance.choice((tokens, 2 * tokens)),
            used=TokenUsage(0, tokens, source=UsageSource.FINAL),
            ended=ended,
        )

    async def story(world: World) -> None:
        began_s = world.loop.time()
        for _ in range(300):
            worker = chance.choice(world.workers)
            match chance.randrange(20):
                case 0:
                    world.replace(chance.randrange(WORKERS))
                case 1:
                    chance.choice((worker.up, worker.down)).delay_s = chance.choice((0.0, 0.01, 0.6))
                case 2 if worker.walks:
                    chance.choice(list(worker.walks)).cancel()
                case 3 | 4:
                    await asyncio.sleep(chance.random())
                case _:
                    ask(world, chance.choice((10, 50, 250)), held_s=chance.choice((0.001, 0.05, 0.5)))
                    await asyncio.sleep(chance.random() * 0.02)
        for worker in world.workers:
            worker.up.delay_s = worker.down.delay_s = 0.0
        await world.rest()
        elapsed_s = world.loop.time() - began_s
        # A worker that hears nothing admits its own part meanwhile, for which no bucket is asked.
        silence = WORKERS * 6000 / 60
        assert (
            sum(tokens for _, tokens in admitted)
            <= 1000 + 6000 * elapsed_s / 60 + LEASE_PART * 6000 + silence
        )
        await asyncio.sleep(60.0)
        admitted.clear()
        for _ in range(10):
            ask(world, 100, held_s=0.01)
            await asyncio.sleep(0.01)
        await world.rest()
        await asyncio.sleep(0.1)
        # Of 200 tokens at the most each, where 1000 may come at once, and up to 300 of them to workers that have no use for them.
        assert len(admitted) >= 3
        for worker in world.workers:
            for subject in ("acme", "key:key", f"model:acme/{MODEL}"):
                assert worker.dispatch.in_progress(subject) == 0

    play(story, seed=str(seed))
