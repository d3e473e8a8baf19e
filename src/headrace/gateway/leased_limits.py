"""May this tenant send another request now, when several workers serve it? policies/limits.py, on leases.

Concurrency is decided on places that this worker holds. Tokens of the rate come in blocks that the authority takes out of
the tenant's bucket, ahead of the requests where many are expected, and go back unused after LEASE_S. While the authority is
silent, the rate is this worker's part of the limit.
"""

import asyncio
from collections.abc import Callable, Iterable

from headrace.core.clock import Clock
from headrace.core.ids import TenantId
from headrace.core.leases import Asking, AskTokens, PoolKey, PoolKind, ReturnTokens, Tokens
from headrace.core.tenant import Principal, TenantLimits
from headrace.gateway.leases import Lacking, Leases, Stock, Waiters
from headrace.policies.limits import Bucket, LimitView, concurrency_limited, rate_limited

LEASE_S = 1.0
# Tokens that are asked for ahead: as many as one window took, twice over. The window is the gateway's tick.
AHEAD_WINDOWS = 2


class TenantStock(Stock):
    """A tenant's places; `count` requests are in progress here."""

    def __init__(self, key: PoolKey) -> None:
        super().__init__(key)
        self.count = 0

    def in_use(self) -> int:
        return self.count


class _Rate:
    """Our tokens of one tenant's rate, until `expires_s`; `used` counts those of this window.

    `left` tokens were in the bucket at `left_at_s`. `ours` is our part of it for the time of a silent authority, and
    `unleased` what was taken from it.
    """

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.tokens = 0
        self.expires_s = 0.0
        self.denied_until_s = 0.0
        self.is_asked = False
        self.used = 0
        self.used_before = 0
        self.left = float(principal.limits.requests_burst)
        self.left_at_s = 0.0
        self.ours: Bucket | None = None
        self.unleased = 0
        self.waiters = Waiters()


