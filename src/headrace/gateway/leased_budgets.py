"""May this request be paid for, when several workers serve the tenant? budgets.py, on escrow that the authority lends.

A worker reserves from what it holds. Where that is too little, the authority is asked while the request waits; a refusal is
the authority's answer to that very question, never a guess. While the authority is silent, what is held can be spent, and
for the rest nobody says whether it can be paid for.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.core.clock import Clock
from headrace.core.leases import (
    AskEscrow,
    Asking,
    EscrowId,
    EscrowLending,
    LentEscrow,
    QuotasRead,
    RecallEscrow,
    ReturnEscrow,
    Settled,
    TellQuotas,
)
from headrace.core.quotas import BudgetKey, Limits, span_of
from headrace.core.request import InferenceRequest
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.gateway.budgets import Estimator, Reservation, Reservations
from headrace.gateway.leases import Lacking, Waiters
from headrace.gateway.usage import RecordSink
from headrace.policies import budgets
from headrace.policies.escrow import Escrow
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

# How long changed quotas wait to be in force until what was spent of them is known: then requests would be refused meanwhile.
OPEN_LIMIT_S = 0.25


class EscrowedRecords(RecordSink, Protocol):
    """Where a worker's records go, with the escrow that each of them has spent."""

    def append(
        self,
        usage: UsageRecord,
        executions: Sequence[ExecutionRecord],
        settled: Sequence[Settled] = (),
    ) -> None: ...


class _Question:
    """What is asked for at the end of this turn, or was asked for last: by requests that wait for the answer."""

    __slots__ = ("least", "needed", "waiters")

    def __init__(self) -> None:
        self.needed = 0
        self.least = 0
        self.waiters = Waiters()

    def add(self, amount: int) -> None:
        self.needed += amount
        self.least = min(self.least, amount) if self.least else amount


class _Held(Escrow):
    """Escrow of this worker. State: the question without an answer yet, the next one, and the answer that is being given,
    with its question."""

    __slots__ = ("answer", "answered", "asked", "end_s", "next")

    def __init__(self, escrow_id: EscrowId, *, limit: int, end_s: float) -> None:
        super().__init__(escrow_id, limit=limit)
        self.end_s = end_s
        self.asked: _Question | None = None
        self.next: _Question | None = None
        self.answered: _Question | None = None
        self.answer: LentEscrow | None = None


