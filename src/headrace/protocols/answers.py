"""What a replica answered: its events and bodies read, counted and cleaned of what the caller may not or need not see."""

import re
from typing import Any

import msgspec

from headrace.core.usage import TOKENS_MAX, TokenUsage, UsageSource, estimate_tokens
from headrace.protocols import hiding, mending, sse


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


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


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
_TIMINGS = b',"timings":{'
# What engines call an end that is none: they gave the request up, or failed.
CUT_SHORT = frozenset({"abort", "error"})


class _Finish(msgspec.Struct, gc=False):
    finish_reason: str | None = None


class _Whole(msgspec.Struct, gc=False):
    """Each vector stays bytes: a batch of them is megabytes of numbers that nobody here reads."""

    choices: list[_Finish] | None = None
    data: list[msgspec.Raw] | dict[str, msgspec.Raw] | str | float | bool | None = None
    usage: _Usage | None = None
    timings: msgspec.Raw = _ABSENT
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode
_decode_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
# Any decoder may raise these, also on bytes that another has taken: fields that it doesn't know are hardly looked at.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class StreamedAnswer:
    """Reads the events of one streamed answer and says what to forward.

    Counts by the stated precedence: the engine's final usage, else its last running count, else our estimate from the
    joined text. A count that can't be true (negative, or zero beside text) counts as missing; error text is never output.

    Args:
        choices: How many were asked for: the answer is complete when so many have their finish_reason.
        wants_usage: The caller asked for usage in the stream; without it usage is read and taken out.
        hides_cached: What was cached may have been another tenant's prompts: recorded, and not shown in any spelling.
        hides_progress: `timings` were asked for by us, not by the caller.
    """

    __slots__ = (
        "_choices",
        "_final",
        "_finished",
        "_hides_cached",
        "_hides_progress",
        "_numbers",
        "_progress",
        "_wants_usage",
        "content_bytes",
        "fault",
        "is_done",
    )

    def __init__(self, *, choices: int, wants_usage: bool, hides_cached: bool, hides_progress: bool) -> None:
        self._choices = choices
        self._wants_usage = wants_usage
        self._hides_cached = hides_cached
        self._hides_progress = hides_progress
        self._final: TokenUsage | None = None
        self._progress: TokenUsage | None = None
        self._finished: dict[int | None, bool] = {}  # by the index of each choice seen
        self._numbers: dict[int | None, mending.CallNumbers] = {}  # the same, where tools are called
        self.content_bytes = 0
        self.is_done = False
        self.fault: UpstreamFault | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the answer reached its end: said so by `[DONE]`, or every part of it by a finish_reason."""
        return self.is_done or self._are_all_finished

    @property
    def _are_all_finished(self) -> bool:
        return len(self._finished) >= self._choices and all(self._finished.values())

    def take(self, payload: bytes) -> bytes | None:
        """Reads one event; returns the data to forward, or None. Raises BadAnswer. After `fault` or `is_done` read no more."""
        if payload == sse.DONE:
            self.is_done = True
            return None
        try:
            chunk = _decode_chunk(payload)
            _check_text(payload)
        except NOT_JSON as error:
            raise BadAnswer("an event is not a chunk of an answer") from error
        if len(chunk.choices) == 1 and self._is_plain(chunk, chunk.choices[0]):
            return payload if chunk.timings is None else self._without_timings(payload, chunk, chunk.timings)
        if chunk.error is not None:
            self.fault = fault_of(chunk.error, status=500)
            return None
        text_bytes, is_odd = self.content_bytes, False
        for choice in chunk.choices:
            if choice.finish_reason:
                if choice.finish_reason in CUT_SHORT:
                    self.fault = UpstreamFault(500, "")
                    return None
                self._finished[choice.index] = True
            else:
                self._finished.setdefault(choice.index, False)
                if choice.finish_reason is not None:
                    is_odd = True
            if choice.delta is not None and choice.delta.tool_calls:
                is_odd = True
            self.content_bytes += _content_bytes(choice)
        if chunk.timings is not None:
            self._count(chunk.timings)
        try:
            if is_odd:
                payload = self._mended(payload, chunk)
            if chunk.usage is not None or chunk.timings is not None:
                return self._without_hidden(payload, chunk)
            # No engine speaks of its cache beside a piece of text, and looking for it would cost every token.
            if self.content_bytes == text_bytes and self._hides_cached:
                return hiding.without_cache(payload)
        except NOT_JSON as error:
            raise BadAnswer("an event holds what is not JSON") from error
        return payload

    def _is_plain(self, chunk: _Chunk, choice: _Choice) -> bool:
        """Whether this is no more than another piece of text, as most events are; counts it then."""
        delta = choice.delta
        if (
            delta is None
            or choice.finish_reason is not None
            or chunk.usage is not None
            or chunk.error is not None
            or delta.reasoning_content is not None
            or delta.reasoning is not None
            or delta.tool_calls is not None
            or delta.refusal is not None
            or choice.text is not None
            or choice.index not in self._finished
        ):
            return False
        text = delta.content
        if not text:
            return False
        self.content_bytes += len(text) if text.isascii() else len(text.encode())
        return True

    def _count(self, timings: _Timings) -> None:
        counted = _credible(
            timings.prompt_n + timings.cache_n, timings.predicted_n, timings.cache_n, UsageSource.CUMULATIVE
        )
        self._progress = _later(self._progress, counted)

    def _without_timings(self, payload: bytes, chunk: _Chunk, timings: _Timings) -> bytes | None:
        """A piece of text that came with counts: they are read, and most often simply cut off."""
        self._count(timings)
        shown = _cut_timings(payload) if self._hides_progress or self._hides_cached else payload
        if shown is not None:
            return shown
        try:
            return self._without_hidden(payload, chunk)
        except NOT_JSON as error:
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

    def _mended(self, payload: bytes, chunk: _Chunk) -> bytes:
        mends: list[mending.Mend] = []
        for place, choice in enumerate(chunk.choices):
            if choice.finish_reason == "":
                mends.append(mending.Mend(place))
            if choice.delta is not None and choice.delta.tool_calls:
                numbers = self._numbers.setdefault(choice.index, mending.CallNumbers())
                mends += numbers.mends(place, choice.delta.tool_calls)
        return mending.mended(payload, mends) if mends else payload

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
        if (
            self._hides_progress or self._hides_cached
        ):  # how many prompt tokens were worked on says how many were not
            fields.pop("timings", None)
        shown = _encode(fields)
        return hiding.without_cache(shown) if self._hides_cached else shown


def read_whole(body: bytes, *, hides_cached: bool) -> tuple[bytes, TokenUsage]:
    """Reads a whole 200 answer; returns the body to forward and its usage (source UNKNOWN if none was reported that can
    be true: no completion tokens beside text can't); its units are the vectors in it.

    Raises BadAnswer if it isn't an answer, and ReportedFault if it is an error.
    """
    try:
        whole = _decode_whole(body)
        _check_text(body)
    except NOT_JSON as error:
        raise BadAnswer("the body is not a JSON answer") from error
    if whole.error is not None:
        raise ReportedFault(fault_of(whole.error, status=500))
    vectors = whole.data if isinstance(whole.data, list) else None
    if whole.choices is None and vectors is None:
        raise BadAnswer("the body holds no answer")
    empty: list[mending.Mend] = []
    for place, choice in enumerate(whole.choices or ()):
        if choice.finish_reason == "":
            empty.append(mending.Mend(place))
        elif choice.finish_reason in CUT_SHORT:
            raise ReportedFault(UpstreamFault(500, ""))
    usage = _read_usage(whole.usage, UsageSource.FINAL) if whole.usage is not None else None
    if usage is not None and whole.choices and not usage.completion_tokens and output_bytes(body):
        usage = None
    try:
        if empty:
            body = mending.mended(body, empty)
        if hides_cached:
            body = _without_timings(body) if whole.timings is not _ABSENT else body
            body = hiding.without_cache(body)
    except NOT_JSON as error:
        raise BadAnswer("the body holds what is not JSON") from error
    usage = usage or TokenUsage(source=UsageSource.UNKNOWN)
    return body, msgspec.structs.replace(usage, units=len(vectors)) if vectors else usage


def _cut_timings(payload: bytes) -> bytes | None:
    """The event without its last field, if that is `timings` with nothing but numbers; else None.

    Inside a string the quotes would be escaped, so what is found is a field; and since two braces follow it, of which one
    is its own, it is a field of the outermost object.
    """
    at = payload.rfind(_TIMINGS)
    if at < 0:
        return None
    rest = payload[at + len(_TIMINGS) :]
    is_last = rest.endswith(b"}}") and rest.count(b"}") == 2 and b"{" not in rest and b"[" not in rest
    return payload[:at] + b"}" if is_last else None


def _check_text(data: bytes) -> None:
    """Raises UnicodeDecodeError: our decoders don't look into the strings of fields that they don't know; callers' do."""
    if not data.isascii():
        data.decode()


def _without_timings(body: bytes) -> bytes:
    fields = _decode_raw_object(body)
    del fields["timings"]
    return _encode(fields)


def output_bytes(body: bytes) -> int:
    """UTF-8 bytes of the generated text in a whole answer, for an estimate where no usage was reported."""
    try:
        return sum(map(_content_bytes, _decode_chunk(body).choices))
    except NOT_JSON:
        return 0  # of another shape than ours: nothing to count is better than no answer


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
        parsed = decode_any(body)
    except NOT_JSON:
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
    cached = details.cached_tokens if details is not None else None
    more = usage.completion_tokens_details
    reasoning = more.reasoning_tokens if more is not None else None
    return _credible(
        usage.prompt_tokens, usage.completion_tokens or 0, cached or 0, source, reasoning=reasoning or 0
    )


def _later(known: TokenUsage | None, counted: TokenUsage | None) -> TokenUsage | None:
    """The later of two running counts. They only grow, so one that fell can't be true."""
    if known is None or (counted is not None and counted.completion_tokens >= known.completion_tokens):
        return counted
    return known


def _credible(
    prompt: int, completion: int, cached: int, source: UsageSource, *, reasoning: int = 0
) -> TokenUsage | None:
    """The counts, or None where they can't be true; a part that is larger than its whole is cut to it."""
    if prompt < 0 or completion < 0 or (prompt == 0 and completion == 0):
        return None
    if prompt > TOKENS_MAX or completion > TOKENS_MAX:
        return None
    return TokenUsage(
        prompt, completion, max(0, min(cached, prompt)), source, max(0, min(reasoning, completion))
    )
