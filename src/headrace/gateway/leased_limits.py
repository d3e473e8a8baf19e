"""May this caller send another request now, when several workers serve it? policies/limits.py, on leases.

Concurrency is decided on places that this worker holds. Rates come in blocks that the authority takes out of their buckets,
ahead of the requests where many are expected, and go back unused after LEASE_S. While the authority is silent, a rate is this
worker's part of the limit.
"""

import asyncio
from collections.abc import Callable, Iterable

from headrace.core.clock import Clock
from headrace.core.errors import RateLimited
from headrace.core.ids import TenantId
from headrace.core.leases import Asking, AskRate, GrantRate, PoolKey, PoolKind, RateKey, ReturnRate
from headrace.core.tenant import Principal, RateUnit, TenantLimits
from headrace.core.usage import TokenUsage
from headrace.gateway.leases import Lacking, Leases, Stock, Waiters
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
from headrace.policies.limits import (
    ROUNDING_S,
    LimitView,
    OutputLength,
    PartBucket,
    longer,
    part_of,
    tightest,
    unused_tokens,
)
from headrace.policies.tickets import Ticket

LEASE_S = 1.0
# What is asked for ahead: as much as one window took, twice over. The window is the gateway's tick.
AHEAD_WINDOWS = 2
# For so long nobody asks again after too little was left: others may have returned what they had taken and not used.
DENIAL_S = 0.02


class SubjectStock(Stock):
    """Places of one limit's subject; `count` requests are in progress here."""

    def __init__(self, key: PoolKey) -> None:
        super().__init__(key)
        self.count = 0
        self.output = OutputLength()

    def in_use(self) -> int:
        return self.count


class _Rate:
    """Our part of one rate: `held` until `expires_s`; `used` counts what was taken of it in this window.

    `left` was in the bucket at `left_at_s`. `due` is what waiting requests have asked for since the last answer, and `owed` what ended ones have left over since
    the last word to the authority. `ours` is our part of the bucket for the time of a silent authority, and `unleased` what was taken from it.
    """

    def __init__(self, key: RateKey, per_minute: int, burst: int) -> None:
        self.key = key
        self.per_minute = per_minute
        self.burst = burst
        self.held = 0
        self.expires_s = 0.0
        self.denied_until_s = 0.0
        self.is_asked = False
        self.due: list[int] = []
        self.owed = 0
        self.used = 0
        self.used_before = 0
        self.left = float(burst)
        self.left_at_s = 0.0
        self.ours: PartBucket | None = None
        self.unleased = 0
        self.waiters = Waiters()

    def set_terms(self, per_minute: int, burst: int) -> None:
        """The limit as it is now; 0 for none any more: then only who came before takes of it, as it was."""
        if per_minute:
            self.per_minute, self.burst = per_minute, burst

    def has(self, amount: int, now_s: float) -> bool:
        return self.held >= amount and now_s < self.expires_s

    def wait_s(self, amount: int, now_s: float) -> float:
        """When the bucket will hold that much, as far as we know it."""
        return (amount - self.left) * 60.0 / self.per_minute - (now_s - self.left_at_s) + ROUNDING_S

    def view(self, per_minute: int, burst: int, now_s: float) -> LimitView:
        """What is left, for a request that came under that limit."""
        per_s = per_minute / 60.0
        left = max(0.0, min(float(burst), self.held + self.left + (now_s - self.left_at_s) * per_s))
        return LimitView(burst, int(left), (burst - left) / per_s)


