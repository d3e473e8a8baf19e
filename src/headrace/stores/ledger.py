"""The usage ledger: one terminal record per request and per attempt, on the disk soon after and never twice.

The gateway appends to a queue in memory; one thread writes the queue to SQLite in groups, one transaction and one
fsync each. An fsync costs about 4 ms whatever is written, so groups are what makes thousands of records per second
possible; the newest records, those younger than flush_s plus one commit, are in a journal (stores/journal.py) meanwhile,
which outlives the process, and come from there if it dies. docs/decisions/0006-usage-ledger.md has the measurements.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.clock import Clock
from headrace.core.ids import RequestId
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.stores import journal, ledger_rows, shipping, sqlite
from headrace.stores.journal import Entry, Mark

# Above this a group is cut down to a power of two and is one statement per table. The rest is early for the next group.
_ROUND_ABOVE = 64
# Without work for this many flush_s the writer sleeps until an append wakes it.
_IDLE_FLUSHES = 50
# Pause between two tries while the disk refuses.
_RETRY_S = 0.25
# How long `stop` goes on trying to write the rest.
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Adoption:
    """What the journal of a process that is no more gave to the ledger.

    Attributes:
        path: The journal; it has given nothing if its process ended in good order.
        entries: Records that the ledger didn't have.
        orphans: Requests that a replica had, and of which nothing else is known: listed in `orphan`, never billed.
        torn: Pieces that are not whole; then the file is kept, as `kept`, for a person.
    """

    path: Path
    entries: Sequence[Entry] = ()
    orphans: Sequence[Mark] = ()
    torn: int = 0
    kept: Path | None = None


class Ledger:
    """The writing side. `append`, `replace` and `adopt` belong to the event loop; the rest may be called from anywhere.

    State: `_queue` is filled by `append` and emptied by the writer; `_appended` counts what came into it. `_withdrawn`,
    records that take the place of an earlier one of their request, by request, until they are written. `_journals`, files
    to adopt, each with the number of records that come before it; `_missing`, what the one that is being adopted has and the
    database hadn't. `_pending` (taken from the queue, not yet committed), the other counters, `_failed` and `_failed_at_s`
    are written by the writer thread only.

    Args:
        path: The database; made by `start` when it doesn't exist.
        batch_max: Records in one transaction; while this many are left, the next one follows without a pause.
        flush_s: How long a record waits for others to share its commit with.
        queue_max: Records waiting for the disk above which the ledger counts as behind. The gateway then refuses new
            work, so the queue is bounded by this plus the requests that are in progress.
        is_lenient: While the disk refuses, up to `queue_max` records may wait before the ledger counts as behind;
            otherwise it does at once.
        is_shipped: Whether each group is noted for a central database; see stores.shipping.
        on_commit: Told, by the writer thread after each group, how many records are settled since the start: they are in
            the database for good, in the order in which they came.
        on_adoption: Told, by the writer thread or within `start`, what a journal gave.
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
        is_lenient: bool = False,
        is_shipped: bool = False,
        on_failure: Callable[[str], None],
        on_recovery: Callable[[float], None] = lambda outage_s: None,
        on_commit: Callable[[int], None] = lambda settled: None,
        on_adoption: Callable[[Adoption], None] = lambda adoption: None,
        connect: Callable[[Path], sqlite3.Connection] = sqlite.connect,
    ) -> None:
        self._path = path
        self._clock = clock
        self._batch_max = batch_max
        self._flush_s = flush_s
        self._queue_max = queue_max
        self._is_lenient = is_lenient
        self._is_shipped = is_shipped
        self._on_failure = on_failure
        self._on_recovery = on_recovery
        self._on_commit = on_commit
        self._on_adoption = on_adoption
        self._connect = connect
        self._queue: deque[Entry] = deque()
        self._appended = 0
        self._withdrawn: dict[RequestId, UsageRecord] = {}
        self._journals: deque[tuple[int, Path]] = deque()
        self._missing: list[Entry] | None = None
        self._pending: list[Entry] = []
        self._failed: str | None = None
        self._failed_at_s = 0.0
        self._settled = 0
        self._duplicates = 0
        self._rejected = 0
        self._commit_s = 0.0
        self._is_asleep = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self, journals: Sequence[Path] = ()) -> None:
        """Opens the database, adopts what processes before this one have left, and starts the writer.

        Raises ConfigError when the database can't be used at all.
        """
        connection = sqlite.open_database(self._path)
        try:
            with sqlite.as_config_error(self._path):
                for path in journals:
                    self._take_over(connection, path)
        finally:
            connection.close()
        self._thread.start()

    def append(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        """Hands over the records of one ended request; never waits, never raises."""
        self._appended += 1
        self._queue.append((usage, executions))
        self._rouse()

    def replace(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        """The same for a request that ended otherwise than the record said which was appended for it before: that one is
        not written, unless it has been already."""
        self._withdrawn[usage.request_id] = usage
        self.append(usage, executions)

    def adopt(self, path: Path) -> None:
        """Takes over the journal of a process that is no more, after all that was appended before."""
        self._journals.append((self._appended, path))
        self._rouse()

    def _rouse(self) -> None:
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
        return len(self._queue) > self._queue_max or (self._failed is not None and not self._is_lenient)

    @property
    def appended(self) -> int:
        """Usage records appended since the start."""
        return self._appended

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
        """Usage records that were appended and are on the disk, since the start."""
        return self._settled

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
            if self._has_work:
                return True
            idle_flushes += 1
            if idle_flushes >= _IDLE_FLUSHES:
                self._sleep()
                idle_flushes = 0
        return self._has_work

    @property
    def _has_work(self) -> bool:
        return bool(self._queue or self._pending or self._journals)

    def _sleep(self) -> None:
        self._wake.clear()
        self._is_asleep = True
        if not self._has_work and not self._stopping.is_set():
            self._wake.wait()
        self._is_asleep = False

    def _flush(self, connection: sqlite3.Connection) -> None:
        """Commits one group, and more while full groups are waiting; then what others have left."""
        while self._queue or self._pending:
            if not self._pending:
                self._pending = [self._queue.popleft() for _ in range(self._group_size())]
            started_s = self._clock.now_s()
            duplicates, rejected = self._write(connection, self._sort_out)
            self._commit_s = self._clock.now_s() - started_s
            self._duplicates += duplicates
            self._set_aside(rejected)
            self._settled += len(self._pending)
            if self._withdrawn:
                for usage, _ in self._pending:
                    if self._withdrawn.get(usage.request_id) is usage:
                        del self._withdrawn[usage.request_id]
            self._pending = []
            self._on_commit(self._settled)
            if len(self._queue) < self._batch_max:
                break
        while self._journals and self._journals[0][0] <= self._settled:
            self._take_over(connection, self._journals[0][1])
            self._journals.popleft()

    def _write(
        self,
        connection: sqlite3.Connection,
        sort_out: Callable[[], tuple[Sequence[Entry], Sequence[Entry]]],
    ) -> tuple[int, list[str]]:
        noted_s = self._clock.wall_s() if self._is_shipped else None
        return ledger_rows.write_group(connection, sort_out, noted_s=noted_s)

    def _sort_out(self) -> tuple[list[Entry], list[Entry]]:
        """What to write of the group, and what of it is in the place of something earlier."""
        withdrawn = self._withdrawn
        if not withdrawn:
            return self._pending, []
        entries = [entry for entry in self._pending if entry[0].request_id not in withdrawn]
        return entries, [entry for entry in self._pending if withdrawn.get(entry[0].request_id) is entry[0]]

    def _take_over(self, connection: sqlite3.Connection, path: Path) -> None:
        """Brings what is in a journal into the database, once, whatever of it is there already."""
        try:
            found = journal.read(path)
        except FileNotFoundError:
            entries, self._missing = self._missing or [], None
            self._on_adoption(Adoption(path, entries))
            return
        if self._missing is None:
            self._missing = [
                entry
                for entry in found.entries
                if not ledger_rows.has_record(connection, entry[0].request_id)
            ]
        # Where the disk refuses something below, all of this is done again; what is new in the ledger must be told even so.
        missing = self._missing
        _, rejected = self._write(connection, lambda: (missing, []))
        self._set_aside(rejected)
        with sqlite.transaction(connection):
            orphans = [
                mark for mark in found.marks if not ledger_rows.has_record(connection, mark.request_id)
            ]
            for mark in orphans:
                ledger_rows.insert_orphan(connection, mark, found_s=self._clock.wall_s())
            if self._is_shipped:
                shipping.note(connection, [mark.request_id for mark in orphans], at_s=self._clock.wall_s())
        kept: Path | None = None
        if found.torn:
            kept = path.with_suffix(".torn")
            path.replace(kept)
        else:
            path.unlink()
        self._missing = None
        self._on_adoption(Adoption(path, missing, orphans, found.torn, kept))

    def _group_size(self) -> int:
        count = min(len(self._queue), self._batch_max)
        return count if count <= _ROUND_ABOVE else 1 << (count.bit_length() - 1)

    def _set_aside(self, rejected: Sequence[str]) -> None:
        self._rejected += len(rejected)
        for line in rejected:
            self._on_failure(f"{self._path}: record set aside in usage_rejected: {line}")
