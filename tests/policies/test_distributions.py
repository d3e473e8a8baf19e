"""Tails of counts, against exact arithmetic and, where it is installed, against scipy."""

import random
from fractions import Fraction
from math import comb

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.policies import distributions


def exact_at_least(count: int, trials: int, p: Fraction) -> Fraction:
    return sum(
        (comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(max(0, count), trials + 1)),
        Fraction(0),
    )


def exact_shared(count: int, first: int, second: int, total: int, odds: Fraction) -> Fraction:
    weights = {
        k: comb(first, k) * comb(second, total - k) * odds**k
        for k in range(max(0, total - second), min(first, total) + 1)
    }
    return Fraction(sum(w for k, w in weights.items() if k >= count)) / sum(weights.values())


@given(st.integers(0, 60), st.integers(-1, 61), st.integers(0, 100))
@example(trials=5, count=3, percent=0)
@example(trials=5, count=3, percent=100)
def test_the_tails_of_a_binomial_count_are_the_sums_that_they_stand_for(
    trials: int, count: int, percent: int
) -> None:
    p = Fraction(percent, 100)
    at_least = float(exact_at_least(count, trials, p))
    assert distributions.binomial_at_least(count, trials, percent / 100) == pytest.approx(at_least, abs=1e-12)
    assert distributions.binomial_at_most(count - 1, trials, percent / 100) == pytest.approx(
        1 - at_least, abs=1e-12
    )


@given(st.integers(0, 40), st.integers(0, 40), st.data(), st.sampled_from([1, 2, 5]))
def test_the_tails_of_a_shared_count_are_the_sums_that_they_stand_for(
    first: int, second: int, data: st.DataObject, odds: int
) -> None:
    total = data.draw(st.integers(0, first + second))
    count = data.draw(st.integers(-1, first + 1))
    wanted = float(exact_shared(count, first, second, total, Fraction(odds)))
    assert distributions.shared_at_least(count, first, second, total=total, odds_ratio=odds) == pytest.approx(
        wanted, rel=1e-9, abs=1e-12
    )
    below = distributions.shared_at_most(count - 1, first, second, total=total, odds_ratio=odds)
    assert below == pytest.approx(1 - wanted, rel=1e-9, abs=1e-12)


def test_the_lady_who_tastes_tea_has_three_cups_right_by_chance_in_17_of_70_cases() -> None:
    """Fisher, The Design of Experiments, 1935."""
    assert distributions.shared_at_least(3, 4, 4, total=4) == pytest.approx(17 / 70)


def test_large_counts_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    chance = random.Random(7)
    for _ in range(200):
        n, p = chance.choice([1, 40, 3000, 100_000]), chance.choice([1e-4, 0.05, 0.5, 0.999])
        count = max(0, min(n, round(n * p + chance.gauss(0, 3) * (n * p * (1 - p)) ** 0.5)))
        found = distributions.binomial_at_most(count, n, p)
        assert found == pytest.approx(stats.binom.cdf(count, n, p), rel=1e-7)
        first, second, total = chance.choice([1, 200, 3000]), 40_000, chance.randrange(600)
        shared = min(first, round(total * first / (first + second)) + 2)
        found = distributions.shared_at_least(shared, first, second, total=total)
        wanted = stats.hypergeom.sf(shared - 1, first + second, first, total)
        assert found == pytest.approx(wanted, rel=1e-7, abs=1e-11)
