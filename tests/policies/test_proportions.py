"""Shares of failures: bounds that are published, and verdicts that are as seldom wrong as they say."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.verdicts import Reason, Verdict
from headrace.policies import looks, proportions
from headrace.policies.proportions import Share

TWO_SIDED_95 = 0.025


@pytest.mark.parametrize(
    ("events", "trials", "wilson", "exact"),
    [
        (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
        (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
        (0, 20, (0.0, 0.1611), (0.0, 0.1684)),
        (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
    ],
)
def test_intervals_of_one_share_are_the_published_ones(
    events: int, trials: int, wilson: tuple[float, float], exact: tuple[float, float]
) -> None:
    """R. G. Newcombe, Statistics in Medicine 17 (1998) 857, table I."""
    share = Share(events, trials)
    for found, wanted in (
        (proportions.wilson(share, alpha=TWO_SIDED_95), wilson),
        (proportions.exact(share, alpha=TWO_SIDED_95), exact),
    ):
        assert (found.low, found.high) == pytest.approx(wanted, abs=6e-5)


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (Share(56, 70), Share(48, 80), (0.0524, 0.3339)),
        (Share(9, 10), Share(3, 10), (0.1705, 0.8090)),
        (Share(10, 10), Share(0, 20), (0.6791, 1.0)),
        (Share(0, 10), Share(0, 20), (-0.1611, 0.2775)),
    ],
)
def test_the_interval_of_a_difference_is_the_published_one(
    first: Share, second: Share, wanted: tuple[float, float]
) -> None:
    """R. G. Newcombe, Statistics in Medicine 17 (1998) 873, table II, method 10."""
    found = proportions.difference(first, second, alpha=TWO_SIDED_95)
    assert (found.low, found.high) == pytest.approx(wanted, abs=6e-5)


def test_a_share_of_nothing_has_no_estimate_and_any_bound() -> None:
    nothing, something = Share(0, 0), Share(1, 2)
    assert nothing.value is None
    assert something.value == 0.5
    for found in (proportions.wilson(nothing, alpha=0.05), proportions.exact(nothing, alpha=0.05)):
        assert (found.estimate, found.low, found.high) == (None, 0.0, 1.0)
    found = proportions.difference(nothing, something, alpha=0.05)
    assert (found.estimate, found.low, found.high) == (None, -1.0, 1.0)


@given(st.integers(1, 500), st.data(), st.sampled_from([0.001, 0.05, 0.2]))
def test_a_share_lies_between_its_bounds_which_a_stricter_alpha_widens(
    trials: int, data: st.DataObject, alpha: float
) -> None:
    share = Share(data.draw(st.integers(0, trials)), trials)
    for interval in (proportions.wilson, proportions.exact):
        found, wider = interval(share, alpha=alpha), interval(share, alpha=alpha / 10)
        assert found.low is not None
        assert found.high is not None
        assert wider.low is not None
        assert wider.high is not None
        value = share.events / trials
        assert -1e-9 <= wider.low <= found.low + 1e-9 <= value + 2e-9
        assert value - 2e-9 <= found.high - 1e-9 <= wider.high <= 1 + 1e-9


def test_no_failure_on_either_side_is_no_sign_of_anything() -> None:
    assert proportions.worse_p(Share(0, 50), Share(0, 5000)) == 1.0


def test_three_failures_in_a_canary_of_two_hundred_beside_none_in_many_thousand_are_found() -> None:
    judged = proportions.judge_against_control(
        Share(3, 200), Share(0, 19_800), ratio_max=1.0, alpha=0.01, samples_min=200
    )
    assert judged.verdict is Verdict.FAIL
    assert judged.reason is Reason.SHOWN_WORSE


def test_a_difference_that_does_not_matter_fails_nothing_however_significant_it_is() -> None:
    judged = proportions.judge_against_control(
        Share(1, 400), Share(0, 100_000), ratio_max=1.0, alpha=0.01, matters_from=0.005
    )
    assert judged.verdict is Verdict.PASS


def test_a_bad_candidate_fails_before_the_least_number_of_samples_and_a_good_one_waits_for_it() -> None:
    bad = proportions.judge_against_control(
        Share(20, 20), Share(1, 1000), ratio_max=1.0, alpha=0.001, samples_min=200
    )
    good = proportions.judge_against_control(
        Share(0, 20), Share(1, 1000), ratio_max=1.0, alpha=0.001, samples_min=200
    )
    assert bad.verdict is Verdict.FAIL
    assert (good.verdict, good.reason) == (Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)
    nobody = proportions.judge_against_control(Share(0, 0), Share(0, 9), ratio_max=1.0, alpha=0.05)
    assert nobody.reason is Reason.TOO_FEW_SAMPLES


def test_that_failures_hit_both_alike_is_not_held_against_the_candidate() -> None:
    """An outage of what both depend on: a tenth fails, on either side."""
    judged = proportions.judge_against_control(Share(50, 500), Share(450, 4500), ratio_max=1.0, alpha=0.05)
    assert (judged.verdict, judged.reason) == (Verdict.PASS, Reason.NOT_SHOWN_WORSE)


def test_proof_that_a_ratio_is_held_takes_many_events() -> None:
    few = proportions.judge_against_control(
        Share(1, 100), Share(2, 200), ratio_max=1.5, alpha=0.05, needs_proof=True
    )
    many = proportions.judge_against_control(
        Share(500, 5000), Share(500, 5000), ratio_max=1.5, alpha=0.05, needs_proof=True
    )
    assert (few.verdict, few.reason) == (Verdict.INCONCLUSIVE, Reason.UNDECIDED)
    assert (many.verdict, many.reason) == (Verdict.PASS, Reason.SHOWN_NOT_WORSE)


@pytest.mark.parametrize(
    ("share", "needs_proof", "wanted"),
    [
        (Share(9, 100), False, (Verdict.FAIL, Reason.SHOWN_WORSE)),
        (Share(0, 3), False, (Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)),
        (Share(1, 100), False, (Verdict.PASS, Reason.NOT_SHOWN_WORSE)),
        (Share(1, 100), True, (Verdict.INCONCLUSIVE, Reason.UNDECIDED)),
        (Share(1, 10_000), True, (Verdict.PASS, Reason.SHOWN_NOT_WORSE)),
    ],
)
def test_a_share_is_held_against_a_fixed_limit(
    share: Share, needs_proof: bool, wanted: tuple[Verdict, Reason]
) -> None:
    judged = proportions.judge_against_limit(
        share, limit=0.01, alpha=0.05, samples_min=10, needs_proof=needs_proof
    )
    assert (judged.verdict, judged.reason) == wanted


def test_looking_at_every_interval_does_not_add_up_to_false_rollbacks() -> None:
    """600 rollouts of an equally good candidate, 40 looks each: at most `alpha` of them may end in a false failure."""
    chance = random.Random(3)
    alpha, rollouts, failed, failed_naively = 0.1, 600, 0, 0
    for _ in range(rollouts):
        candidate, control = Share(0, 0), Share(0, 0)
        is_failed = is_failed_naively = False
        for look in range(1, 41):
            candidate, control = (
                Share(
                    share.events + sum(chance.random() < 0.05 for _ in range(trials)), share.trials + trials
                )
                for share, trials in ((candidate, 10), (control, 40))
            )
            p = proportions.worse_p(candidate, control)
            is_failed |= p <= looks.alpha_at(look, alpha=alpha)
            is_failed_naively |= p <= alpha
        failed += is_failed
        failed_naively += is_failed_naively
    assert failed <= alpha * rollouts
    assert failed_naively > 2 * alpha * rollouts  # what the rule is for


def test_what_is_spent_over_all_looks_is_alpha() -> None:
    spent = sum(looks.alpha_at(look, alpha=0.05) for look in range(1, 100_001))
    assert 0.0499 < spent <= 0.05
    assert looks.alpha_at(1, alpha=0.05) == 0.025
    assert looks.shared(0.05, among=5) == pytest.approx(0.01)
    assert looks.shared(0.05, among=0) == 0.05


def test_numbers_of_trials_that_are_needed_are_the_known_ones() -> None:
    assert proportions.trials_without_event(0.01, alpha=0.05) == 299  # the rule of three, exactly
    assert proportions.trials_to_tell(0.05, 0.10, alpha=0.025, power=0.8) == 435
    one_to_nine = proportions.trials_to_tell(0.05, 0.10, alpha=0.025, power=0.8, control_per_candidate=9)
    assert 200 < one_to_nine < 435
