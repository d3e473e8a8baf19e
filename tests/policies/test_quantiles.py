"""Tails of latencies: bounds by rank, ratios of two, and what too few values can't show."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.verdicts import Reason, Verdict
from headrace.policies import quantiles
from headrace.policies.quantiles import Histogram, Samples

EDGES = tuple(0.001 * 2 ** (step / 8) for step in range(160))


def histogram(values: list[float]) -> Histogram:
    counts = [0] * (len(EDGES) + 1)
    for value in values:
        counts[sum(edge < value for edge in EDGES)] += 1
    return Histogram(EDGES, tuple(counts))


def latencies(chance: random.Random, count: int, *, scale: float = 1.0) -> list[float]:
    return [scale * chance.lognormvariate(0.0, 0.5) for _ in range(count)]


def test_the_median_of_ten_lies_between_the_second_and_the_ninth() -> None:
    found = quantiles.interval(Samples(range(1, 11)), 0.5, alpha=0.025)
    assert (found.low, found.estimate, found.high) == (2, 5, 9)


def test_fifty_nine_values_bound_a_95th_percentile_and_fifty_eight_do_not() -> None:
    """S. S. Wilks, Annals of Mathematical Statistics 12 (1941) 91."""
    assert quantiles.samples_needed(0.95, alpha=0.05) == 59
    assert quantiles.interval(Samples(range(59)), 0.95, alpha=0.05).high == 58
    assert quantiles.interval(Samples(range(58)), 0.95, alpha=0.05).high is None


def test_nothing_has_no_quantile_and_two_values_no_bounds() -> None:
    assert quantiles.interval(Samples([]), 0.5, alpha=0.05).estimate is None
    found = quantiles.interval(Samples([1.0, 2.0]), 0.5, alpha=0.05)
    assert (found.low, found.estimate, found.high) == (None, 1.0, None)
    assert quantiles.ratio(Samples([]), Samples([1.0]), 0.5, alpha=0.05).estimate is None


def test_a_bound_is_wrong_as_seldom_as_it_says() -> None:
    chance = random.Random(5)
    true = 2.2760  # exp(0.5 * 1.6449), the 95th percentile
    intervals = [quantiles.interval(Samples(latencies(chance, 200)), 0.95, alpha=0.05) for _ in range(400)]
    assert sum(each.low is not None and each.low > true for each in intervals) <= 0.05 * 400 + 10
    assert sum(each.high is not None and each.high < true for each in intervals) <= 0.05 * 400 + 10


@given(st.lists(st.floats(0.002, 500.0), min_size=1, max_size=200), st.data())
def test_a_histogram_gives_a_value_in_the_bucket_of_the_true_one(
    values: list[float], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(1, len(values)))
    true, found = sorted(values)[rank - 1], histogram(values).at(rank)
    assert found is not None
    assert true / 1.1 < found < true * 1.1
    ranks = [histogram(values).at(each) or 0.0 for each in range(1, len(values) + 1)]
    assert all(first <= second for first, second in pairwise(ranks))


def test_a_value_above_all_edges_is_not_made_up() -> None:
    above = Histogram((1.0, 2.0), (1, 1, 98))
    assert above.at(1) == 1.0
    assert above.at(3) is None
    judged = quantiles.judge_against_control(
        above, Samples([1.0] * 100), quantile=0.95, ratio_max=1.1, alpha=0.05
    )
    assert judged.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("kind", [Samples, histogram])
@pytest.mark.parametrize(
    ("scale", "count", "needs_proof", "wanted"),
    [
        (2.0, 2000, False, (Verdict.FAIL, Reason.SHOWN_WORSE)),
        (1.0, 2000, False, (Verdict.PASS, Reason.NOT_SHOWN_WORSE)),
        (1.0, 30, False, (Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)),
        (1.0, 200, True, (Verdict.INCONCLUSIVE, Reason.UNDECIDED)),
        (0.7, 2000, True, (Verdict.PASS, Reason.SHOWN_NOT_WORSE)),
    ],
)
def test_the_candidates_tail_is_judged_beside_the_controls(
    kind: type[Samples], scale: float, count: int, needs_proof: bool, wanted: tuple[Verdict, Reason]
) -> None:
    chance = random.Random(11)
    candidate, control = latencies(chance, count, scale=scale), latencies(chance, 4000)
    judged = quantiles.judge_against_control(
        kind(candidate), kind(control), quantile=0.95, ratio_max=1.1, alpha=0.01, needs_proof=needs_proof
    )
    assert (judged.verdict, judged.reason) == wanted
    assert (judged.candidate_samples, judged.control_samples) == (count, 4000)


def test_an_equal_tail_is_seldom_called_longer() -> None:
    chance = random.Random(13)
    judged = [
        quantiles.judge_against_control(
            Samples(latencies(chance, 150)),
            Samples(latencies(chance, 600)),
            quantile=0.95,
            ratio_max=1.0,
            alpha=0.05,
        )
        for _ in range(300)
    ]
    assert sum(each.verdict is Verdict.FAIL for each in judged) <= 0.05 * 300 + 8


def test_a_tail_is_held_against_a_fixed_limit() -> None:
    values = Samples(latencies(random.Random(17), 1000))
    for limit, wanted in ((1.5, Verdict.FAIL), (2.3, Verdict.PASS)):
        assert quantiles.judge_against_limit(values, quantile=0.95, limit=limit, alpha=0.05).verdict is wanted
    few = quantiles.judge_against_limit(Samples([0.5] * 5), quantile=0.95, limit=1.0, alpha=0.05)
    assert few.verdict is Verdict.INCONCLUSIVE
