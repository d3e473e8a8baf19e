"""Is an answer right? Checks of a case against a text; an answer is right if it passes all of them.

Each check says what is wanted and nothing of how it must be worded, so that a good answer in other words stays right. What they
can't tell (whether a summary is faithful, say) is left to a judge model: `Judged`, which whoever runs the cases asks.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Literal

import msgspec

from headrace.policies import answer_text, citing, json_shape, numerals
from headrace.policies.numerals import Number

_READ_AHEAD_WORDS = 3
_PLACES_MAX = 32
_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?```\s*\Z", re.DOTALL)
_SAME_UNITS = {"%": ("%", "percent", "per cent")}
_CURRENCIES = frozenset(("€", "$", "£", "¥", "eur", "usd", "gbp", "cny", "rmb", "chf", "人民币"))
_PUNCTUATION = " \t\n.,;:!?。，；：！？\"'“”()[]"


class Miss(StrEnum):
    """Why an answer isn't right; says nothing of what would have been, so it can be told of a sealed set too."""

    NOT_EXACT = "not_exact"
    LACKS = "lacks"
    HAS_FORBIDDEN = "has_forbidden"
    NO_NUMBER = "no_number"
    WRONG_NUMBER = "wrong_number"
    NO_CITATION = "no_citation"
    WRONG_CITATION = "wrong_citation"
    UNSUPPORTED = "unsupported"
    NO_REFUSAL = "no_refusal"
    INVENTED = "invented"
    FALSE_REFUSAL = "false_refusal"
    INVALID_JSON = "invalid_json"
    WRONG_VALUES = "wrong_values"
    JUDGED_WRONG = "judged_wrong"


class _Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    pass


class Exact(_Check, frozen=True, tag="exact"):
    """The whole answer is one of these, but for case, spaces and punctuation around it."""

    any: tuple[str, ...]


class Contains(_Check, frozen=True, tag="contains"):
    """Of each group of wordings at least one is there, and none of the forbidden ones."""

    all: tuple[tuple[str, ...], ...] = ()
    none: tuple[str, ...] = ()


class Numeric(_Check, frozen=True, tag="numeric"):
    """The number is there, with one of the units if any are named; and no other number with such a unit.

    Attributes:
        units: Words behind the number, or a sign or code of a currency, which may stand before it. `%` is percent too.
        tolerance: As a share of the value; `within`: as it is.
        also: Other numbers that may stand there with that unit.
        factors: Other units that will do, by how many of `units` one of them is: {"hours": 60} where minutes are asked for.
    """

    value: float
    units: tuple[str, ...] = ()
    tolerance: float = 0.0
    also: tuple[float, ...] = ()
    within: float = 0.0
    factors: dict[str, float] = {}


class Cites(_Check, frozen=True, tag="cites"):
    """The passages that hold the fact are cited, all of them, and no others but `also`."""

    passages: tuple[str, ...]
    also: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement by its key terms, in any of these wordings, and the passages that hold it."""

    any: tuple[str, ...]
    passages: tuple[str, ...]


class Supported(_Check, frozen=True, tag="supported"):
    """What it cites holds what it says: behind each claim that it makes stands a passage that holds it, and every number
    of it is in a passage that it cites, or in the question, or in `also` (numbers that are worked out)."""

    claims: tuple[Claim, ...] = ()
    also: tuple[float, ...] = ()


class Refuses(_Check, frozen=True, tag="refuses"):
    """It says that what was asked isn't in the passages (missing), that it won't do it (forbidden), or that it or somebody
    whose profession it is must decide (advice). Whoever refuses and then answers all the same has not refused.

    Attributes:
        none: Wordings of answers that it must not give beside the refusal.
    """

    because: Literal["missing", "forbidden", "advice"]
    none: tuple[str, ...] = ()


class Answers(_Check, frozen=True, tag="answers"):
    """It doesn't refuse what it should answer."""


class Json(_Check, frozen=True, tag="json"):
    """It is JSON, alone or in a code fence, of that shape and with these values (texts but for their writing)."""

    schema: dict[str, Any]
    values: dict[str, Any] = {}


class Judged(_Check, frozen=True, tag="judged"):
    """A judge model finds that it meets this rubric."""

    rubric: str


Check = Exact | Contains | Numeric | Cites | Supported | Refuses | Answers | Json | Judged


class Given(msgspec.Struct, frozen=True):
    """What the answer had to go by: the question, and the passages by their labels."""

    question: str = ""
    passages: Mapping[str, str] = {}


def kind_of(check: Check) -> str:
    """Its `kind`, as files of cases write it."""
    return str(check.__struct_config__.tag)


def grade(check: Check, text: str, given: Given) -> Miss | None:
    """What is wrong with the answer by this check; None where nothing is, and for a check that a judge makes."""
    plain = answer_text.normalised(answer_text.head(text))
    match check:
        case Exact():
            wanted = {answer_text.normalised(each).strip(_PUNCTUATION) for each in check.any}
            return None if plain.strip(_PUNCTUATION) in wanted else Miss.NOT_EXACT
        case Contains():
            return _grade_contains(check, plain)
        case Numeric():
            return _grade_numeric(check, plain)
        case Cites():
            return _grade_cites(check, plain)
        case Supported():
            return _grade_supported(check, plain, given)
        case Refuses():
            return _grade_refuses(check, plain)
        case Answers():
            says_no = answer_text.finds_nothing(plain) or answer_text.declines(plain)
            return Miss.FALSE_REFUSAL if says_no else None
        case Json():
            return _grade_json(check, text)
        case _:
            assert isinstance(check, Judged)
            return None


