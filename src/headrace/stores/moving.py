"""How do the tenants and the ledger of one data directory get into a central database that is still empty?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.stores.database import Database, Row, columns
from headrace.stores.mirror import MIRRORED, version_of
from headrace.stores.shipping import SHIPPED
from headrace.stores.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from headrace.stores.postgres import PostgresDatabase

# Parents before children, and what counts changes last: the copying itself counts some.
_KEPT = ("admin", "correction", "invoice", "invoiced", "audit")
MOVED = (*MIRRORED, "key_use", *_KEPT, *SHIPPED, "usage_rejected", "audit_head", "tenancy")
_ONE_ROW = ("audit_head", "tenancy")
_BATCH_ROWS = 2000


def move(local: SqliteDatabase, central: "PostgresDatabase", *, clock: Clock) -> dict[str, int]:
    """Copies everything in one transaction, and makes what is here a copy of what is there. Returns the rows of each table.

    Both databases must have the newest schema, and nobody may use the local one.
    Raises: ConfigError when the central database holds something already, or has not taken every row.
    """
    with local.snapshot(), central.transaction():
        if not _is_there(local, central):
            _refuse_taken(central)
            for table in MOVED:
                _copy(local, central, table)
        copied = {table: _count(local, table) for table in MOVED}
    source = version_of(central).installation
    with local.transaction():
        local.execute("DELETE FROM mirror")
        local.execute(
            'INSERT INTO mirror ("only", seen_s, source) VALUES (1, ?, ?)', (clock.wall_s(), source)
        )
    return copied


def _is_there(local: SqliteDatabase, central: Database) -> bool:
    """Whether all has been copied, and whoever did it died before it was noted here."""
    one = "SELECT revision, pepper_check FROM tenancy"
    return central.row(one) == local.row(one) and all(
        _count(central, table) == _count(local, table) for table in MOVED
    )


def _refuse_taken(central: Database) -> None:
    for table in (*MIRRORED, *SHIPPED, *_KEPT):
        if central.row(f"SELECT 1 FROM {table} LIMIT 1") is not None:
            raise ConfigError(f"{central.name} isn't empty (table `{table}`), so nothing can be moved there")


def _copy(local: SqliteDatabase, central: "PostgresDatabase", table: str) -> None:
    if table in _ONE_ROW:
        central.execute(f"DELETE FROM {table}")
    names = [row[1] for row in local.rows(f"PRAGMA table_info({table})")]
    taken = sum(central.load(table, names, batch) for batch in _batches(local, table, names))
    if taken != (wanted := _count(local, table)):
        raise ConfigError(f"{central.name} took {taken} of {wanted} rows of `{table}`")


def _count(database: Database, table: str) -> int:
    found = database.row(f"SELECT count(*) FROM {table}")
    assert found is not None, "an aggregate has one row"
    return int(found[0])


def _batches(local: SqliteDatabase, table: str, names: list[str]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    # A key that replaces another is younger than it, and comes after it.
    order = "created_s, id" if table == "api_key" else "1"
    for row in local.each(f"SELECT {columns(names)} FROM {table} ORDER BY {order}"):
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch
