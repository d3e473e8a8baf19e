"""May this caller send another request now? Continuous-refill buckets and bounds on requests in progress.

Limits are agreed with a tenant, and beside them with one of its keys, or for one model. A request takes from every level
that applies to it, or from none.
"""

import math
from collections.abc import Iterable

import msgspec

from headrace.core.errors import RateLimited
from headrace.core.ids import TenantId
from headrace.core.tenant import Principal, RateUnit
from headrace.core.usage import TokenUsage, UsageSource
from headrace.policies.levels import (
    Demand,
    Level,
    Receipt,
    concurrency_limited,
    levels_of,
    price,
    rate_limited,
    tenant_level,
)

# Added to the wait for a token: sums of seconds are rounded, and who waited exactly long enough must find a whole one.
ROUNDING_S = 1e-6
# Until answers without a bound of the caller's have been seen, they are taken to have this many tokens.
OUTPUT_PRIOR_TOKENS = 256.0
_LEARNING = 1 / 16


class LimitView(msgspec.Struct, frozen=True, gc=False):
    """What the rate-limit headers say: what is left in the bucket, and seconds until it is full again."""

    limit: int
    remaining: int
    reset_s: float


class LevelUse(msgspec.Struct, frozen=True):
    """How much of one level is in use; None for a rate that it doesn't limit."""

    in_progress: int
    requests: LimitView | None
    tokens: LimitView | None


class Bucket:
    """What may come now: `left` as of `filled_s`. Below zero, more was used than had been taken for it."""

    __slots__ = ("filled_s", "left")

    def __init__(self, burst: int, now_s: float) -> None:
        self.left = float(burst)
        self.filled_s = now_s

    def refill(self, per_minute: int, burst: int, now_s: float) -> None:
        elapsed_s = now_s - self.filled_s
        if elapsed_s <= 0.0:
            return  # a moment taken earlier in the same turn of the loop must not run the bucket backwards
        self.filled_s = now_s
        left = self.left + elapsed_s * per_minute / 60.0
        self.left = left if left < burst else float(burst)

    def put_back(self, amount: float, burst: int) -> None:
        """Returns what was taken and not used, or, negative, takes what was used beyond it: to one empty bucket of debt."""
        self.left = max(float(-burst), min(self.left + amount, float(burst)))

    def wait_s(self, per_minute: int, amount: float = 1.0) -> float:
        """Time until it holds that much."""
        return (amount - self.left) * 60.0 / per_minute + ROUNDING_S

    def view(self, per_minute: int, burst: int) -> LimitView:
        return LimitView(burst, max(0, int(self.left)), (burst - self.left) * 60.0 / per_minute)


class PartBucket(Bucket):
    """An even part of a bucket for each of so many, while nobody can say what is in the whole. Empty at first: a silence must
    not be worth a burst."""

    __slots__ = ()

    def __init__(self, now_s: float) -> None:
        super().__init__(0, now_s)

    def refill_part(self, per_minute: int, burst: int, sharers: int, now_s: float) -> None:
        elapsed_s = now_s - self.filled_s
        self.refill(per_minute, part_of(burst, sharers), self.filled_s + elapsed_s / sharers)
        self.filled_s = now_s


