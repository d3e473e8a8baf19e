"""How much of a budget is left? Reserved from before the work, spent by the records after it, in calendar periods.

What a request may use at most is lent to its holder before any work; when it ends, what it did use is spent and the rest is
free again. So spent and lent together never pass the limit, however many requests come at once.
"""

import math
from collections.abc import Iterable, Iterator

from headrace.core.errors import QuotaExhausted, QuotaUnavailable
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.leases import WorkerId
from headrace.core.quotas import AMOUNT_MAX, Amounts, BudgetKey, Limits, Span, span_of

LOW_PERCENTS = (80, 95)
UNLIMITED = 2 * AMOUNT_MAX
# Another request of the tenant holds what is missing; nobody knows for how long.
RESERVED_RETRY_AFTER_S = 1.0
# What never comes back is worth asking for again only after somebody has agreed to more of it.
NEVER_RETRY_AFTER_S = 86400.0
UNREAD_RETRY_AFTER_S = 1.0
# Besides the newest period, a request may belong to the one before, and the clock may have been set back.
PERIODS_KEPT = 3


class Budget:
    """One quota in one of its periods. State: what was spent, and what is `lent`, by holder.

    `spent + lent <= limit`, unless the operator has lowered the limit, the quota is newer than the request, or an engine has
    generated more than it was asked for.

    Attributes:
        told_percent: The highest of LOW_PERCENTS that was told on.
    """

    __slots__ = ("_by_holder", "key", "lent", "limit", "span", "spent", "told_percent")

    def __init__(self, key: BudgetKey, span: Span, limit: int) -> None:
        self.key = key
        self.span = span
        self.limit = limit
        self.spent = 0
        self.lent = 0
        self.told_percent = 0
        self._by_holder: dict[WorkerId, int] = {}

    @property
    def left(self) -> int:
        """What can be lent; negative where the limit is below what was promised before."""
        return self.limit - self.spent - self.lent

    def lent_to(self, holder: WorkerId) -> int:
        return self._by_holder.get(holder, 0)

    @property
    def holders(self) -> list[WorkerId]:
        """Who holds some of it."""
        return list(self._by_holder)

    def lend(self, holder: WorkerId, amount: int) -> bool:
        """All of that, or nothing."""
        if amount > self.limit - self.spent - self.lent:
            return False
        self.lent += amount
        self._by_holder[holder] = self._by_holder.get(holder, 0) + amount
        return True

    def give_back(self, holder: WorkerId, amount: int) -> None:
        """The holder has no use for it any more, or has spent it."""
        rest = self._by_holder.get(holder, 0) - amount
        assert rest >= 0, "a holder gives back what it holds"
        self.lent -= amount
        if rest:
            self._by_holder[holder] = rest
        else:
            self._by_holder.pop(holder, None)

    def pass_on(self, holder: WorkerId, heir: WorkerId) -> None:
        """Somebody else has what that holder had."""
        if holder in self._by_holder:
            self._by_holder[heir] = self._by_holder.pop(holder)

    def lost(self, holder: WorkerId) -> None:
        """The holder is gone; what it had not spent is free."""
        self.lent -= self._by_holder.pop(holder, 0)

    @property
    def low_percent(self) -> int:
        """The highest of LOW_PERCENTS that is spent, or 0."""
        return max((each for each in LOW_PERCENTS if self.spent * 100 >= self.limit * each), default=0)

    def newly_low(self) -> int:
        """`low_percent` where it is higher than at any time before, else 0: each is told once in a period."""
        percent = self.low_percent
        if percent <= self.told_percent:
            return 0
        self.told_percent = percent
        return percent


