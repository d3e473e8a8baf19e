"""Which faults does a script ask for, and at which requests? The language and its table; no input or output."""

import difflib
import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from headrace.core.errors import ConfigError


class Kind(Enum):
    """Every fault; the value is its word in a script."""

    REFUSE = "refuse"
    DIE = "die"
    OUT_OF_MEMORY = "out_of_memory"
    STALL = "stall"
    CUT = "cut"
    CLOSE = "close"
    CLOSE_RAW = "close_raw"
    DONE_OPEN = "done_open"
    NO_DONE = "no_done"
    KEEPALIVE_CLOSE = "keepalive_close"
    DEAF = "deaf"
    TTFT = "ttft"
    SLOW = "slow"
    ERROR = "error"
    ERROR_FIRST = "error_first"
    ERROR_EVENT = "error_event"
    BAD_EVENT = "bad_event"
    HEAD_ONLY = "head_only"
    ERROR_HOSTILE = "error_hostile"
    GARBAGE = "garbage"
    HTML = "html"
    CONTENT_TYPE = "content_type"
    LENGTH_LIE = "length_lie"
    HEADER_INJECTION = "header_injection"
    HEAD_HUGE = "head_huge"
    JSON_HUGE = "json_huge"
    BIG = "big"
    EMPTY = "empty"
    DELTA = "delta"
    SLICE = "slice"
    UNICODE = "unicode"
    U2028 = "u2028"
    U0085 = "u0085"
    CRLF = "crlf"
    CR = "cr"
    COMMENTS = "comments"
    USAGE = "usage"
    FINISH = "finish"
    REASONING = "reasoning"
    TOOLS = "tools"
    MODELS_SLOW = "models_slow"
    HEALTH_SLOW = "health_slow"
    HEALTH_DOWN = "health_down"
    LOADING = "loading"


