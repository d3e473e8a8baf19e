"""What is an invoice? Lines of quantity, price and amount that add up exactly, and what of the period is on none of them."""

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from headrace.core import money
from headrace.core.money import format_amount


class LineKind(StrEnum):
    """USAGE: of the invoice's own period. LATE: of an earlier one, recorded after its invoice was issued. CORRECTION: entered
    by a person."""

    USAGE = "usage"
    LATE = "late usage"
    CORRECTION = "correction"


class Cause(StrEnum):
    """Why requests are on no line.

    NOT_OWED: they failed, or were given up before any work. UNKNOWN_USAGE: nobody reported what they used. NO_PRICE: no
    price held for them.
    """

    NOT_OWED = "not_owed"
    UNKNOWN_USAGE = "unknown_usage"
    NO_PRICE = "no_price"


class InvoiceLine(msgspec.Struct, frozen=True):
    """`quantity` at `rate` for every `per` of them; amounts are exact decimals.

    Attributes:
        period: When it was used, or corrected.
        item: Of core.prices.Item, or empty for a correction.
        is_estimated: The quantity is our estimate, not an engine's count.
        note: Why, for a correction; whose text a person wrote.
    """

    kind: LineKind
    period: str
    model: str
    price_version: str
    item: str
    is_estimated: bool
    quantity: int
    unit: str
    rate: str
    per: int
    amount: str
    currency: str
    request_id: str = ""
    note: str = ""

    @property
    def amount_pico(self) -> int:
        return money.parse_amount(self.amount)


class Total(msgspec.Struct, frozen=True):
    """The sum of the lines in one currency: exactly, and as it is due, in coins."""

    currency: str
    amount: str
    due: str


class Unbilled(msgspec.Struct, frozen=True):
    cause: Cause
    requests: int


class Invoice(msgspec.Struct, frozen=True):
    """What a tenant owes for a period, issued or not yet.

    Attributes:
        number: 0 for a preview.
        begins, ends: ISO 8601, UTC; requests that arrived from `begins` on and before `ends`.
        issued: Likewise; empty for a preview.
        requests: All of the period, billed or not.
        corrections: Numbers of the entries behind the lines of that kind.
        known: How many requests were recorded of each earlier period that was invoiced, when this was made.
        seller: Who sends it, in lines of text.
    """

    number: int
    tenant: str
    period: str
    begins: str
    ends: str
    issued: str
    requests: int
    lines: tuple[InvoiceLine, ...]
    totals: tuple[Total, ...]
    unbilled: tuple[Unbilled, ...]
    corrections: tuple[int, ...] = ()
    known: dict[str, int] = {}
    seller: str = ""


_PERIOD = re.compile(r"([0-9]{4})-([0-9]{2})(?:-([0-9]{2}))?", re.ASCII)


class NotAPeriod(ValueError):
    """The text is no month and no day; the message says so."""


def bounds(period: str) -> tuple[datetime, datetime]:
    """When `2026-11` or `2026-11-15` begins, and when what follows it does, in UTC. Raises NotAPeriod."""
    found = _PERIOD.fullmatch(period)
    try:
        if found is None:
            raise ValueError
        year, month, day = (int(part or 1) for part in found.groups())
        begins = datetime(year, month, day, tzinfo=UTC)
        if found[3]:
            return begins, begins + timedelta(days=1)
        return begins, datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise NotAPeriod(f"{period!a}: a month such as 2026-11, or a day such as 2026-11-15") from None


def totals(lines: tuple[InvoiceLine, ...]) -> tuple[Total, ...]:
    """The one place where anything is rounded is `due`."""
    sums: dict[str, int] = {}
    for line in lines:
        sums[line.currency] = sums.get(line.currency, 0) + line.amount_pico
    return tuple(
        Total(currency, format_amount(pico), money.format_coins(pico, currency))
        for currency, pico in sorted(sums.items())
    )
