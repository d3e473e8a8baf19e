"""Two revisions answered one request: do they say the same, and is something wrong with the candidate's answer alone?

For mirrored requests, whose answers nobody waits for and nobody has graded. Answers of models differ in words, so two of them
are the same, equivalent or different; what counts against a candidate without anybody's opinion is a fault of form that the
accepted revision's answer hasn't. Linear in the length of the answers, of which at most CHARACTERS_MAX are read.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from headrace.policies import answer_text, numerals

OVERLAP_MIN = 0.8
"""Of the words of two answers, that two texts with the same numbers, citations and negations have in common to be equivalent."""

LONGER_MIN = 4.0
_LONGER_CHARACTERS_MIN = 400


class Likeness(StrEnum):
    """Same: to the letter. Equivalent: but for its writing, or by the same facts in mostly the same words."""

    SAME = "same"
    EQUIVALENT = "equivalent"
    DIFFERENT = "different"


class Fault(StrEnum):
    """What is wrong with the candidate's answer, and not with the accepted revision's."""

    UNREADABLE = "unreadable"
    EMPTY = "empty"
    INVALID_JSON = "invalid_json"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    OTHER_LANGUAGE = "other_language"
    TOOL_CALL = "tool_call"
    REPETITION = "repetition"
    MUCH_LONGER = "much_longer"


class Comparison(msgspec.Struct, frozen=True):
    """What came out.

    Attributes:
        faults: In the order of `Fault`.
        overlap: Words in common, 0 to 1.
    """

    likeness: Likeness
    faults: tuple[Fault, ...] = ()
    overlap: float = 1.0

    @property
    def is_worse(self) -> bool:
        """Whether the candidate's answer has a fault; that it is merely different says nothing of which is better."""
        return bool(self.faults)

    @property
    def agrees(self) -> bool:
        return not self.faults and self.likeness is not Likeness.DIFFERENT


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _Call(msgspec.Struct):
    function: _Function = msgspec.field(default_factory=_Function)


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]


_read_body = msgspec.json.Decoder(_Body).decode
_read_json = msgspec.json.Decoder().decode
_BAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Answer(msgspec.Struct, frozen=True):
    """The first choice of an answer, as far as it is compared."""

    text: str
    is_refusal: bool = False
    is_cut: bool = False
    calls: tuple[tuple[str, str], ...] = ()


def read(body: bytes) -> Answer | None:
    """The answer in the whole body of a chat completion or completion; None for what isn't one."""
    try:
        choices = _read_body(body).choices
    except _BAD:
        return None
    if not choices:
        return None
    choice = choices[0]
    message = choice.message or _Message(content=choice.text)
    return Answer(
        text=message.content or message.refusal or "",
        is_refusal=bool(message.refusal),
        is_cut=choice.finish_reason == "length",
        calls=tuple((call.function.name, call.function.arguments) for call in message.tool_calls or ()),
    )


def compare(accepted: bytes, candidate: bytes, *, wants_json: bool = False) -> Comparison | None:
    """Compares the bodies of two whole answers to the same request; None where the accepted one can't be read.

    Args:
        wants_json: The caller asked for JSON (`response_format`).
    """
    first, second = read(accepted), read(candidate)
    if first is None:
        return None
    if second is None:
        return Comparison(Likeness.DIFFERENT, (Fault.UNREADABLE,), 0.0)
    return compare_answers(first, second, wants_json=wants_json)


def compare_answers(accepted: Answer, candidate: Answer, *, wants_json: bool = False) -> Comparison:
    """As `compare`, of answers that have been read."""
    if accepted == candidate:
        return Comparison(Likeness.SAME)
    first, second = _Look(accepted), _Look(candidate)
    signs: tuple[tuple[Fault, Callable[[_Look], bool]], ...] = (
        (Fault.EMPTY, _Look.is_empty),
        (Fault.INVALID_JSON, _Look.is_no_json if wants_json else _never),
        (Fault.REFUSED, _Look.refuses),
        (Fault.TRUNCATED, _Look.is_cut),
        (Fault.REPETITION, _Look.runs_away),
    )
    faults = [fault for fault, shows in signs if shows(second) and not shows(first)]
    if not first.has_same_calls(second):
        faults.append(Fault.TOOL_CALL)
    if Fault.EMPTY not in faults and first.script is not second.script and _Look.is_told(first, second):
        faults.append(Fault.OTHER_LANGUAGE)
    if len(second.text) > LONGER_MIN * max(len(first.text), _LONGER_CHARACTERS_MIN):
        faults.append(Fault.MUCH_LONGER)
    overlap = answer_text.overlap(first.words, second.words)
    order = list(Fault)
    return Comparison(
        _likeness(first, second, overlap), tuple(sorted(faults, key=order.index)), round(overlap, 3)
    )


def _never(_look: "_Look") -> bool:
    return False


def _likeness(first: "_Look", second: "_Look", overlap: float) -> Likeness:
    if not first.has_same_calls(second):
        return Likeness.DIFFERENT
    if max(len(first.text), len(second.text)) > answer_text.CHARACTERS_MAX:
        return Likeness.DIFFERENT  # their ends weren't read
    if first.plain == second.plain:
        return Likeness.EQUIVALENT
    if first.json is not None and second.json is not None:
        return Likeness.EQUIVALENT if first.json == second.json else Likeness.DIFFERENT
    is_equivalent = (
        overlap >= OVERLAP_MIN
        and {number.value for number in numerals.numbers(first.plain)}
        == {number.value for number in numerals.numbers(second.plain)}
        and answer_text.citations(first.plain) == answer_text.citations(second.plain)
        and answer_text.negations(first.plain) == answer_text.negations(second.plain)
    )
    return Likeness.EQUIVALENT if is_equivalent else Likeness.DIFFERENT


class _Look:
    """One answer, looked at once."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.text = answer.text
        self.plain = answer_text.normalised(answer_text.head(answer.text))
        self.words = answer_text.words(self.plain)
        self.script = answer_text.script(self.plain)
        self.json = _json_of(answer.text)

    def is_empty(self) -> bool:
        return not self.plain and not self._answer.calls

    def is_no_json(self) -> bool:
        return self.json is None and not self._answer.calls

    def refuses(self) -> bool:
        return self._answer.is_refusal or answer_text.declines(self.plain)

    def is_cut(self) -> bool:
        return self._answer.is_cut

    def runs_away(self) -> bool:
        return answer_text.runs_away(self.text)

    def is_told(self, other: "_Look") -> bool:
        """Whether both are long enough for their script to say which language they are in."""
        return min(self.words.total(), other.words.total()) >= _WORDS_TOLD_MIN

    def has_same_calls(self, other: "_Look") -> bool:
        mine, its = self._answer.calls, other._answer.calls
        return len(mine) == len(its) and all(
            name == other_name and _is_same_json(arguments, other_arguments)
            for (name, arguments), (other_name, other_arguments) in zip(mine, its, strict=True)
        )


_WORDS_TOLD_MIN = 4


def _is_same_json(some: str, other: str) -> bool:
    if some == other:
        return True
    parsed = _json_of(some)
    return parsed is not None and parsed == _json_of(other)


class _Json(msgspec.Struct, frozen=True):
    """What a text holds that is JSON; a struct of its own, as null is JSON too."""

    value: Any


def _json_of(text: str) -> _Json | None:
    """A JSON object or list, or None; a bare word or number is not what anybody means by JSON."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return _Json(_read_json(text))
    except _BAD:
        return None
