"""How is work with an Idempotency-Key done once? Its answer is recorded on the way to the caller, and given again to who asks again."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import ConcurrencyLimited, InvalidRequest
from headrace.core.ids import RequestId, TenantId
from headrace.core.request import InferenceRequest
from headrace.gateway.call import Call, PassedCall
from headrace.policies.idempotency import IdempotencyTable, Known
from headrace.protocols import bounds
from headrace.telemetry.metrics import Metrics

PARAM = bounds.IDEMPOTENCY_KEY
KEY_HEADER = PARAM.lower().encode()
KEY_BYTES_MAX = bounds.IDEMPOTENCY_KEY_CHARACTERS_MAX
RETRY_AFTER_S = 1.0
_MOMENTARY = (b"x-ratelimit-", b"x-headrace-quota", b"x-headrace-config-version")


class KeptAnswer(msgspec.Struct, frozen=True, gc=False):
    """A complete answer as its call wrote it.

    Attributes:
        request_id: Of the request that did the work.
        body: A whole answer, or None where `events` hold a stream.
    """

    request_id: RequestId
    headers: bytes
    body: bytes | None
    events: list[bytes]

    @property
    def size(self) -> int:
        return len(self.body or b"") + sum(map(len, self.events))


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """See config.IdempotencyConfig."""

    keep_s: float
    keys_max: int
    bytes_max: int
    answer_bytes_max: int


def set_bounds(table: IdempotencyTable[KeptAnswer], bounds: AnswerBounds, *, now_s: float) -> None:
    """Other bounds for a table of answers."""
    table.set_bounds(
        ttl_s=bounds.keep_s,
        entries_max=bounds.keys_max,
        bytes_max=bounds.bytes_max,
        answer_bytes_max=bounds.answer_bytes_max,
        now_s=now_s,
    )


class AnswerTable(Protocol):
    """Where answers are kept: a table in this process, or one that several share."""

    answer_bytes_max: int

    async def begin(
        self, tenant: TenantId, key: bytes, *, digest: bytes, now_s: float, retention_s: float | None
    ) -> Known | KeptAnswer: ...

    def keep(self, tenant: TenantId, key: bytes, answer: KeptAnswer | None) -> None: ...

    def drop(self, tenant: TenantId, key: bytes) -> None: ...

    def forget(self, tenant: TenantId) -> None:
        """The tenant is gone."""
        ...

    def tick(self, *, now_s: float) -> None:
        """Called on a timer."""
        ...

    def go_by(self, bounds: AnswerBounds, *, now_s: float) -> None: ...


class OwnAnswers:
    """A table that nobody else uses."""

    def __init__(self, table: IdempotencyTable[KeptAnswer]) -> None:
        self.answer_bytes_max = table.answer_bytes_max
        self._table = table
        self.keep = table.keep
        self.drop = table.drop
        self.forget = table.forget

    async def begin(
        self, tenant: TenantId, key: bytes, *, digest: bytes, now_s: float, retention_s: float | None
    ) -> Known | KeptAnswer:
        return self._table.begin(tenant, key, digest=digest, now_s=now_s, retention_s=retention_s)

    def tick(self, *, now_s: float) -> None:
        self._table.forget_ended(now_s=now_s)

    def go_by(self, bounds: AnswerBounds, *, now_s: float) -> None:
        set_bounds(self._table, bounds, now_s=now_s)
        self.answer_bytes_max = self._table.answer_bytes_max


class Idempotency:
    """Asks the table, and answers from it."""

    def __init__(self, table: AnswerTable, *, metrics: Metrics, clock: Clock) -> None:
        self._table = table
        self._replays = metrics.idempotent_replays.labels()
        self._clock = clock

    def tick(self) -> None:
        """Called a few times a second: what may be kept no longer goes."""
        self._table.tick(now_s=self._clock.now_s())

    def go_by(self, bounds: AnswerBounds) -> None:
        """Other bounds from now on."""
        self._table.go_by(bounds, now_s=self._clock.now_s())

    def forget(self, tenant: TenantId) -> None:
        """Nothing is kept any more for a tenant that is gone, and what it has in progress won't be."""
        self._table.forget(tenant)

    async def enter(self, call: Call, request: InferenceRequest) -> "RecordedCall | None":
        """The call to answer, whose answer will be kept; None if it has been answered from what was kept.

        Raises InvalidRequest for a key that is none, that was used for another request, or whose answer was too large to
        be kept; ConcurrencyLimited while the first request is in progress: whoever comes back later gets its answer.
        """
        key = call.head.headers[KEY_HEADER]
        if not 0 < len(key) <= KEY_BYTES_MAX or not key.isascii() or not key.decode("ascii").isprintable():
            raise InvalidRequest(
                f"{PARAM} must be 1 to {KEY_BYTES_MAX} printable ASCII characters", param=PARAM
            )
        tenant = request.principal.tenant
        # Whether it is streamed isn't only a field: over WebSocket every answer is.
        asked = msgspec.json.encode(
            (request.endpoint, request.model, request.wire_fields, request.is_streaming)
        )
        digest = hashlib.sha256(asked + request.canonical).digest()
        known = await self._table.begin(
            tenant,
            key,
            digest=digest,
            now_s=self._clock.now_s(),
            retention_s=request.principal.terms.retention_s,
        )
        match known:
            case Known.NEW:
                return RecordedCall(call, self._table, tenant, key)
            case Known.RUNNING:
                raise ConcurrencyLimited(
                    f"a request with this {PARAM} is in progress", retry_after_s=RETRY_AFTER_S, param=PARAM
                )
            case Known.OTHER:
                raise InvalidRequest(f"this {PARAM} was used for another request", param=PARAM)
            case Known.TOO_LARGE:
                raise InvalidRequest(
                    f"the request with this {PARAM} was answered, and its answer of more than "
                    f"{self._table.answer_bytes_max} bytes was not kept",
                    param=PARAM,
                )
            case Known.PAST:
                raise InvalidRequest(
                    f"the request with this {PARAM} was answered, and its answer is kept no longer, as was agreed with its tenant",
                    param=PARAM,
                )
            case KeptAnswer():
                self._replays.add()
                _replay(known, call)
                return None


