"""Prices are exact or refused, and no request can cost more than a record holds."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.money import PICO, NotAnAmount
from headrace.core.prices import ITEM_OF, MEASURES, Item, Rates, rates_of
from headrace.core.usage import TOKENS_MAX, Unit


@given(micro=st.integers(0, 10_000 * 10**6))
def test_a_price_of_a_million_tokens_with_six_decimals_is_exact_for_one_token(micro: int) -> None:
    text = str(Decimal(micro).scaleb(-6).quantize(Decimal("0.000001")))
    assert rates_of({Item.INPUT: text}).input * 1_000_000 == Decimal(text) * PICO


def test_cached_input_costs_what_input_costs_and_reasoning_what_output_costs_unless_said() -> None:
    assert rates_of({Item.INPUT: "1", Item.OUTPUT: "3"}) == Rates(
        input=1_000_000, cached_input=1_000_000, output=3_000_000, reasoning_output=3_000_000
    )
    said = rates_of({Item.INPUT: "1", Item.CACHED_INPUT: "0", Item.OUTPUT: "3", Item.REASONING_OUTPUT: "2"})
    assert (said.cached_input, said.reasoning_output) == (0, 2_000_000)
    assert rates_of({}) == Rates()


@pytest.mark.parametrize(
    ("item", "text", "says"),
    [
        (Item.INPUT, "0.0000001", "too many decimals"),
        (Item.VECTOR, "0.0000000001", "too many decimals"),
        (Item.OUTPUT, "-1", "from 0 to"),
        (Item.OUTPUT, "10000.000001", "from 0 to 10000,"),
        (Item.REQUEST, "1e3", "not an amount"),
    ],
)
def test_a_price_that_could_not_be_charged_exactly_is_refused(item: Item, text: str, says: str) -> None:
    with pytest.raises(NotAnAmount, match=says) as refused:
        rates_of({item: text})
    assert str(refused.value).startswith(f"{item}: ")


def test_every_item_has_its_measure_and_every_unit_its_item() -> None:
    assert set(MEASURES) == set(Item)
    assert set(ITEM_OF) == set(Unit)
    assert {item.value for item in Item} == set(Rates.__struct_fields__)


@pytest.mark.parametrize("unit", [None, *Unit])
def test_the_dearest_request_that_can_be_still_fits_a_record(unit: Unit | None) -> None:
    """A charge over 64 bits would break its record."""
    dearest = 2 * TOKENS_MAX * MEASURES[Item.INPUT].pico_max + MEASURES[Item.REQUEST].pico_max
    if unit is not None:
        dearest += unit.count_max * MEASURES[ITEM_OF[unit]].pico_max
    assert dearest < 2**63
