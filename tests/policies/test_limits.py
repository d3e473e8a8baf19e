"""Laws of the tenants' limits: no window admits more than was agreed, and who waits as told is let in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConcurrencyLimited, RateLimited
from headrace.core.ids import KeyId, TenantId
from headrace.core.tenant import Principal, TenantLimits
from headrace.policies.limits import LimitView, TenantLimiter

ACME = TenantId("acme")
AGREED = st.builds(
    TenantLimits,
    requests_per_minute=st.integers(1, 1_000_000),
    requests_burst=st.integers(1, 100),
    concurrency_max=st.just(0),
)
# Uptimes from none to ten years.
START_S = st.floats(0.0, 3e8)


def caller(limits: TenantLimits, tenant: str = ACME) -> Principal:
    return Principal(TenantId(tenant), KeyId("k3x9q2ab"), limits)


def admits(limiter: TenantLimiter, principal: Principal, now_s: float) -> bool:
    try:
        limiter.take(principal, now_s=now_s)
    except RateLimited:
        return False
    return True


@given(limits=AGREED, start_s=START_S, pauses_s=st.lists(st.floats(0.0, 10.0), max_size=60))
def test_no_window_admits_more_than_burst_and_rate(
    limits: TenantLimits, start_s: float, pauses_s: list[float]
) -> None:
    limiter, principal = TenantLimiter(), caller(limits)
    now_s, admitted_s = start_s, []
    for pause_s in pauses_s:
        now_s += pause_s
        admitted_s += [now_s] * sum(admits(limiter, principal, now_s) for _ in range(20))
    for first, begin_s in enumerate(admitted_s):
        for last in range(first, len(admitted_s), 7):
            refilled = (admitted_s[last] - begin_s) * limits.requests_per_minute / 60.0
            assert last - first + 1 <= limits.requests_burst + refilled + 0.05


@given(limits=AGREED, start_s=START_S, before_s=st.lists(st.floats(0.0, 2.0), max_size=10))
def test_a_caller_who_waits_as_told_is_admitted(
    limits: TenantLimits, start_s: float, before_s: list[float]
) -> None:
    limiter, principal = TenantLimiter(), caller(limits)
    now_s = start_s
    for pause_s in [*before_s, 0.0]:
        now_s += pause_s
        while admits(limiter, principal, now_s):
            pass
    with pytest.raises(RateLimited) as refused:
        limiter.take(principal, now_s=now_s)
    wait_s = refused.value.retry_after_s or 0.0
    assert 0.0 < wait_s <= 60.0 / limits.requests_per_minute + 0.001
    limiter.take(principal, now_s=now_s + wait_s)


@given(limits=AGREED, times_s=st.lists(st.floats(0.0, 100.0), max_size=30))
def test_time_that_steps_back_gives_nothing_and_takes_nothing(
    limits: TenantLimits, times_s: list[float]
) -> None:
    """T32: some of the callers have read the clock a little earlier than others."""
    limiter, principal = TenantLimiter(), caller(limits)
    latest_s, admitted = 0.0, 0
    for now_s in times_s:
        admitted += admits(limiter, principal, now_s)
        latest_s = max(latest_s, now_s)
    first_s = times_s[0] if times_s else 0.0
    assert admitted <= limits.requests_burst + max(0.0, latest_s - first_s) * limits.requests_per_minute / 60
    assert limiter.in_progress(ACME) == admitted


@given(limits=AGREED, pauses_s=st.lists(st.floats(0.0, 2.0), max_size=30))
def test_the_headers_tell_what_is_left_and_when_the_bucket_is_full(
    limits: TenantLimits, pauses_s: list[float]
) -> None:
    limiter, principal = TenantLimiter(), caller(limits)
    now_s = 0.0
    for pause_s in [*pauses_s, 0.0]:
        now_s += pause_s
        view = limiter.view(principal, now_s=now_s)
        assert view is not None
        assert 0 <= view.remaining <= view.limit == limits.requests_burst
        assert admits(limiter, principal, now_s) == (view.remaining >= 1)
    last = limiter.view(principal, now_s=now_s)
    assert last is not None
    full = limiter.view(principal, now_s=now_s + last.reset_s + 0.001)
    assert full == LimitView(limits.requests_burst, limits.requests_burst, 0.0)


@given(steps=st.lists(st.booleans(), max_size=60), concurrency_max=st.integers(1, 5))
def test_no_more_than_agreed_are_in_progress_and_the_count_returns_to_zero(
    steps: list[bool], concurrency_max: int
) -> None:
    limiter = TenantLimiter()
    principal = caller(TenantLimits(requests_per_minute=0, concurrency_max=concurrency_max))
    running = 0
    for begins in steps:
        if begins and running < concurrency_max:
            limiter.take(principal, now_s=0.0)
            running += 1
        elif begins:
            with pytest.raises(ConcurrencyLimited) as refused:
                limiter.take(principal, now_s=0.0)
            assert refused.value.retry_after_s == 1.0
        elif running:
            limiter.release(ACME)
            running -= 1
        assert limiter.in_progress(ACME) == running
    for _ in range(running):
        limiter.release(ACME)
    assert limiter.in_progress(ACME) == 0


def test_a_refusal_counts_nothing() -> None:
    limiter, principal = TenantLimiter(), caller(TenantLimits(60, 1, concurrency_max=1))
    limiter.take(principal, now_s=0.0)
    for now_s in (0.0, 0.5, 1.0, 1.5):  # refused for concurrency: the token that has come stays
        with pytest.raises(ConcurrencyLimited):
            limiter.take(principal, now_s=now_s)
    limiter.release(ACME)
    limiter.take(principal, now_s=1.5)
    limiter.release(ACME)
    with pytest.raises(RateLimited):  # refused for rate: nothing is in progress
        limiter.take(principal, now_s=1.5)
    assert limiter.in_progress(ACME) == 0


def test_one_tenant_spends_nothing_of_another() -> None:
    """T10."""
    limiter, limits = TenantLimiter(), TenantLimits(60, 2, 0)
    while admits(limiter, caller(limits), 0.0):
        pass
    assert [admits(limiter, caller(limits, "beta"), 0.0) for _ in range(3)] == [True, True, False]


def test_without_a_rate_there_is_no_header_and_no_refusal() -> None:
    limiter, principal = TenantLimiter(), caller(TenantLimits(0, 1, 0))
    assert all(admits(limiter, principal, 0.0) for _ in range(1000))
    assert limiter.view(principal, now_s=0.0) is None


def test_who_never_came_has_a_full_bucket_and_nothing_in_progress() -> None:
    limiter = TenantLimiter()
    assert limiter.view(caller(TenantLimits(60, 7)), now_s=0.0) == LimitView(7, 7, 0.0)
    assert limiter.in_progress(ACME) == 0


@pytest.mark.parametrize("bursts", [(1, 3), (3, 2)])
def test_a_changed_limit_holds_from_the_next_request(bursts: tuple[int, int]) -> None:
    limiter = TenantLimiter()
    before, after = (TenantLimits(60, burst, 0) for burst in bursts)
    while admits(limiter, caller(before), 0.0):
        pass
    limiter.view(caller(after), now_s=1000.0)
    assert sum(admits(limiter, caller(after), 1000.0) for _ in range(10)) == after.requests_burst