def part_of(burst: int, sharers: int) -> int:
    """What may come at once to each of so many."""
    return max(1, burst // sharers)


class OutputLength:
    """How many tokens answers have whose caller sets no bound: a mean that follows the last few dozen."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = OUTPUT_PRIOR_TOKENS

    def learn(self, tokens: float) -> None:
        self.tokens += (tokens - self.tokens) * _LEARNING


class _State(Bucket):
    """One level: the bucket of its requests, which this is itself, that of its tokens, and `in_progress`, queued and running.

    `output` is learned for tenants, whichever of their levels has a limit on tokens.
    """

    __slots__ = ("in_progress", "output", "tokens")

    def __init__(self, level: Level, now_s: float) -> None:
        super().__init__(level.limits.requests_burst, now_s)
        # Full when a limit on tokens begins, however long that is after the first request.
        self.tokens = Bucket(0, -math.inf)
        self.in_progress = 0
        self.output = OutputLength()


class TenantLimiter:
    """Every level's buckets and count. State exists only for tenants that authenticated, their keys and the models that have
    limits of their own, so it is bounded by their number."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}

    def take(self, principal: Principal, *, now_s: float) -> None:
        """Counts one request in of a tenant that has no other limits than on requests, or raises RateLimited or
        ConcurrencyLimited and counts nothing.

        A caller who comes back after `retry_after_s` of RateLimited finds room, if nobody else took it.
        """
        limits = principal.limits
        state = self._states.get(principal.tenant)
        if state is None:
            state = self._state(tenant_level(principal), now_s)
        if limits.concurrency_max and state.in_progress >= limits.concurrency_max:
            raise concurrency_limited(tenant_level(principal))
        if limits.requests_per_minute:
            state.refill(limits.requests_per_minute, limits.requests_burst, now_s)
            if state.left < 1.0:
                raise rate_limited(
                    tenant_level(principal),
                    RateUnit.REQUESTS,
                    wait_s=state.wait_s(limits.requests_per_minute),
                )
            state.left -= 1.0
        state.in_progress += 1

    def release(self, tenant: TenantId) -> None:
        """The request that `take` counted in has ended."""
        _leave(self._states[tenant])

    def take_levels(self, principal: Principal, demand: Demand, *, now_s: float) -> Receipt:
        """As `take`, of every level that applies. `release_levels` and then `settle` end it.

        Raises InvalidRequest as well, where more tokens are asked for than ever come at once.
        """
        levels = levels_of(principal, demand.model)
        states = [self._state(level, now_s) for level in levels]
        tokens = price(demand, levels, output_tokens=states[0].output.tokens)
        refusal: RateLimited | None = None
        for level, state in zip(levels, states, strict=True):
            limits = level.limits
            if limits.concurrency_max and state.in_progress >= limits.concurrency_max:
                raise concurrency_limited(level)
            for unit, bucket, amount in (
                (RateUnit.REQUESTS, state, 1),
                (RateUnit.TOKENS, state.tokens, tokens),
            ):
                per_minute, burst = limits.rate(unit)
                if not per_minute:
                    continue
                bucket.refill(per_minute, burst, now_s)
                if bucket.left < amount:
                    refusal = longer(
                        refusal,
                        rate_limited(level, unit, wait_s=bucket.wait_s(per_minute, amount), amount=amount),
                    )
        if refusal is not None:
            raise refusal
        for level, state in zip(levels, states, strict=True):
            if level.limits.requests_per_minute:
                state.left -= 1.0
            if level.limits.tokens_per_minute:
                state.tokens.left -= tokens
            state.in_progress += 1
        return Receipt(levels, demand, tokens)

    def release_levels(self, receipt: Receipt) -> None:
        """The request that `take_levels` counted in is over; its tokens are still to be settled."""
        for level in receipt.levels:
            _leave(self._states[level.subject])

    def settle(self, receipt: Receipt, usage: TokenUsage, *, now_s: float) -> None:
        """Takes for the request what it really used; where nobody knows that, what was taken stays taken."""
        tenant = self._states[receipt.levels[0].subject]
        unused = unused_tokens(receipt, usage, tenant.output)
        for level in receipt.levels:
            per_minute, burst = level.limits.rate(RateUnit.TOKENS)
            if unused and per_minute:
                bucket = self._states[level.subject].tokens
                bucket.refill(per_minute, burst, now_s)
                bucket.put_back(unused, burst)

    def view(self, principal: Principal, *, now_s: float) -> LimitView | None:
        """The tenant's requests for the rate-limit headers; None without a rate limit."""
        limits = principal.limits
        if not limits.requests_per_minute:
            return None
        state = self._states.get(principal.tenant)
        if state is None:
            return LimitView(limits.requests_burst, limits.requests_burst, 0.0)
        state.refill(limits.requests_per_minute, limits.requests_burst, now_s)
        return state.view(limits.requests_per_minute, limits.requests_burst)

    def view_levels(
        self, principal: Principal, model: str, *, now_s: float
    ) -> tuple[LimitView | None, LimitView | None]:
        """Requests and tokens, each of the tightest level; None where no level limits it."""
        requests: list[LimitView] = []
        tokens: list[LimitView] = []
        for level in levels_of(principal, model):
            state = self._state(level, now_s)
            for unit, bucket, views in (
                (RateUnit.REQUESTS, state, requests),
                (RateUnit.TOKENS, state.tokens, tokens),
            ):
                per_minute, burst = level.limits.rate(unit)
                if per_minute:
                    bucket.refill(per_minute, burst, now_s)
                    views.append(bucket.view(per_minute, burst))
        return tightest(requests), tightest(tokens)

    def in_progress(self, subject: str) -> int:
        """Requests of a tenant, or of another level's subject."""
        state = self._states.get(subject)
        return state.in_progress if state else 0

    def use(self, level: Level, *, now_s: float) -> LevelUse:
        """For whoever watches."""
        state = self._state(level, now_s)
        views: list[LimitView | None] = []
        for unit, bucket in ((RateUnit.REQUESTS, state), (RateUnit.TOKENS, state.tokens)):
            per_minute, burst = level.limits.rate(unit)
            if per_minute:
                bucket.refill(per_minute, burst, now_s)
            views.append(bucket.view(per_minute, burst) if per_minute else None)
        return LevelUse(state.in_progress, *views)

    def _state(self, level: Level, now_s: float) -> _State:
        state = self._states.get(level.subject)
        if state is None:
            state = self._states[level.subject] = _State(level, now_s)
        return state


def unused_tokens(receipt: Receipt, usage: TokenUsage, output: OutputLength) -> int:
    """What a request took and didn't use, negative where it used more; nothing where nobody knows what it used. Learns from
    its answer how long answers are."""
    if usage.source is UsageSource.UNKNOWN:
        return 0
    if receipt.demand.output_tokens_max is None and usage.completion_tokens:
        output.learn(usage.completion_tokens / receipt.demand.choices)
    return receipt.tokens - usage.prompt_tokens - usage.completion_tokens


def longer(one: RateLimited | None, other: RateLimited) -> RateLimited:
    """The refusal with the longer wait: who comes back after it finds room at both levels."""
    if one is None:
        return other
    return one if (one.retry_after_s or 0.0) >= (other.retry_after_s or 0.0) else other


def tightest(views: Iterable[LimitView]) -> LimitView | None:
    """The one with the least left."""
    return min(views, key=lambda view: view.remaining, default=None)


def _leave(state: _State) -> None:
    assert state.in_progress > 0, "a level's count went below zero"
    state.in_progress -= 1
