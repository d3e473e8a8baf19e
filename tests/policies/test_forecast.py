"""What is expected follows from the deployment's own history, and from nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.forecast import BEYOND, POINTS_MIN, Predictor, forecast

LOADS = st.lists(st.floats(0.0, 1e6), max_size=60)
STEPS = st.integers(1, 10)


def test_without_any_load_none_is_expected() -> None:
    assert forecast([], steps=3).load == 0.0
    assert forecast([0.0] * 20, steps=3).load == 0.0


@given(load=st.floats(0.001, 1e6), length=st.integers(1, 50), steps=STEPS)
def test_a_history_that_never_changes_is_continued(load: float, length: int, steps: int) -> None:
    expected = forecast([load] * length, steps=steps)
    assert expected.load == load
    assert expected.short_by == 0.0
    assert expected.predictor is Predictor.CONSTANT


@given(load=st.floats(0.001, 1e6), length=st.integers(1, 50), steps=STEPS)
def test_also_the_filter_alone_continues_it(load: float, length: int, steps: int) -> None:
    assert forecast([load] * length, steps=steps, predictors=[Predictor.KALMAN]).load == pytest.approx(load)


@given(history=LOADS, zeros=st.integers(0, 30), steps=STEPS)
def test_silence_before_the_first_load_changes_nothing(history: list[float], zeros: int, steps: int) -> None:
    assert forecast([0.0] * zeros + history, steps=steps) == forecast(history, steps=steps)


@given(history=LOADS, steps=STEPS)
def test_no_prediction_is_negative_nor_far_beyond_what_was_seen(history: list[float], steps: int) -> None:
    for predictors in ([Predictor.CONSTANT], [Predictor.KALMAN], list(Predictor)):
        expected = forecast(history, steps=steps, predictors=predictors)
        assert 0.0 <= expected.load <= BEYOND * max(history, default=0.0)
        assert 0.0 <= expected.short_by <= max(history, default=0.0)


def test_a_steady_climb_is_followed() -> None:
    climb = [10.0 + 2.0 * minute for minute in range(40)]
    expected = forecast(climb, steps=5)
    assert expected.predictor is Predictor.KALMAN
    assert expected.load == pytest.approx(10.0 + 2.0 * 44, rel=0.05)


def test_noise_without_a_trend_is_left_to_the_constant() -> None:
    """The trend would have done worse on this history, so it doesn't speak."""
    noise = [10.0 + (6.0 if minute % 2 else 0.0) for minute in range(40)]
    assert forecast(noise, steps=2).predictor is Predictor.CONSTANT


def test_the_choice_is_the_smaller_loss_over_the_replay() -> None:
    climb = [1.05**minute for minute in range(60)]
    each = {predictor: forecast(climb, steps=4, predictors=[predictor]) for predictor in Predictor}
    constant, kalman = each[Predictor.CONSTANT].loss, each[Predictor.KALMAN].loss
    assert constant is not None
    assert kalman is not None
    assert kalman < constant
    assert constant == pytest.approx(
        sum(
            abs(math.log1p(climb[minute]) - math.log1p(climb[minute + 4]))
            for minute in range(POINTS_MIN - 1, 56)
        )
        / len(range(POINTS_MIN - 1, 56))
    )
    assert forecast(climb, steps=4) == each[Predictor.KALMAN]


def test_too_short_a_history_has_no_trend() -> None:
    short = [1.0, 2.0, 3.0, 4.0]
    assert len(short) < POINTS_MIN
    assert forecast(short, steps=1, predictors=[Predictor.KALMAN]).load == 4.0
    assert forecast(short, steps=1).loss is None


def test_what_it_fell_short_by_covers_the_share_that_was_asked_for() -> None:
    """Nine quiet steps and a jump of 50, again and again: one replayed moment in ten was short by 50."""
    jumps = ([10.0] * 9 + [60.0]) * 10
    constant = [Predictor.CONSTANT]
    assert forecast(jumps, steps=1, predictors=constant, covered=0.8).short_by == 0.0
    assert forecast(jumps, steps=1, predictors=constant, covered=0.95).short_by == 50.0