def _replay(answer: KeptAnswer, call: Call) -> None:
    headers = b"%bx-headrace-idempotent-replay: true\r\nx-headrace-original-request-id: %b\r\n" % (
        answer.headers,
        answer.request_id.encode(),
    )
    if answer.body is not None:
        call.respond(200, answer.body, headers=headers)
    else:
        call.open_stream(headers=headers)
        call.finish(answer.events)


class RecordedCall(PassedCall):
    """A call whose answer is kept as it is written; all else is the call's own. `close` ends it, however it ended.

    What it keeps is bounded by what the table takes: of a longer answer only that it was longer.
    """

    def __init__(self, call: Call, table: AnswerTable, tenant: TenantId, key: bytes) -> None:
        super().__init__(call)
        self._table = table
        self._tenant = tenant
        self._key = key
        self._stream_headers = b""
        self._events: list[bytes] | None = []
        self._bytes = 0

    def close(self) -> None:
        """Gives the key free, unless a complete answer was kept."""
        self._table.drop(self._tenant, self._key)

    def respond(self, status: int, body: bytes, *, headers: bytes = b"") -> None:
        if status == 200:
            self._keep(KeptAnswer(self.request_id, _lasting(headers), body, []))
        self._call.respond(status, body, headers=headers)

    def open_stream(self, *, headers: bytes) -> None:
        self._stream_headers = _lasting(headers)
        self._call.open_stream(headers=headers)

    def write(self, events: list[bytes]) -> None:
        self._record(events)
        self._call.write(events)

    def finish(self, events: list[bytes]) -> None:
        self._record(events)
        kept = self._events
        self._keep(None if kept is None else KeptAnswer(self.request_id, self._stream_headers, None, kept))
        self._call.finish(events)

    def _record(self, events: list[bytes]) -> None:
        if self._events is None:
            return
        self._bytes += sum(map(len, events))
        if self._bytes > self._table.answer_bytes_max:
            self._events = None
        else:
            self._events += events

    def _keep(self, answer: KeptAnswer | None) -> None:
        self._table.keep(self._tenant, self._key, answer)


def _lasting(headers: bytes) -> bytes:
    """The headers that are as true of a replay: not what was left of a rate limit or a quota, nor the configuration."""
    lines = headers.split(b"\r\n")
    return b"".join(line + b"\r\n" for line in lines if line and not line.startswith(_MOMENTARY))
