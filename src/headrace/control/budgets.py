"""What was spent of every budget, and who may spend the rest? The owner of all budgets, which hears of every record.

At the start it reads from the ledger what was spent in the current periods; from then on each record adds to it. To the
workers it lends what they may spend, with policies/escrow.py.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.ids import RequestId, TenantId
from headrace.core.leases import (
    OTHERS_LIMIT_S,
    AskEscrow,
    EscrowAsking,
    EscrowId,
    EscrowLending,
    Lending,
    LentEscrow,
    QuotasRead,
    ReturnEscrow,
    Settled,
    TellQuotas,
    WorkerId,
)
from headrace.core.money import PICO
from headrace.core.quotas import BudgetKey, Limits, QuotaUnit, Span
from headrace.core.usage import UsageRecord
from headrace.policies import spending
from headrace.policies.budgets import LOW_PERCENTS, Book, Budget, Budgets
from headrace.policies.escrow import EscrowLender, EscrowMessages
from headrace.stores.spending import Before, Corrected, counts_for
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

# New quotas are in force after this, whether or not what was spent of them could be read.
OPEN_LIMIT_S = 0.25
# Between two looks at whether the ledger has written what it was given.
_WRITTEN_CHECK_S = 0.01
_RETRY_S = 1.0
CORRECTIONS_CHECK_S = 1.0


class Books(Protocol):
    """How far the ledger is: stores.ledger.Ledger."""

    @property
    def appended(self) -> int: ...

    @property
    def committed(self) -> int: ...


class Reader(Protocol):
    """What the database says: stores.spending on a connection of its own. Called from other threads, one at a time."""

    def spending(
        self,
        wanted: Sequence[tuple[BudgetKey, Span]],
        recorded: Callable[[BudgetKey], Iterable[RequestId]],
    ) -> Before: ...

    def corrections(self, *, after: int) -> list[Corrected]: ...


class BudgetAuthority:
    """Owner of the budgets. State: what they hold; the lenders of escrow, by budget and period; the workers, and which of them
    wait to hear that their quotas are known; and what dead workers held, by their journals.

    Args:
        reader: Asks the database what was spent.
        ledger: Which is given every record right after `spend` has heard of it.
        workers: How many of them share what is lent.
    """

    def __init__(
        self,
        reader: Reader,
        ledger: Books,
        *,
        workers: int,
        metrics: Metrics,
        log: Log,
        clock: Clock,
    ) -> None:
        self.budgets = Budgets()
        self._reader = reader
        self._ledger = ledger
        self._workers = workers
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._revision = 0
        self._unread: list[Book] = []
        self._has_unread = asyncio.Event()
        self._is_read = asyncio.Event()
        self._is_read.set()
        self._senders: dict[WorkerId, Callable[[Lending], None]] = {}
        self._told: dict[WorkerId, int] = {}
        self._lenders: dict[EscrowId, EscrowLender] = {}
        self._waiting: set[EscrowId] = set()
        self._heirs: dict[Path, WorkerId] = {}
        self._heirs_made = 0

    def begin(self, limits: Limits) -> None:
        """The quotas at the start, before anything is recorded. What was spent of them is read at once.

        Raises ConfigError where that can't be read.
        """
        books = self.budgets.set_limits(limits, wall_s=self._clock.wall_s())
        self._take_in(books, self._read(books))
        for book in books:
            book.newest.newly_low()  # it was told by who recorded it

    async def open(self, limits: Limits, *, revision: int) -> None:
        """These are the quotas from now on; returns when what was spent of them is known, or after OPEN_LIMIT_S."""
        self._set_limits(limits, revision)
        try:
            async with asyncio.timeout(OPEN_LIMIT_S):
                await self._is_read.wait()
        except TimeoutError:
            pass

    async def run(self) -> None:
        """Reads what is spent elsewhere than in records that come: until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_on())
            tasks.create_task(self._watch_corrections())

    async def _watch_corrections(self) -> None:
        """Corrections are made by commands, in the database; a second later they count."""
        while True:
            await asyncio.sleep(CORRECTIONS_CHECK_S)
            books = [
                book for book in self.budgets.agreed() if book.key.unit is QuotaUnit.MONEY and book.is_read
            ]
            if not books:
                continue
            after = min(book.corrected for book in books)
            try:
                found = await asyncio.to_thread(self._reader.corrections, after=after)
            except ConfigError:
                continue  # the database can't be had at the moment, which others report
            for number, tenant, amount, made_s in found:
                for book in books:
                    if counts_for(book.key, tenant):
                        book.correct(number, made_s, amount)
            for book in books:
                book.corrected = max(book.corrected, found[-1].number if found else 0)

    async def _read_on(self) -> None:
        """Reads, for quotas that are new while requests come, what was spent of them."""
        while True:
            await self._has_unread.wait()
            books, appended = list(self._unread), self._ledger.appended
            while self._ledger.committed < appended:  # noqa: ASYNC110 -- the ledger's thread has no event for it
                await asyncio.sleep(_WRITTEN_CHECK_S)
            try:
                before = await asyncio.to_thread(self._read, books)
            except ConfigError as error:
                self._log.event("budget.unread", error=str(error), quotas=len(books))
                await asyncio.sleep(_RETRY_S)
                continue
            self._take_in(books, before)
            self._unread = [book for book in self._unread if not book.is_read]
            if not self._unread:
                self._has_unread.clear()
                self._is_read.set()
                for worker, revision in list(self._told.items()):
                    self._tell(worker, QuotasRead(revision))
                self._told.clear()

    def spend(self, record: UsageRecord) -> None:
        """The record says what a request has used; called once for each, just before the ledger is given it."""
        if record.tenant in self.budgets.by_tenant:
            spent = self.budgets.spend(
                record.tenant,
                record.key_id,
                spending.used(record),
                request=record.request_id,
                wall_s=record.started_s,
            )
            for budget in spent:
                self._look_at(budget)

    # The workers.

    def joined(self, worker: WorkerId, send: Callable[[Lending], None]) -> None:
        """A worker that holds nothing."""
        self._senders[worker] = send

    def lost(self, worker: WorkerId, *, journal: Path | None) -> None:
        """The worker is gone, and nobody spends what it held any more. What it had spent, and not handed on, is in its journal:
        until that is adopted, all that it held stays lent, to an heir who can't spend it."""
        if self._senders.pop(worker, None) is None:
            return
        self._told.pop(worker, None)
        self._heirs_made += 1
        heir = -self._heirs_made
        for lender in list(self._lenders.values()):
            self._tell_all(lender.lost(worker, heir=heir))
        if journal is None:
            self._bury(heir)
        else:
            self._heirs[journal] = heir

    def adopted(self, journal: Path, records: Sequence[UsageRecord]) -> None:
        """The ledger has what was in a dead process's journal; it had not heard of these records before."""
        for record in records:
            self.spend(record)
        heir = self._heirs.pop(journal, None)
        if heir is not None:
            self._bury(heir)

    def _bury(self, heir: WorkerId) -> None:
        for lender in list(self._lenders.values()):
            self._tell_all(lender.buried(heir))

    def settled(self, worker: WorkerId, settled: Sequence[Settled]) -> None:
        """A record of the worker has come, which has spent so much of what the worker held."""
        if worker in self._senders:
            for escrow_id, amount in settled:
                lender = self._lenders.get(escrow_id)
                if lender is not None:
                    lender.spent(worker, amount)

    def received(self, worker: WorkerId, message: EscrowAsking) -> None:
        match message:
            case TellQuotas(revision, limits):
                self._set_limits(dict(limits), revision)
                if self._is_read.is_set():
                    self._tell(worker, QuotasRead(revision))
                else:
                    self._told[worker] = revision
            case AskEscrow(escrow_id, needed):
                lender = self._lender(escrow_id)
                if lender is not None:
                    self._tell_all(lender.ask(worker, message))
                    self._watch(escrow_id, lender)
                elif self.budgets.find(escrow_id.key) is None:  # given up meanwhile, so there is no limit
                    self._tell(worker, LentEscrow(escrow_id, needed, left=0, spent=0, is_tight=True))
                else:
                    self._tell(
                        worker, LentEscrow(escrow_id, 0, left=0, spent=0, is_tight=True, is_known=False)
                    )
            case ReturnEscrow(escrow_id, amount):
                lender = self._lenders.get(escrow_id)
                if lender is not None:
                    self._tell_all(lender.returned(worker, amount))

    # For the operator.

    def rows(self, tenant: TenantId | None = None) -> list[dict[str, Any]]:
        """Every budget as it is now, or those of one tenant, for status; `spent` is None where it isn't known yet, `resets_s` where nothing resets."""
        wall_s = self._clock.wall_s()
        rows: list[dict[str, Any]] = []
        for book in self.budgets.agreed():
            if tenant is not None and book.key.tenant != tenant:
                continue
            budget = book.at(wall_s)
            row: dict[str, Any] = {
                "tenant": book.key.tenant,
                "key_id": book.key.key_id,
                "quota": book.key.quota_name,
                "limit": book.key.value(book.limit),
                "spent": None,
                "reserved": None,
                "resets_s": None,
            }
            if budget is not None:
                row["spent"] = book.key.value(budget.spent)
                row["reserved"] = book.key.value(budget.lent)
                row["resets_s"] = budget.span.end_s if math.isfinite(budget.span.end_s) else None
            rows.append(row)
        return rows

    def fill_gauges(self) -> None:
        wall_s = self._clock.wall_s()
        reserved = dict.fromkeys(QuotaUnit, 0)
        low = dict.fromkeys(LOW_PERCENTS, 0)
        for book in self.budgets.agreed():
            if (budget := book.at(wall_s)) is not None:
                for percent in LOW_PERCENTS:
                    low[percent] += budget.low_percent >= percent
            for each in book.budgets:
                reserved[book.key.unit] += each.lent
        for unit, amount in reserved.items():
            self._metrics.budget_reserved.labels(unit).set(
                amount / PICO if unit == QuotaUnit.MONEY else amount
            )
        for percent, count in low.items():
            self._metrics.budgets_low.labels(str(percent)).set(count)

    def _set_limits(self, limits: Limits, revision: int) -> None:
        if revision < self._revision:
            return
        self._revision = revision
        new = self.budgets.set_limits(limits, wall_s=self._clock.wall_s())
        if new:
            self._unread += new
            self._is_read.clear()
            self._has_unread.set()

    def _read(self, books: Sequence[Book]) -> Before:
        unread = {book.key: book for book in books}
        return self._reader.spending(
            [(book.key, book.opened) for book in books], lambda key: unread[key].unread
        )

    def _take_in(self, books: Sequence[Book], before: Before) -> None:
        for book, (spent, counted) in zip(books, before.budgets, strict=True):
            book.read(spent, counted)
            book.corrected = before.corrected

    def _look_at(self, budget: Budget) -> None:
        """Tells when a budget runs low, once for each threshold in each period."""
        percent = budget.newly_low()
        if percent:
            key = budget.key
            self._log.event(
                "budget.low",
                tenant=key.tenant,
                key_id=key.key_id or None,
                quota=key.quota_name,
                percent=percent,
                spent=key.show(budget.spent),
                limit=key.show(budget.limit),
            )

    def _lender(self, escrow_id: EscrowId) -> EscrowLender | None:
        """None where what was spent isn't known."""
        lender = self._lenders.get(escrow_id)
        if lender is None:
            book = self.budgets.find(escrow_id.key)
            budget = None if book is None else book.at(escrow_id.start_s)
            if budget is None:
                return None
            lender = self._lenders[escrow_id] = EscrowLender(budget, workers=self._workers)
            self._forget_old()
        return lender

    def _forget_old(self) -> None:
        """A period that is over and of which nobody holds anything needs no lender."""
        wall_s = self._clock.wall_s()
        for escrow_id, lender in list(self._lenders.items()):
            if lender.budget.span.end_s <= wall_s and not lender.budget.lent and not lender.is_waiting:
                del self._lenders[escrow_id]

    def _watch(self, escrow_id: EscrowId, lender: EscrowLender) -> None:
        if lender.is_waiting and escrow_id not in self._waiting:
            self._waiting.add(escrow_id)
            asyncio.get_running_loop().call_later(OTHERS_LIMIT_S, self._stop_waiting, escrow_id)

    def _stop_waiting(self, escrow_id: EscrowId) -> None:
        self._waiting.discard(escrow_id)
        lender = self._lenders.get(escrow_id)
        if lender is not None:
            self._tell_all(lender.stop_waiting())

    def _tell_all(self, messages: EscrowMessages) -> None:
        for worker, message in messages:
            self._tell(worker, message)

    def _tell(self, worker: WorkerId, message: EscrowLending) -> None:
        if worker in self._senders:
            self._senders[worker](message)
