"""What does a request ask of the scripted engine? JSON bytes to one flat, hashable value."""

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

import msgspec

from headrace.core.errors import InvalidRequest, ModelNotFound
from headrace.core.usage import estimate_tokens

CHOICES_MAX = 128
OUTPUT_TOKENS_MAX = 1_000_000
DIMENSIONS_MAX = 4096
SALT_CHARACTERS_MAX = 1024


class Endpoint(Enum):
    """The paths that do work; the value is the path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"


class Question(msgspec.Struct, frozen=True):
    """Everything that shapes an answer.

    Attributes:
        prompt_tokens: One per four UTF-8 bytes of all contents together, rounded up.
        output_tokens_max: The caller's bound, or None.
        top_logprobs: Alternatives per token; None when no logprobs were asked for.
        tool: Name of the tool that must be called, or "".
        wants_timings: Running counts in each event, llama-server's `timings_per_token`.
        inputs: What to embed, in order.
        dimensions: Length of each embedding.
        wants_base64: Embeddings as base64 of little-endian float32.
        cached_tokens: Prompt tokens that the engine has in its prefix cache, which the caller can't know.
        first_word: The number of the word that an answer in words begins with.
        answer: The text that the engine's script has for this prompt; None for words as many as it likes.
    """

    endpoint: Endpoint
    model: str
    prompt_tokens: int
    is_stream: bool = False
    wants_usage: bool = False
    wants_timings: bool = False
    output_tokens_max: int | None = None
    choices: int = 1
    top_logprobs: int | None = None
    tool: str = ""
    inputs: tuple[str, ...] = ()
    dimensions: int = 0
    wants_base64: bool = False
    cached_tokens: int = 0
    first_word: int = 0
    answer: str | None = None


class Traces(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields that steer caches and slots: they go into the execution log, so that tests can see what was sent."""

    id_slot: int | None = None
    cache_prompt: bool | None = None
    cache_salt: str | None = None
    user: str | None = None


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Function


class _Generation(msgspec.Struct):
    """What chat and plain completions have in common; null means the default, as OpenAI has it."""

    model: str
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = 1
    timings_per_token: bool | None = False
    id_slot: int | None = None
    cache_prompt: bool | None = None
    cache_salt: str | None = None
    user: str | None = None