class Scope(Enum):
    """What `@N` counts for a fault."""

    INFERENCE = "inference requests"
    MODELS = "GET /v1/models"
    HEALTH = "GET /health"
    EVERYTHING = "no requests: the fault holds for a time"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table.

    Attributes:
        effect: What a client sees, for the help and the guide.
        numbers: Names of the numeric arguments, in order.
        words: Accepted words instead of numbers, joined by `+` in a script; a word that ends in `=N` takes a number.
        required: How many arguments must be given.
        least, most: Bounds of the first number.
    """

    kind: Kind
    effect: str
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    required: int = 0
    least: int = 0
    most: int = 1_000_000_000
    scope: Scope = Scope.INFERENCE

    @property
    def signature(self) -> str:
        arguments = self.numbers or (("|".join(self.words),) if self.words else ())
        return self.kind.value + "".join(
            f":{name}" if position < self.required else f"[:{name}]"
            for position, name in enumerate(arguments)
        )


_EVENTS, _MS, _BYTES = ("EVENTS",), ("MS",), ("BYTES",)

FAULTS: tuple[Fault, ...] = (
    Fault(Kind.REFUSE, "reset before any byte of the answer; no work is done"),
    Fault(Kind.DIE, "the process exits with 137: at the request, or after EVENTS events", numbers=_EVENTS),
    Fault(
        Kind.OUT_OF_MEMORY,
        "the process exits with 137 at the request; its last words are that memory ran out",
    ),
    Fault(
        Kind.STALL, "silence after EVENTS events, connection open; 0: no head", numbers=_EVENTS, required=1
    ),
    Fault(Kind.CUT, "reset after EVENTS events; 0: worked, but no head", numbers=_EVENTS, required=1),
    Fault(
        Kind.CLOSE,
        "clean end of the body after EVENTS events, without finish_reason and [DONE]",
        numbers=_EVENTS,
        required=1,
    ),
    Fault(
        Kind.CLOSE_RAW,
        "FIN inside the chunk that follows EVENTS events; 0: no head",
        numbers=_EVENTS,
        required=1,
    ),
    Fault(Kind.DONE_OPEN, "whole answer with [DONE], but the message never ends"),
    Fault(Kind.NO_DONE, "finish_reason and a clean end, but no [DONE]"),
    Fault(
        Kind.KEEPALIVE_CLOSE,
        "the connection is closed after MS idle milliseconds",
        numbers=_MS,
        required=1,
    ),
    Fault(Kind.DEAF, "a caller that leaves isn't noticed: the work goes on to its end"),
    Fault(Kind.TTFT, "MS milliseconds before the first event", numbers=_MS, required=1),
    Fault(Kind.SLOW, "MS milliseconds between events", numbers=_MS, required=1),
    Fault(
        Kind.ERROR,
        "an OpenAI-shaped error with STATUS, and Retry-After if SECONDS is given",
        numbers=("STATUS", "SECONDS"),
        required=1,
        least=400,
        most=599,
    ),
    Fault(
        Kind.ERROR_FIRST,
        "200, and the first event is an error with code STATUS (400)",
        numbers=("STATUS",),
        least=400,
        most=599,
    ),
    Fault(
        Kind.ERROR_EVENT,
        "an error event with code STATUS (500) after EVENTS events, then [DONE]",
        numbers=("EVENTS", "STATUS"),
        required=1,
    ),
    Fault(
        Kind.BAD_EVENT,
        "an event that is no JSON after EVENTS events, then [DONE]",
        numbers=_EVENTS,
        required=1,
    ),
    Fault(Kind.HEAD_ONLY, "the head of an answer, then a reset"),
    Fault(Kind.ERROR_HOSTILE, "500 whose message holds line breaks, terminal codes, JSON and HTML"),
    Fault(Kind.GARBAGE, "bytes that are not HTTP, then a close"),
    Fault(Kind.HTML, "200 with a text/html page"),
    Fault(Kind.CONTENT_TYPE, "the right body under content-type text/plain"),
    Fault(
        Kind.LENGTH_LIE,
        "content-length is longer than the body (then a close), or shorter (the rest spills over)",
        words=("longer", "shorter"),
    ),
    Fault(
        Kind.HEADER_INJECTION,
        "forged identity, revision and cookie headers; lf: hidden behind a bare line feed",
        words=("lf",),
    ),
    Fault(Kind.HEAD_HUGE, "a header of BYTES bytes", numbers=_BYTES, required=1),
    Fault(Kind.JSON_HUGE, "the text of a whole answer has BYTES bytes", numbers=_BYTES, required=1),
    Fault(Kind.BIG, "the text of the middle event has BYTES bytes", numbers=_BYTES, required=1),
    Fault(Kind.EMPTY, "a clean answer without any token"),
    Fault(
        Kind.DELTA,
        "each event carries BYTES bytes of text or tool arguments instead of 4",
        numbers=_BYTES,
        required=1,
        least=1,
    ),
    Fault(Kind.SLICE, "each write has at most BYTES bytes", numbers=_BYTES, required=1, least=1),
    Fault(
        Kind.UNICODE, "text of 3- and 4-byte characters; one_byte: each write one byte", words=("one_byte",)
    ),
    Fault(Kind.U2028, "text with raw U+2028 line separators"),
    Fault(Kind.U0085, "text with raw U+0085 line separators"),
    Fault(Kind.CRLF, "CRLF line endings in the event stream"),
    Fault(Kind.CR, "CR line endings in the event stream"),
    Fault(Kind.COMMENTS, "a `: ping` comment before each event"),
    Fault(
        Kind.USAGE,
        "left out, zero, running in each event, negative, unasked (after finish_reason, after [DONE], beside a "
        "choice), or with N cached tokens",
        words=(
            "none",
            "zero",
            "cumulative",
            "negative",
            "after_finish",
            "after_done",
            "with_choices",
            "cached=N",
        ),
        required=1,
    ),
    Fault(
        Kind.FINISH,
        "finish_reason: an empty text in every event; `abort` at the end; or the first of n choices alone gets one",
        words=("empty", "abort", "first_only"),
        required=1,
    ),
    Fault(
        Kind.REASONING,
        "the first half of a chat answer is reasoning, in that field and in its usage",
        words=("reasoning_content", "reasoning"),
        required=1,
    ),
    Fault(
        Kind.TOOLS,
        "a forced tool is called twice, with indexes 0 and 1, or both with index 0",
        words=("parallel", "same_index"),
        required=1,
    ),
    Fault(
        Kind.MODELS_SLOW,
        "GET /v1/models takes MS milliseconds",
        numbers=_MS,
        required=1,
        scope=Scope.MODELS,
    ),
    Fault(Kind.HEALTH_SLOW, "GET /health takes MS milliseconds", numbers=_MS, required=1, scope=Scope.HEALTH),
    Fault(Kind.HEALTH_DOWN, "GET /health answers 503", scope=Scope.HEALTH),
    Fault(
        Kind.LOADING,
        "503 on every path but /scripted/ for the first MS milliseconds",
        numbers=_MS,
        required=1,
        scope=Scope.EVERYTHING,
    ),
)

_BY_WORD = {fault.kind.value: fault for fault in FAULTS}
_SCOPE = {fault.kind: fault.scope for fault in FAULTS}


@dataclass(frozen=True, slots=True)
class When:
    """Which requests a rule is for, counted from 1: those in [first, last] that `every` divides."""

    first: int = 1
    last: int | None = None
    every: int = 1

    def covers(self, ordinal: int) -> bool:
        return (
            self.first <= ordinal
            and (self.last is None or ordinal <= self.last)
            and ordinal % self.every == 0
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a script: a fault, its arguments and its requests."""

    kind: Kind
    numbers: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    when: When = When()

    @property
    def number(self) -> int:
        """The first number; only for faults that require one."""
        return self.numbers[0]