class LeasedReservations(Reservations[_Held]):
    """The reservations of a worker. State: its escrow; the quotas that the authority has heard of from us, as of `_revision`,
    and `_is_read`, set while it knows what was spent of them."""

    def __init__(
        self,
        records: EscrowedRecords,
        estimator: Estimator,
        send: Callable[[Asking], None],
        *,
        metrics: Metrics,
        log: Log,
        clock: Clock,
    ) -> None:
        super().__init__(records, estimator, metrics=metrics, log=log, clock=clock)
        self._escrowed = records
        self._send = send
        self._escrows: dict[EscrowId, _Held] = {}
        self._told: Limits = {}
        self._revision = 0
        self._is_read = asyncio.Event()

    async def open(self, limits: Limits, *, revision: int) -> None:
        self._tell(limits, revision)
        try:
            async with asyncio.timeout(OPEN_LIMIT_S):
                await self._is_read.wait()
        except TimeoutError:
            pass  # as long as it isn't known what was spent, requests are told so

    def go_by(self, limits: Limits, *, revision: int) -> None:
        super().go_by(limits, revision=revision)
        self._tell(limits, revision)
        for escrow in self._escrows.values():
            escrow.limit = limits.get(escrow.id.key, escrow.limit)

    def received(self, message: EscrowLending) -> None:
        """The authority has said something."""
        match message:
            case QuotasRead(revision):
                if revision >= self._revision:
                    self._is_read.set()
            case LentEscrow():
                self._answered(message)
            case RecallEscrow(escrow_id):
                escrow = self._escrows.get(escrow_id)
                idle = 0
                if escrow is not None:
                    escrow.is_tight = True
                    idle = escrow.withdraw(keep=0)
                self._send(ReturnEscrow(escrow_id, idle))

    def tick(self, wall_s: float) -> None:
        """Called four times a second: what nobody is expected to reserve soon goes back, and periods end."""
        for escrow in list(self._escrows.values()):
            self._give_back(escrow, keep=escrow.ahead)
            escrow.close_window()
            is_over = escrow.end_s <= wall_s or escrow.id.key not in self._limits
            if is_over and not escrow.held and escrow.asked is escrow.next is None:
                del self._escrows[escrow.id]

    def _tell(self, limits: Limits, revision: int) -> None:
        if limits != self._told:
            self._told, self._revision = limits, revision
            self._is_read.clear()
            self._send(TellQuotas(revision, list(limits.items())))
        elif not limits:
            self._is_read.set()

    def _take(
        self, held: Reservation[_Held], key: BudgetKey, amount: int, request: InferenceRequest
    ) -> _Held:
        escrow = self._escrow(key, request.arrived_wall_s)
        if escrow.reserve(amount):
            return escrow
        answer = escrow.answer
        is_answered = answer is not None and held.question is escrow.answered
        # Others may have taken what was idle here when the question was sent; then what is left may still be enough.
        if answer is None or not is_answered or amount <= answer.left + escrow.idle:
            raise Lacking(budgets.unavailable(key), lambda: self._ask(escrow, amount, held))
        if not answer.is_known:
            raise budgets.unavailable(key)
        raise budgets.exhausted(
            key,
            amount=amount,
            limit=escrow.limit,
            spent=answer.spent,
            left=answer.left + escrow.idle,
            span=span_of(key.period, request.arrived_wall_s),
            wall_s=request.arrived_wall_s,
        )

    def _settle(self, source: _Held, amount: int, *, spent: int) -> int:
        settled = source.settle(amount, spent=spent)
        if source.is_tight:
            self._give_back(source, keep=0)
        return settled

    def _record(
        self,
        usage: UsageRecord,
        executions: Sequence[ExecutionRecord],
        settled: Sequence[tuple[_Held, int]],
    ) -> None:
        self._escrowed.append(
            usage, executions, [Settled(escrow.id, amount) for escrow, amount in settled if amount]
        )

    def _left(self, key: BudgetKey, wall_s: float) -> int:
        escrow = self._escrows.get(EscrowId(key, span_of(key.period, wall_s).start_s))
        return self._limits[key] if escrow is None else escrow.left + escrow.idle

    def _escrow(self, key: BudgetKey, wall_s: float) -> _Held:
        span = span_of(key.period, wall_s)
        escrow_id = EscrowId(key, span.start_s)
        escrow = self._escrows.get(escrow_id)
        if escrow is None:
            escrow = _Held(escrow_id, limit=self._limits.get(key, 0), end_s=span.end_s)
            self._escrows[escrow_id] = escrow
        return escrow

    def _ask(self, escrow: _Held, amount: int, held: Reservation[_Held]) -> Waiters:
        """Asks for that much more at the end of this turn of the loop, or once the last question has its answer."""
        question = escrow.next
        if question is None:
            question = escrow.next = _Question()
            if escrow.asked is None:
                asyncio.get_running_loop().call_soon(self._send_question, escrow)
        question.add(amount)
        held.question = question
        return question.waiters

    def _send_question(self, escrow: _Held) -> None:
        question, escrow.next = escrow.next, None
        assert question is not None, "a question is sent once"
        escrow.asked = question
        if len(question.waiters):
            needed, least = question.needed - escrow.idle, question.least - escrow.idle
            self._send(AskEscrow(escrow.id, max(0, needed), max(0, least), escrow.ahead))
        else:  # they were refused in a silence; without a question it would have no end
            self._send(AskEscrow(escrow.id, 0, 0, 0))

    def _answered(self, message: LentEscrow) -> None:
        """Whoever waits for this answer goes on before this returns: with the escrow, or with the refusal."""
        escrow = self._escrows[message.id]
        escrow.lent(message)
        question = escrow.asked
        assert question is not None, "every answer has its question"
        escrow.answer, escrow.answered = message, question
        question.waiters.wake(len(question.waiters))
        escrow.answer = escrow.answered = escrow.asked = None
        if escrow.next is not None:
            self._send_question(escrow)
        if escrow.is_tight:
            self._give_back(escrow, keep=0)

    def _give_back(self, escrow: _Held, *, keep: int) -> None:
        if escrow.idle > keep:
            self._send(ReturnEscrow(escrow.id, escrow.withdraw(keep=keep)))