def _grade_refuses(check: Refuses, plain: str) -> Miss | None:
    # "I can't tell from the excerpts" is worded as a refusal and means that nothing was found; that something isn't
    # stated is no refusal of what must not be done.
    is_refused = (
        answer_text.declines(plain)
        or (check.because == "missing" and answer_text.finds_nothing(plain))
        or (check.because == "advice" and answer_text.defers(plain))
    )
    if not is_refused:
        return Miss.NO_REFUSAL
    is_guessed = check.because == "missing" and answer_text.guesses(plain)
    return Miss.INVENTED if is_guessed or any(_has(plain, wording) for wording in check.none) else None


def _grade_contains(check: Contains, plain: str) -> Miss | None:
    if any(_has(plain, wording) for wording in check.none):
        return Miss.HAS_FORBIDDEN
    is_whole = all(any(_has(plain, wording) for wording in group) for group in check.all)
    return None if is_whole else Miss.LACKS


def _has(plain: str, wording: str) -> bool:
    return _wording(wording).search(plain) is not None


@lru_cache(maxsize=4096)
def _wording(wording: str) -> re.Pattern[str]:
    """Finds it as whole words where it begins or ends with a Latin letter or a digit: 14 is not in 2014, nor in 14.5."""
    wanted = answer_text.normalised(wording)
    before = r"(?<![a-z0-9])(?<!\d[.,])" if wanted[:1].isascii() and wanted[:1].isalnum() else ""
    after = r"(?![a-z0-9])(?![.,]\d)" if wanted[-1:].isascii() and wanted[-1:].isalnum() else ""
    return re.compile(before + re.escape(wanted) + after)


def _grade_numeric(check: Numeric, plain: str) -> Miss | None:
    found = [value for number in numerals.numbers(plain) if (value := _measured(number, check)) is not None]
    tolerance = max(check.tolerance * abs(check.value), check.within, 1e-9 * abs(check.value))
    right = [value for value in found if abs(value - check.value) <= tolerance]
    if not right:
        return Miss.WRONG_NUMBER if found else Miss.NO_NUMBER
    others = [value for value in found if value not in right and value not in check.also]
    return Miss.WRONG_NUMBER if others else None


def _measured(number: Number, check: Numeric) -> float | None:
    """The number in the unit that is asked for; None where it has another, or none."""
    if not check.units or any(_has_unit(number, unit) for unit in check.units):
        return number.value
    return next(
        (number.value * factor for unit, factor in check.factors.items() if _has_unit(number, unit)), None
    )


def _has_unit(number: Number, unit: str) -> bool:
    """Whether it stands within a few words behind a number, before any punctuation; a currency's also right before it."""
    wanted = answer_text.normalised(unit)
    near = " ".join(re.split(r"[,.;:!?()。、；：]", number.after, maxsplit=1)[0].split()[:_READ_AHEAD_WORDS])
    for wording in _SAME_UNITS.get(wanted, (wanted,)):
        is_behind = (
            _has(near, wording) if wording.isascii() and wording[-1].isalnum() else near.startswith(wording)
        )
        if is_behind or (wording in _CURRENCIES and number.before.rstrip().endswith(wording)):
            return True
    return False


def _grade_cites(check: Cites, plain: str) -> Miss | None:
    cited = answer_text.citations(plain)
    if not cited.issuperset(map(str.casefold, check.passages)):
        return Miss.NO_CITATION
    allowed = {label.casefold() for label in (*check.passages, *check.also)}
    return None if cited <= allowed else Miss.WRONG_CITATION


def _grade_supported(check: Supported, plain: str, given: Given) -> Miss | None:
    for claim in check.claims:
        found = chain.from_iterable(_wording(wording).finditer(plain) for wording in claim.any)
        places = [place.start() for place in islice(found, _PLACES_MAX)]
        if not citing.is_cited(plain, places, claim.passages):
            return Miss.UNSUPPORTED
    unfounded = citing.unfounded(plain, passages=given.passages, question=given.question)
    return Miss.UNSUPPORTED if any(value not in check.also for value in unfounded) else None


def _grade_json(check: Json, text: str) -> Miss | None:
    fenced = _FENCE.match(text)
    try:
        value = msgspec.json.decode(fenced.group(1) if fenced else text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return Miss.INVALID_JSON
    if not json_shape.fits(value, check.schema):
        return Miss.INVALID_JSON
    has_values = not check.values or (
        isinstance(value, dict)
        and all(_is_equal(value.get(name), wanted) for name, wanted in check.values.items())
    )
    return None if has_values else Miss.WRONG_VALUES


def _is_equal(value: Any, wanted: Any) -> bool:
    """Texts but for their writing, lists and objects item by item, all else exactly."""
    if isinstance(value, str) and isinstance(wanted, str):
        return answer_text.normalised(value) == answer_text.normalised(wanted)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_is_equal, value, wanted))
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(_is_equal(value[name], wanted[name]) for name in wanted)
    return bool(value == wanted) and isinstance(value, bool) is isinstance(wanted, bool)