@dataclass(frozen=True, slots=True)
class Faults:
    """The rules that hold for one request. Of two rules for the same fault the later one counts; words add up."""

    rules: tuple[Rule, ...] = ()

    def get(self, kind: Kind) -> Rule | None:
        return next((rule for rule in reversed(self.rules) if rule.kind is kind), None)

    def has(self, kind: Kind) -> bool:
        return self.get(kind) is not None

    def number(self, kind: Kind) -> int | None:
        """The fault's first number; None if no rule gives one."""
        rule = self.get(kind)
        return rule.numbers[0] if rule is not None and rule.numbers else None

    def words(self, kind: Kind) -> frozenset[str]:
        return frozenset(word for rule in self.rules if rule.kind is kind for word in rule.words)


NO_FAULTS = Faults()


class Script:
    """A parsed script and its place in it. Owns the counts: requests seen by scope since the script was set."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = {scope: tuple(rule for rule in rules if _SCOPE[rule.kind] is scope) for scope in Scope}
        self._seen: Counter[Scope] = Counter()

    @property
    def loading_s(self) -> float:
        """How long after it was set the engine pretends to load its model."""
        return max((rule.number / 1000 for rule in self._rules[Scope.EVERYTHING]), default=0.0)

    def next(self, scope: Scope) -> Faults:
        """Counts one request and returns what is to happen to it."""
        rules = self._rules[scope]
        if not rules:
            return NO_FAULTS
        self._seen[scope] += 1
        ordinal = self._seen[scope]
        return Faults(tuple(rule for rule in rules if rule.when.covers(ordinal)))


def parse(script: str) -> tuple[Rule, ...]:
    """Rules of a script such as `die:5@3, slow:200`; "" is the empty script.

    Raises: ConfigError that names the rule and what would be accepted.
    """
    return tuple(_rule(part.strip()) for part in re.split("[,;]", script) if part.strip())


def table() -> str:
    """The faults as aligned text, for `--help`."""
    width = min(24, max(len(fault.signature) for fault in FAULTS))
    lines = []
    for fault in FAULTS:
        if len(fault.signature) > width:
            lines.append(f"  {fault.signature}")
            lines.append(f"  {'':{width}}  {fault.effect}")
        else:
            lines.append(f"  {fault.signature:{width}}  {fault.effect}")
    return "\n".join(lines)


def _rule(text: str) -> Rule:
    head, at, when_text = text.partition("@")
    name, *arguments = head.split(":")
    fault = _BY_WORD.get(name)
    if fault is None:
        near = difflib.get_close_matches(name, _BY_WORD, n=1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        known = ", ".join(known.signature for known in FAULTS)
        raise ConfigError(f"--fault: unknown fault `{name}`; {hint}known faults: {known}")
    if at and fault.scope is Scope.EVERYTHING:
        raise ConfigError(f"--fault: `{name}` holds for a time and takes no `@`")
    when = _when(when_text, rule=text) if at else When()
    if fault.words:
        return Rule(fault.kind, words=_words(fault, arguments, rule=text), when=when)
    return Rule(fault.kind, numbers=_numbers(fault, arguments, rule=text), when=when)


def _numbers(fault: Fault, arguments: list[str], *, rule: str) -> tuple[int, ...]:
    is_right_count = fault.required <= len(arguments) <= len(fault.numbers)
    if not is_right_count or not all(re.fullmatch("[0-9]{1,10}", argument) for argument in arguments):
        raise ConfigError(f"--fault: `{rule}` should be `{fault.signature}`, with whole numbers")
    numbers = tuple(int(argument) for argument in arguments)
    if numbers and not fault.least <= numbers[0] <= fault.most:
        raise ConfigError(
            f"--fault: `{rule}`: {fault.numbers[0]} must be between {fault.least} and {fault.most}"
        )
    return numbers


def _words(fault: Fault, arguments: list[str], *, rule: str) -> tuple[str, ...]:
    words = tuple(arguments[0].split("+")) if arguments else ()
    patterns = [re.escape(word).replace("=N", "=[0-9]{1,10}") for word in fault.words]
    are_known = all(any(re.fullmatch(pattern, word) for pattern in patterns) for word in words)
    if len(arguments) > 1 or len(words) < fault.required or not are_known:
        raise ConfigError(f"--fault: `{rule}` should be `{fault.signature}`")
    return words


def _when(text: str, *, rule: str) -> When:
    if match := re.fullmatch(r"1/([1-9][0-9]{0,8})", text):
        return When(every=int(match[1]))
    if match := re.fullmatch(r"([1-9][0-9]{0,8})(\+|-([1-9][0-9]{0,8}))?", text):
        first = int(match[1])
        if match[2] == "+":
            return When(first=first)
        return When(first=first, last=int(match[3] or first))
    raise ConfigError(f"--fault: `{rule}`: after `@` comes N, N-M, N+ or 1/K, counted from 1")
