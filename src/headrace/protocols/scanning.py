"""What did an answer bring its caller? Output, an error, or an end, and the service's own counts: as a load generator reads it.

The events of a stream are searched, not decoded: decoding each would cost more than all else about it. A key with its quotes can't
stand inside a JSON string, where a quote is written `\\"`, so what is found is the key.
"""

import re
from typing import Any

import msgspec

from headrace.protocols import sse
from headrace.protocols.sse import EventTooLarge as EventTooLarge  # what `feed` raises

_has_output = re.compile(
    rb'"(?:content|reasoning_content|reasoning|refusal|text|arguments|name)"\s*:\s*"[^"]'
).search
_says_error = re.compile(rb'^\s*\{\s*"(?:error"|object"\s*:\s*"error")').search
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class StreamScan:
    """Reads the events of one stream.

    Attributes:
        is_done: The stream has had its proper end, `[DONE]`.
        error: The event that says what went wrong; None if none did.
        usage: The last event with counts; None if none had any.
        kept: Every event with output, where the text is wanted afterwards.
    """

    __slots__ = ("_events", "_keeps", "error", "is_done", "kept", "usage")

    def __init__(self, *, keeps_text: bool, event_bytes_max: int = sse.EVENT_BYTES_MAX) -> None:
        self._events = sse.EventParser(event_bytes_max=event_bytes_max)
        self._keeps = keeps_text
        self.is_done = False
        self.error: bytes | None = None
        self.usage: bytes | None = None
        self.kept: list[bytes] = []

    def feed(self, data: bytes) -> int:
        """How many events with output these bytes complete. Raises EventTooLarge."""
        found = 0
        for event in self._events.feed(data):
            if b'"usage"' in event:
                self.usage = event
            if _has_output(event):
                # An error's message is no output, whatever its keys are called.
                if _says_error(event):
                    self.error = event
                    continue
                found += 1
                if self._keeps:
                    self.kept.append(event)
            elif event == sse.DONE:
                self.is_done = True
            elif _says_error(event):
                self.error = event
        return found

    def text(self) -> str:
        """What was said in all that was kept; what can't be read says nothing."""
        return "".join(_said(event) for event in self.kept)


class Counts(msgspec.Struct, frozen=True):
    """The service's own counts; None for what it didn't say."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


UNCOUNTED = Counts()


class Whole(msgspec.Struct, frozen=True):
    """An answer that came in one piece.

    Attributes:
        has_output: Text, a refusal or a call of a tool.
        error: The code of an error in place of an answer; "" if there was none.
    """

    text: str
    has_output: bool
    counts: Counts
    error: str = ""


def whole(body: bytes) -> Whole | None:
    """Reads it; None if it is no answer."""
    try:
        answer = _decode(body)
    except NOT_JSON:
        return None
    if answer.error is not None:
        return Whole("", False, UNCOUNTED, error=code_of(body) or "error")
    if answer.choices is None:
        return None
    said = [_text_of(choice) for choice in answer.choices]
    has_output = any(said) or any(choice.message.tool_calls for choice in answer.choices if choice.message)
    return Whole("".join(said), has_output, _counts(answer.usage))


def counts(event: bytes | None) -> Counts:
    """The counts in an event, or in none."""
    if event is None:
        return UNCOUNTED
    try:
        return _counts(_decode(event).usage)
    except NOT_JSON:
        return UNCOUNTED


def code_of(body: bytes) -> str:
    """The word for an error in an event or a body: its code, else its type; "" where there is neither."""
    try:
        said = _decode_any(body)
    except NOT_JSON:
        return ""
    error = said.get("error", said) if isinstance(said, dict) else None
    if not isinstance(error, dict):
        return ""
    word = error.get("code") or error.get("type")
    return word[:_WORD_MAX] if isinstance(word, str) else str(word) if isinstance(word, int) else ""


_WORD_MAX = 64


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message | None = None
    delta: _Message | None = None
    text: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Answer).decode
_decode_any = msgspec.json.Decoder().decode


def _said(event: bytes) -> str:
    try:
        return "".join(map(_text_of, _decode(event).choices or ()))
    except NOT_JSON:
        return ""


def _text_of(choice: _Choice) -> str:
    said = choice.delta or choice.message
    return (said.content or said.refusal if said is not None else choice.text) or ""


def _counts(usage: _Usage | None) -> Counts:
    if usage is None:
        return UNCOUNTED
    details = usage.prompt_tokens_details
    return Counts(
        usage.prompt_tokens, None if details is None else details.cached_tokens, usage.completion_tokens
    )
