"""The pick: least loaded first, ties by chance alone, the ejected only where nobody else is left."""

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies import balancing


@dataclass(frozen=True)
class Load:
    """A candidate; compared by all its values, so that equals are interchangeable."""

    outstanding: int
    slots: int
    is_ejected: bool = False

    @property
    def share(self) -> float:
        return self.outstanding / self.slots


LOADS = st.lists(st.builds(Load, st.integers(0, 6), st.integers(1, 4), st.booleans()), max_size=8)


@given(loads=LOADS, seed=st.integers())
def test_the_smallest_share_is_picked_among_those_with_a_free_slot(loads: list[Load], seed: int) -> None:
    """T23."""
    free = [load for load in loads if load.outstanding < load.slots]
    picked = balancing.pick(loads, chance=Random(seed))
    assert (picked is None) == (not free)
    if picked is not None:
        assert picked in free
        assert picked.share == min(load.share for load in free)


@given(loads=LOADS)
def test_the_ejected_are_eligible_only_if_all_are(loads: list[Load]) -> None:
    usable = balancing.eligible(loads)
    if all(load.is_ejected for load in loads):
        assert usable == loads
    else:
        assert usable == [load for load in loads if not load.is_ejected]


@pytest.mark.parametrize("ties", [2, 3, 7])
def test_ties_are_broken_evenly(ties: int) -> None:
    """Chi-square far beyond its 99.99 % point for so few degrees of freedom; the seed makes it the same each time."""
    chance, draws = Random(5), 3000
    loads = [Load(1, 2), *(Load(0, slots) for slots in range(1, ties + 1)), Load(3, 3)]
    counts = Counter(balancing.pick(loads, chance=chance) for _ in range(draws))
    expected = draws / ties
    assert len(counts) == ties
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 30
