"""Does it answer, what does it offer, how is it doing? The questions that control asks a server over HTTP."""

import re
import ssl
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from headrace.core.deployment_terms import ReadyTerms
from headrace.core.errors import UpstreamError
from headrace.core.fleet import Task
from headrace.core.outcome import AttemptOutcome
from headrace.engines.fetch import Response, fetch

ANSWER_BYTES_MAX = 4 * 1024 * 1024
QUOTED_BYTES_MAX = 200
MODELS_MAX = 256
OWNER_LENGTH_MAX = 100
_NAME = re.compile(r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,198}[^\x00-\x20\x7f])?")

T = TypeVar("T")
PING = ReadyTerms()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and what to show it; see core.fleet.Replica for the fields. `tls` is None for plain HTTP."""

    host: str
    port: int
    path_prefix: str = ""
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """One row of a server's `/v1/models`; the numbers of tokens are 0 when it doesn't say.

    Attributes:
        isolates_callers: It says what isolates its prefix cache: it is another headrace, which knows all of us as one caller.
    """

    id: str
    owned_by: str
    created_s: int
    context_tokens: int
    vocabulary_tokens: int = 0
    isolates_callers: bool = False


async def canary(
    address: Address, *, model: str, task: Task, timeout_s: float, terms: ReadyTerms = PING
) -> None:
    """Sends a small real request and returns when the right kind of answer came back; else raises UpstreamError.

    A port that accepts and a health page that says `ok` prove neither that the weights work nor that the name is right.

    Args:
        terms: What is asked, and what the answer to a chat must contain.
    """
    if task is Task.CHAT:
        question = {
            "messages": [{"role": "user", "content": terms.prompt}],
            "max_tokens": terms.max_tokens,
        }
        path = "/v1/chat/completions"
    else:
        question, path = {"input": terms.prompt}, "/v1/embeddings"
    body = msgspec.json.encode({"model": model, **question})
    response = await _ask(address, "POST", path, body=body, timeout_s=timeout_s)
    if task is not Task.CHAT:
        _decode(response, _EmbeddingAnswer)
        return
    said = _decode(response, _ChatAnswer).choices[0].message.content or ""
    if terms.expect not in said:
        raise UpstreamError(
            f"the answer {said[:QUOTED_BYTES_MAX]!r} doesn't contain {terms.expect!r}",
            reason=AttemptOutcome.GARBAGE.value,
        )


async def health(address: Address, path: str, *, timeout_s: float) -> None:
    """Returns when that path is answered with 200, whatever is in the answer; else raises UpstreamError."""
    await _ask(address, "GET", path, timeout_s=timeout_s)


async def offered_models(address: Address, *, timeout_s: float) -> tuple[OfferedModel, ...]:
    """The server's list of models: at most MODELS_MAX of them, those with a name that can be shown and be a label.

    Raises UpstreamError; see engines.fetch for its reasons. BUSY says that the server itself isn't ready.
    """
    response = await _ask(address, "GET", "/v1/models", timeout_s=timeout_s)
    return tuple(
        OfferedModel(
            id=row.id,
            owned_by=row.owned_by[:OWNER_LENGTH_MAX],
            created_s=int(row.created),
            context_tokens=row.max_model_len or (row.meta.n_ctx if row.meta else 0),
            vocabulary_tokens=row.meta.n_vocab if row.meta else 0,
            isolates_callers=row.cache_isolation is not msgspec.UNSET,
        )
        for row in _decode(response, _ModelList).data[:MODELS_MAX]
        if _NAME.fullmatch(row.id)
    )


async def total_slots(address: Address, *, timeout_s: float) -> int:
    """How many slots a server of llama.cpp has, which it tells in `/props`. Raises UpstreamError."""
    response = await _ask(address, "GET", "/props", timeout_s=timeout_s)
    return _decode(response, _Properties).total_slots


async def metrics_text(address: Address, *, timeout_s: float) -> str:
    """The same as the server wrote it, in the Prometheus text format. Raises UpstreamError."""
    response = await _ask(address, "GET", "/metrics", timeout_s=timeout_s)
    return response.body.decode("utf-8", errors="replace")


class _Message(msgspec.Struct):
    role: str
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _ChatAnswer(msgspec.Struct):
    model: str
    choices: tuple[_Choice]


class _Embedding(msgspec.Struct):
    embedding: Annotated[list[float], msgspec.Meta(min_length=1)]


class _EmbeddingAnswer(msgspec.Struct):
    data: tuple[_Embedding]


class _ModelMeta(msgspec.Struct):
    n_ctx: int = 0
    n_vocab: int = 0


class _ModelRow(msgspec.Struct):
    id: str
    owned_by: str = ""
    created: float = 0
    max_model_len: int | None = None
    meta: _ModelMeta | None = None
    cache_isolation: Any = msgspec.UNSET


class _Properties(msgspec.Struct):
    total_slots: int


class _ModelList(msgspec.Struct):
    data: list[_ModelRow]


async def _ask(address: Address, method: str, path: str, *, body: bytes = b"", timeout_s: float) -> Response:
    response = await fetch(
        address.host,
        address.port,
        method,
        address.path_prefix + path,
        headers=(("Authorization", address.authorization),),
        body=body,
        timeout_s=timeout_s,
        body_bytes_max=ANSWER_BYTES_MAX,
        tls=address.tls,
    )
    if response.status != 200:
        quoted = response.body[:QUOTED_BYTES_MAX].decode("utf-8", errors="replace")
        raise UpstreamError(
            f"{method} {path} was answered with status {response.status}: {quoted!r}",
            reason=(AttemptOutcome.BUSY if response.status == 503 else AttemptOutcome.ERRED).value,
        )
    return response


def _decode(response: Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UpstreamError(f"unexpected answer: {error}", reason=AttemptOutcome.GARBAGE.value) from error