class _Chat(_Generation, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | _Tool | None = None


class _Completion(_Generation, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None


class _Embedding(msgspec.Struct):
    model: str
    input: str | list[str | int | list[int]]
    dimensions: int | None = None
    encoding_format: str | None = "float"
    cache_salt: str | None = None
    user: str | None = None


_DECODERS: dict[Endpoint, msgspec.json.Decoder[_Chat | _Completion | _Embedding]] = {
    Endpoint.CHAT: msgspec.json.Decoder(_Chat),
    Endpoint.COMPLETIONS: msgspec.json.Decoder(_Completion),
    Endpoint.EMBEDDINGS: msgspec.json.Decoder(_Embedding),
}

EMBEDDING_DIMENSIONS = 64

_KEPT_BODY_BYTES_MAX = 4096


def read(endpoint: Endpoint, body: bytes, *, models: frozenset[str]) -> tuple[Question, Traces]:
    """The question in a body, and its cache and slot fields.

    Raises: InvalidRequest, ModelNotFound.
    """
    # Load generators repeat themselves; reading the same short body again would be a tenth of the work per request.
    reader = _read_and_keep if len(body) <= _KEPT_BODY_BYTES_MAX else _read
    return reader(endpoint, body, models)


def _read(endpoint: Endpoint, body: bytes, models: frozenset[str]) -> tuple[Question, Traces]:
    decoder = _DECODERS[endpoint]
    try:
        asked = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # msgspec.ValidationError, a DecodeError, names the field's path.
        raise InvalidRequest(f"bad request body: {error}") from error
    if asked.model not in models:
        raise ModelNotFound(f"no model `{asked.model}` here; there is: {', '.join(sorted(models))}")
    _check_salt(asked.cache_salt)
    if isinstance(asked, _Embedding):
        return _embedding(asked), Traces(cache_salt=asked.cache_salt, user=asked.user)
    traces = Traces(asked.id_slot, asked.cache_prompt, asked.cache_salt, asked.user)
    return _chat(asked) if isinstance(asked, _Chat) else _completion(asked), traces


_read_and_keep = lru_cache(maxsize=512)(_read)


def prompts(endpoint: Endpoint, body: bytes) -> list[bytes]:
    """The texts of a body that has been read: what a prefix cache goes by."""
    asked = _DECODERS[endpoint].decode(body)
    if isinstance(asked, _Chat):
        return [b"".join(map(_content, asked.messages))]
    given = asked.input if isinstance(asked, _Embedding) else asked.prompt
    return [text.encode() for text in _inputs(given, param="prompt")]


def _chat(asked: _Chat) -> Question:
    if not asked.messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    return Question(
        Endpoint.CHAT,
        asked.model,
        estimate_tokens(sum(map(_content_bytes, asked.messages))),
        is_stream=bool(asked.stream),
        wants_usage=_wants_usage(asked),
        wants_timings=bool(asked.timings_per_token),
        output_tokens_max=_output_tokens_max(limit),
        choices=_choices(asked.n),
        top_logprobs=_clamp(asked.top_logprobs or 0, 20) if asked.logprobs else None,
        tool=_forced_tool(asked),
    )


def _completion(asked: _Completion) -> Question:
    return Question(
        Endpoint.COMPLETIONS,
        asked.model,
        estimate_tokens(sum(map(_utf8_bytes, _inputs(asked.prompt, param="prompt")))),
        is_stream=bool(asked.stream),
        wants_usage=_wants_usage(asked),
        wants_timings=bool(asked.timings_per_token),
        output_tokens_max=_output_tokens_max(asked.max_tokens),
        choices=_choices(asked.n),
        top_logprobs=None if asked.logprobs is None else _clamp(asked.logprobs, 5),
    )


def _embedding(asked: _Embedding) -> Question:
    inputs = _inputs(asked.input, param="input")
    dimensions = EMBEDDING_DIMENSIONS if asked.dimensions is None else asked.dimensions
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        raise InvalidRequest(f"dimensions must be between 1 and {DIMENSIONS_MAX}", param="dimensions")
    return Question(
        Endpoint.EMBEDDINGS,
        asked.model,
        estimate_tokens(sum(map(_utf8_bytes, inputs))),
        inputs=inputs,
        dimensions=dimensions,
        wants_base64=asked.encoding_format == "base64",
    )


def _inputs(given: str | list[str | int | list[int]], *, param: str) -> tuple[str, ...]:
    """The texts in a prompt or input; token ids stand for themselves, four bytes each."""
    if isinstance(given, str):
        return (given,)
    if not given:
        raise InvalidRequest(f"{param} must not be empty", param=param)
    numbers = [item for item in given if isinstance(item, int)]
    if numbers:
        if len(numbers) != len(given):
            raise InvalidRequest(f"{param} mixes token ids with texts", param=param)
        return (_text_of_ids(numbers),)
    return tuple(
        item if isinstance(item, str) else _text_of_ids(item) for item in given if not isinstance(item, int)
    )


def _text_of_ids(ids: Iterable[int]) -> str:
    return "".join(f"{number % 10_000:04d}" for number in ids)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _content(message: _Message) -> bytes:
    content = message.content
    return (
        content.encode()
        if isinstance(content, str)
        else "".join(part.text for part in content or ()).encode()
    )


def _content_bytes(message: _Message) -> int:
    content = message.content
    if isinstance(content, str):
        return _utf8_bytes(content)
    return sum(_utf8_bytes(part.text) for part in content or ())


def _clamp(number: int, most: int) -> int:
    return max(0, min(number, most))


def _wants_usage(asked: _Generation) -> bool:
    return asked.stream_options is not None and bool(asked.stream_options.include_usage)


def _output_tokens_max(limit: int | None) -> int | None:
    if limit is not None and not 1 <= limit <= OUTPUT_TOKENS_MAX:
        raise InvalidRequest(f"max_tokens must be between 1 and {OUTPUT_TOKENS_MAX}", param="max_tokens")
    return limit


def _check_salt(salt: str | None) -> None:
    """An odd one has killed an engine (CVE-2026-105756), and an empty one vLLM refuses: none of ours is either."""
    if salt is not None and not (
        0 < len(salt) <= SALT_CHARACTERS_MAX and salt.isascii() and salt.isprintable()
    ):
        raise InvalidRequest(
            f"cache_salt must be 1 to {SALT_CHARACTERS_MAX} printable ASCII characters", param="cache_salt"
        )


def _choices(n: int | None) -> int:
    if n is None:
        return 1
    if not 1 <= n <= CHOICES_MAX:
        raise InvalidRequest(f"n must be between 1 and {CHOICES_MAX}", param="n")
    return n


def _forced_tool(asked: _Chat) -> str:
    """Name of the tool that the caller insists on: only `required` or a named function force a call."""
    choice = asked.tool_choice
    if not asked.tools or choice in (None, "none", "auto"):
        return ""
    if isinstance(choice, _Tool):
        if choice.function.name not in [tool.function.name for tool in asked.tools]:
            raise InvalidRequest("tool_choice names no tool of the request", param="tool_choice")
        return choice.function.name
    if choice != "required":
        raise InvalidRequest("tool_choice must be none, auto, required or a function", param="tool_choice")
    return asked.tools[0].function.name
