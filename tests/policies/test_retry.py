"""Laws of the retry budget: what it allows is bounded over every span of time, and a quiet time saves only so much."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import endings
from headrace.core.endings import Stage
from headrace.core.outcome import AttemptOutcome, Reason
from headrace.core.request import Endpoint
from headrace.policies import retry
from headrace.policies.retry import WINDOW_S, RetryBudget

RATIO = st.floats(0.0, 1.0)
FLOOR = st.floats(0.0, 10.0)


@given(
    ratio=RATIO,
    floor_per_s=FLOOR,
    steps=st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 20), st.integers(0, 20)), max_size=50),
)
def test_retries_never_exceed_the_share_of_requests_and_the_floor(
    ratio: float, floor_per_s: float, steps: list[tuple[float, int, int]]
) -> None:
    """T18: amplification is bounded, whatever fails and whenever."""
    now_s, requests, retries = 100.0, 0, 0
    budget = RetryBudget(ratio=ratio, floor_per_s=floor_per_s, now_s=now_s)
    for pause_s, arrivals, failures in steps:
        now_s += pause_s
        for _ in range(arrivals):
            budget.request()
        requests += arrivals
        retries += sum(budget.take(now_s=now_s) for _ in range(failures))
        assert retries <= ratio * requests + floor_per_s * (now_s - 100.0 + WINDOW_S) + 1e-6


@given(ratio=RATIO, floor_per_s=FLOOR, quiet_s=st.floats(0.0, 1e6), requests=st.integers(0, 2000))
def test_a_quiet_time_saves_no_more_than_the_purse_holds(
    ratio: float, floor_per_s: float, quiet_s: float, requests: int
) -> None:
    budget = RetryBudget(ratio=ratio, floor_per_s=floor_per_s, now_s=0.0)
    for _ in range(requests):
        budget.request()
    retries = sum(budget.take(now_s=quiet_s) for _ in range(1000))
    assert retries <= floor_per_s * WINDOW_S + ratio * 100 + 1e-6


def test_without_requests_the_floor_still_allows_some() -> None:
    budget = RetryBudget(ratio=0.2, floor_per_s=1.0, now_s=0.0)
    while budget.take(now_s=0.0):
        pass
    assert [budget.take(now_s=now_s) for now_s in (0.5, 1.0, 1.0, 2.0)] == [False, True, False, True]


def test_time_that_steps_back_drips_nothing_twice() -> None:
    """T32."""
    budget = RetryBudget(ratio=0.0, floor_per_s=1.0, now_s=0.0)
    while budget.take(now_s=0.0):
        pass
    assert budget.take(now_s=1.0)
    assert not any(budget.take(now_s=now_s) for now_s in (0.0, 0.9, 1.0, 0.5, 1.0))


def test_a_retry_that_did_not_take_place_is_put_back() -> None:
    budget = RetryBudget(ratio=0.0, floor_per_s=0.1, now_s=0.0)
    assert [budget.take(now_s=0.0), budget.take(now_s=0.0)] == [True, False]
    budget.put_back()
    budget.put_back()  # the purse holds no more than before
    assert [budget.take(now_s=0.0), budget.take(now_s=0.0)] == [True, False]


@given(retries=st.integers(1, 100), first_s=st.floats(0.0, 2.0), seed=st.integers())
def test_a_pause_doubles_up_to_its_maximum_and_loses_at_most_half_of_it(
    retries: int, first_s: float, seed: int
) -> None:
    pause_s = retry.pause_s(retries, first_s=first_s, max_s=1.0, chance=random.Random(seed))
    whole_s = min(1.0, first_s * 2.0 ** (retries - 1))
    assert whole_s / 2 <= pause_s <= whole_s


@pytest.mark.parametrize("endpoint", Endpoint)
@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_generation_may_be_repeated_whatever_became_of_it(
    endpoint: Endpoint, outcome: AttemptOutcome
) -> None:
    assert endpoint in retry.REPEATABLE
    assert retry.may_repeat(outcome, endpoint=endpoint, was_sent=True, has_key=False)


def test_work_with_effects_is_repeated_only_where_it_can_not_have_run_or_the_caller_named_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T19: sent and lost is not repeated; what the replica refused, what was never sent, and what has a key is."""
    endpoint = Endpoint.EMBEDDINGS
    monkeypatch.delitem(retry.REPEATABLE, endpoint)
    for outcome in AttemptOutcome:
        is_unworked = outcome in (AttemptOutcome.BUSY, AttemptOutcome.REJECTED)
        assert retry.may_repeat(outcome, endpoint=endpoint, was_sent=True, has_key=False) is is_unworked
        assert retry.may_repeat(outcome, endpoint=endpoint, was_sent=True, has_key=True)
        assert retry.may_repeat(outcome, endpoint=endpoint, was_sent=False, has_key=False)


@pytest.mark.parametrize(
    ("reason", "stage", "may"),
    [
        (Reason.ERRED, Stage.WORKING, True),
        (Reason.REJECTED, Stage.WORKING, True),
        (Reason.REJECTED, Stage.ANSWERING, False),
        (Reason.ERRED, Stage.ANSWERING, False),
        (Reason.OVERSIZED, Stage.WORKING, False),
        (Reason.DEADLINE, Stage.WORKING, False),
    ],
)
def test_before_the_first_byte_another_revision_may_find_right_what_a_canary_found_wrong(
    reason: Reason, stage: Stage, may: bool
) -> None:
    assert retry.may_fall_back(endings.find(reason, stage)) is may