class LeasedLimiter:
    """The limiter of a worker. State: `_rates`, for tenants with a rate limit; `_busy`, those to look at in the next tick."""

    def __init__(self, leases: Leases, send: Callable[[Asking], None], *, workers: int, clock: Clock) -> None:
        self._leases = leases
        self._send = send
        self._workers = workers
        self._clock = clock
        self._rates: dict[TenantId, _Rate] = {}
        self._busy: dict[TenantId, _Rate] = {}
        self._stocks: dict[TenantId, TenantStock] = {}

    def take(self, principal: Principal, *, now_s: float) -> None:
        """Counts one request in. Raises RateLimited or ConcurrencyLimited, or Lacking before anything is counted."""
        limits, tenant = principal.limits, principal.tenant
        stock = self._stocks.get(tenant)
        if stock is None:
            stock = self._stock(tenant)
        if limits.concurrency_max and stock.count >= stock.usable:
            stock.total = limits.concurrency_max
            refusal = concurrency_limited(limits)
            if stock.is_denied:
                raise refusal
            raise Lacking(refusal, lambda: self._leases.ask(stock))
        if limits.requests_per_minute:
            rate = self._rates.get(tenant)
            if rate is not None and rate.tokens > 0 and now_s < rate.expires_s:
                rate.tokens -= 1
                rate.used += 1
                if not rate.is_asked and rate.tokens < rate.used:
                    self._ask(rate)
            else:
                self._take_late(principal, now_s)
        stock.count += 1

    def release(self, tenant: TenantId) -> None:
        """The request that `take` counted in has ended."""
        stock = self._stocks[tenant]
        assert stock.count > 0, "a tenant's count went below zero"
        stock.count -= 1
        if stock.is_hungry:
            self._leases.freed(stock.key)

    def refund(self, tenant: TenantId) -> None:
        """The request that has just been released never was: it will `take` again."""
        rate = self._rates.get(tenant)
        if rate is not None:
            rate.tokens += 1
            rate.used -= 1

    def view(self, principal: Principal, *, now_s: float) -> LimitView | None:
        """The tenant's bucket for the rate-limit headers, as far as this worker knows it; None without a rate limit."""
        limits = principal.limits
        if not limits.requests_per_minute:
            return None
        rate = self._rates.get(principal.tenant)
        if rate is None:
            return LimitView(limits.requests_burst, limits.requests_burst, 0.0)
        per_s = limits.requests_per_minute / 60.0
        known = rate.tokens + rate.left + (now_s - rate.left_at_s) * per_s
        tokens = max(0.0, min(float(limits.requests_burst), known))
        return LimitView(limits.requests_burst, int(tokens), (limits.requests_burst - tokens) / per_s)

    def in_progress(self, tenant: TenantId) -> int:
        stock = self._stocks.get(tenant)
        return stock.count if stock else 0

    def changed(self, principals: Iterable[Principal], *, revision: int) -> None:
        """Tenants may have other limits from now on; the authority must know before the next question."""
        self._leases.revision = revision
        for principal in principals:
            stock = self._stocks.get(principal.tenant)
            if stock is not None and stock.total and stock.total != principal.limits.concurrency_max:
                stock.total = principal.limits.concurrency_max
                self._leases.tell_limit(stock)

    def received(self, message: Tokens) -> None:
        self._leases.heard()
        rate = self._rates[message.tenant]
        now_s = self._clock.now_s()
        rate.is_asked = False
        rate.tokens += message.count
        rate.expires_s = now_s + LEASE_S
        rate.left, rate.left_at_s = message.left, now_s
        if rate.unleased:
            self._send(ReturnTokens(message.tenant, -rate.unleased))
            rate.unleased = 0
        rate.ours = None
        rate.denied_until_s = now_s + message.retry_after_s
        rate.waiters.wake(message.count if message.count else len(rate.waiters))
        if len(rate.waiters):
            self._ask(rate)

    def tick(self, now_s: float) -> None:
        """Called four times a second: closes the window, and gives back what nobody used in time."""
        for tenant, rate in list(self._busy.items()):
            self._expire(rate, now_s)
            if not rate.tokens and not rate.used:
                del self._busy[tenant]
            rate.used_before, rate.used = rate.used, 0

    def _stock(self, tenant: TenantId) -> TenantStock:
        stock = self._leases.stock(PoolKey(PoolKind.CONCURRENCY, tenant))
        assert isinstance(stock, TenantStock)
        self._stocks[tenant] = stock
        return stock

    def _take_late(self, principal: Principal, now_s: float) -> None:
        """A token where none is held: the answer is known already, or ours to give, or the authority's."""
        limits = principal.limits
        rate = self._rates.get(principal.tenant)
        if rate is None:
            rate = self._rates[principal.tenant] = _Rate(principal)
        rate.principal = principal
        self._expire(rate, now_s)
        if self._leases.is_silent:
            self._ask(rate)  # so that there is an answer when it speaks again
            self._take_ours(rate, now_s)
            return
        if now_s < rate.denied_until_s:
            raise rate_limited(limits, rate.denied_until_s - now_s)
        raise Lacking(rate_limited(limits, 60.0 / limits.requests_per_minute), lambda: self._ask(rate))

    def _take_ours(self, rate: _Rate, now_s: float) -> None:
        whole = rate.principal.limits
        # The bucket starts empty: a silent authority must not be worth a burst.
        ours = TenantLimits(whole.requests_per_minute, max(1, whole.requests_burst // self._workers))
        if rate.ours is None:
            rate.ours = Bucket(ours, now_s)
            rate.ours.tokens = 0.0
        elapsed_s = now_s - rate.ours.filled_s
        rate.ours.refill(ours, rate.ours.filled_s + elapsed_s / self._workers)
        rate.ours.filled_s = now_s
        if rate.ours.tokens < 1.0:
            raise rate_limited(whole, rate.ours.wait_s(ours) * self._workers)
        rate.ours.tokens -= 1.0
        rate.unleased += 1

    def _expire(self, rate: _Rate, now_s: float) -> None:
        if rate.tokens and now_s >= rate.expires_s:
            self._send(ReturnTokens(rate.principal.tenant, rate.tokens))
            rate.left += rate.tokens
            rate.tokens = 0

    def _ask(self, rate: _Rate) -> Waiters:
        if not rate.is_asked:
            rate.is_asked = True
            self._busy[rate.principal.tenant] = rate
            asyncio.get_running_loop().call_soon(self._send_ask, rate)
        return rate.waiters

    def _send_ask(self, rate: _Rate) -> None:
        """At the end of the turn, for all who came in it."""
        limits = rate.principal.limits
        self._send(
            AskTokens(
                rate.principal.tenant,
                len(rate.waiters),
                AHEAD_WINDOWS * max(rate.used, rate.used_before),
                limits.requests_per_minute,
                limits.requests_burst,
                self._leases.revision,
            )
        )
