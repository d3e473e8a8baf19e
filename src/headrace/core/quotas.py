"""How much may be used in a day, in a month, or at all? Quotas of requests, tokens and money, and the calendar they follow."""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from headrace.core.ids import KeyId, TenantId
from headrace.core.money import format_amount, parse_amount

AMOUNT_MAX = 2**63 - 1  # what a database keeps in one number; of money, 9.2 million units


class QuotaUnit(StrEnum):
    """What is counted; money in pico-units (10^-12) of the price book's currency."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    MONEY = "money"


class Period(StrEnum):
    """For how long a quota holds before it is whole again: a calendar day or month in UTC, or for ever."""

    DAY = "day"
    MONTH = "month"
    TOTAL = "total"


class Span(NamedTuple):
    """One period, in Unix seconds: from `start_s` to just before `end_s`."""

    start_s: int
    end_s: float


class Quota(NamedTuple):
    """At most so much of a unit in each period."""

    unit: QuotaUnit
    period: Period
    amount: int

    @property
    def name(self) -> str:
        """As commands, headers and tables say it."""
        return f"{self.unit}/{self.period}"


class BudgetKey(NamedTuple):
    """Which budget: of a tenant, or of one of its keys, where `key_id` is not empty."""

    tenant: TenantId
    key_id: KeyId
    unit: QuotaUnit
    period: Period

    @property
    def quota_name(self) -> str:
        return f"{self.unit}/{self.period}"

    def show(self, amount: int) -> str:
        """That much of its unit, for people."""
        return show(self.unit, amount)

    def value(self, amount: int) -> int | str:
        """That much of its unit in JSON: money is an exact decimal as text."""
        return format_amount(amount) if self.unit is QuotaUnit.MONEY else amount


class Amounts(NamedTuple):
    """What one request uses, or may use, of each unit."""

    requests: int = 0
    tokens: int = 0
    money: int = 0

    def of(self, unit: QuotaUnit) -> int:
        return self[_PLACES[unit]]


_PLACES = {unit: Amounts._fields.index(unit.value) for unit in QuotaUnit}

Limits = Mapping[BudgetKey, int]
"""What every budget may reach in each of its periods."""


def span_of(period: Period, wall_s: float) -> Span:
    """The period of that moment."""
    if period is Period.TOTAL:
        return Span(0, math.inf)
    moment = datetime.fromtimestamp(wall_s, tz=UTC)
    start = datetime(moment.year, moment.month, moment.day if period is Period.DAY else 1, tzinfo=UTC)
    start_s = int(start.timestamp())
    if period is Period.DAY:
        return Span(start_s, start_s + 86400)
    is_december = moment.month == 12
    end = datetime(moment.year + is_december, 1 if is_december else moment.month + 1, 1, tzinfo=UTC)
    return Span(start_s, int(end.timestamp()))


class NotAQuota(ValueError):
    """The text is no quota; the message says what would be."""


_QUOTA = re.compile(r"(requests|tokens)/(day|month|total)=([0-9]{1,19})", re.ASCII)
_BUDGET = re.compile(r"([^/]+)/(day|month|total)")


def parse_quota(text: str) -> Quota:
    """`tokens/day=2000000`, `requests/month=100000`."""
    found = _QUOTA.fullmatch(text)
    if found is None or int(found[3]) > AMOUNT_MAX:
        raise NotAQuota(
            f"{text!r} is not a quota: UNIT/PERIOD=NUMBER, such as tokens/day=2000000; "
            "UNIT is requests or tokens, PERIOD is day, month or total"
        )
    return Quota(QuotaUnit(found[1]), Period(found[2]), int(found[3]))


def parse_budget(text: str) -> Quota:
    """`50.00/month`, in the price book's currency. Raises NotAQuota, or core.money.NotAnAmount."""
    found = _BUDGET.fullmatch(text)
    if found is None:
        raise NotAQuota(
            f"{text!r} is not a budget: AMOUNT/PERIOD, such as 50.00/month; PERIOD is day, month or total"
        )
    amount = parse_amount(found[1])
    if not 0 <= amount <= AMOUNT_MAX:
        raise NotAQuota(f"{text!r}: a budget is at least 0 and at most {format_amount(AMOUNT_MAX)}")
    return Quota(QuotaUnit.MONEY, Period(found[2]), amount)


def read_quotas(quotas: Iterable[str], budgets: Iterable[str]) -> tuple[Quota, ...]:
    """Those of requests and tokens, and those of money. Raises NotAQuota or NotAnAmount, also for two of the same kind."""
    found = (*map(parse_quota, quotas), *map(parse_budget, budgets))
    if len({quota.name for quota in found}) < len(found):
        raise NotAQuota("two quotas of the same unit and period: which of them holds?")
    return found


def show(unit: QuotaUnit, amount: int) -> str:
    """`2000000 tokens`, or an exact decimal for money."""
    return format_amount(amount) if unit is QuotaUnit.MONEY else f"{amount} {unit}"
