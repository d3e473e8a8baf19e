"""What is an amount of money? A whole number of pico-units inside, an exact decimal as text outside, never a float.

A pico-unit is 10^-12 of the currency's unit: fine enough that a price per million tokens with six decimals is a whole
number of them for one token, so that a charge is a sum of products and is never rounded.

Rounding happens in one place, where an amount that somebody is asked to pay is stated in the smallest coin of its
currency: to the nearest, and half a coin away from zero, so that a credit rounds as the charge that it takes back.
"""

import re

DECIMALS = 12
PICO = 10**DECIMALS
"""Pico-units in one unit of a currency."""

AMOUNT_MAX = 10**15
"""The largest amount in units that is read or written as one number; sums may be larger inside."""

_AMOUNT = re.compile(r"(-?)([0-9]{1,16})(?:\.([0-9]+))?", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)

# ISO 4217: those whose smallest coin isn't a hundredth.
_COIN_DECIMALS = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}  # fmt: skip


class NotAnAmount(ValueError):
    """The text is no exact decimal that we can hold; the message says why."""


def parse_amount(text: str) -> int:
    """Pico-units of `0.15`, `-2` or `0.0000025`. Raises NotAnAmount, also where a digit would be lost."""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise NotAnAmount(f"{text!r} is not an amount: digits with a point, such as 0.15")
    sign, units, fraction = found.groups(default="")
    fraction = fraction.rstrip("0")
    if len(fraction) > DECIMALS:
        raise NotAnAmount(f"{text!r} has more than {DECIMALS} decimals")
    pico: int = int(units) * PICO + int(fraction.ljust(DECIMALS, "0"))
    if pico > AMOUNT_MAX * PICO:
        raise NotAnAmount(f"{text!r} is larger than {AMOUNT_MAX}")
    return -pico if sign else pico


def format_amount(pico: int, *, decimals_min: int = 2) -> str:
    """The exact decimal: as many decimals as there are, at least `decimals_min`. `parse_amount` reads it back."""
    units, rest = divmod(abs(pico), PICO)
    fraction = f"{rest:0{DECIMALS}d}".rstrip("0").ljust(decimals_min, "0")
    sign = "-" if pico < 0 else ""
    return f"{sign}{units}.{fraction}" if fraction else f"{sign}{units}"


def is_currency(text: str) -> bool:
    """Whether this has the form of an ISO 4217 code."""
    return _CURRENCY.fullmatch(text) is not None


def coin_decimals(currency: str) -> int:
    """Decimals of the smallest coin: 2 for EUR, 0 for JPY."""
    return _COIN_DECIMALS.get(currency, 2)


def round_to_coin(pico: int, currency: str) -> int:
    """The nearest amount in coins of the currency, in pico-units; half a coin goes away from zero."""
    coin: int = PICO // 10 ** coin_decimals(currency)
    rounded = (2 * abs(pico) + coin) // (2 * coin) * coin
    return -rounded if pico < 0 else rounded


def format_coins(pico: int, currency: str) -> str:
    """What somebody is asked to pay: rounded to coins, and written with exactly their decimals."""
    return format_amount(round_to_coin(pico, currency), decimals_min=coin_decimals(currency))
