"""Was this work done by any worker? One table of answers by Idempotency-Key, in the service, asked over the links."""

import asyncio

from headrace.app import link as wire
from headrace.config import IdempotencyConfig
from headrace.core.clock import Clock
from headrace.core.errors import Saturated
from headrace.core.ids import TenantId
from headrace.core.leases import ANSWER_LIMIT_S, WorkerId
from headrace.core.outcome import Reason
from headrace.gateway.idempotency import PARAM, RETRY_AFTER_S, AnswerBounds, KeptAnswer, set_bounds
from headrace.policies.idempotency import IdempotencyTable, Known
from headrace.protocols.frames import FRAME_BYTES_MAX

# An answer goes to the service in one message, in which each event of a stream has a few bytes more.
SHARED_ANSWER_BYTES_MAX = FRAME_BYTES_MAX // 2
# Of what is answered while the service doesn't read, beyond this only that it was answered is handed on.
UNSENT_BYTES_MAX = 16 * 1024 * 1024

Name = tuple[TenantId, bytes]


class SharedAnswers:
    """The table as a worker sees it. Work that must not be done twice is not begun without the service's word, which nobody
    awaits for longer than ANSWER_LIMIT_S.

    State: `_questions` without an answer yet, by number; `_claims`, the question by which each key is ours; `_is_silent`
    from a question without an answer in time to the next answer, which comes when the service goes on: it reads every
    question, in their order.
    """

    def __init__(self, link: wire.Link, config: IdempotencyConfig) -> None:
        self.answer_bytes_max = min(config.answer_bytes_max, config.bytes_max, SHARED_ANSWER_BYTES_MAX)
        self._link = link
        self._number = 0
        self._questions: dict[int, asyncio.Future[Known | KeptAnswer | None]] = {}
        self._claims: dict[Name, int] = {}
        self._is_silent = False

    async def begin(
        self, tenant: TenantId, key: bytes, *, digest: bytes, now_s: float, retention_s: float | None = None
    ) -> Known | KeptAnswer:
        """As IdempotencyTable.begin. Raises Saturated when nobody says whether the work was done."""
        known = None if self._is_silent else await self._ask(tenant, key, digest, retention_s)
        if known is None:
            raise Saturated(
                "whether this work was done before can't be found out at the moment",
                retry_after_s=RETRY_AFTER_S,
                reason=Reason.WORK_UNKNOWN,
                param=PARAM,
            )
        return known

    async def _ask(
        self, tenant: TenantId, key: bytes, digest: bytes, retention_s: float | None
    ) -> Known | KeptAnswer | None:
        """None without an answer in time."""
        loop = asyncio.get_running_loop()
        self._number += 1
        number = self._number
        question: asyncio.Future[Known | KeptAnswer | None] = loop.create_future()
        self._questions[number] = question
        # Two turns later: if this process was late itself, an answer is in the socket now, and is read first.
        timer = loop.call_later(ANSWER_LIMIT_S, loop.call_soon, loop.call_soon, self._time_out, question)
        self._link.send(wire.Begin(number, tenant, key, digest, retention_s))
        known: Known | KeptAnswer | None = None
        try:
            known = await question
        finally:
            timer.cancel()
            del self._questions[number]
            if known is None:  # nobody is there to use the key, should it have become ours
                self._link.send(wire.Drop(number, tenant, key))
        if known is Known.NEW:
            self._claims[tenant, key] = number
        return known

    def keep(self, tenant: TenantId, key: bytes, answer: KeptAnswer | None) -> None:
        number = self._claims.pop((tenant, key), None)
        if number is not None:
            if self._link.unsent_bytes > UNSENT_BYTES_MAX:
                answer = None
            self._link.send(wire.Keep(number, tenant, key, answer))

    def drop(self, tenant: TenantId, key: bytes) -> None:
        number = self._claims.pop((tenant, key), None)
        if number is not None:
            self._link.send(wire.Drop(number, tenant, key))

    def forget(self, tenant: TenantId) -> None:
        self._link.send(wire.Forget(tenant))

    def tick(self, *, now_s: float) -> None:
        """Nothing is kept here."""

    def go_by(self, bounds: AnswerBounds, *, now_s: float) -> None:
        """All else is up to the service."""
        self.answer_bytes_max = min(bounds.answer_bytes_max, SHARED_ANSWER_BYTES_MAX)

    def received(self, message: wire.Begun) -> None:
        """The service has answered a question."""
        self._is_silent = False
        question = self._questions.get(message.number)
        if question is not None and not question.done():
            question.set_result(Known(message.known) if message.answer is None else message.answer)

    def _time_out(self, question: "asyncio.Future[Known | KeptAnswer | None]") -> None:
        if not question.done():
            self._is_silent = True
            question.set_result(None)


class AnswerDesk:
    """The table's other side. State: `_claims`, the question by which each worker has begun each of its keys."""

    def __init__(self, table: IdempotencyTable[KeptAnswer], *, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._claims: dict[WorkerId, dict[Name, int]] = {}

    def forget(self, tenant: TenantId) -> None:
        """A worker has heard that the tenant is gone."""
        self._table.forget(tenant)

    def go_by(self, bounds: AnswerBounds) -> None:
        """Other bounds from now on."""
        set_bounds(self._table, bounds, now_s=self._clock.now_s())

    def tick(self) -> None:
        """Called a few times a second."""
        self._table.forget_ended(now_s=self._clock.now_s())

    def received(self, worker: WorkerId, message: wire.Begin | wire.Keep | wire.Drop) -> wire.Begun | None:
        """What to answer, if anything."""
        tenant, key = name = message.tenant, message.key
        claims = self._claims.setdefault(worker, {})
        if isinstance(message, wire.Begin):
            known = self._table.begin(
                tenant,
                key,
                digest=message.digest,
                now_s=self._clock.now_s(),
                retention_s=message.retention_s,
            )
            if known is Known.NEW:
                claims[name] = message.number
            if isinstance(known, Known):
                return wire.Begun(message.number, known.value, None)
            return wire.Begun(message.number, "", known)
        if claims.get(name) == message.number:
            del claims[name]
            if isinstance(message, wire.Keep):
                self._table.keep(tenant, key, message.answer)
            else:
                self._table.drop(tenant, key)
        return None

    def lost(self, worker: WorkerId) -> None:
        """What the worker had begun is begun anew by whoever asks again."""
        for tenant, key in self._claims.pop(worker, ()):
            self._table.drop(tenant, key)
