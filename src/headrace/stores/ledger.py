"""The usage ledger: one terminal record per request and per attempt, on the disk soon after and never twice.

The gateway appends to a queue in memory; one thread writes the queue to SQLite in groups, one transaction and one
fsync each. An fsync costs about 4 ms whatever is written, so groups are what makes thousands of records per second
possible; the price is that the newest records, those younger than flush_s plus one commit, die with the process.
docs/decisions/0006-usage-ledger.md has the measurements.
"""

import itertools
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import astuple

from headrace.core.clock import Clock
from headrace.core.outcome import AttemptOutcome, Outcome
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.stores import sqlite

Entry = tuple[UsageRecord, Sequence[ExecutionRecord]]
Row = tuple[object, ...]

# Rows of one INSERT, largest first: every statement is prepared once, and any number of rows is a sum of few of them.
# 1024 rows of a request are 29,696 values; SQLite takes 32,766.
_STATEMENT_ROWS = tuple(2**power for power in range(10, -1, -1))
# Above this a group is cut down to a power of two and is one statement per table. The rest is early for the next group.
_ROUND_ABOVE = 64
# Without work for this many flush_s the writer sleeps until an append wakes it.
_IDLE_FLUSHES = 50
# Pause between two tries while the disk refuses.
_RETRY_S = 0.25
# How long `stop` goes on trying to write the rest.
_STOP_S = 10.0

# What SQLite says when the record, not the disk, is wrong: a broken CHECK, a wrong type, an integer over 64 bits.
_RECORD_ERRORS = (
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
    OverflowError,
    UnicodeEncodeError,
)


