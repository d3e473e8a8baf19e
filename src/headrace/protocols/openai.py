"""OpenAI-compatible requests and errors: JSON bytes to a checked object, and our refusals to JSON bytes."""

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from headrace.core.errors import HeadraceError, InvalidRequest, Unauthenticated
from headrace.core.fleet import Deployment
from headrace.core.request import Endpoint
from headrace.protocols import conversations, media, schemas, strict_json

OUTPUT_TOKENS_MAX = 1_048_576  # where a deployment's context is unknown: more is a mistake, not a wish
VOCABULARY_TOKENS_MAX = 524_288  # where a deployment's vocabulary is unknown: twice the largest in use
STOP_MAX = 16
MESSAGES_MAX = 4096
INPUTS_MAX = 256
MODEL_NAME_MAX = 256
LOGPROBS_MAX = 20
STREAM_OPTIONS_BYTES_MAX = 1024  # they are serialised for each attempt

_Name = Annotated[str, Meta(min_length=1, max_length=MODEL_NAME_MAX)]
_Stop = str | Annotated[list[str], Meta(max_length=STOP_MAX)] | None
_Tokens = Annotated[int, Meta(ge=1)] | None
_Count = Annotated[int, Meta(ge=1)] | None
_Logprobs = Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None
_Temperature = Annotated[float, Meta(ge=0, le=2)] | None
_Share = Annotated[float, Meta(ge=0, le=1)] | None
_Penalty = Annotated[float, Meta(ge=-2, le=2)] | None
_TokenId = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")]
_LogitBias = Annotated[dict[_TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)] | None
_TokenIds = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=4096)] | None
_Words = Annotated[list[str], Meta(max_length=300)] | None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class CalledFunction(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]


class ToolCall(msgspec.Struct):
    type: str = "function"
    function: CalledFunction | None = None


class Message(msgspec.Struct):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None


class GenerationFields(msgspec.Struct):
    """The fields of chat and text completions that we check; every other field passes through unread.

    Those below `user` are words of vLLM, SGLang and llama.cpp: some ask for work under another name (`n_predict` for
    `max_tokens`, `n_cmpl` for `n`), others are set by us (WIRE_FIELDS).
    """

    model: _Name
    max_tokens: _Tokens = None
    temperature: _Temperature = None
    top_p: _Share = None
    n: _Count = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: _Stop = None
    seed: int | None = None
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    logit_bias: _LogitBias = None
    best_of: _Count = None
    user: Annotated[str, Meta(max_length=1024)] | None = None
    n_predict: _Tokens = None
    n_cmpl: _Count = None
    n_probs: _Logprobs = None
    prompt_logprobs: _Logprobs = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stop_token_ids: _TokenIds = None
    allowed_token_ids: _TokenIds = None
    bad_words: _Words = None
    timings_per_token: bool | None = None


