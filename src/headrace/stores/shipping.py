"""How does the ledger of one gateway get into the database of all of them, whole, once, and whoever dies on the way?

The ledger's writer notes each group of records in `outbox`, in the transaction that writes the group: numbers in the order
of their commits, which the ids of requests, made as they arrive, are not. What is above the mark in `shipping` is copied to
the central database, and after its commit there the mark moves. If either side dies in between, the same groups are copied
again, and the keys of their rows say that they are there already.
"""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.clock import Clock
from headrace.stores.database import Database, Row, RowRefused, columns
from headrace.stores.mirror import refuse_strangers, version_of
from headrace.stores.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from headrace.stores.postgres import PostgresDatabase  # needs an extra

# In the order in which they are copied: the central tables look at rows of requests when attempts come.
SHIPPED = ("usage", "attempt", "orphan")
RECORDS_MAX = 2000
_GROUPS_MAX = 256
_IN_GROUPS = (
    "request_id IN (SELECT each.value FROM outbox, json_each(outbox.request_ids) AS each"
    " WHERE outbox.number BETWEEN ? AND ?)"
)


def note(connection: sqlite3.Connection, request_ids: Iterable[str], *, at_s: float) -> None:
    """Notes a group of requests to be shipped, inside the transaction that writes their rows."""
    ids = list(request_ids)
    if ids:
        connection.execute(
            "INSERT INTO outbox (created_s, records, request_ids) VALUES (?, ?, ?)",
            (at_s, len(ids), json.dumps(ids)),
        )


@dataclass(frozen=True, slots=True)
class Shipment:
    """What one step has done.

    Attributes:
        records: Requests that are in the central database now.
        refused: Rows that it did not take, with its reason: a bug, and kept in its `usage_rejected`.
        is_last: Whether nothing was left when it began.
    """

    records: int
    refused: tuple[str, ...]
    is_last: bool


class Shipper:
    """Copies one ledger into the central database; both of its connections are its own."""

    def __init__(self, local: SqliteDatabase, central: "PostgresDatabase", *, clock: Clock) -> None:
        self._local = local
        self._central = central
        self._clock = clock
        self._columns = {
            table: tuple(row[1] for row in local.rows(f"PRAGMA table_info({table})")) for table in SHIPPED
        }

    def step(self) -> Shipment:
        """Ships some of what waits. Raises ConfigError where a database can't be had; then nothing is lost or done twice."""
        groups = self._local.rows(
            f"SELECT number, records FROM outbox WHERE number > ({_MARK}) ORDER BY number LIMIT ?",
            (_GROUPS_MAX,),
        )
        if not groups:
            return Shipment(0, (), is_last=True)
        first = last = groups[0][0]
        records = 0
        for number, count in groups:
            if records and records + count > RECORDS_MAX:
                break
            last = number
            records += count
        # Rows that went to a stranger, or into other tables than ours, would count as shipped and be lost.
        refuse_strangers(self._local, self._central, version_of(self._central))
        refused = self._copy(first, last)
        self._local.execute("UPDATE shipping SET number = ?", (last,))
        return Shipment(records, refused, is_last=last == groups[-1][0] and len(groups) < _GROUPS_MAX)

    def forget(self, *, keep_s: float) -> int:
        """Deletes rows here that were shipped longer ago than that; a bounded number. Returns of how many requests."""
        before_s = self._clock.wall_s() - keep_s
        groups = self._local.rows(
            f"SELECT number, records FROM outbox WHERE number <= ({_MARK}) AND created_s < ? ORDER BY number LIMIT ?",
            (before_s, _GROUPS_MAX),
        )
        if not groups:
            return 0
        ends = (groups[0][0], groups[-1][0])
        with self._local.transaction():
            for table in SHIPPED:
                self._local.execute(f"DELETE FROM {table} WHERE {_IN_GROUPS}", ends)
            self._local.execute("DELETE FROM outbox WHERE number BETWEEN ? AND ?", ends)
        return sum(records for _, records in groups)

    def lag_s(self) -> float:
        """For how long the oldest record that waits has waited, 0 when none does."""
        return lag_s(self._local, now_s=self._clock.wall_s())

    def close(self) -> None:
        self._local.close()
        self._central.close()

    def _copy(self, first: int, last: int) -> tuple[str, ...]:
        rows = {
            table: self._local.rows(
                f"SELECT {columns(names)} FROM {table} WHERE {_IN_GROUPS} ORDER BY request_id", (first, last)
            )
            for table, names in self._columns.items()
        }
        try:
            with self._central.concurrent_transaction():
                for table, names in self._columns.items():
                    self._central.load(table, names, rows[table])
            return ()
        except RowRefused:
            return self._copy_singly(rows)

    def _copy_singly(self, rows: dict[str, list[Row]]) -> tuple[str, ...]:
        """The same where a table refuses a row: that one is set aside, and the others are written."""
        refused = []
        for table, names in self._columns.items():
            for row in rows[table]:
                try:
                    with self._central.concurrent_transaction():
                        self._central.load(table, names, [row])
                except RowRefused as error:
                    request_id = ascii(row[names.index("request_id")])
                    refused.append(f"{request_id}: {error}")
                    record = ascii(dict(zip(names, row, strict=True)))
                    self._central.execute(
                        "INSERT INTO usage_rejected (request_id, error, record) VALUES (?, ?, ?)",
                        (request_id, ascii(str(error)), record),
                    )
        return tuple(refused)


_MARK = "SELECT number FROM shipping"


def lag_s(local: Database, *, now_s: float) -> float:
    """For how long the oldest record has waited to be shipped, 0 when none does."""
    oldest = local.row(f"SELECT created_s FROM outbox WHERE number > ({_MARK}) ORDER BY number LIMIT 1")
    return 0.0 if oldest is None else max(0.0, now_s - float(oldest[0]))


def waiting(local: Database) -> int:
    """Records that are here and not in the central database yet."""
    found = local.row(f"SELECT coalesce(sum(records), 0) FROM outbox WHERE number > ({_MARK})")
    assert found is not None, "an aggregate has one row"
    return int(found[0])


def ship_again(local: Database) -> int:
    """Everything that is still here is copied once more, for a central database that was restored from a backup."""
    with local.transaction():
        local.execute("UPDATE shipping SET number = 0")
        return waiting(local)
