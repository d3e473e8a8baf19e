"""Does it answer, what does it offer, how is it doing? The questions that control asks a server over HTTP."""

import re
import ssl
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

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


async def canary(address: Address, *, model: str, task: Task, timeout_s: float) -> None:
    """Sends the smallest real request and returns when the right kind of answer came back; else raises UpstreamError.

    A port that accepts and a health page that says `ok` prove neither that the weights work nor that the name is right.
    """
    path, question, answer = _CANARIES[task]
    body = msgspec.json.encode({"model": model, **question})
    response = await _ask(address, "POST", path, body=body, timeout_s=timeout_s)
    _decode(response, answer)


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


async def gauges(address: Address, *, timeout_s: float) -> dict[str, float]:
    """The server's metrics. Raises UpstreamError."""
    return parse_gauges(await metrics_text(address, timeout_s=timeout_s))


async def metrics_text(address: Address, *, timeout_s: float) -> str:
    """The same as the server wrote it, in the Prometheus text format. Raises UpstreamError."""
    response = await _ask(address, "GET", "/metrics", timeout_s=timeout_s)
    return response.body.decode("utf-8", errors="replace")


def parse_gauges(text: str) -> dict[str, float]:
    """Samples without labels from the Prometheus text format, names without the `llamacpp:` in front."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if not name or name.startswith("#") or "{" in name:
            continue
        try:
            found[name.rpartition(":")[2]] = float(value)
        except ValueError:
            continue
    return found


class _Message(msgspec.Struct):
    role: str


class _Choice(msgspec.Struct):
    message: _Message


class _ChatAnswer(msgspec.Struct):
    model: str
    choices: tuple[_Choice]


class _Embedding(msgspec.Struct):
    embedding: Annotated[list[float], msgspec.Meta(min_length=1)]


class _EmbeddingAnswer(msgspec.Struct):
    data: tuple[_Embedding]


_CANARIES: dict[Task, tuple[str, dict[str, Any], type[msgspec.Struct]]] = {
    Task.CHAT: (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "ping"}], "max_tokens": 1},
        _ChatAnswer,
    ),
    Task.EMBEDDINGS: ("/v1/embeddings", {"input": "ping"}, _EmbeddingAnswer),
}


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
