"""May this tenant send another request now? Continuous-refill buckets and a bound on requests in progress."""

import msgspec

from headrace.core.errors import ConcurrencyLimited, RateLimited
from headrace.core.ids import TenantId
from headrace.core.tenant import Principal, TenantLimits

# A caller at its concurrency limit can't know when one of its own requests ends; a second is a polite guess.
CONCURRENCY_RETRY_AFTER_S = 1.0
# Added to the wait for a token: sums of seconds are rounded, and who waited exactly long enough must find a whole one.
ROUNDING_S = 1e-6


class LimitView(msgspec.Struct, frozen=True, gc=False):
    """What the rate-limit headers say: requests left in the bucket, and seconds until it is full again."""

    limit: int
    remaining: int
    reset_s: float


class Bucket:
    """Requests that may come now: `tokens` as of `filled_s`."""

    __slots__ = ("filled_s", "tokens")

    def __init__(self, limits: TenantLimits, now_s: float) -> None:
        self.tokens = float(limits.requests_burst)
        self.filled_s = now_s

    def refill(self, limits: TenantLimits, now_s: float) -> None:
        elapsed_s = now_s - self.filled_s
        if elapsed_s <= 0.0:
            return  # a moment taken earlier in the same turn of the loop must not run the bucket backwards
        self.filled_s = now_s
        tokens = self.tokens + elapsed_s * limits.requests_per_minute / 60.0
        self.tokens = tokens if tokens < limits.requests_burst else float(limits.requests_burst)

    def wait_s(self, limits: TenantLimits) -> float:
        """Time until it holds a whole token."""
        return (1.0 - self.tokens) * 60.0 / limits.requests_per_minute + ROUNDING_S


class _TenantState(Bucket):
    """Owner: TenantLimiter. `in_progress` counts queued and running requests."""

    __slots__ = ("in_progress",)

    def __init__(self, limits: TenantLimits, now_s: float) -> None:
        super().__init__(limits, now_s)
        self.in_progress = 0


class TenantLimiter:
    """Every tenant's bucket and count; state exists only for tenants that authenticated, so it is bounded by their number."""

    def __init__(self) -> None:
        self._states: dict[TenantId, _TenantState] = {}

    def take(self, principal: Principal, *, now_s: float) -> None:
        """Counts one request in, or raises RateLimited or ConcurrencyLimited and counts nothing.

        A caller who comes back after `retry_after_s` of RateLimited finds a token, if nobody else of the tenant took it.
        """
        limits = principal.limits
        state = self._states.get(principal.tenant)
        if state is None:
            state = self._states[principal.tenant] = _TenantState(limits, now_s)
        if limits.concurrency_max and state.in_progress >= limits.concurrency_max:
            raise concurrency_limited(limits)
        if limits.requests_per_minute:
            state.refill(limits, now_s)
            if state.tokens < 1.0:
                raise rate_limited(limits, state.wait_s(limits))
            state.tokens -= 1.0
        state.in_progress += 1

    def release(self, tenant: TenantId) -> None:
        """The request that `take` counted in has ended."""
        state = self._states[tenant]
        assert state.in_progress > 0, "a tenant's count went below zero"
        state.in_progress -= 1

    def view(self, principal: Principal, *, now_s: float) -> LimitView | None:
        """The tenant's bucket for the rate-limit headers; None without a rate limit."""
        limits = principal.limits
        if not limits.requests_per_minute:
            return None
        state = self._states.get(principal.tenant)
        if state is None:
            return LimitView(limits.requests_burst, limits.requests_burst, 0.0)
        state.refill(limits, now_s)
        reset_s = (limits.requests_burst - state.tokens) * 60.0 / limits.requests_per_minute
        return LimitView(limits.requests_burst, int(state.tokens), reset_s)

    def in_progress(self, tenant: TenantId) -> int:
        state = self._states.get(tenant)
        return state.in_progress if state else 0


def rate_limited(limits: TenantLimits, wait_s: float) -> RateLimited:
    """The refusal of a request for which the bucket holds no token."""
    return RateLimited(
        f"the limit of {limits.requests_per_minute} requests a minute is spent", retry_after_s=wait_s
    )


def concurrency_limited(limits: TenantLimits) -> ConcurrencyLimited:
    """The refusal of a request beyond those that the tenant may have in progress."""
    return ConcurrencyLimited(
        f"{limits.concurrency_max} requests of this tenant are in progress, which is its limit",
        retry_after_s=CONCURRENCY_RETRY_AFTER_S,
    )
