"""What do the books say, side by side? Records, attempts, engines' counters and what was set aside, in one pass over one snapshot."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from headrace.core.outcome import AttemptOutcome
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.policies import reconciliation
from headrace.policies.engine_counts import LONGEST_S, EngineBook, Unrecorded
from headrace.policies.prices import PriceBook
from headrace.policies.reconciliation import CallerSaw, Cause, Difference
from headrace.stores import engine_counts, journal, prices, usage_report
from headrace.stores.database import Database, Row, columns
from headrace.stores.journal import Mark
from headrace.stores.usage_report import Orphan

_RECORD = UsageRecord.__struct_fields__
_SERVED = ("replica", "generation", "served_started_s", "served_s", "served_ttft_s")
_ATTEMPT = ExecutionRecord.__struct_fields__


class Books:
    """The reading side of a reconciliation. One thread at a time; memory does not grow with the number of requests.

    Attributes:
        requests, attempts, stretches: What was compared so far: records, attempts, and stretches of engines' counters.
    """

    def __init__(self, database: Database) -> None:
        """Takes over the database, and closes it."""
        self._database = database
        self.requests = 0
        self.attempts = 0
        self.stretches = 0

    def close(self) -> None:
        self._database.close()

    def differences(
        self,
        *,
        since_s: float | None = None,
        until_s: float | None = None,
        seen: Mapping[str, CallerSaw] | None = None,
        journals: Callable[[], Iterable[Path]] = tuple,
    ) -> Iterator[Difference]:
        """Every difference of the requests that arrived in [since_s, until_s), Unix seconds, in the order of their ids; then
        those of engines, and of what was set aside or cut off. Engines' counters are compared from LONGEST_S later on: all
        attempts that reach into a stretch must be among those looked at.

        Args:
            seen: What callers saw, by request id.
            journals: Those of the processes that serve, or did.
        """
        self.requests = self.attempts = self.stretches = 0
        # In this order: whatever an engine had counted by then is of an attempt that is in a journal now, or was committed.
        from_s = None if since_s is None else since_s + LONGEST_S
        engines = EngineBook(engine_counts.between(self._database, since_s=from_s, until_s=until_s))
        self.stretches = engines.stretches
        for unrecorded in _in_journals(journals()):
            engines.open(unrecorded)
        with self._database.snapshot():
            book = PriceBook(prices.versions(self._database))
            yield from self._requests(book, engines, dict(seen or {}), since_s=since_s, until_s=until_s)
            yield from self._orphans(engines, since_s=since_s, until_s=until_s)
            yield from engines.differences()
            for (request_id,) in self._database.rows("SELECT request_id FROM usage_rejected", ()):
                yield Difference(Cause.REJECTED, request_id)

    def _requests(
        self,
        book: PriceBook,
        engines: EngineBook,
        seen: dict[str, CallerSaw],
        *,
        since_s: float | None,
        until_s: float | None,
    ) -> Iterator[Difference]:
        for record, executions in self._joined(since_s=since_s, until_s=until_s):
            for execution in executions:
                engines.add(execution)
            if record is None:
                yield from (_alone(execution) for execution in executions)
                continue
            self.requests += 1
            self.attempts += len(executions)
            yield from reconciliation.examine(record, executions, book)
            if seen and (saw := seen.pop(record.request_id, None)) is not None:
                yield from reconciliation.compare(record, saw)
        for saw in seen.values():
            if saw.has_ended:
                yield Difference(Cause.CALLER_ALONE, saw.id)

    def _joined(
        self, *, since_s: float | None, until_s: float | None
    ) -> Iterator[tuple[UsageRecord | None, list[ExecutionRecord]]]:
        """Records with their attempts, in the order of request ids; None in front of attempts that have no record."""
        # By id and not by time: then an attempt is asked for exactly where its request is.
        where, values = usage_report.ids_between(since_s=since_s, until_s=until_s)
        rows = self._database.each(
            f"SELECT {columns(_RECORD + _SERVED)} FROM usage {where} ORDER BY request_id", values
        )
        others = self._database.each(
            f"SELECT {columns(_ATTEMPT)} FROM attempt {where} ORDER BY request_id, attempt", values
        )
        width = len(_RECORD)
        waiting = next(others, None)
        for row in rows:
            record = UsageRecord(*row[:width])
            executions: list[ExecutionRecord] = []
            while waiting is not None and waiting[0] <= record.request_id:
                execution = ExecutionRecord(*waiting)
                if execution.request_id == record.request_id:
                    executions.append(execution)
                else:
                    yield None, [execution]
                waiting = next(others, None)
            if row[width] is not None:
                executions.append(_serving(record, row[width:]))
            yield record, executions
        for left in chain(() if waiting is None else (waiting,), others):
            yield None, [ExecutionRecord(*left)]

    def _orphans(
        self, engines: EngineBook, *, since_s: float | None, until_s: float | None
    ) -> Iterator[Difference]:
        where, values = usage_report.ids_between(since_s=since_s, until_s=until_s)
        for *facts, found_s in self._database.rows(
            f"SELECT {columns(Orphan.__struct_fields__)} FROM orphan {where}", values
        ):
            mark = Mark(*facts)
            engines.open(_unrecorded(mark, until_s=found_s))
            yield Difference(Cause.ORPHAN, mark.request_id)


def _in_journals(journals: Iterable[Path]) -> Iterator[Unrecorded]:
    """Attempts in progress, and those whose records are on their way."""
    for path in journals:
        try:
            found = journal.read(path)
        except FileNotFoundError:
            continue  # its process has ended, and the ledger has what was in it
        for mark in found.marks:
            yield _unrecorded(mark)
        for _, executions in found.entries:
            for execution in executions:
                began_s = execution.started_s
                yield Unrecorded(
                    execution.replica, execution.generation, began_s, began_s + execution.duration_s
                )


def _unrecorded(mark: Mark, *, until_s: float = math.inf) -> Unrecorded:
    """A mark names the last attempt alone; those before it may have been anywhere."""
    return Unrecorded(mark.replica if mark.attempt == 1 else None, mark.generation, mark.started_s, until_s)


def _alone(execution: ExecutionRecord) -> Difference:
    return Difference(Cause.ATTEMPT_ALONE, execution.request_id, 0, execution.attempt, "attempts")


def _serving(record: UsageRecord, served: Row) -> ExecutionRecord:
    """The attempt that is told by its request's row; see stores.ledger."""
    replica, generation, started_s, duration_s, ttft_s = served
    return ExecutionRecord(
        record.request_id, record.attempts, replica, generation, started_s, duration_s, ttft_s,
        AttemptOutcome.COMPLETED.value, record.status, record.prompt_tokens, record.completion_tokens,
        record.cached_tokens, record.usage_source,
    )  # fmt: skip
