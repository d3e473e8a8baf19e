"""Which lines make an invoice? Sums of usage at their prices, what came too late for earlier invoices, and corrections."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from headrace.core import endings
from headrace.core.endings import Charge, Stage
from headrace.core.invoices import Cause, InvoiceLine, LineKind
from headrace.core.money import format_amount
from headrace.core.prices import MEASURES, Item
from headrace.core.usage import TokenUsage, Unit, UsageSource
from headrace.policies import charging
from headrace.policies.prices import PriceBook


class UsageGroup(msgspec.Struct, frozen=True):
    """Requests that ended alike at one price, and the sums over them.

    Attributes:
        usage: Sums of their counts.
        charged_pico: The sum of the charges in their records.
    """

    model: str
    unit: Unit | None
    price_version: str
    reason: str
    stage: Stage
    usage: TokenUsage
    requests: int
    charged_pico: int


class Key(msgspec.Struct, frozen=True, order=True):
    """What makes one line out of the requests of a period."""

    model: str
    price_version: str
    item: str
    is_estimated: bool


@dataclass(frozen=True, slots=True)
class Reckoning:
    """The usage of one period.

    Attributes:
        quantities: What is billed, by line.
        unbilled: Requests on no line.
        problems: Where the records and their rules don't agree, which must never be; in sentences.
    """

    quantities: dict[Key, int]
    unbilled: dict[Cause, int]
    requests: int
    problems: tuple[str, ...]


def reckon(groups: Iterable[UsageGroup], book: PriceBook) -> Reckoning:
    """Applies each group's rule to its sums, and holds the result against the charges that were recorded."""
    quantities: dict[Key, int] = {}
    unbilled: dict[Cause, int] = {}
    problems: list[str] = []
    requests = 0
    for group in groups:
        requests += group.requests
        rule = endings.find(group.reason, group.stage).charge
        cause = _cause(rule, group)
        price = book.version(group.price_version)
        lines: tuple[charging.Line, ...] = ()
        if cause is not None:
            unbilled[cause] = unbilled.get(cause, 0) + group.requests
        elif price is None or price.rates is None:
            problems.append(
                f"{group.requests} requests name price {group.price_version}, which isn't in the book"
            )
            continue
        else:
            lines = charging.lines(rule, group.usage, price.rates, unit=group.unit, requests=group.requests)
        is_estimated = group.usage.source is UsageSource.ESTIMATED
        for line in lines:
            if line.item is Item.REQUEST and not line.rate_pico:
                continue  # without a fee, how many there were is no item of the invoice
            key = Key(group.model, group.price_version, line.item.value, is_estimated)
            quantities[key] = quantities.get(key, 0) + line.quantity
        due_pico = sum(line.amount_pico for line in lines)
        if due_pico != group.charged_pico:
            problems.append(
                f"{group.requests} requests of model {group.model!a} that ended with {group.reason} were charged"
                f" {format_amount(group.charged_pico)}, and their rule makes {format_amount(due_pico)}"
            )
    return Reckoning(quantities, unbilled, requests, tuple(problems))


def _cause(rule: Charge, group: UsageGroup) -> Cause | None:
    if rule is Charge.NOTHING or group.usage.source is UsageSource.NONE:
        return Cause.NOT_OWED
    if group.usage.source is UsageSource.UNKNOWN:
        return Cause.UNKNOWN_USAGE
    return None if group.price_version else Cause.NO_PRICE


def lines(
    quantities: Mapping[Key, int], book: PriceBook, *, kind: LineKind, period: str
) -> list[InvoiceLine]:
    """In the order of model, price, and items as people read them. A price of 0 has its line too: it says what was given."""
    order = {item.value: place for place, item in enumerate(Item)}
    made = []
    for key in sorted(
        quantities, key=lambda key: (key.model, key.price_version, order[key.item], key.is_estimated)
    ):
        price = book.version(key.price_version)
        assert price is not None, "reckon takes no version that isn't in the book"
        assert price.rates is not None, "nothing is charged by a withdrawal"
        item, count = Item(key.item), quantities[key]
        measure, rate_pico = MEASURES[item], price.rates.of(item)
        made.append(
            InvoiceLine(
                kind=kind,
                period=period,
                model=key.model,
                price_version=key.price_version,
                item=key.item,
                is_estimated=key.is_estimated,
                quantity=count,
                unit=measure.unit,
                rate=format_amount(rate_pico * measure.per),
                per=measure.per,
                amount=format_amount(count * rate_pico),
                currency=price.currency,
            )
        )
    return made


def late(now: Mapping[Key, int], issued: Iterable[InvoiceLine]) -> dict[Key, int]:
    """Of a period that was invoiced: what is recorded now and was on no invoice. Records only come, so nothing is negative
    unless somebody took some away."""
    left = dict(now)
    for line in issued:
        key = Key(line.model, line.price_version, line.item, line.is_estimated)
        left[key] = left.get(key, 0) - line.quantity
    return {key: count for key, count in left.items() if count}
