"""Was this work done by any worker? One table of answers by Idempotency-Key, in the service, asked over the links."""

import asyncio
from collections.abc import Callable

from headrace.app import link as wire
from headrace.core.clock import Clock
from headrace.core.errors import ConcurrencyLimited
from headrace.core.ids import TenantId
from headrace.core.leases import WorkerId
from headrace.gateway.idempotency import PARAM, RETRY_AFTER_S, KeptAnswer
from headrace.policies.idempotency import IdempotencyTable, Known

# The service answers in a fraction of a millisecond. Work that must not be done twice is not begun without its word.
ANSWER_LIMIT_S = 1.0

Name = tuple[TenantId, bytes]


class SharedAnswers:
    """The table as a worker sees it.

    State: `_questions` without an answer yet, by number; `_claims`, the question by which each key is ours.
    """

    def __init__(
        self, send: Callable[[wire.Begin | wire.Keep | wire.Drop], None], *, answer_bytes_max: int
    ) -> None:
        self.answer_bytes_max = answer_bytes_max
        self._send = send
        self._number = 0
        self._questions: dict[int, asyncio.Future[Known | KeptAnswer]] = {}
        self._claims: dict[Name, int] = {}

    async def begin(self, tenant: TenantId, key: bytes, *, digest: bytes, now_s: float) -> Known | KeptAnswer:
        """As IdempotencyTable.begin. Raises ConcurrencyLimited when nobody says whether the work was done."""
        loop = asyncio.get_running_loop()
        self._number += 1
        number = self._number
        question: asyncio.Future[Known | KeptAnswer] = loop.create_future()
        self._questions[number] = question
        timer = loop.call_later(ANSWER_LIMIT_S, _time_out, question)
        self._send(wire.Begin(number, tenant, key, digest))
        known: Known | KeptAnswer | None = None
        try:
            known = await question
        except TimeoutError:
            raise ConcurrencyLimited(
                "whether this work was done before can't be found out at the moment",
                retry_after_s=RETRY_AFTER_S,
                param=PARAM,
            ) from None
        finally:
            timer.cancel()
            del self._questions[number]
            if known is None:  # nobody is there to use the key, should it have become ours
                self._send(wire.Drop(number, tenant, key))
        if known is Known.NEW:
            self._claims[tenant, key] = number
        return known

    def keep(self, tenant: TenantId, key: bytes, answer: KeptAnswer | None) -> None:
        number = self._claims.pop((tenant, key), None)
        if number is not None:
            self._send(wire.Keep(number, tenant, key, answer))

    def drop(self, tenant: TenantId, key: bytes) -> None:
        number = self._claims.pop((tenant, key), None)
        if number is not None:
            self._send(wire.Drop(number, tenant, key))

    def received(self, message: wire.Begun) -> None:
        """The service has answered a question."""
        question = self._questions.get(message.number)
        if question is not None and not question.done():
            question.set_result(Known(message.known) if message.answer is None else message.answer)


class AnswerDesk:
    """The table's other side. State: `_claims`, the question by which each worker has begun each of its keys."""

    def __init__(self, table: IdempotencyTable[KeptAnswer], *, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._claims: dict[WorkerId, dict[Name, int]] = {}

    def received(self, worker: WorkerId, message: wire.Begin | wire.Keep | wire.Drop) -> wire.Begun | None:
        """What to answer, if anything."""
        tenant, key = name = message.tenant, message.key
        claims = self._claims.setdefault(worker, {})
        if isinstance(message, wire.Begin):
            known = self._table.begin(tenant, key, digest=message.digest, now_s=self._clock.now_s())
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


def _time_out(question: "asyncio.Future[Known | KeptAnswer]") -> None:
    if not question.done():
        question.set_exception(TimeoutError())
