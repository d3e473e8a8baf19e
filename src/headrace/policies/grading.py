"""Is an answer right? Checks of a case against a text; an answer is right if it passes all of them.

Each check says what is wanted and nothing of how it must be worded, so that a good answer in other words stays right. What they
can't tell (whether a summary is faithful, say) is left to a judge model: `Judged`, which whoever runs the cases asks.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

import msgspec

from headrace.policies import answer_text, json_shape

_READ_AHEAD_WORDS = 3
_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?```\s*\Z", re.DOTALL)
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
    NO_REFUSAL = "no_refusal"
    FALSE_REFUSAL = "false_refusal"
    INVALID_JSON = "invalid_json"
    WRONG_VALUES = "wrong_values"
    JUDGED_WRONG = "judged_wrong"


class _Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
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
        tolerance: As a share of the value.
        also: Other numbers that may stand there with that unit.
    """

    value: float
    units: tuple[str, ...] = ()
    tolerance: float = 0.0
    also: tuple[float, ...] = ()


class Cites(_Check, frozen=True, tag="cites"):
    """The passages that hold the fact are cited, all of them, and no others but `also`."""

    passages: tuple[str, ...]
    also: tuple[str, ...] = ()


class Refuses(_Check, frozen=True, tag="refuses"):
    """It says that what was asked isn't in the passages (missing), or that it won't do it (forbidden)."""

    because: Literal["missing", "forbidden"]


class Answers(_Check, frozen=True, tag="answers"):
    """It doesn't refuse what it should answer."""


class Json(_Check, frozen=True, tag="json"):
    """It is JSON, alone or in a code fence, of that shape and with these values."""

    schema: dict[str, Any]
    values: dict[str, Any] = {}


class Judged(_Check, frozen=True, tag="judged"):
    """A judge model finds that it meets this rubric."""

    rubric: str


Check = Exact | Contains | Numeric | Cites | Refuses | Answers | Json | Judged


def grade(check: Check, text: str) -> Miss | None:
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
        case Refuses():
            return None if _refuses(plain, because=check.because) else Miss.NO_REFUSAL
        case Answers():
            says_no = answer_text.finds_nothing(plain) or answer_text.declines(plain)
            return Miss.FALSE_REFUSAL if says_no else None
        case Json():
            return _grade_json(check, text)
        case _:
            assert isinstance(check, Judged)
            return None


def _refuses(plain: str, *, because: str) -> bool:
    # "I can't tell from the excerpts" is worded as a refusal and means that nothing was found; that something isn't
    # stated is no refusal of what must not be done.
    return answer_text.declines(plain) or (because == "missing" and answer_text.finds_nothing(plain))


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
    found = [number.value for number in answer_text.numbers(plain) if _has_unit(number.after, check.units)]
    right = [value for value in found if abs(value - check.value) <= check.tolerance * abs(check.value)]
    if not right:
        return Miss.WRONG_NUMBER if found else Miss.NO_NUMBER
    others = [value for value in found if value not in right and value not in check.also]
    return Miss.WRONG_NUMBER if others else None


def _has_unit(after: str, units: tuple[str, ...]) -> bool:
    """Whether one of the units stands within a few words behind a number, before any punctuation."""
    if not units:
        return True
    near = " ".join(re.split(r"[,.;:!?。、；：]", after, maxsplit=1)[0].split()[:_READ_AHEAD_WORDS])
    return any(
        near.startswith(unit) if not unit.isascii() or not unit.isalnum() else _has(near, unit)
        for unit in map(answer_text.normalised, units)
    )


def _grade_cites(check: Cites, plain: str) -> Miss | None:
    cited = answer_text.citations(plain)
    if not cited.issuperset(map(str.casefold, check.passages)):
        return Miss.NO_CITATION
    allowed = {label.casefold() for label in (*check.passages, *check.also)}
    return None if cited <= allowed else Miss.WRONG_CITATION


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
    """Texts but for their writing, lists item by item, all else exactly."""
    if isinstance(value, str) and isinstance(wanted, str):
        return answer_text.normalised(value) == answer_text.normalised(wanted)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_is_equal, value, wanted))
    return bool(value == wanted) and isinstance(value, bool) is isinstance(wanted, bool)
