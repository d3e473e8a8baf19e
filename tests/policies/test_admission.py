"""The arithmetic of refusals: who could be served in time is admitted, and all others learn when to return."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Saturated
from headrace.policies.admission import (
    RETRY_AFTER_MAX_S,
    RETRY_AFTER_MIN_S,
    full,
    refuse_infeasible,
    retry_after_s,
)

SECONDS = st.floats(0.0, 1e6)


@given(wait_s=SECONDS, service_s=SECONDS, doubt_s=SECONDS, time_left_s=SECONDS, wait_max_s=SECONDS)
def test_who_could_be_served_in_time_is_admitted_and_all_others_learn_when_to_return(
    wait_s: float, service_s: float, doubt_s: float, time_left_s: float, wait_max_s: float
) -> None:
    """T7, T9."""

    def check(expected_wait_s: float) -> None:
        refuse_infeasible(
            wait_s=expected_wait_s,
            service_s=service_s,
            doubt_s=doubt_s,
            time_left_s=time_left_s,
            wait_max_s=wait_max_s,
        )

    if wait_s + service_s + doubt_s <= time_left_s and wait_s <= wait_max_s:
        check(wait_s)
        return
    with pytest.raises(Saturated) as refused:
        check(wait_s)
    after_s = refused.value.retry_after_s or 0.0
    assert RETRY_AFTER_MIN_S <= after_s <= RETRY_AFTER_MAX_S
    if RETRY_AFTER_MIN_S < after_s < RETRY_AFTER_MAX_S and wait_s - after_s > 0:
        # So much later the wait is so much shorter, and the same reason doesn't hold again.
        left_s = wait_s - after_s
        assert left_s <= wait_max_s * 1.001 or left_s + service_s + doubt_s <= time_left_s * 1.001


@given(wait_s=SECONDS, queued=st.integers(0, 100))
def test_a_full_queue_names_the_time_that_it_needs_within_reason(wait_s: float, queued: int) -> None:
    refused = full(queued=queued, wait_s=wait_s)
    assert refused.retry_after_s == retry_after_s(wait_s)
    assert RETRY_AFTER_MIN_S <= retry_after_s(wait_s) <= RETRY_AFTER_MAX_S
    assert str(queued) in refused.message