class Ledger:
    """The writing side. `append` belongs to the event loop, everything else may be called from anywhere.

    State: `_queue` is filled by `append` and emptied by the writer; `_pending` (taken from the queue, not yet
    committed), the counters, `_failed` and `_failed_at_s` are written by the writer thread only.

    Args:
        path: The database; made by `start` when it doesn't exist.
        batch_max: Records in one transaction; while this many are left, the next one follows without a pause.
        flush_s: How long a record waits for others to share its commit with.
        queue_max: Records waiting for the disk above which the ledger counts as behind. The gateway then refuses new
            work, so the queue is bounded by this plus the requests that are in progress.
        on_failure: Told once, by the writer thread, when the disk begins to refuse and when a record is set aside.
        on_recovery: Told, by the writer thread, how many seconds the disk refused, once it takes records again.
        connect: Makes the writer's connection, again after every failure.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        batch_max: int = 1024,
        flush_s: float = 0.02,
        queue_max: int = 10_000,
        on_failure: Callable[[str], None],
        on_recovery: Callable[[float], None] = lambda outage_s: None,
        connect: Callable[[Path], sqlite3.Connection] = sqlite.connect,
    ) -> None:
        self._path = path
        self._clock = clock
        self._batch_max = batch_max
        self._flush_s = flush_s
        self._queue_max = queue_max
        self._on_failure = on_failure
        self._on_recovery = on_recovery
        self._connect = connect
        self._queue: deque[Entry] = deque()
        self._pending: list[Entry] = []
        self._failed: str | None = None
        self._failed_at_s = 0.0
        self._committed = 0
        self._duplicates = 0
        self._rejected = 0
        self._commit_s = 0.0
        self._is_asleep = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        """Opens the database and starts the writer. Raises ConfigError when the database can't be used at all."""
        sqlite.open_database(self._path).close()
        self._thread.start()

    def append(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        """Hands over the records of one ended request; never waits, never raises."""
        self._queue.append((usage, executions))
        # The writer sets the flag before its last look at the queue, so one of the two sees the other.
        if self._is_asleep:
            self._is_asleep = False
            self._wake.set()

    def stop(self) -> None:
        """Writes what is left and ends the writer; after about 10 s without success it gives up and says so."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(_STOP_S + sqlite.BUSY_TIMEOUT_S + 1.0)

    @property
    def is_behind(self) -> bool:
        """Whether new work should be refused, because its record might not reach the disk."""
        return self._failed is not None or len(self._queue) > self._queue_max

    @property
    def backlog(self) -> int:
        """Records not yet committed."""
        return len(self._queue) + len(self._pending)

    @property
    def failed(self) -> str | None:
        """What the disk said, while it refuses; None when all is well."""
        return self._failed

    @property
    def committed(self) -> int:
        """Usage records on the disk, since the start."""
        return self._committed

    @property
    def duplicates(self) -> int:
        """Records, usage or execution, whose key was there already. Must stay 0: anything else is a bug of ours."""
        return self._duplicates

    @property
    def rejected(self) -> int:
        """Records that broke a rule of their table and went to `usage_rejected`. Must stay 0, as above."""
        return self._rejected

    @property
    def commit_s(self) -> float:
        """How long the last group took, from BEGIN to the disk."""
        return self._commit_s

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        give_up_s: float | None = None
        while self._wait_for_work():
            if give_up_s is None and self._stopping.is_set():
                give_up_s = self._clock.now_s() + _STOP_S
            try:
                if connection is None:
                    connection = self._connect(self._path)
                self._flush(connection)
                if self._failed is not None:
                    self._on_recovery(self._clock.now_s() - self._failed_at_s)
                    self._failed = None
            except Exception as error:  # noqa: BLE001  (the edge of the thread: the records wait, whatever happened)
                self._fail(f"{self._path}: {type(error).__name__}: {error}")
                # After an I/O error only a new connection is sure to see the database as it is.
                if connection is not None:
                    connection.close()
                    connection = None
                if give_up_s is not None and self._clock.now_s() > give_up_s:
                    self._on_failure(f"{self._path}: {self.backlog} usage records were never written")
                    return
                time.sleep(_RETRY_S)
        if connection is not None:
            connection.close()

    def _fail(self, message: str) -> None:
        was_well = self._failed is None
        self._failed = message
        if was_well:
            self._failed_at_s = self._clock.now_s()
            self._on_failure(message)

    def _wait_for_work(self) -> bool:
        """Waits for flush_s at most while there is traffic, without end when there is none; False when all is done."""
        idle_flushes = 0
        while not self._stopping.is_set():
            self._stopping.wait(self._flush_s)
            if self._queue or self._pending:
                return True
            idle_flushes += 1
            if idle_flushes >= _IDLE_FLUSHES:
                self._sleep()
                idle_flushes = 0
        return bool(self._queue or self._pending)

    def _sleep(self) -> None:
        self._wake.clear()
        self._is_asleep = True
        if not self._queue and not self._stopping.is_set():
            self._wake.wait()
        self._is_asleep = False

    def _flush(self, connection: sqlite3.Connection) -> None:
        """Commits one group, and more while full groups are waiting."""
        while True:
            if not self._pending:
                self._pending = [self._queue.popleft() for _ in range(self._group_size())]
            started_s = self._clock.now_s()
            try:
                self._duplicates += _write(connection, self._pending)
            except _RECORD_ERRORS:
                self._write_singly(connection)
            self._commit_s = self._clock.now_s() - started_s
            self._committed += len(self._pending)
            self._pending = []
            if len(self._queue) < self._batch_max:
                return

    def _group_size(self) -> int:
        count = min(len(self._queue), self._batch_max)
        return count if count <= _ROUND_ABOVE else 1 << (count.bit_length() - 1)

    def _write_singly(self, connection: sqlite3.Connection) -> None:
        """The same for a group with a record that its table refuses: that one is set aside, the others are written."""
        duplicates = 0
        rejected: list[str] = []
        with sqlite.transaction(connection):
            for usage, attempts in self._pending:
                records: tuple[UsageRecord | ExecutionRecord, ...] = (usage, *attempts)
                for record in records:
                    try:
                        duplicates += _insert_one(connection, record)
                    except _RECORD_ERRORS as error:
                        rejected.append(f"{record.request_id!a}: {error}")
                        connection.execute(
                            "INSERT INTO usage_rejected (request_id, error, record) VALUES (?, ?, ?)",
                            (ascii(record.request_id), str(error), ascii(msgspec.structs.asdict(record))),
                        )
        self._duplicates += duplicates
        self._rejected += len(rejected)
        for line in rejected:
            self._on_failure(f"{self._path}: record set aside in usage_rejected: {line}")


def _write(connection: sqlite3.Connection, entries: Sequence[Entry]) -> int:
    """Writes the entries in one transaction; returns how many of their records were there already."""
    requests: list[Row] = []
    attempts: list[Row] = []
    for usage, executions in entries:
        serving = executions[-1] if executions and _is_told_by(usage, executions[-1]) else None
        if serving is None:
            requests.append(astuple(usage) + _NOT_SERVED)
        else:
            requests.append((*astuple(usage), serving.replica, serving.generation, serving.started_s,
                             serving.duration_s, serving.ttft_s))  # fmt: skip
            executions = executions[:-1]
        attempts += map(astuple, executions)
    with sqlite.transaction(connection):
        duplicates = _insert(connection, _USAGE, requests)
        return duplicates + _insert(connection, _ATTEMPT, attempts)


def _is_told_by(usage: UsageRecord, execution: ExecutionRecord) -> bool:
    """Whether this attempt made the answer, so that the request's row says all of it but who served it, and when."""
    return (
        execution.outcome == AttemptOutcome.COMPLETED
        and usage.outcome == Outcome.DELIVERED
        and execution.attempt == usage.attempts
        and execution.upstream_status == usage.status == 200
        and execution.prompt_tokens == usage.prompt_tokens
        and execution.completion_tokens == usage.completion_tokens
        and execution.cached_tokens == usage.cached_tokens
        and execution.usage_source == usage.usage_source
    )


def _insert_one(connection: sqlite3.Connection, record: UsageRecord | ExecutionRecord) -> int:
    match record:
        case UsageRecord():
            return _insert(connection, _USAGE, [astuple(record) + _NOT_SERVED])
        case ExecutionRecord():
            return _insert(connection, _ATTEMPT, [astuple(record)])


class _Table:
    """One table, and its INSERT for each of _STATEMENT_ROWS."""

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        row = f"({', '.join('?' * len(columns))})"
        names = ", ".join(f'"{column}"' for column in columns)
        # DO NOTHING for a key that exists. `INSERT OR IGNORE` would also swallow rows that break a CHECK.
        self.statements = {
            rows: f"INSERT INTO {name} ({names}) VALUES {', '.join([row] * rows)} ON CONFLICT DO NOTHING"
            for rows in _STATEMENT_ROWS
        }


_SERVED = ("replica", "generation", "served_started_s", "served_s", "served_ttft_s")
_NOT_SERVED = (None,) * len(_SERVED)
_USAGE = _Table("usage", UsageRecord.__struct_fields__ + _SERVED)
_ATTEMPT = _Table("attempt", ExecutionRecord.__struct_fields__)


def _insert(connection: sqlite3.Connection, table: _Table, rows: Sequence[Row]) -> int:
    """Inserts in as few statements as possible; returns how many rows were there already.

    Not `executemany`: sqlite3 lets go of the interpreter lock for every step, one per row, and each time the event
    loop's thread and this one fight for it.
    """
    changes_before = connection.total_changes
    done = 0
    for count in _STATEMENT_ROWS:
        while len(rows) - done >= count:
            values = itertools.chain.from_iterable(rows[done : done + count])
            connection.execute(table.statements[count], tuple(values))
            done += count
    return len(rows) - (connection.total_changes - changes_before)