class Book:
    """One quota of one owner, with its budget of each period.

    State: the budgets, by the start of their periods; the newest period; and while what was spent before the book was opened
    is still to be found out, `_unread`: the requests recorded since, with their amounts.

    Attributes:
        corrected: The number of the last correction that is in what was spent.
    """

    __slots__ = ("_budgets", "_opened", "_span", "_unread", "corrected", "key", "limit")

    def __init__(self, key: BudgetKey, limit: int, wall_s: float) -> None:
        self.key = key
        self.limit = limit
        self._opened = self._span = span_of(key.period, wall_s)
        self._budgets: dict[int, Budget] = {self._span.start_s: Budget(key, self._span, limit)}
        self._unread: dict[RequestId, int] | None = {}
        self.corrected = 0

    @property
    def is_read(self) -> bool:
        return self._unread is None

    @property
    def opened(self) -> Span:
        """The period whose spending is to be read."""
        return self._opened

    @property
    def newest(self) -> Budget:
        return self._budgets[self._span.start_s]

    @property
    def budgets(self) -> list[Budget]:
        """Of the last periods."""
        return list(self._budgets.values())

    def at(self, wall_s: float) -> Budget | None:
        """The budget of the period in which that moment lies; None while what was spent in it isn't known."""
        return None if self._unread is not None else self._find(wall_s)

    def set_limit(self, limit: int) -> None:
        self.limit = limit
        for budget in self._budgets.values():
            budget.limit = limit

    def spend(self, request: RequestId, wall_s: float, amount: int) -> Budget | None:
        """A request that came at that moment has used so much. Returns the budget that it came out of, if that is known."""
        budget = self._find(wall_s)
        if budget is not None:
            budget.spent += amount
            if self._unread is not None and budget.span == self._opened:
                self._unread[request] = amount
        return budget

    def correct(self, number: int, wall_s: float, amount: int) -> None:
        """An entry of that number has changed what was spent, in the period of that moment; each counts once."""
        budget = self._find(wall_s)
        if self._unread is None and number > self.corrected:
            self.corrected = number
            if budget is not None:
                budget.spent += amount

    @property
    def unread(self) -> list[RequestId]:
        """The requests recorded since the book was opened. May be asked from another thread."""
        return [] if self._unread is None else list(self._unread)

    def read(self, spent: int, counted: Iterable[RequestId]) -> None:
        """The ledger says that so much was spent in the period `opened`; these of `unread` are in it."""
        assert self._unread is not None, "a book is read once"
        unread, self._unread = self._unread, None
        budget = self._budgets.get(self._opened.start_s)
        if budget is not None:
            budget.spent += spent - sum(unread[request] for request in counted)

    def _find(self, wall_s: float) -> Budget | None:
        """None for a period that is older than what is kept."""
        span = self._span
        if not span.start_s <= wall_s < span.end_s:
            span = span_of(self.key.period, wall_s)
        budget = self._budgets.get(span.start_s)
        if budget is None and span.start_s > min(self._budgets):
            budget = self._budgets[span.start_s] = Budget(self.key, span, self.limit)
            if span.start_s > self._span.start_s:
                self._span = span
            if len(self._budgets) > PERIODS_KEPT:
                del self._budgets[min(self._budgets)]
        return budget


class Budgets:
    """Every budget there is. State: the books, by key, and those of each tenant.

    A quota that is given up keeps its book, without a limit: should it be agreed again, nothing is missing.
    """

    def __init__(self) -> None:
        self._books: dict[BudgetKey, Book] = {}
        self._agreed: Limits = {}
        self.by_tenant: dict[TenantId, list[Book]] = {}

    def agreed(self) -> Iterator[Book]:
        """The books of the quotas that hold now."""
        return (self._books[key] for key in self._agreed)

    def find(self, key: BudgetKey) -> Book | None:
        return self._books.get(key)

    def set_limits(self, limits: Limits, *, wall_s: float) -> list[Book]:
        """These are the quotas from now on. Returns the books that are new: what was spent before is to be read for them."""
        new: list[Book] = []
        for key, limit in limits.items():
            book = self._books.get(key)
            if book is None:
                book = self._books[key] = Book(key, limit, wall_s)
                self.by_tenant.setdefault(key.tenant, []).append(book)
                new.append(book)
            elif book.limit != limit:
                book.set_limit(limit)
        for key in self._agreed.keys() - limits.keys():
            self._books[key].set_limit(UNLIMITED)
        self._agreed = dict(limits)
        return new

    def spend(
        self, tenant: TenantId, key_id: KeyId, amounts: Amounts, *, request: RequestId, wall_s: float
    ) -> list[Budget]:
        """A request that came at that moment has used so much. Returns the budgets that it came out of."""
        spent: list[Budget] = []
        for book in self.by_tenant.get(tenant, ()):
            if book.key.key_id in ("", key_id):
                budget = book.spend(request, wall_s, amounts.of(book.key.unit))
                if budget is not None:
                    spent.append(budget)
        return spent


def exhausted(
    key: BudgetKey, *, amount: int, limit: int, spent: int, left: int, span: Span, wall_s: float
) -> QuotaExhausted:
    """The refusal of a request that may use `amount`, where `left` can be lent."""
    name, shown = key.quota_name, key.show
    owner = "this key" if key.key_id else "this tenant"
    if amount > limit:
        what = f"which is more than all of it: {shown(limit)}"
    elif amount <= limit - spent:
        what = (
            f"{shown(max(0, left))} are left while other requests are in progress, of which "
            f"{shown(limit - spent)} are not spent yet"
        )
    else:
        what = f"{shown(max(0, limit - spent))} of {shown(limit)} are left"
    if amount <= limit - spent:
        wait_s = RESERVED_RETRY_AFTER_S
    else:
        wait_s = span.end_s - wall_s if math.isfinite(span.end_s) else NEVER_RETRY_AFTER_S
    return QuotaExhausted(
        f"the quota {name} of {owner}: this request may use up to {shown(amount)}; {what}",
        retry_after_s=max(1.0, wait_s),
    )


def unavailable(key: BudgetKey) -> QuotaUnavailable:
    """The refusal of a request while nobody says what is left."""
    return QuotaUnavailable(
        f"what is left of the quota {key.quota_name} can't be found out at the moment",
        retry_after_s=UNREAD_RETRY_AFTER_S,
    )
