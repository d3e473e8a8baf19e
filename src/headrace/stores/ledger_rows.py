"""How do records become rows? A group in few statements, each of a fixed size, and a bad record without its neighbours."""

import itertools
import sqlite3
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import astuple

from headrace.core.ids import RequestId
from headrace.core.outcome import AttemptOutcome, Outcome
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.stores import shipping, sqlite
from headrace.stores.journal import Entry, Mark

Row = tuple[object, ...]

# Rows of one INSERT, largest first: every statement is prepared once, and any number of rows is a sum of few of them.
# 1024 rows of a request are 29,696 values; SQLite takes 32,766.
_STATEMENT_ROWS = tuple(2**power for power in range(10, -1, -1))
# What SQLite says when the record, not the disk, is wrong: a broken CHECK, a wrong type, an integer over 64 bits.
_RECORD_ERRORS = (
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
    OverflowError,
    UnicodeEncodeError,
)


def write_group(
    connection: sqlite3.Connection,
    sort_out: Callable[[], tuple[Sequence[Entry], Sequence[Entry]]],
    *,
    noted_s: float | None = None,
) -> tuple[int, list[str]]:
    """Writes entries in one transaction. Returns how many of their records were there already, and what is said of
    those that their table refuses: these are set aside, and the others are written.

    Args:
        sort_out: The entries, and those that are in the place of earlier ones. Asked when the transaction has begun, which
            may have to wait for others.
        noted_s: The time, where the group is to be shipped to a central database; see stores.shipping.
    """
    try:
        with sqlite.transaction(connection):
            entries, replacing = sort_out()
            duplicates = _write(connection, entries)
            _write(connection, replacing)  # where what they replace is there, it stays
            _note(connection, [*entries, *replacing], noted_s)
            return duplicates, []
    except _RECORD_ERRORS:
        with sqlite.transaction(connection):
            entries, replacing = sort_out()
            _note(connection, [*entries, *replacing], noted_s)
            return _write_singly(connection, [*entries, *replacing])


def _note(connection: sqlite3.Connection, entries: Sequence[Entry], noted_s: float | None) -> None:
    if noted_s is not None:
        shipping.note(connection, [usage.request_id for usage, _ in entries], at_s=noted_s)


def _write_singly(connection: sqlite3.Connection, entries: Sequence[Entry]) -> tuple[int, list[str]]:
    duplicates = 0
    rejected: list[str] = []
    for usage, attempts in entries:
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
    return duplicates, rejected


def _write(connection: sqlite3.Connection, entries: Sequence[Entry]) -> int:
    """Writes the entries; returns how many of their records were there already."""
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
    return _insert(connection, _USAGE, requests) + _insert(connection, _ATTEMPT, attempts)


def has_record(connection: sqlite3.Connection, request_id: RequestId) -> bool:
    """Whether the request is accounted for."""
    row = connection.execute("SELECT 1 FROM usage WHERE request_id = ?", (request_id,)).fetchone()
    return row is not None


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
_ORPHAN = (*Mark.__struct_fields__, "found_s")
# The same orphan may be found twice, if the process that found it first died as well.
_INSERT_ORPHAN = f"INSERT INTO orphan ({', '.join(_ORPHAN)}) VALUES ({', '.join('?' * len(_ORPHAN))}) ON CONFLICT DO NOTHING"


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


def insert_orphan(connection: sqlite3.Connection, mark: Mark, *, found_s: float) -> None:
    """Lists a request of which nothing but its mark is left."""
    connection.execute(_INSERT_ORPHAN, (*astuple(mark), found_s))
