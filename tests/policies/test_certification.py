"""D7: a figure passes, fails, or shows too little; a request is in the books once; growth and leaks are told from noise."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.deployment_terms import SloTerms
from headrace.core.errors import ConfigError
from headrace.core.slo import Metric, Objective
from headrace.core.verdicts import Verdict
from headrace.policies import certification, ranks, slo
from headrace.policies.certification import Asked, Bounds, Figure, StepReport

PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def test_a_figure_at_its_bound_is_within_it_and_one_that_never_came_is_beyond() -> None:
    assert certification.at_most("a", 1.0, 1.0).verdict is PASS
    assert certification.at_most("a", 1.1, 1.0).verdict is FAIL
    assert certification.at_most("a", None, 1.0).verdict is FAIL
    assert certification.at_least("a", 1.0, 1.0).verdict is PASS
    assert certification.at_least("a", 0.9, 1.0).verdict is FAIL
    assert certification.at_least("a", None, 1.0).verdict is FAIL
    assert certification.told("a", 3.0).verdict is None
    for figure in (
        certification.told("a", True),
        certification.at_most("a", True, 1),
        certification.at_least("a", 1, 1),
    ):
        assert [type(value) for value in (figure.value, figure.bound) if value is not None].count(float) >= 1
        assert msgspec.json.decode(msgspec.json.encode(figure), type=Figure) == figure


@pytest.mark.parametrize(
    ("events", "trials", "limit", "verdict"),
    [(0, 100, 0.03, PASS), (50, 100, 0.03, FAIL), (0, 20, 0.03, OPEN), (0, 5, 0.0, PASS), (1, 5, 0.0, FAIL)],
)
def test_a_share_is_judged_by_what_its_trials_can_show(
    events: int, trials: int, limit: float, verdict: Verdict
) -> None:
    assert certification.share_at_most("failures", events, trials, limit).verdict is verdict


def test_a_long_input_may_take_as_long_as_short_ones_say_or_as_is_stated() -> None:
    short = [(0.2, 50), (0.5, 50), (9.0, 50)]  # the median is a hundredth of a second for each token
    at_3_times = certification.long_ttft_s(Bounds(ttft_s=2.0), short=short, tokens=1000)
    assert at_3_times == pytest.approx(30.0)
    assert certification.long_ttft_s(Bounds(ttft_s=2.0), short=short, tokens=10) == 2.0
    assert certification.long_ttft_s(Bounds(ttft_s=2.0), short=[], tokens=1000) == 2.0
    assert certification.long_ttft_s(Bounds(long_ttft_s=7.0), short=short, tokens=1000) == 7.0


@pytest.mark.parametrize(
    ("values", "verdict"), [([0.1] * 100, PASS), ([9.0] * 100, FAIL), ([0.1] * 10, OPEN), ([], OPEN)]
)
def test_a_quantile_of_too_few_is_no_evidence(values: list[float], verdict: Verdict) -> None:
    assert certification.quantile_at_most("ttft", values, 0.95, 1.0).verdict is verdict


def growth(bytes_each: float, *, noise: float, seed: int = 1) -> list[tuple[float, float]]:
    chance = random.Random(seed)
    return [(100.0 * n, 1e8 + bytes_each * 100 * n + chance.gauss(0, noise)) for n in range(12)]


def test_growth_is_told_from_noise_and_from_a_single_leap() -> None:
    """T60"""
    assert certification.slope_at_most("a", growth(50_000, noise=1e5), 4096).verdict is FAIL
    assert certification.slope_at_most("a", growth(0, noise=1e4), 4096).verdict is PASS
    assert certification.slope_at_most("a", growth(0, noise=1e7), 4096).verdict is OPEN
    leap = [(x, y + (2e7 if x >= 600 else 0)) for x, y in growth(0, noise=1e3)]
    found = ranks.slope(leap, alpha=0.05)
    assert found.low is not None
    assert found.low < 4096
    assert certification.slope_at_most("a", growth(0, noise=1)[:2], 4096).verdict is OPEN


def test_a_slope_of_nothing_is_none() -> None:
    for points in ([], [(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)]):
        assert ranks.slope(points, alpha=0.05).estimate is None


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(6, 15))
def test_points_on_a_line_have_its_slope(rise: float, start: float, count: int) -> None:
    found = ranks.slope([(float(x), start + rise * x) for x in range(count)], alpha=0.05)
    assert found.estimate is not None
    assert found.estimate == pytest.approx(rise, rel=1e-6, abs=1e-3)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.estimate <= found.high


def test_values_that_are_sooner_are_told_from_values_that_are_alike() -> None:
    """T42"""
    chance = random.Random(7)
    slow, quick = [[chance.gauss(mean, 0.1) for _ in range(20)] for mean in (1.0, 0.5)]
    assert ranks.sooner_p(quick, slow) < 0.001
    assert ranks.sooner_p(slow, quick) > 0.99
    assert ranks.sooner_p(slow[:10], slow[10:]) > 0.01
    assert ranks.sooner_p([1.0] * 5, [1.0] * 5) == 1.0
    assert ranks.sooner_p([], slow) == ranks.sooner_p(quick, []) == 1.0


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=12), st.lists(st.integers(0, 9), min_size=2, max_size=12)
)
def test_a_chance_of_ranks_is_a_chance_and_the_two_sides_make_at_least_one(
    one: list[int], other: list[int]
) -> None:
    p, q = ranks.sooner_p(one, other), ranks.sooner_p(other, one)
    assert 0 <= p <= 1
    assert p + q >= 1 - 1e-9 or math.isclose(p + q, 1)


def test_each_request_is_in_the_books_once() -> None:
    """T28"""
    asked = [
        Asked("a", "t", is_whole=True, status=200),
        Asked("b", "t", is_whole=True, status=200),
        Asked("c", "t", status=503, is_whole=False),
        Asked("", "t"),  # left before the head
    ]
    fine = certification.compare_books(asked, ["a", "b", "x"])
    assert (fine.unrecorded, fine.doubled, fine.strangers) == (0, 0, 0)
    assert certification.compare_books(asked, ["a", "x"]).unrecorded == 1
    assert certification.compare_books(asked, ["a", "a", "b"]).doubled == 1
    assert certification.compare_books(asked, ["a", "b", "x", "y"]).strangers == 1


def test_a_step_fails_by_any_figure_and_says_which() -> None:
    good, bad = certification.at_most("good", 1, 2), certification.at_most("bad", 3, 2, "s")
    few = certification.share_at_most("few", 0, 10, 0.03)
    assert certification.verdict([good, certification.told("x", 9)]) == (PASS, "")
    assert certification.verdict([good, bad, few]) == (FAIL, "bad: 3 s, at most 2 s")
    assert certification.verdict([good, few]) == (OPEN, "few: 0 of 10, at most 0.03, which so few can't show")
    never = certification.at_most("back", None, 2)
    assert certification.verdict([never]) == (FAIL, "back: never, at most 2")
    assert certification.bound_in_words(certification.told("x", 1)) == ""


def test_what_was_not_made_decides_nothing_and_nothing_made_proves_nothing() -> None:
    made, unmade = StepReport("a", "", PASS), StepReport("b", "", None)
    assert certification.overall([made, unmade]) is PASS
    assert certification.overall([made, StepReport("c", "", FAIL)]) is FAIL
    assert certification.overall([unmade]) is Verdict.ERROR


def test_the_promises_are_the_deployments_and_the_bounds_fill_the_rest() -> None:
    bounds = Bounds(tpot_s=0.25, total_s=60.0)
    own = certification.default_slo("chat", SloTerms(ttft_p95_ms=300, error_rate=0.01), bounds)
    assert [each.within_ms for each in own.objectives] == [300, 250, 60_000]
    assert own.failure_share_max == 0.01
    assert certification.default_slo("chat", SloTerms(), bounds).failure_share_max == bounds.failure_share
    seen = [slo.Seen(slo.Fate.WHOLE, 1.0, 0.1, tpot_s=0.01)] * 400
    figures = [certification.promise_kept(each) for each in slo.attainment(own, seen).kept]
    assert {figure.verdict for figure in figures} == {PASS}
    assert [figure.bound for figure in figures] == [0.99, 0.95, 0.95, 0.95]


def test_what_nobody_promised_is_held_against_what_the_service_does_when_it_is_busy() -> None:
    stated = certification.default_slo("chat", SloTerms(ttft_p95_ms=300), Bounds())
    assert [each.metric for each in stated.objectives] == [Metric.TTFT]
    whole = certification.completed(
        stated, {Metric.TTFT: 9.0, Metric.TPOT: 0.1, Metric.TOTAL: 4.0}, share=0.9
    )
    assert whole.objectives == (
        *stated.objectives, Objective(Metric.TPOT, 200.0, 0.9), Objective(Metric.TOTAL, 8000.0, 0.9)
    )  # fmt: skip
    assert whole.failure_share_max == Bounds().failure_share


def test_a_bound_is_changed_by_its_name() -> None:
    assert certification.changed(Bounds(), {"cancel_s": 0.5}).cancel_s == 0.5
    with pytest.raises(ConfigError, match="no bound 'cancel'"):
        certification.changed(Bounds(), {"cancel": 0.5})
    for value in (-1.0, math.nan):
        with pytest.raises(ConfigError, match="at least 0"):
            certification.changed(Bounds(), {"cancel_s": value})
