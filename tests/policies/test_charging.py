"""A charge is the sum of its lines, exact, and never more than what was reserved for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.endings import ENDINGS, Charge
from headrace.core.prices import ITEM_OF, Item, Rates, rates_of
from headrace.core.usage import TokenUsage, Unit, UsageSource
from headrace.policies import charging

COUNTS = st.integers(0, 10**6)
RATES = st.builds(Rates, **dict.fromkeys(Rates.__struct_fields__, st.integers(0, 10**10)))
UNITS = st.sampled_from([None, *Unit])
BILLED = [UsageSource.FINAL, UsageSource.CUMULATIVE, UsageSource.ESTIMATED]


@st.composite
def usages(draw: st.DrawFn, sources: list[UsageSource] = BILLED) -> TokenUsage:
    prompt, completion = draw(COUNTS), draw(COUNTS)
    return TokenUsage(
        prompt,
        completion,
        draw(st.integers(0, prompt)),
        draw(st.sampled_from(sources)),
        draw(st.integers(0, completion)),
        draw(COUNTS),
    )


@given(rule=st.sampled_from(Charge), usage=usages([*UsageSource]), rates=RATES, unit=UNITS)
def test_the_lines_add_up_to_the_charge(
    rule: Charge, usage: TokenUsage, rates: Rates, unit: Unit | None
) -> None:
    lines = charging.lines(rule, usage, rates, unit=unit)
    assert sum(line.amount_pico for line in lines) == charging.charge(rule, usage, rates, unit=unit)
    assert all(line.quantity > 0 for line in lines)


@given(usages=st.lists(usages(BILLED[:1]), min_size=1, max_size=5), rates=RATES, unit=UNITS)
def test_what_holds_for_requests_holds_for_their_sum(
    usages: list[TokenUsage], rates: Rates, unit: Unit | None
) -> None:
    """An invoice multiplies sums of counts; nothing is lost or won by it."""
    total = TokenUsage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        UsageSource.FINAL,
        sum(usage.reasoning_tokens for usage in usages),
        sum(usage.units for usage in usages),
    )
    lines = charging.lines(Charge.GENERATED, total, rates, unit=unit, requests=len(usages))
    charges = [charging.charge(Charge.GENERATED, usage, rates, unit=unit) for usage in usages]
    assert sum(line.amount_pico for line in lines) == sum(charges)


@given(
    usage=usages(),
    rates=RATES,
    unit=UNITS,
    more=st.integers(1, 1000),
    field=st.sampled_from(["prompt", "completion", "units"]),
)
def test_more_of_anything_never_costs_less(
    usage: TokenUsage, rates: Rates, unit: Unit | None, more: int, field: str
) -> None:
    larger = TokenUsage(
        usage.prompt_tokens + more * (field == "prompt"),
        usage.completion_tokens + more * (field == "completion"),
        usage.cached_tokens,
        usage.source,
        usage.reasoning_tokens,
        usage.units + more * (field == "units"),
    )
    assert charging.charge(Charge.GENERATED, larger, rates, unit=unit) >= charging.charge(
        Charge.GENERATED, usage, rates, unit=unit
    )


@given(rule=st.sampled_from(Charge), usage=usages([*UsageSource]), rates=RATES, unit=UNITS, spare=COUNTS)
def test_no_charge_is_over_the_most_that_its_bounds_allow(
    rule: Charge, usage: TokenUsage, rates: Rates, unit: Unit | None, spare: int
) -> None:
    """What a budget reserves for a request is enough, however it ends."""
    most = charging.most(
        rates,
        prompt_tokens_max=usage.prompt_tokens + spare,
        completion_tokens_max=usage.completion_tokens + spare,
        units_max=usage.units + spare,
        unit=unit,
    )
    assert charging.charge(rule, usage, rates, unit=unit) <= most


@pytest.mark.parametrize("rule", Charge)
@pytest.mark.parametrize("source", UsageSource)
def test_nothing_is_billed_for_our_failures_or_for_what_nobody_knows(
    rule: Charge, source: UsageSource
) -> None:
    """REPORTS 34, T31: unknown is not billed, and an estimate is billed as a count is."""
    usage = TokenUsage(10, 5, 0, source)
    charge = charging.charge(rule, usage, rates_of({Item.INPUT: "1", Item.REQUEST: "0.01"}), unit=None)
    assert bool(charge) == charging.is_billed(rule, source)
    assert bool(charge) == (rule is not Charge.NOTHING and source in BILLED)


def test_a_charge_is_the_sum_that_a_person_would_write_down() -> None:
    rates = rates_of(
        {
            Item.INPUT: "0.15",
            Item.CACHED_INPUT: "0.075",
            Item.OUTPUT: "0.60",
            Item.REASONING_OUTPUT: "0.30",
            Item.REQUEST: "0.0001",
        }
    )
    usage = TokenUsage(1200, 500, 1000, UsageSource.FINAL, 300)
    lines = charging.lines(Charge.GENERATED, usage, rates, unit=None)
    assert [(line.item, line.quantity, line.amount_pico) for line in lines] == [
        (Item.INPUT, 200, 30_000_000),
        (Item.CACHED_INPUT, 1000, 75_000_000),
        (Item.OUTPUT, 200, 120_000_000),
        (Item.REASONING_OUTPUT, 300, 90_000_000),
        (Item.REQUEST, 1, 100_000_000),
    ]


@pytest.mark.parametrize("unit", Unit)
def test_units_are_charged_by_their_own_rate(unit: Unit) -> None:
    """Vectors, images, audio and action chunks."""
    rates = rates_of({ITEM_OF[unit]: "2"})
    usage = TokenUsage(10, 0, 0, UsageSource.FINAL, 0, 3)
    [line] = [line for line in charging.lines(Charge.GENERATED, usage, rates, unit=unit) if line.rate_pico]
    assert (line.item, line.quantity) == (ITEM_OF[unit], 3)
    assert charging.charge(Charge.GENERATED, usage, rates, unit=unit) == 3 * rates.of(ITEM_OF[unit])


def test_only_endings_that_deliver_or_that_the_caller_chose_are_charged() -> None:
    assert {row.charge for row in ENDINGS.values()} == set(Charge)
