"""Predictions follow what was measured, and go no further."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.prediction import BEYOND, REFIT_AFTER, SAMPLES_MAX, ServiceModel

SAMPLE = st.tuples(st.integers(0, 10**7), st.integers(0, 10**5), st.floats(0.001, 1000.0))


def model(*samples: tuple[int, int, float]) -> ServiceModel:
    made = ServiceModel()
    for size, tokens, service_s in samples:
        made.observe(prompt_bytes=size, output_tokens=tokens, service_s=service_s)
    return made


def test_before_the_first_sample_nothing_is_predicted() -> None:
    assert model().mean_s is None
    assert model().predict_s(prompt_bytes=1, output_tokens_max=None) is None


@given(samples=st.lists(SAMPLE, min_size=1, max_size=2 * SAMPLES_MAX), size=st.integers(0, 10**9))
def test_no_prediction_is_below_the_quickest_nor_sinks_with_size(
    samples: list[tuple[int, int, float]], size: int
) -> None:
    made = model(*samples)
    quickest_s = min(sample[2] for sample in samples)
    smaller_s = made.predict_s(prompt_bytes=size // 2, output_tokens_max=None)
    larger_s = made.predict_s(prompt_bytes=size, output_tokens_max=None)
    mean_s = made.mean_s
    assert smaller_s is not None
    assert larger_s is not None
    assert mean_s is not None
    assert quickest_s <= smaller_s <= larger_s * (1 + 1e-9)
    assert quickest_s * 0.999 <= mean_s <= max(sample[2] for sample in samples) * 1.001


def test_prompts_and_answers_have_each_their_price() -> None:
    chance = Random(1)
    sizes = [(chance.randrange(100, 10_000), chance.randrange(10, 500)) for _ in range(SAMPLES_MAX)]
    made = model(*((size, tokens, 0.5 + 1e-4 * size + 0.02 * tokens) for size, tokens in sizes))
    predicted_s = made.predict_s(prompt_bytes=5000, output_tokens_max=20)
    assert predicted_s == pytest.approx(0.5 + 0.5 + 0.4, rel=0.01)


def test_a_bound_above_the_usual_length_predicts_the_usual_length() -> None:
    made = model((10, 100, 1.0), (10, 200, 2.0), (10, 300, 3.0))
    assert made.predict_s(prompt_bytes=10, output_tokens_max=10_000) == pytest.approx(2.0)
    assert made.predict_s(prompt_bytes=10, output_tokens_max=None) == pytest.approx(2.0)
    assert made.predict_s(prompt_bytes=10, output_tokens_max=150) == pytest.approx(1.5)


def test_sizes_that_explain_nothing_change_nothing() -> None:
    """Longer prompts that went faster, and all of one length: the mean is all that is known."""
    faster = model((10, 5, 3.0), (20, 5, 2.0), (30, 5, 1.0))
    assert faster.predict_s(prompt_bytes=60, output_tokens_max=1) == pytest.approx(2.0)
    alike = model((10, 5, 3.0), (10, 5, 1.0))
    assert alike.predict_s(prompt_bytes=10**9, output_tokens_max=10**9) == pytest.approx(2.0)


def test_of_two_sizes_that_grow_together_one_explains_the_time() -> None:
    made = model(*((100 * n, 10 * n, 1.0 * n) for n in range(1, 9)))
    assert made.predict_s(prompt_bytes=450, output_tokens_max=20) == pytest.approx(2.0)


def test_of_a_price_below_zero_the_other_size_remains() -> None:
    """By both sizes together a token would cost less than nothing here; by bytes alone each costs 0.01 s."""
    made = model((900, 10, 9.2), (500, 50, 5.0), (100, 90, 0.9), (300, 60, 3.0))
    small_s = made.predict_s(prompt_bytes=100, output_tokens_max=None)
    few_tokens_s = made.predict_s(prompt_bytes=100, output_tokens_max=1)
    large_s = made.predict_s(prompt_bytes=900, output_tokens_max=None)
    assert small_s == few_tokens_s == pytest.approx(0.9, abs=0.3)
    assert large_s == pytest.approx(9.2, abs=0.3)


def test_a_huge_prompt_is_not_predicted_from_small_ones() -> None:
    made = model((10, 0, 1.0), (20, 0, 2.0))
    assert made.predict_s(prompt_bytes=10**7, output_tokens_max=None) == pytest.approx(BEYOND * 2.0)


def test_old_samples_are_forgotten_and_new_ones_count_soon() -> None:
    made = model(*[(10, 10, 1.0)] * SAMPLES_MAX)
    assert made.mean_s == pytest.approx(1.0)
    for _ in range(REFIT_AFTER - 1):
        made.observe(prompt_bytes=10, output_tokens=10, service_s=9.0)
    assert made.mean_s == pytest.approx(1.0)
    for _ in range(SAMPLES_MAX - REFIT_AFTER + 1):
        made.observe(prompt_bytes=10, output_tokens=10, service_s=9.0)
    assert made.mean_s == pytest.approx(9.0)
