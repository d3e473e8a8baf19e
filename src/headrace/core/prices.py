"""What can be priced, and what is one version of a price? The vocabulary of the price book.

Inside, a rate is pico-units for one token, vector or millisecond; people write it for as many as people think in. Every rate
is a whole number of pico-units, so that a charge is exact, and has a bound, so that the charge of one request fits 64 bits.
"""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from headrace.core import money
from headrace.core.money import NotAnAmount
from headrace.core.usage import TOKENS_MAX, Unit

EVERY_MODEL = "*"
EVERY_TENANT = ""


class Item(StrEnum):
    """What a charge is made of; the value is its name in files, commands and invoices."""

    INPUT = "input"
    CACHED_INPUT = "cached_input"
    OUTPUT = "output"
    REASONING_OUTPUT = "reasoning_output"
    REQUEST = "request"
    VECTOR = "vector"
    IMAGE = "image"
    AUDIO = "audio"
    ACTION_CHUNK = "action_chunk"


@dataclass(frozen=True, slots=True)
class Measure:
    """How an item is counted and priced.

    Attributes:
        label: For people: what the price is for.
        unit: Of one that is counted, in the plural.
        per: A price is for so many of them.
        pico_max: The largest price of one.
    """

    label: str
    unit: str
    per: int
    pico_max: int


_CHARGE_MAX = 10**18  # of one item in one request, so that all of them together stay below 2^63
_TOKEN_PICO_MAX = _CHARGE_MAX // TOKENS_MAX


def _of(label: str, unit: Unit, plural: str, *, per: int = 1) -> Measure:
    return Measure(label, plural, per, _CHARGE_MAX // unit.count_max)


MEASURES: dict[Item, Measure] = {
    Item.INPUT: Measure("input, per million tokens", "tokens", 1_000_000, _TOKEN_PICO_MAX),
    Item.CACHED_INPUT: Measure("cached input, per million tokens", "tokens", 1_000_000, _TOKEN_PICO_MAX),
    Item.OUTPUT: Measure("output, per million tokens", "tokens", 1_000_000, _TOKEN_PICO_MAX),
    Item.REASONING_OUTPUT: Measure(
        "reasoning output, per million tokens", "tokens", 1_000_000, _TOKEN_PICO_MAX
    ),
    Item.REQUEST: Measure("request", "requests", 1, _CHARGE_MAX),
    Item.VECTOR: _of("vectors, per thousand", Unit.VECTOR, "vectors", per=1000),
    Item.IMAGE: _of("image", Unit.IMAGE, "images"),
    Item.AUDIO: _of("audio, per second", Unit.AUDIO_MS, "milliseconds", per=1000),
    Item.ACTION_CHUNK: _of("action chunk", Unit.ACTION_CHUNK, "action chunks"),
}

ITEM_OF: dict[Unit, Item] = {
    Unit.VECTOR: Item.VECTOR,
    Unit.IMAGE: Item.IMAGE,
    Unit.AUDIO_MS: Item.AUDIO,
    Unit.ACTION_CHUNK: Item.ACTION_CHUNK,
}


class Rates(msgspec.Struct, frozen=True, gc=False):
    """Pico-units for one of each item, all of them set."""

    input: int = 0
    cached_input: int = 0
    output: int = 0
    reasoning_output: int = 0
    request: int = 0
    vector: int = 0
    image: int = 0
    audio: int = 0
    action_chunk: int = 0

    def of(self, item: Item) -> int:
        rate: int = getattr(self, item.value)
        return rate


class Price(msgspec.Struct, frozen=True, gc=False):
    """One version: what a tenant pays for a model from a moment on. Never changed; a later version takes its place.

    Attributes:
        version: Its name in records: `p` and its number in the book.
        tenant, model: For whom and what; EVERY_TENANT, EVERY_MODEL where it holds for all.
        valid_from_s: Unix seconds; requests that arrive at this moment or later.
        stated: The decimals as they were written, for what was written: an item that is absent is free, but cached input costs
            what input costs, and reasoning what output costs. None: withdrawn, so that from then on the more general price holds.
        rates: The same for one of each item; None likewise.
    """

    version: str
    tenant: str
    model: str
    currency: str
    valid_from_s: float
    stated: dict[Item, str] | None
    rates: Rates | None


def rates_of(stated: dict[Item, str]) -> Rates:
    """Exact rates. Raises NotAnAmount, naming the item, where a price isn't a whole number of pico-units for one, is
    negative or beyond its bound."""
    found: dict[str, int] = {}
    for item, text in stated.items():
        measure = MEASURES[item]
        try:
            pico = money.parse_amount(text)
        except NotAnAmount as error:
            raise NotAnAmount(f"{item}: {error}") from None
        rate, rest = divmod(pico, measure.per)
        if rest:
            raise NotAnAmount(f"{item}: {text} has too many decimals to be charged exactly for one of them")
        if not 0 <= rate <= measure.pico_max:
            most = money.format_amount(measure.pico_max * measure.per, decimals_min=0)
            raise NotAnAmount(f"{item}: a price is from 0 to {most}, got {text}")
        found[item.value] = rate
    found.setdefault(Item.CACHED_INPUT.value, found.get(Item.INPUT.value, 0))
    found.setdefault(Item.REASONING_OUTPUT.value, found.get(Item.OUTPUT.value, 0))
    return Rates(**found)