class LeasedLimiter:
    """The limiter of a worker. State: `_requests` and `_tokens`, the rates by subject; `_busy`, those to look at in the next tick; `_limits`,
    what holds now, by subject.

    Args:
        sharers: How many workers share the rates, over all hosts.
    """

    def __init__(self, leases: Leases, send: Callable[[Asking], None], *, sharers: int, clock: Clock) -> None:
        self._leases = leases
        self._send = send
        self._sharers = sharers
        self._clock = clock
        self._requests: dict[str, _Rate] = {}
        self._tokens: dict[str, _Rate] = {}
        self._busy: dict[RateKey, _Rate] = {}
        self._stocks: dict[str, SubjectStock] = {}
        self._limits: dict[str, TenantLimits] = {}

    def take(self, principal: Principal, *, now_s: float) -> None:
        """Counts one request in. Raises RateLimited or ConcurrencyLimited, or Lacking before anything is counted."""
        limits, tenant = principal.limits, principal.tenant
        stock = self._stocks.get(tenant)
        if stock is None:
            stock = self._stock(tenant)
        if limits.concurrency_max and stock.count >= stock.usable:
            self._refuse_place(stock, tenant_level(principal))
        if limits.requests_per_minute:
            rate = self._requests.get(tenant)
            if rate is not None and rate.held > 0 and now_s < rate.expires_s:
                rate.held -= 1
                rate.used += 1
                if not rate.is_asked and rate.held < rate.used:
                    self._ask(rate)
            else:
                level = tenant_level(principal)
                rate = self._rate(level, RateUnit.REQUESTS)
                self._check(rate, level, 1, now_s)
                self._spend(rate, 1, now_s)
        stock.count += 1

    def release(self, tenant: TenantId) -> None:
        """The request that `take` counted in has ended."""
        self._leave(self._stocks[tenant])

    def take_levels(self, principal: Principal, demand: Demand, *, now_s: float) -> Receipt:
        """As `take`, of every level that applies. Raises InvalidRequest too."""
        levels = levels_of(principal, demand.model)
        stocks = [self._stock(level.subject) for level in levels]
        tokens = price(demand, levels, output_tokens=stocks[0].output.tokens)
        taken: list[tuple[_Rate, int]] = []
        refusal: RateLimited | None = None
        lacking: Lacking | None = None
        for level, stock in zip(levels, stocks, strict=True):
            try:
                if level.limits.concurrency_max and stock.count >= stock.usable:
                    self._refuse_place(stock, level)
            except Lacking as too_few:
                lacking = lacking or too_few
            for unit, amount in ((RateUnit.REQUESTS, 1), (RateUnit.TOKENS, tokens)):
                if not level.limits.rate(unit)[0]:
                    continue
                rate = self._rate(level, unit)
                taken.append((rate, amount))
                try:
                    self._check(rate, level, amount, now_s)
                except RateLimited as refused:
                    refusal = longer(refusal, refused)
                except Lacking as too_little:
                    lacking = lacking or too_little
        if refusal is not None:
            raise refusal
        if lacking is not None:
            raise lacking
        for rate, amount in taken:
            self._spend(rate, amount, now_s)
        for stock in stocks:
            stock.count += 1
        return Receipt(levels, demand, tokens)

    def release_levels(self, receipt: Receipt) -> None:
        """The request that `take_levels` counted in has ended; its tokens are still to be settled."""
        for level in receipt.levels:
            self._leave(self._stocks[level.subject])

    def settle(self, receipt: Receipt, usage: TokenUsage, *, now_s: float) -> None:
        """Takes for a request the tokens that it really used."""
        unused = unused_tokens(receipt, usage, self._stocks[receipt.levels[0].subject].output)
        if unused:
            self._return_tokens(receipt, unused)

    def refund(self, ticket: Ticket) -> None:
        """The request that is about to be released never was: it will `take` again."""
        receipt = ticket.receipt
        subjects = [ticket.tenant] if receipt is None else [level.subject for level in receipt.levels]
        for subject in subjects:
            rate = self._requests.get(subject)
            if rate is not None:
                rate.held += 1
                rate.used -= 1
        if receipt is not None:
            self._return_tokens(receipt, receipt.tokens)

    def view(self, principal: Principal, *, now_s: float) -> LimitView | None:
        """The tenant's requests for the rate-limit headers, as far as this worker knows; None without a rate limit."""
        limits = principal.limits
        if not limits.requests_per_minute:
            return None
        rate = self._requests.get(principal.tenant)
        if rate is None:
            return LimitView(limits.requests_burst, limits.requests_burst, 0.0)
        return rate.view(limits.requests_per_minute, limits.requests_burst, now_s)

    def view_levels(
        self, principal: Principal, model: str, *, now_s: float
    ) -> tuple[LimitView | None, LimitView | None]:
        """Requests and tokens, each of the tightest level, as far as this worker knows."""
        views: dict[RateUnit, list[LimitView]] = {unit: [] for unit in RateUnit}
        for level in levels_of(principal, model):
            for unit in RateUnit:
                per_minute, burst = level.limits.rate(unit)
                if per_minute:
                    views[unit].append(self._rate(level, unit).view(per_minute, burst, now_s))
        return tightest(views[RateUnit.REQUESTS]), tightest(views[RateUnit.TOKENS])

    def in_progress(self, subject: str) -> int:
        """Requests of a tenant, or of another limit's subject, in this worker."""
        stock = self._stocks.get(subject)
        return stock.count if stock else 0

    def busy_subjects(self) -> dict[str, int]:
        """Requests in progress here, of every subject that has any."""
        return {subject: stock.count for subject, stock in self._stocks.items() if stock.count}

    def changed(self, principals: Iterable[Principal], *, revision: int) -> None:
        """Limits may be others from now on; the authority must know before the next question."""
        self._leases.revision = revision
        limits = self._limits = dict[str, TenantLimits]()
        for principal in principals:
            limits[principal.tenant] = principal.limits
            if principal.has_levels:
                for model in ("", *principal.terms.model_limits):
                    limits.update((level.subject, level.limits) for level in levels_of(principal, model))
        for subject, stock in self._stocks.items():
            total = limits[subject].concurrency_max if subject in limits else stock.total
            if stock.total and stock.total != total:
                stock.total = total
                self._leases.tell_limit(stock)
        # What asks as of this revision must ask for the limits of this revision.
        for unit, rates in ((RateUnit.REQUESTS, self._requests), (RateUnit.TOKENS, self._tokens)):
            for subject in rates.keys() & limits.keys():
                rates[subject].set_terms(*limits[subject].rate(unit))

    def received(self, message: GrantRate) -> None:
        self._leases.heard()
        unit, subject = message.key
        rate = (self._tokens if unit is RateUnit.TOKENS else self._requests)[subject]
        now_s = self._clock.now_s()
        was_denied = bool(rate.due) and not message.count
        rate.is_asked = False
        rate.due.clear()
        rate.held += message.count
        rate.expires_s = now_s + LEASE_S
        rate.left, rate.left_at_s = message.left, now_s
        if rate.unleased:
            self._send(ReturnRate(message.key, -rate.unleased))
            rate.unleased = 0
        rate.ours = None
        rate.denied_until_s = now_s + DENIAL_S if was_denied else 0.0
        rate.waiters.wake(
            len(rate.waiters)
        )  # whoever still finds too little asks anew, or hears that it was denied
        if was_denied and rate.held:
            self._give_back(rate)  # too little for us; several together may be enough for another worker

    def tick(self, now_s: float) -> None:
        """Called four times a second: closes the window, and gives back what nobody used in time."""
        for key, rate in list(self._busy.items()):
            self._expire(rate, now_s)
            if not rate.held and not rate.used:
                del self._busy[key]
            rate.used_before, rate.used = rate.used, 0

    def _stock(self, subject: str) -> SubjectStock:
        stock = self._stocks.get(subject)
        if stock is None:
            made = self._leases.stock(PoolKey(PoolKind.CONCURRENCY, subject))
            assert isinstance(made, SubjectStock)
            stock = self._stocks[subject] = made
        return stock

    def _rate(self, level: Level, unit: RateUnit) -> _Rate:
        """With the limit as it is now, which may be another than when the request came."""
        rates = self._tokens if unit is RateUnit.TOKENS else self._requests
        rate = rates.get(level.subject)
        if rate is None:
            rate = rates[level.subject] = _Rate(RateKey(unit, level.subject), *level.limits.rate(unit))
        rate.set_terms(*self._limits.get(level.subject, level.limits).rate(unit))
        return rate

    def _refuse_place(self, stock: SubjectStock, level: Level) -> None:
        stock.total = level.limits.concurrency_max
        refusal = concurrency_limited(level)
        if stock.is_denied:
            raise refusal
        raise Lacking(refusal, lambda: self._leases.ask(stock))

    def _leave(self, stock: SubjectStock) -> None:
        assert stock.count > 0, "a subject's count went below zero"
        stock.count -= 1
        if stock.is_hungry:
            self._leases.freed(stock.key)

    def _check(self, rate: _Rate, level: Level, amount: int, now_s: float) -> None:
        """Raises what keeps us from taking that much now: the answer is known already, or ours to give, or the authority's."""
        if rate.has(amount, now_s):
            return
        self._expire(rate, now_s)
        unit = rate.key.unit
        if self._leases.is_silent:
            self._ask(rate)  # so that there is an answer when it speaks again
            ours = self._ours(rate, now_s)
            # One that is larger than our part may go when that is full.
            least = min(float(amount), float(part_of(rate.burst, self._sharers)))
            if ours.left < least:
                wait_s = ours.wait_s(rate.per_minute, least) * self._sharers
                raise rate_limited(level, unit, wait_s=wait_s, amount=amount)
        elif now_s < rate.denied_until_s and (wait_s := rate.wait_s(amount, now_s)) > 0.0:
            raise rate_limited(level, unit, wait_s=wait_s, amount=amount)
        else:
            wait_s = max(60.0 / rate.per_minute, rate.wait_s(amount, now_s))
            refusal = rate_limited(level, unit, wait_s=wait_s, amount=amount)
            raise Lacking(refusal, lambda: self._ask(rate, amount))

    def _spend(self, rate: _Rate, amount: int, now_s: float) -> None:
        """Takes what `_check` has found."""
        rate.used += amount
        if rate.has(amount, now_s):
            rate.held -= amount
            if not rate.is_asked and rate.held < rate.used:
                self._ask(rate)
        else:
            self._ours(rate, now_s).left -= amount
            rate.unleased += amount

    def _ours(self, rate: _Rate, now_s: float) -> PartBucket:
        """Our part of the bucket, while the authority is silent."""
        if rate.ours is None:
            rate.ours = PartBucket(now_s)
        rate.ours.refill_part(rate.per_minute, rate.burst, self._sharers, now_s)
        return rate.ours

    def _expire(self, rate: _Rate, now_s: float) -> None:
        if rate.held and now_s >= rate.expires_s:
            self._give_back(rate)

    def _give_back(self, rate: _Rate) -> None:
        self._send(ReturnRate(rate.key, rate.held))
        rate.left += rate.held
        rate.held = 0

    def _return_tokens(self, receipt: Receipt, count: int) -> None:
        """To the authority at the end of the turn, so that whichever worker needs them finds them."""
        for level in receipt.levels:
            if not level.limits.tokens_per_minute:
                continue
            rate = self._rate(level, RateUnit.TOKENS)
            if not rate.owed:
                asyncio.get_running_loop().call_soon(self._send_owed, rate)
            rate.owed += count

    def _send_owed(self, rate: _Rate) -> None:
        if rate.owed:
            self._send(ReturnRate(rate.key, rate.owed))
            rate.left += rate.owed
            rate.owed = 0

    def _ask(self, rate: _Rate, amount: int = 0) -> Waiters:
        """For a request that waits for so much, or for those that are expected."""
        if amount:
            rate.due.append(amount)
        if not rate.is_asked:
            rate.is_asked = True
            self._busy[rate.key] = rate
            asyncio.get_running_loop().call_soon(self._send_ask, rate)
        return rate.waiters

    def _send_ask(self, rate: _Rate) -> None:
        """At the end of the turn, for all who came in it."""
        self._send_owed(rate)
        self._send(
            AskRate(
                rate.key,
                sum(rate.due),
                min(rate.due, default=0),
                AHEAD_WINDOWS * max(rate.used, rate.used_before),
                rate.per_minute,
                rate.burst,
                self._leases.revision,
            )
        )
