"""What does a request cost? One function of how it ended, what it used and its price; a charge is never rounded.

It is linear in the counts, so that what holds for one request holds for the sums of many: an invoice multiplies sums.
"""

import msgspec

from headrace.core.endings import Charge
from headrace.core.prices import ITEM_OF, Item, Rates
from headrace.core.usage import TokenUsage, Unit, UsageSource

# Looked up once: a member of an enumeration costs more than the multiplications of a charge.
_NOTHING = Charge.NOTHING
_UNBILLED = frozenset({UsageSource.UNKNOWN, UsageSource.NONE})


class Line(msgspec.Struct, frozen=True, gc=False):
    """One item of a charge: `quantity` at `rate_pico` each."""

    item: Item
    quantity: int
    rate_pico: int

    @property
    def amount_pico(self) -> int:
        return self.quantity * self.rate_pico


def is_billed(rule: Charge, source: str) -> bool:
    """Whether the rule of its ending and the knowledge of its usage leave anything to be billed.

    What is unknown is not billed, and neither is what no engine worked on; an estimate is billed as a count is.
    """
    return rule is not _NOTHING and source not in _UNBILLED


def charge(rule: Charge, usage: TokenUsage, rates: Rates, *, unit: Unit | None) -> int:
    """Pico-units that one request costs; the sum of its `lines`.

    Both rules that bill anything read the same counts: those of an answer that broke end where the answer did.

    Args:
        unit: What `usage.units` counts; None where the task has no unit beside tokens.
    """
    if rule is _NOTHING or usage.source in _UNBILLED:
        return 0
    cached, reasoning = usage.cached_tokens, usage.reasoning_tokens
    pico = (
        rates.request
        + (usage.prompt_tokens - cached) * rates.input
        + cached * rates.cached_input
        + (usage.completion_tokens - reasoning) * rates.output
        + reasoning * rates.reasoning_output
    )
    return pico if unit is None else pico + usage.units * rates.of(ITEM_OF[unit])


def lines(
    rule: Charge, usage: TokenUsage, rates: Rates, *, unit: Unit | None, requests: int = 1
) -> tuple[Line, ...]:
    """The items of a charge, those of quantity 0 left out.

    Args:
        usage: Of one request, or the sums over `requests` that ended by one rule and are known from one source.
    """
    if not is_billed(rule, usage.source):
        return ()
    quantities = {
        Item.INPUT: usage.prompt_tokens - usage.cached_tokens,
        Item.CACHED_INPUT: usage.cached_tokens,
        Item.OUTPUT: usage.completion_tokens - usage.reasoning_tokens,
        Item.REASONING_OUTPUT: usage.reasoning_tokens,
        Item.REQUEST: requests,
    }
    if unit is not None:
        quantities[ITEM_OF[unit]] = usage.units
    return tuple(Line(item, count, rates.of(item)) for item, count in quantities.items() if count)


def most(
    rates: Rates,
    *,
    prompt_tokens_max: int,
    completion_tokens_max: int,
    units_max: int = 0,
    unit: Unit | None = None,
) -> int:
    """Pico-units that a request within these bounds can't exceed, however it ends: what a budget must have room for."""
    pico = (
        rates.request
        + prompt_tokens_max * max(rates.input, rates.cached_input)
        + completion_tokens_max * max(rates.output, rates.reasoning_output)
    )
    return pico if unit is None else pico + units_max * rates.of(ITEM_OF[unit])