class ChatFields(GenerationFields, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: _Tokens = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    response_format: dict[str, Any] | None = None


class CompletionFields(GenerationFields, kw_only=True):
    prompt: str | Annotated[list[str | int], Meta(min_length=1)]  # texts or token ids, not mixed
    logprobs: _Logprobs = None
    echo: bool | None = None


class _OtherFields(msgspec.Struct):
    """What some engines read whatever the endpoint, so that its form matters on all: a salt may have to stand at its start."""

    messages: list[Message] | None = None
    prompt: str | list[str | int] | None = None


class EmbeddingFields(msgspec.Struct):
    model: _Name
    input: (
        str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    )  # texts, or token ids, or lists of them
    encoding_format: str | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: Annotated[str, Meta(max_length=1024)] | None = None


# What never goes to a replica as the caller wrote it: engines/wire.py writes these fields anew.
WIRE_FIELDS = ("stream", "stream_options", "timings_per_token")
# Words that engines take from whoever runs them, not from callers, and that never get there: salts and slots of a prefix
# cache and sessions, by which one could look into another's; addresses from which an engine fetches its cache; a place in the
# engine's own queue; and objects in which such words may be said again. (The fields of the `extra_body` of OpenAI's client
# arrive as fields of the request; what arrives under that name is a mistake.)
OPERATOR_FIELDS = (
    "cache_salt", "cache_salt_id", "extra_key", "id_slot", "cache_prompt", "session_id", "session_params",
    "kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "priority", "request_id", "rid",
    "data_parallel_rank", "extra_body", "extra_args", "nvext",
)  # fmt: skip
_OPERATOR_NAMES = frozenset(OPERATOR_FIELDS)
_WIRE_NAMES = frozenset(WIRE_FIELDS)
# A chat request without any of these asks for one answer, and names no token by its id.
_COUNTING_FIELDS = frozenset(
    {"n", "best_of", "n_cmpl", "n_predict", "logit_bias", "stop_token_ids", "allowed_token_ids"}
)


class ParsedBody(msgspec.Struct, frozen=True, gc=False):
    """What the walk needs of a body; small but for `canonical`, so that it travels well between processes.

    Attributes:
        canonical: The object as checked, serialised, without `model`, WIRE_FIELDS and OPERATOR_FIELDS and without its opening brace,
            so that our own fields can be put in front. What is checked is what is sent on.
        wire_fields: What the caller wrote in WIRE_FIELDS.
        prompt_bytes: UTF-8 bytes of all prompt text.
        output_tokens_max: The caller's bound, or None.
        choices: Answers asked for: `n` times the number of prompts.
        constraint_pieces: Size of what constrains the answer: schemas, grammars, patterns.
        token_id_max: The largest token id that the caller names, in the field `token_param`; -1 if none.
        is_token_prompt: The prompt is token ids.
        conversation: See protocols/conversations.py.
        media_at: Where the first part stands that is more than text, or "".
        remote_media: URLs that someone must fetch, with their places in `canonical`.
    """

    model: str
    canonical: bytes
    wire_fields: dict[str, Any]
    is_streaming: bool
    wants_usage: bool
    prompt_bytes: int
    output_tokens_max: int | None
    choices: int
    constraint_pieces: int
    token_id_max: int = -1
    token_param: str = ""
    media_at: str = ""
    remote_media: tuple[media.RemoteMedia, ...] = ()
    is_token_prompt: bool = False
    conversation: str = ""


REQUEST_FIELDS: dict[Endpoint, type[ChatFields] | type[CompletionFields] | type[EmbeddingFields]] = {
    Endpoint.CHAT_COMPLETIONS: ChatFields,
    Endpoint.COMPLETIONS: CompletionFields,
    Endpoint.EMBEDDINGS: EmbeddingFields,
}
encode = strict_json.encode


def parse_body(endpoint: Endpoint, body: bytes) -> ParsedBody:
    """Reads and checks a request body. Raises InvalidRequest naming the field.

    Strict JSON: NaN, lone surrogates, a byte order mark and invalid UTF-8 are refused; of duplicate keys the last counts
    and is the only one sent on.
    """
    fields = strict_json.parse_object(body)
    try:
        checked = msgspec.convert(fields, REQUEST_FIELDS[endpoint])
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    conversation = conversations.key_of(fields)
    del fields["model"]
    if not _OPERATOR_NAMES.isdisjoint(fields):
        for name in OPERATOR_FIELDS:
            fields.pop(name, None)
    if isinstance(checked, EmbeddingFields):
        return _parsed_embedding(checked, fields, body, conversation)
    wire_fields: dict[str, Any] = {}
    if not _WIRE_NAMES.isdisjoint(fields):
        wire_fields = {name: fields.pop(name) for name in WIRE_FIELDS if name in fields}
    output_tokens_max = checked.max_tokens
    if output_tokens_max is None:
        fields.pop("max_tokens", None)  # null says nothing, and would hide a bound that we write
    choices, token_id_max, token_param, is_token_prompt = 1, -1, "", False
    other = "prompt" if isinstance(checked, ChatFields) else "messages"
    if other in fields:
        is_token_prompt = _is_token_prompt(_other_field(other, fields[other]).prompt)
    if isinstance(checked, ChatFields):
        prompts = 1
        prompt_bytes = _message_bytes(checked.messages)
        if checked.max_completion_tokens is not None:
            # Engines differ in which of the names they obey, so the largest is what may come.
            output_tokens_max = max(output_tokens_max or 0, checked.max_completion_tokens)
    else:
        prompt_bytes, prompts = _prompt_size(checked.prompt)
        is_token_prompt = _is_token_prompt(checked.prompt)
    if not (isinstance(checked, ChatFields) and _COUNTING_FIELDS.isdisjoint(fields)):
        choices = max(checked.n or 1, checked.best_of or 1, checked.n_cmpl or 1)
        token_id_max, token_param = _largest_token_id(checked)
        if checked.n_predict is not None:
            output_tokens_max = max(output_tokens_max or 0, checked.n_predict)
    options = checked.stream_options
    if options is not None and len(encode(wire_fields["stream_options"])) > STREAM_OPTIONS_BYTES_MAX:
        raise InvalidRequest(
            f"stream_options: more than {STREAM_OPTIONS_BYTES_MAX} bytes", param="stream_options"
        )
    is_free = schemas.CONSTRAINING_FIELDS.isdisjoint(fields)
    canonical, media_at, remote_media = _canonical(fields, body)
    return ParsedBody(
        checked.model,
        canonical,
        wire_fields,
        bool(checked.stream),
        options is not None and bool(options.include_usage),
        prompt_bytes,
        output_tokens_max,
        choices * prompts,
        0 if is_free else schemas.check_constraints(fields),
        token_id_max,
        token_param,
        media_at,
        remote_media,
        is_token_prompt,
        conversation,
    )


def _other_field(name: str, value: Any) -> _OtherFields:
    """Raises InvalidRequest."""
    try:
        return msgspec.convert({name: value}, _OtherFields)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None


def _is_token_prompt(prompt: str | list[str | int] | None) -> bool:
    return isinstance(prompt, list) and any(isinstance(each, int) for each in prompt)


def _canonical(fields: dict[str, Any], body: bytes) -> tuple[bytes, str, tuple[media.RemoteMedia, ...]]:
    """What ParsedBody says of `canonical` and of media. Some engines read `messages` on every endpoint."""
    messages = fields.get("messages")
    if messages is None or not media.may_hold(messages):
        return strict_json.canonical(fields)[1:], "", ()
    media_at, remote = media.pick_out(messages, body=body)
    canonical = strict_json.canonical(fields)[1:]
    return canonical, media_at, media.locate(remote, canonical, body=body)


def _parsed_embedding(
    checked: EmbeddingFields, fields: dict[str, Any], body: bytes, conversation: str
) -> ParsedBody:
    prompt_bytes = _embedding_bytes(checked.input)
    canonical, media_at, remote_media = _canonical(fields, body)
    token_id_max = -1 if isinstance(checked.input, str) else _token_id_max(checked.input, field="input")
    return ParsedBody(
        checked.model,
        canonical,
        {},
        False,
        False,
        prompt_bytes,
        None,
        1,
        0,
        token_id_max,
        "input",
        media_at,
        remote_media,
        conversation=conversation,
    )


def output_tokens_bound(deployment: Deployment) -> int:
    """The most output tokens that a request for it may allow, under whatever name."""
    return deployment.context_tokens or OUTPUT_TOKENS_MAX


def vocabulary_bound(deployment: Deployment) -> int:
    """Token ids that a request for it names are below this."""
    return deployment.vocabulary_tokens or VOCABULARY_TOKENS_MAX


def check_against(deployment: Deployment, parsed: ParsedBody) -> None:
    """Raises InvalidRequest where the request asks for more than the deployment gives."""
    bound = output_tokens_bound(deployment)
    if parsed.output_tokens_max is not None and parsed.output_tokens_max > bound:
        raise InvalidRequest(
            f"max_tokens is {parsed.output_tokens_max}; this model allows at most {bound}", param="max_tokens"
        )
    if parsed.choices > deployment.choices_max:
        raise InvalidRequest(
            f"n asks for {parsed.choices} answers; this model gives at most {deployment.choices_max}",
            param="n",
        )
    if parsed.media_at and not deployment.takes_media:
        raise InvalidRequest(f"{parsed.media_at}: this model takes text only", param=parsed.media_at)
    if parsed.is_token_prompt and not deployment.takes_token_ids:
        raise InvalidRequest("prompt: this model takes text, and no token ids", param="prompt")
    if parsed.constraint_pieces > deployment.constraint_pieces_max:
        raise InvalidRequest(
            f"the schemas, grammars and patterns that constrain the answer have {parsed.constraint_pieces} pieces; "
            f"this model allows at most {deployment.constraint_pieces_max}",
            param="response_format",
        )
    vocabulary_tokens = vocabulary_bound(deployment)
    if parsed.token_id_max >= vocabulary_tokens:
        raise InvalidRequest(
            f"{parsed.token_param}: there is no token {parsed.token_id_max}; "
            f"ids of this model are below {vocabulary_tokens}",
            param=parsed.token_param,
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
            "data": [_card(each) for each in sorted(deployments, key=lambda each: each.name)],
        }
    )


