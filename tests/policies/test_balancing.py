"""The pick: least loaded first, ties by chance alone, and who is ejected, rests or is silent only as far as it must be."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.outcome import AttemptOutcome
from headrace.policies import balancing
from headrace.policies.health import Circuit, HealthRules, ReplicaHealth

RULES = HealthRules(failures_to_eject=1, ejection_s=5.0, ejection_max_s=120.0)
NOW_S = 100.0


@dataclass(eq=False)
class Load:
    outstanding: int
    slots: int
    health: ReplicaHealth = field(default_factory=lambda: ReplicaHealth(RULES))

    @property
    def shared(self) -> "Load":
        """It serves one model."""
        return self

    @property
    def share(self) -> float:
        return self.outstanding / self.slots


def load(
    outstanding: int,
    slots: int,
    circuit: Circuit = Circuit.CLOSED,
    *,
    rests: bool = False,
    quiet: bool = False,
) -> Load:
    """A load whose replica is in that state at NOW_S."""
    made = Load(outstanding, slots)
    health = made.health
    if circuit is Circuit.SLOW_START:
        health.start_slowly(now_s=NOW_S)
    elif circuit is not Circuit.CLOSED:
        ejected_s = NOW_S if circuit is Circuit.OPEN else NOW_S - 50.0
        health.ended(AttemptOutcome.ERRED, started_s=ejected_s - 1, is_idle=True, now_s=ejected_s)
    if quiet:
        health.asked(now_s=NOW_S - 10.0)
        health.look(has_work=True, now_s=NOW_S)
    if rests:
        health.rest(until_s=NOW_S + 7.0)
    assert health.circuit(NOW_S) is circuit
    return made


COUNTS = (st.integers(0, 6), st.integers(1, 4))
SOUND = st.lists(st.builds(load, *COUNTS), max_size=8)
ANY = st.lists(
    st.builds(load, *COUNTS, st.sampled_from(Circuit), rests=st.booleans(), quiet=st.booleans()), max_size=8
)


@given(loads=SOUND, seed=st.integers())
def test_the_smallest_share_is_picked_among_those_with_a_free_slot(loads: list[Load], seed: int) -> None:
    """T23."""
    free = [each for each in loads if each.outstanding < each.slots]
    picked = balancing.choose(loads, now_s=NOW_S, chance=Random(seed))
    assert (picked is None) == (not free)
    if picked is not None:
        assert picked in free
        assert picked.share == min(each.share for each in free)


@given(loads=ANY, seed=st.integers())
def test_whoever_is_chosen_may_be_used_and_has_a_free_slot(loads: list[Load], seed: int) -> None:
    usable = balancing.eligible(loads, now_s=NOW_S)
    free = [each for each in usable if each.outstanding < each.slots]
    chosen = balancing.choose(loads, now_s=NOW_S, chance=Random(seed))
    assert (chosen is None) == (not free)
    if chosen is not None:
        assert chosen in free
        assert not chosen.health.is_quiet or all(each.health.is_quiet for each in free)


@given(loads=ANY)
def test_the_last_is_never_ejected(loads: list[Load]) -> None:
    """Whoever doesn't rest is used if all who are better are gone: the ejected only if all are ejected."""
    usable = balancing.eligible(loads, now_s=NOW_S)
    awake = [each for each in loads if each.health.rest_until_s <= NOW_S]
    circuits = {each.health.circuit(NOW_S) for each in awake}
    assert all(each in awake for each in usable)
    assert bool(usable) == bool(awake)
    if circuits - {Circuit.OPEN}:
        assert all(each.health.circuit(NOW_S) is not Circuit.OPEN for each in usable)
    else:
        assert usable == awake


def test_one_that_may_be_well_again_gets_one_request_while_another_is_sound() -> None:
    trial, sound = load(0, 4, Circuit.HALF_OPEN), load(3, 4)
    assert balancing.choose([trial, sound], now_s=NOW_S, chance=Random(1)) is trial
    trial.outstanding = 1
    trial.health.asked(now_s=NOW_S)
    assert balancing.choose([trial, sound], now_s=NOW_S, chance=Random(1)) is sound
    sound.outstanding = 4
    assert balancing.choose([trial, sound], now_s=NOW_S, chance=Random(1)) is None


def test_a_replica_that_starts_slowly_gets_a_tenth_at_first_and_all_if_nobody_else_has_a_slot() -> None:
    slow, full = load(0, 50, Circuit.SLOW_START), load(0, 50)
    for _ in range(50):
        chosen = balancing.choose([slow, full], now_s=NOW_S, chance=Random(1))
        assert chosen is not None
        chosen.outstanding += 1
    assert slow.outstanding in (4, 5)
    full.outstanding = 50
    assert balancing.choose([slow, full], now_s=NOW_S, chance=Random(1)) is slow


def test_how_long_all_rest_is_how_long_the_first_to_wake_rests() -> None:
    """T26."""
    resting = [load(0, 1, rests=True), load(0, 1, rests=True)]
    resting[1].health.rest(until_s=NOW_S + 20.0)
    assert balancing.rest_s(resting, now_s=NOW_S) == 7.0
    assert balancing.rest_s([*resting, load(1, 1)], now_s=NOW_S) == 0.0
    assert balancing.rest_s([], now_s=NOW_S) == 0.0


@pytest.mark.parametrize("ties", [2, 3, 7])
def test_ties_are_broken_evenly(ties: int) -> None:
    """Chi-square far beyond its 99.99 % point for so few degrees of freedom; the seed makes it the same each time."""
    chance, draws = Random(5), 3000
    loads = [Load(1, 2), *(Load(0, slots) for slots in range(1, ties + 1)), Load(3, 3)]
    counts = Counter(balancing.pick(loads, chance=chance) for _ in range(draws))
    expected = draws / ties
    assert len(counts) == ties
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 30


def test_of_many_replicas_some_are_looked_at_and_the_work_is_as_even() -> None:
    """A fleet of 500 with 10 slots each, filled to 70 %: no replica has more than one above the rest."""
    loads, chance = [Load(0, 10) for _ in range(500)], Random(7)
    for _ in range(3500):
        chosen = balancing.choose(loads, now_s=NOW_S, chance=chance)
        assert chosen is not None
        chosen.outstanding += 1
    counts = Counter(each.outstanding for each in loads)
    assert max(counts) <= 8
    assert counts[7] + counts[8] > 400


def test_the_last_free_slot_of_many_replicas_is_found() -> None:
    loads = [Load(1, 1) for _ in range(500)]
    loads[321].outstanding = 0
    assert balancing.choose(loads, now_s=NOW_S, chance=Random(1)) is loads[321]
    loads[321].outstanding = 1
    assert balancing.choose(loads, now_s=NOW_S, chance=Random(1)) is None


def test_of_many_replicas_an_ejected_one_gets_nothing_while_others_are_sound() -> None:
    loads = [load(0, 4, Circuit.OPEN) for _ in range(300)] + [load(3, 4) for _ in range(3)]
    for seed in range(20):
        assert balancing.choose(loads, now_s=NOW_S, chance=Random(seed)) in loads[300:]
