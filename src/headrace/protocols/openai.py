"""OpenAI-compatible requests and errors: JSON bytes to a checked object, and our refusals to JSON bytes."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.core.errors import HeadraceError, InvalidRequest, Unauthenticated
from headrace.core.fleet import Deployment
from headrace.core.request import Endpoint

OUTPUT_TOKENS_MAX = 1_048_576  # where a deployment's context is unknown: more is a mistake, not a wish
STOP_MAX = 16
MESSAGES_MAX = 4096
INPUTS_MAX = 256
MODEL_NAME_MAX = 256
CHEAP_BODY_BYTES = 64 * 1024
STRINGS_MAX = 50_000
BRACKETS_MAX = 150_000
COMMAS_MAX = 500_000

_Name = Annotated[str, Meta(min_length=1, max_length=MODEL_NAME_MAX)]
_Stop = str | Annotated[list[str], Meta(max_length=STOP_MAX)] | None
_Tokens = Annotated[int, Meta(ge=1)] | None
_Temperature = Annotated[float, Meta(ge=0, le=2)] | None
_Share = Annotated[float, Meta(ge=0, le=1)] | None
_Penalty = Annotated[float, Meta(ge=-2, le=2)] | None
_LogitBias = Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)] | None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Message(msgspec.Struct):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[dict[str, Any]] | None = None


class GenerationFields(msgspec.Struct):
    """The fields of chat and text completions that we check; every other field passes through unread."""

    model: _Name
    max_tokens: _Tokens = None
    temperature: _Temperature = None
    top_p: _Share = None
    n: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: _Stop = None
    seed: int | None = None
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    logit_bias: _LogitBias = None
    user: Annotated[str, Meta(max_length=1024)] | None = None


class ChatFields(GenerationFields, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: _Tokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    response_format: dict[str, Any] | None = None


class CompletionFields(GenerationFields, kw_only=True):
    prompt: str | Annotated[list[str | int], Meta(min_length=1)]  # texts or token ids, not mixed
    best_of: Annotated[int, Meta(ge=1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None


class EmbeddingFields(msgspec.Struct):
    model: _Name
    input: (
        str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    )  # texts, or token ids, or lists of them
    encoding_format: str | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: Annotated[str, Meta(max_length=1024)] | None = None


class ParsedBody(msgspec.Struct, frozen=True, gc=False):
    """What the walk needs of a body.

    Attributes:
        fields: The whole object as parsed: what is checked is what is sent on.
        canonical: The same, serialised.
        prompt_bytes: UTF-8 bytes of all prompt text.
        output_tokens_max: The caller's bound, or None.
        choices: Answers asked for: `n` times the number of prompts.
    """

    model: str
    fields: dict[str, Any]
    canonical: bytes
    is_streaming: bool
    wants_usage: bool
    prompt_bytes: int
    output_tokens_max: int | None
    choices: int


_FIELDS: dict[Endpoint, type[ChatFields] | type[CompletionFields] | type[EmbeddingFields]] = {
    Endpoint.CHAT_COMPLETIONS: ChatFields,
    Endpoint.COMPLETIONS: CompletionFields,
    Endpoint.EMBEDDINGS: EmbeddingFields,
}
_decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def parse_body(endpoint: Endpoint, body: bytes) -> ParsedBody:
    """Reads and checks a request body. Raises InvalidRequest naming the field.

    Strict JSON: NaN, lone surrogates, a byte order mark and invalid UTF-8 are refused; of duplicate keys the last counts
    and is the only one sent on.
    """
    fields = _parse_json(body)
    canonical = _canonical(fields)
    try:
        checked = msgspec.convert(fields, _FIELDS[endpoint])
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    if isinstance(checked, EmbeddingFields):
        return ParsedBody(
            checked.model, fields, canonical, False, False, _embedding_bytes(checked.input), None, 1
        )
    if isinstance(checked, ChatFields):
        prompt_bytes = _message_bytes(checked.messages)
        # Engines differ in which of the two they obey, so the larger one is what may come.
        output_tokens_max = max(checked.max_completion_tokens or 0, checked.max_tokens or 0) or None
        prompts = 1
    else:
        prompt_bytes, prompts = _prompt_size(checked.prompt)
        output_tokens_max = checked.max_tokens
    choices = (
        max(checked.n or 1, (checked.best_of or 1) if isinstance(checked, CompletionFields) else 1) * prompts
    )
    options = checked.stream_options
    return ParsedBody(
        model=checked.model,
        fields=fields,
        canonical=canonical,
        is_streaming=bool(checked.stream),
        wants_usage=options is not None and bool(options.include_usage),
        prompt_bytes=prompt_bytes,
        output_tokens_max=output_tokens_max,
        choices=choices,
    )


def check_against(deployment: Deployment, parsed: ParsedBody) -> None:
    """Raises InvalidRequest where the request asks for more than the deployment gives."""
    bound = deployment.context_tokens or OUTPUT_TOKENS_MAX
    if parsed.output_tokens_max is not None and parsed.output_tokens_max > bound:
        raise InvalidRequest(
            f"max_tokens is {parsed.output_tokens_max}; this model allows at most {bound}", param="max_tokens"
        )
    if parsed.choices > deployment.choices_max:
        raise InvalidRequest(
            f"n asks for {parsed.choices} answers; this model gives at most {deployment.choices_max}",
            param="n",
        )


def error_body(error: HeadraceError, *, request_id: str) -> bytes:
    """The OpenAI-shaped JSON of an error."""
    return encode(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
                "request_id": request_id,
            }
        }
    )


def error_headers(error: HeadraceError) -> bytes:
    """The headers that tell a client what to do about an error."""
    lines = [b"x-headrace-reason: " + error.code.encode() + b"\r\n"]
    if error.retry_after_s is not None:
        lines.append(b"retry-after: " + retry_after_header(error.retry_after_s) + b"\r\n")
    if error.should_retry is not None:
        lines.append(b"x-should-retry: " + (b"true" if error.should_retry else b"false") + b"\r\n")
    if isinstance(error, Unauthenticated):
        lines.append(b"www-authenticate: Bearer\r\n")
    return b"".join(lines)


def retry_after_header(seconds: float) -> bytes:
    """Whole seconds, rounded up, at least 1: what every client understands."""
    return b"%d" % max(1, math.ceil(seconds))


def model_list(deployments: list[Deployment]) -> bytes:
    """The body of GET /v1/models."""
    return encode(
        {
            "object": "list",
            "data": [
                {"id": d.name, "object": "model", "created": d.created_s, "owned_by": d.owner}
                for d in sorted(deployments, key=lambda d: d.name)
            ],
        }
    )


def model_card(deployment: Deployment) -> bytes:
    """The body of GET /v1/models/NAME."""
    return encode(
        {
            "id": deployment.name,
            "object": "model",
            "created": deployment.created_s,
            "owned_by": deployment.owner,
        }
    )


def _parse_json(body: bytes) -> dict[str, Any]:
    if len(body) > CHEAP_BODY_BYTES:
        _refuse_dense(body)
    try:
        fields = _decode(body)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {_describe(error)}") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object")
    return fields


def _refuse_dense(body: bytes) -> None:
    """Counts before it parses: a few megabytes of `{},` or of tiny keys would hold the event loop for a third of a second,
    while a document of that size has few strings. Brackets and commas inside text count too, so their bounds are generous."""
    strings = (body.count(b'"') - body.count(b'\\"')) // 2
    if strings > STRINGS_MAX or body.count(b"{") + body.count(b"[") > BRACKETS_MAX:
        raise InvalidRequest(
            f"the body has more than {STRINGS_MAX} strings or {BRACKETS_MAX} objects and lists"
        )
    if body.count(b",") > COMMAS_MAX:
        raise InvalidRequest(f"the body has more than {COMMAS_MAX} commas")


# An integer of fewer digits fits in 64 bits. To look for one this way costs about a microsecond in a usual body; the
# encoder itself takes integers of any size.
_MANY_DIGITS = b"0" * 19
# Every run of 19 digits shows two neighbours in a sample of each ninth byte, so most bodies need no more than that.
_STRIDE = 9
_DIGITS_AS_ZERO = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))


def _canonical(fields: dict[str, Any]) -> bytes:
    """The object serialised again. Raises InvalidRequest for integers beyond 64 bits: JSON allows them, engines differ in
    how they fail on them, and a failure would speak against a healthy replica."""
    canonical = encode(fields)
    sample = canonical[::_STRIDE].translate(_DIGITS_AS_ZERO)
    if b"00" in sample and _MANY_DIGITS in canonical.translate(_DIGITS_AS_ZERO):
        _refuse_large_integers(fields)
    return canonical


_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1


def _refuse_large_integers(fields: dict[str, Any]) -> None:
    for name, field in fields.items():
        inside: list[Iterable[Any]] = [(field,)]
        while inside:
            for value in inside.pop():
                kind = type(
                    value
                )  # exact types, as the decoder makes them: half a million of these must pass quickly
                if kind is int:
                    if not _INTEGER_MIN <= value <= _INTEGER_MAX:
                        raise InvalidRequest(
                            f"{name[:100]}: an integer does not fit in 64 bits", param=name[:100]
                        )
                elif kind is list:
                    inside.append(value)
                elif kind is dict:
                    inside.append(value.values())


def _describe(error: Exception) -> str:
    return "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)[:200]


_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>\w+)`")


def _invalid_field(text: str) -> InvalidRequest:
    """Turns msgspec's words into ours: "max_tokens: expected `int` >= 1", with the field as `param`."""
    match = _AT.match(text)
    assert match is not None, "the pattern accepts any text"
    path = (match["path"] or "").lstrip(".")
    missing = _MISSING.match(match["what"])
    if missing:
        name = f"{path}.{missing['name']}" if path else missing["name"]
        return InvalidRequest(f"{name}: this field is required", param=name)
    what = match["what"]
    return InvalidRequest(f"{path}: {what[:1].lower()}{what[1:]}" if path else what, param=path or None)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _message_bytes(messages: list[Message]) -> int:
    total = 0
    for message in messages:
        content = message.content
        if isinstance(content, str):
            total += len(content) if content.isascii() else len(content.encode())
        elif content is not None:
            total += sum(_utf8_bytes(part["text"]) for part in content if isinstance(part.get("text"), str))
    return total


def _prompt_size(prompt: str | list[str | int]) -> tuple[int, int]:
    """UTF-8 bytes (four for a token id) and number of prompts."""
    if isinstance(prompt, str):
        return _utf8_bytes(prompt), 1
    _require_one_kind(prompt, field="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    return (sum(map(_utf8_bytes, texts)), len(texts)) if texts else (4 * len(prompt), 1)


def _embedding_bytes(value: str | list[str | int | list[int]]) -> int:
    items = [value] if isinstance(value, str) else value
    _require_one_kind(items, field="input")
    if any(item in ("", []) for item in items):
        raise InvalidRequest("input: an empty text has no embedding", param="input")
    if not isinstance(items[0], int) and len(items) > INPUTS_MAX:
        raise InvalidRequest(f"input: {len(items)} texts; at most {INPUTS_MAX} in one request", param="input")
    return sum(
        _utf8_bytes(i) if isinstance(i, str) else 4 * len(i) if isinstance(i, list) else 4 for i in items
    )


def _require_one_kind(items: Sequence[object], *, field: str) -> None:
    if len({type(item) for item in items}) > 1:
        raise InvalidRequest(f"{field}: texts and token ids can't be mixed", param=field)