def model_card(deployment: Deployment) -> bytes:
    """The body of GET /v1/models/NAME."""
    return encode(_card(deployment))


def _card(deployment: Deployment) -> dict[str, Any]:
    """OpenAI's fields, and ours: what keeps this model's prompts apart from other tenants'; null while nothing serves it.

    By that field another headrace in front of this one knows us, so it is always there.
    """
    return {
        "id": deployment.name,
        "object": "model",
        "created": deployment.created_s,
        "owned_by": deployment.owner,
        "cache_isolation": deployment.cache_isolation,
    }


_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
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
    for index, message in enumerate(messages):
        content = message.content
        if isinstance(content, str):
            total += len(content) if content.isascii() else len(content.encode())
        elif content is not None:
            total += _parts_bytes(content, at=f"messages[{index}].content")
    return total


def _parts_bytes(parts: list[dict[str, Any]], *, at: str) -> int:
    total = 0
    for index, part in enumerate(parts):
        text = part.get("text")
        if isinstance(text, str):
            total += _utf8_bytes(text)
        elif part.get("type") == "text":
            raise InvalidRequest(f"{at}[{index}].text: a text is required", param=f"{at}[{index}].text")
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


def _largest_token_id(checked: ChatFields | CompletionFields) -> tuple[int, str]:
    """The largest token id that a request names, and in which field; engines crash on ids beyond their vocabulary."""
    largest, named_in = -1, ""
    if isinstance(checked, CompletionFields) and not isinstance(checked.prompt, str):
        largest, named_in = _token_id_max(checked.prompt, field="prompt"), "prompt"
    if checked.logit_bias and (biased := max(map(int, checked.logit_bias))) > largest:
        largest, named_in = biased, "logit_bias"
    for name, ids in (
        ("stop_token_ids", checked.stop_token_ids),
        ("allowed_token_ids", checked.allowed_token_ids),
    ):
        if ids and max(ids) > largest:
            largest, named_in = max(ids), name
    return largest, named_in


def _token_id_max(items: Sequence[str | int | list[int]], *, field: str) -> int:
    """The largest token id among prompts, which are all of one kind; -1 if they are texts. Raises InvalidRequest."""
    if isinstance(items[0], str):
        return -1
    lists = cast(Sequence[Sequence[int]], items if isinstance(items[0], list) else (items,))
    if min(map(min, lists)) < 0:
        raise InvalidRequest(f"{field}: a token id is at least 0", param=field)
    return max(map(max, lists))


def _require_one_kind(items: Sequence[object], *, field: str) -> None:
    if len({type(item) for item in items}) > 1:
        raise InvalidRequest(f"{field}: texts and token ids can't be mixed", param=field)
