"""Amounts are exact: what is written is read back, and the one rounding there is goes to the nearest coin."""

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import money
from headrace.core.money import PICO, NotAnAmount, format_amount, format_coins, parse_amount, round_to_coin

AMOUNTS = st.integers(-money.AMOUNT_MAX * PICO, money.AMOUNT_MAX * PICO)
CURRENCIES = st.sampled_from(["EUR", "USD", "JPY", "KWD"])


@given(pico=AMOUNTS, decimals_min=st.integers(0, 12))
def test_an_amount_that_was_written_is_read_back(pico: int, decimals_min: int) -> None:
    text = format_amount(pico, decimals_min=decimals_min)
    assert parse_amount(text) == pico
    assert Decimal(text) * PICO == pico


@pytest.mark.parametrize(
    ("text", "pico"),
    [
        ("0", 0),
        ("2", 2 * PICO),
        ("0.15", 150_000_000_000),
        ("-0.000000000001", -1),
        ("0.1500000000000000", 150_000_000_000),
        ("1000000000000000", 10**27),
    ],
)
def test_amounts_are_read_exactly(text: str, pico: int) -> None:
    assert parse_amount(text) == pico


@pytest.mark.parametrize(
    "text",
    ["", "-", ".5", "1.", "+1", "1e3", "1,5", " 1", "1\n", "1_000", "NaN", "inf", "0.0000000000001", "1000000000000000.1",
     "1\u0662", "--1"],
)  # fmt: skip
def test_what_is_no_amount_or_would_lose_a_digit_is_refused(text: str) -> None:
    with pytest.raises(NotAnAmount):
        parse_amount(text)


def test_an_amount_is_written_with_two_decimals_at_least_and_all_that_it_has() -> None:
    assert format_amount(150_000_000_000) == "0.15"
    assert format_amount(2 * PICO) == "2.00"
    assert format_amount(2 * PICO, decimals_min=0) == "2"
    assert format_amount(-2_500_000) == "-0.0000025"


@given(pico=AMOUNTS, currency=CURRENCIES)
def test_rounding_is_commercial_and_treats_credit_and_charge_alike(pico: int, currency: str) -> None:
    coin = Decimal(1).scaleb(-money.coin_decimals(currency))
    wanted = Decimal(format_amount(abs(pico))).quantize(coin, rounding=ROUND_HALF_UP)
    assert round_to_coin(pico, currency) == -round_to_coin(-pico, currency)
    assert Decimal(format_amount(round_to_coin(abs(pico), currency))) == wanted


def test_half_a_coin_goes_away_from_zero() -> None:
    half = 5 * PICO // 1000
    assert format_coins(half, "EUR") == "0.01"
    assert format_coins(-half, "EUR") == "-0.01"
    assert format_coins(half - 1, "EUR") == "0.00"
    assert format_coins(PICO // 2, "JPY") == "1"
    assert format_coins(half, "KWD") == "0.005"


def test_a_currency_is_three_capital_letters() -> None:
    assert money.is_currency("EUR")
    assert not any(map(money.is_currency, ["", "eur", "EURO", "EU1", "EUR\n"]))
