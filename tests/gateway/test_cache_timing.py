"""T42, REPORTS 106: the time to a first token tells nobody what another tenant has asked, and a tenant keeps its benefit."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import combinations
from typing import Any

import pytest

from tests.support.cache_probe import Caller, Probed, is_told, mann_whitney_p, probe, tells
from tests.support.provider import Provider, provider
from tests.support.scripted import ScriptedEngine, scripted_engine

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

TOKENS = 2000
# 25 ms for a prompt that nothing is known of.
ENGINE: dict[str, Any] = {
    "owned_by": "vllm",
    "prefix_cache": 1_000_000,
    "prefill_tokens_per_s": 80_000,
    "log": True,
}
UNLIMITED = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"
PAIRS = [pytest.param(24), pytest.param(200, marks=pytest.mark.long)]


class Bench:
    """Two providers in front of one engine with a prefix cache; the second has the isolation switched off."""

    def __init__(self, engine: ScriptedEngine, isolated: Provider, shared: Provider) -> None:
        self.engine = engine
        self._isolated, self._shared = isolated, shared
        self._chance = random.Random(42)
        isolated.cli("tenants", "create", "first", "--cache-group", "friends")
        isolated.cli("tenants", "create", "second", "--cache-group", "friends")
        self._keys: dict[tuple[str, bool], str] = {}

    def probe(self, owner: str, guesser: str, *, pairs: int, is_isolated: bool = True) -> Probed:
        running = self._isolated if is_isolated else self._shared
        with ExitStack() as stack:
            callers = [
                stack.enter_context(closing(Caller(running.port, self._key(tenant, is_isolated), "scripted")))
                for tenant in (owner, guesser)
            ]
            return probe(*callers, pairs=pairs, tokens=TOKENS, chance=self._chance)

    def _key(self, tenant: str, is_isolated: bool) -> str:
        name = (tenant, is_isolated)
        if name not in self._keys:
            self._keys[name] = (self._isolated if is_isolated else self._shared).key(tenant)
        return self._keys[name]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with scripted_engine(**ENGINE) as engine:
        off = 'cache_isolation = "none"\nshared_cache_reason = "the control of this test"\n'
        with (
            provider(upstreams=[engine.url], config=UNLIMITED) as isolated,
            provider(config=f'{UNLIMITED}[[upstreams]]\nurl = "{engine.url}"\n{off}') as shared,
        ):
            yield Bench(engine, isolated, shared)


@pytest.mark.parametrize("pairs", PAIRS)
def test_a_guess_takes_no_less_time_where_another_tenant_has_asked_the_same(bench: Bench, pairs: int) -> None:
    """And the engine, which knows, says that it found nothing; nor does the answer."""
    before = len(bench.engine.executions())
    assert not tells(lambda: bench.probe("owner", "guesser", pairs=pairs))
    asked = bench.engine.executions()[before:]
    assert len(asked) in (3 * pairs, 6 * pairs)
    assert {each["cached_tokens"] for each in asked} == {0}


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize(("owner", "guesser"), [("owner", "owner"), ("first", "second")])
def test_within_a_tenant_and_within_a_group_that_was_agreed_it_does(
    bench: Bench, owner: str, guesser: str, pairs: int
) -> None:
    """The benefit is kept, and they see in their usage what they get."""
    probed: list[Probed] = []

    def run() -> Probed:
        probed.append(bench.probe(owner, guesser, pairs=pairs))
        return probed[-1]

    assert is_told(run)
    assert {each.cached_tokens for each in probed[0].primed} == {TOKENS - 16}
    assert {each.cached_tokens for each in probed[0].unseen} == {0}


@pytest.mark.parametrize("pairs", PAIRS)
def test_where_the_isolation_is_switched_off_the_same_test_finds_the_leak(bench: Bench, pairs: int) -> None:
    """It can fail: else the first test would prove nothing. Even then the answer itself tells nothing."""
    probed: list[Probed] = []

    def run() -> Probed:
        probed.append(bench.probe("owner", "guesser", pairs=pairs, is_isolated=False))
        return probed[-1]

    assert is_told(run)
    assert {each.cached_tokens for each in (*probed[0].primed, *probed[0].unseen)} == {0}


@pytest.mark.parametrize("values", [range(100), range(6)], ids=["few ties", "many ties"])
def test_the_test_of_ranks_is_near_to_the_count_of_all_arrangements(values: range) -> None:
    """Of seven and seven values, how many of the 3,432 ways to deal them out put the first ones as low: the exact answer."""
    chance = random.Random(1)
    for _ in range(5):
        quick, slow = chance.choices(values, k=7), chance.choices(values, k=7)
        pool = quick + slow
        ranks = {value: pool.count(value) / 2 + sum(other < value for other in pool) for value in pool}
        sums = [sum(ranks[pool[i]] for i in hand) for hand in combinations(range(14), 7)]
        exact = sum(each <= sums[0] for each in sums) / len(sums)
        assert mann_whitney_p(quick, slow) == pytest.approx(exact, abs=0.04)


def test_values_that_are_all_one_show_nothing() -> None:
    assert mann_whitney_p([1.0, 1.0], [1.0, 1.0]) == 1.0
