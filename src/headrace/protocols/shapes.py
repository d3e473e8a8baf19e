"""What do requests, answers and errors look like? Their JSON schemas, made from the structs that requests are checked by.

An answer is passed on as the engine wrote it, so its structs say what a client may count on, and every other field may be
there as well.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.core.isolation import CacheIsolation
from headrace.core.request import Endpoint
from headrace.protocols import openai

_Count = Annotated[int, Meta(ge=0)]


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class TokenCounts(msgspec.Struct):
    """`usage`: what is billed, where nothing in the contract says otherwise."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count | None = None
    total_tokens: _Count | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class AnswerMessage(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(msgspec.Struct):
    message: AnswerMessage
    index: _Count = 0
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class ChatCompletion(msgspec.Struct):
    choices: list[ChatChoice]
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    usage: TokenCounts | None = None


class ChunkChoice(msgspec.Struct):
    index: _Count = 0
    delta: AnswerMessage | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class ChatCompletionChunk(msgspec.Struct):
    choices: list[ChunkChoice] = []
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    usage: TokenCounts | None = None


class TextChoice(msgspec.Struct):
    text: str | None = None
    index: _Count = 0
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class Completion(msgspec.Struct):
    choices: list[TextChoice]
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    usage: TokenCounts | None = None


class CompletionChunk(msgspec.Struct):
    choices: list[TextChoice] = []
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    usage: TokenCounts | None = None


class Embedding(msgspec.Struct):
    embedding: list[float] | str
    index: _Count = 0
    object: str | None = None


class EmbeddingList(msgspec.Struct):
    data: list[Embedding]
    object: str | None = None
    model: str | None = None
    usage: TokenCounts | None = None


class ErrorFields(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str
    request_id: str


class Error(msgspec.Struct):
    error: ErrorFields


class Model(msgspec.Struct):
    id: str
    object: str
    created: int
    owned_by: str
    cache_isolation: CacheIsolation | None


class ModelList(msgspec.Struct):
    object: str
    data: list[Model]


class Status(msgspec.Struct):
    status: str


class Shape(msgspec.Struct, frozen=True):
    """What an endpoint takes and gives; `event` is what one event of a stream holds, None where nothing is streamed."""

    request: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    event: type[msgspec.Struct] | None


_ANSWERS: dict[Endpoint, tuple[type[msgspec.Struct], type[msgspec.Struct] | None]] = {
    Endpoint.CHAT_COMPLETIONS: (ChatCompletion, ChatCompletionChunk),
    Endpoint.COMPLETIONS: (Completion, CompletionChunk),
    Endpoint.EMBEDDINGS: (EmbeddingList, None),
}
SHAPES = {endpoint: Shape(openai.REQUEST_FIELDS[endpoint], *_ANSWERS[endpoint]) for endpoint in Endpoint}
_NAMES = {
    "ChatFields": "ChatCompletionRequest",
    "CompletionFields": "CompletionRequest",
    "EmbeddingFields": "EmbeddingRequest",
}


def name_of(kind: type[msgspec.Struct]) -> str:
    """What the struct is called in a published schema."""
    return _NAMES.get(kind.__name__, kind.__name__)


def schemas(kinds: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    """The schemas of those structs and of all that they hold, by name; they refer to each other as OpenAPI does."""
    _, found = msgspec.json.schema_components(kinds, ref_template=reference("{name}"))
    return {_NAMES.get(name, name): _tidied(schema) for name, schema in sorted(found.items())}


@functools.cache
def standalone(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of one struct as a document of its own, JSON Schema 2020-12. Treat as frozen."""
    found = schemas([kind])
    name = name_of(kind)
    alone: dict[str, Any] = _relocated({**found.pop(name), **({"$defs": found} if found else {})})
    return alone


def _relocated(value: Any) -> Any:
    if isinstance(value, list):
        return [_relocated(each) for each in value]
    if isinstance(value, dict):
        return {
            key: inner.replace(reference(""), "#/$defs/") if key == "$ref" else _relocated(inner)
            for key, inner in value.items()
        }
    return value


def reference(name: str) -> str:
    return f"#/components/schemas/{name}"


def resolve(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema itself, where it is only a reference to one of those known."""
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = known[schema["$ref"].rpartition("/")[2]]
    return found


def _tidied(value: Any) -> Any:
    """Without what says nothing: titles that repeat a name, and null as the default of what may be null."""
    if isinstance(value, list):
        return [_tidied(each) for each in value]
    if not isinstance(value, dict):
        return value
    tidied: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "$ref":
            name = inner.rpartition("/")[2]
            tidied[key] = reference(_NAMES.get(name, name))
        elif key == "properties":
            tidied[key] = {name: _tidied(each) for name, each in inner.items()}
        elif not (key == "title" and isinstance(inner, str)) and not (key == "default" and inner is None):
            tidied[key] = _tidied(inner)
    return tidied
