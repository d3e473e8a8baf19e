"""What a replica answered: its events and bodies read, counted and cleaned of what the caller may not or need not see."""

import re
from typing import Any

import msgspec

from headrace.core.usage import TokenUsage, UsageSource, estimate_tokens
from headrace.protocols import sse


class BadAnswer(Exception):
    """The replica's bytes are not an answer of the protocol."""


class UpstreamFault(msgspec.Struct, frozen=True):
    """An error that a replica reported: its status, and its message made safe to show to the caller."""

    status: int
    message: str


class ReportedFault(Exception):
    """The replica put an error under a status of success."""

    def __init__(self, fault: UpstreamFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Timings(msgspec.Struct, gc=False):
    """llama.cpp's running counts; prompt_n excludes the cached tokens."""

    prompt_n: int = 0
    cache_n: int = 0
    predicted_n: int = 0


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None


_ABSENT = msgspec.Raw(b"null")


class _Whole(msgspec.Struct, gc=False):
    """Choices and data stay bytes: a batch of embeddings is megabytes of numbers that nobody here reads."""

    choices: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode
_decode_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
# Any decoder may raise these, also on bytes that another has taken: fields that it doesn't know are hardly looked at.
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class StreamedAnswer:
    """Reads the events of one streamed answer and says what to forward.

    Counts by the stated precedence: the engine's final usage, else its last running count, else our estimate from the
    joined text. A count that can't be true (negative, or zero beside text) counts as missing; error text is never output.

    Args:
        wants_usage: The caller asked for usage in the stream; without it usage is read and taken out.
        hides_cached: `cached_tokens` may speak of another tenant's prompts: recorded, not shown.
        hides_progress: `timings` were asked for by us, not by the caller.
    """

    __slots__ = (
        "_final",
        "_finished",
        "_hides_cached",
        "_hides_progress",
        "_progress",
        "_wants_usage",
        "content_bytes",
        "fault",
        "is_done",
    )

    def __init__(self, *, wants_usage: bool, hides_cached: bool, hides_progress: bool) -> None:
        self._wants_usage = wants_usage
        self._hides_cached = hides_cached
        self._hides_progress = hides_progress
        self._final: TokenUsage | None = None
        self._progress: TokenUsage | None = None
        self._finished: dict[int | None, bool] = {}  # by the index of each choice seen
        self.content_bytes = 0
        self.is_done = False
        self.fault: UpstreamFault | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the answer reached its end: said so by `[DONE]`, or every part of it by a finish_reason."""
        return self.is_done or self._are_all_finished

    @property
    def _are_all_finished(self) -> bool:
        return bool(self._finished) and all(self._finished.values())

    def take(self, payload: bytes) -> bytes | None:
        """Reads one event; returns the data to forward, or None. Raises BadAnswer. After `fault` or `is_done` read no more."""
        if payload == sse.DONE:
            self.is_done = True
            return None
        try:
            chunk = _decode_chunk(payload)
        except _NOT_JSON as error:
            raise BadAnswer("an event is not a chunk of an answer") from error
        if chunk.error is not None:
            self.fault = fault_of(chunk.error, status=500)
            return None
        for choice in chunk.choices:
            if choice.finish_reason:  # some engines send an empty one with every piece
                self._finished[choice.index] = True
            else:
                self._finished.setdefault(choice.index, False)
            self.content_bytes += _content_bytes(choice)
        if chunk.timings is not None:
            timings = chunk.timings
            counted = _credible(
                timings.prompt_n + timings.cache_n,
                timings.predicted_n,
                timings.cache_n,
                UsageSource.CUMULATIVE,
            )
            self._progress = _later(self._progress, counted)
        if chunk.usage is None and not (chunk.timings is not None and self._hides_progress):
            return payload
        try:
            return self._without_hidden(payload, chunk)
        except _NOT_JSON as error:
            raise BadAnswer("an event holds what is not JSON") from error

    def usage(self, *, prompt_bytes: int) -> TokenUsage:
        """The counts so far, for an attempt that a replica worked on."""
        for found in (self._final, self._progress):
            if found is not None and (found.completion_tokens or not self.content_bytes):
                return found
        if self.content_bytes:
            return TokenUsage(
                estimate_tokens(prompt_bytes), estimate_tokens(self.content_bytes), 0, UsageSource.ESTIMATED
            )
        return TokenUsage(source=UsageSource.UNKNOWN)

    def _without_hidden(self, payload: bytes, chunk: _Chunk) -> bytes | None:
        fields = _decode_raw_object(payload)
        if chunk.usage is not None:
            is_final = not chunk.choices or self._are_all_finished
            source = UsageSource.FINAL if is_final else UsageSource.CUMULATIVE
            counted = _read_usage(chunk.usage, source)
            if source is UsageSource.FINAL:
                self._final = _later(self._final, counted)
            else:
                self._progress = _later(self._progress, counted)
            if not chunk.choices and not self._wants_usage:
                return None
            if not self._wants_usage or not is_final:
                del fields["usage"]
            elif self._hides_cached:
                fields["usage"] = _without_cached(fields["usage"])
        if self._hides_progress:
            fields.pop("timings", None)
        return _encode(fields)


def read_whole(body: bytes, *, hides_cached: bool) -> tuple[bytes, TokenUsage]:
    """Reads a whole 200 answer; returns the body to forward and its usage (source UNKNOWN if none was reported that can
    be true: no completion tokens beside text can't).

    Raises BadAnswer if it isn't an answer, and ReportedFault if it is an error.
    """
    try:
        whole = _decode_whole(body)
    except _NOT_JSON as error:
        raise BadAnswer("the body is not a JSON answer") from error
    if whole.error is not None:
        raise ReportedFault(fault_of(whole.error, status=500))
    has_choices = _is_list(whole.choices)
    if not has_choices and not _is_list(whole.data):
        raise BadAnswer("the body holds no answer")
    usage = _read_usage(whole.usage, UsageSource.FINAL) if whole.usage is not None else None
    if usage is not None and has_choices and not usage.completion_tokens and output_bytes(body):
        usage = None
    if hides_cached and whole.usage is not None and whole.usage.prompt_tokens_details is not None:
        body = _without_cached_in(body)
    return body, usage or TokenUsage(source=UsageSource.UNKNOWN)


def _is_list(raw: msgspec.Raw) -> bool:
    return memoryview(raw)[:1].tobytes() == b"["


def _without_cached_in(body: bytes) -> bytes:
    try:
        fields = _decode_raw_object(body)
        fields["usage"] = _without_cached(fields["usage"])
    except _NOT_JSON as error:
        raise BadAnswer("the body holds what is not JSON") from error
    return _encode(fields)


def output_bytes(body: bytes) -> int:
    """UTF-8 bytes of the generated text in a whole answer, for an estimate where no usage was reported."""
    try:
        return sum(map(_content_bytes, _decode_chunk(body).choices))
    except _NOT_JSON:
        return 0  # of another shape than ours: nothing to count is better than no answer


class AnswerAssembler:
    """Builds the whole answer from the events of a streamed one, unknown fields included.

    Strings of deltas are joined, except names that are sent whole; lists of indexed parts (choices, tool calls) are merged
    by index; other lists (log-probabilities) are extended.
    """

    _WHOLE_NAMES = frozenset(
        {"role", "id", "type", "name", "finish_reason", "object", "model", "system_fingerprint"}
    )

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._answer: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def take(self, payload: bytes) -> None:
        """Adds one forwarded event. Raises BadAnswer."""
        try:
            chunk = _decode_any(payload)
        except _NOT_JSON as error:
            raise BadAnswer("an event holds what is not JSON") from error
        for choice in chunk.pop("choices", ()):
            target = self._choices.setdefault(choice["index"] if _is_indexed(choice) else 0, {})
            if self._is_chat:
                choice["message"] = choice.pop("delta", None) or {}
            self._merge(target, choice)
        self._answer.update({key: value for key, value in chunk.items() if value is not None})

    def body(self) -> bytes:
        """The JSON of the whole answer."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            if self._is_chat:
                choice["message"].setdefault("content", None)
                for call in choice["message"].get("tool_calls") or ():
                    if isinstance(call, dict):
                        call.pop("index", None)  # only the pieces of a stream have it
        answer = {
            **self._answer,
            "object": "chat.completion" if self._is_chat else "text_completion",
            "choices": choices,
        }
        return _encode_joined(answer)

    def _merge(self, target: dict[str, Any], part: dict[str, Any]) -> None:
        for key, value in part.items():
            known = target.get(key)
            if value is None:
                target.setdefault(key, None)
            elif isinstance(value, str) and isinstance(known, str | _Pieces) and key not in self._WHOLE_NAMES:
                if isinstance(known, str):
                    known = target[key] = _Pieces(known)
                known.pieces.append(value)
            elif isinstance(value, dict) and isinstance(known, dict):
                self._merge(known, value)
            elif isinstance(value, list):
                target[key] = self._merged_list(known if isinstance(known, list) else [], value)
            else:
                target[key] = value

    def _merged_list(self, known: list[Any], parts: list[Any]) -> list[Any]:
        if not (all(map(_is_indexed, parts)) and all(map(_is_indexed, known))):
            known.extend(parts)
            return known
        by_index = {item["index"]: item for item in known}
        for part in parts:
            self._merge(by_index.setdefault(part["index"], {}), part)
        return [by_index[index] for index in sorted(by_index)]


class _Pieces:
    """A text that is still coming; joined once at the end, because joining at every piece would be quadratic."""

    __slots__ = ("pieces",)

    def __init__(self, first: str) -> None:
        self.pieces = [first]


def _joined(text: Any) -> str:
    assert isinstance(text, _Pieces), "everything else came from JSON"
    return "".join(text.pieces)


_encode_joined = msgspec.json.Encoder(enc_hook=_joined).encode


def _is_indexed(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("index"), int)


def fault_of(error: Any, *, status: int) -> UpstreamFault:
    """Reads an error object in any of the shapes that engines use; `status` holds if it names none."""
    message = error
    if isinstance(error, dict):
        message = error.get("message")
        code = error.get("code")
        if isinstance(code, str) and len(code) == 3 and code.isdecimal():
            code = int(code)
        if isinstance(code, int) and 400 <= code <= 599:
            status = code
    return UpstreamFault(status, safe_message(message if isinstance(message, str) else ""))


def fault_of_body(body: bytes, *, status: int) -> UpstreamFault:
    """The fault behind an error status; a body that isn't JSON gives no message."""
    try:
        parsed = _decode_any(body)
    except _NOT_JSON:
        return UpstreamFault(status, "")
    inner = parsed.get("error", parsed) if isinstance(parsed, dict) else ""
    fault = fault_of(inner, status=status)
    return UpstreamFault(status, fault.message)


# What an engine's own words may give away.
_SENSITIVE = re.compile(
    r"""
      0x[0-9a-fA-F]+                                      # an address in memory
    | \b\w+://\S+                                         # a URL
    | \b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?                  # an IPv4 address
    | \[[0-9a-fA-F]*:[0-9a-fA-F:.]*\](?::\d+)?            # an IPv6 address as it stands before a port
    | (?<![\w.-])(?:localhost|[\w-]+(?:\.[\w-]+)+):\d+   # a host with its port
    | (?:/[\w.+-]+){2,}                                   # a path
    """,
    re.VERBOSE,
)
MESSAGE_MAX = 300


def safe_message(text: str) -> str:
    """An engine's message made fit for the caller: printable, short, without addresses, URLs and paths."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * MESSAGE_MAX])
    return _SENSITIVE.sub("[...]", printable)[:MESSAGE_MAX].strip()


def _content_bytes(choice: _Choice) -> int:
    total = 0
    delta = choice.delta or choice.message
    if delta is not None:
        for text in (delta.content, delta.reasoning_content, delta.reasoning, delta.refusal):
            if text:
                total += len(text) if text.isascii() else len(text.encode())
        for call in delta.tool_calls or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                total += sum(len(str(function.get(key) or "").encode()) for key in ("name", "arguments"))
    if choice.text:
        total += len(choice.text.encode())
    return total


def _read_usage(usage: _Usage, source: UsageSource) -> TokenUsage | None:
    details = usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None and details.cached_tokens is not None else 0
    return _credible(usage.prompt_tokens, usage.completion_tokens or 0, cached, source)


def _later(known: TokenUsage | None, counted: TokenUsage | None) -> TokenUsage | None:
    """The later of two running counts. They only grow, so one that fell can't be true."""
    if known is None or (counted is not None and counted.completion_tokens >= known.completion_tokens):
        return counted
    return known


def _credible(prompt: int, completion: int, cached: int, source: UsageSource) -> TokenUsage | None:
    """The counts, or None where they can't be true; more cached than prompt tokens is cut to them."""
    if prompt < 0 or completion < 0 or (prompt == 0 and completion == 0):
        return None
    return TokenUsage(prompt, completion, max(0, min(cached, prompt)), source)


def _without_cached(raw: msgspec.Raw) -> msgspec.Raw:
    """The usage, which was read as an object before, without what it says about the cache."""
    usage = _decode_any(raw)
    usage.pop("prompt_tokens_details", None)
    return msgspec.Raw(_encode(usage))
