"""How does a gateway know tenants, keys and prices that are kept elsewhere? It has a copy of them, made again when they change.

The copy is in the gateway's own database, in the same tables: whoever serves reads it there, and never waits for another
machine. The copy outlives an outage of the central database, and a start during one. It knows when it was last true.
"""

from dataclasses import dataclass
from typing import Any

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.stores import schema
from headrace.stores.database import Database, columns
from headrace.stores.sqlite import SqliteDatabase

# What is copied, parents before children. Every change of a row in one of them counts in `tenancy`.
MIRRORED = ("tenant", "api_key", "price")
# How old the note may get that says when the copy was last true: a commit on a disk, several times a minute.
NOTE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class _Version:
    revision: int
    installation: str


def version_of(central: Database) -> _Version:
    """Which database it is, and of when. Raises ConfigError when it hasn't the schema of this version, or can't be had."""
    found = central.row(
        "SELECT (SELECT revision FROM tenancy), (SELECT id FROM installation), (SELECT max(number) FROM migration)"
    )
    assert found is not None, "there is always one row"
    if found[2] != schema.NEWEST:
        raise ConfigError(
            f"{central.name}: has schema {found[2]}, and this version works with {schema.NEWEST}; see: headrace db status"
        )
    return _Version(found[0], found[1])


def refuse_strangers(local: Database, central: Database, version: _Version) -> None:
    """Raises ConfigError when what is here belongs to another central database, or to none."""
    noted = local.row("SELECT source FROM mirror")
    if noted is None:
        if any(local.row(f"SELECT 1 FROM {table} LIMIT 1") is not None for table in MIRRORED):
            raise ConfigError(
                f"{local.name} has tenants or prices of its own; bring them to {central.name}"
                " with `headrace db move`, or choose another directory with --data"
            )
    elif noted[0] != version.installation:
        raise ConfigError(
            f"{central.name} is another database than the one that {local.name} belongs to;"
            " choose another directory with --data, or see docs/operate/postgres.md"
        )


class Mirror:
    """Copies what the central database says of tenancy; both of its connections are its own."""

    def __init__(
        self, local: SqliteDatabase, central: Database, *, clock: Clock, note_every_s: float = NOTE_EVERY_S
    ) -> None:
        self._local = local
        self._note_every_s = note_every_s
        self._central = central
        self._clock = clock
        self._noted_s = 0.0
        self._seen: _Version | None = None

    def refresh(self) -> bool:
        """Copies what has changed, if anything has. Returns whether it did.

        Raises ConfigError where the central database can't be had or isn't the one that was copied before.
        """
        version = version_of(self._central)
        if version == self._seen:
            self._note_true(version)
            return False
        with self._central.snapshot():
            version = version_of(self._central)
            tables = {table: self._read(self._central, table) for table in MIRRORED}
            pepper_check = self._central.row("SELECT pepper_check FROM tenancy")
        assert pepper_check is not None, "its one row is made with the table"
        refuse_strangers(self._local, self._central, version)
        with self._local.transaction():
            # Within one change rows may for a moment name others that come later in it.
            self._local.execute("PRAGMA defer_foreign_keys = ON")
            for table in reversed(MIRRORED):
                self._delete(table, tables[table])
            for table in MIRRORED:
                self._write(table, tables[table])
            self._local.execute(
                "UPDATE tenancy SET revision = ?, pepper_check = ?", (version.revision, pepper_check[0])
            )
            self._write_note(version)
        self._seen = version
        return True

    def close(self) -> None:
        self._local.close()
        self._central.close()

    def _note_true(self, version: _Version) -> None:
        if not 0.0 <= self._clock.wall_s() - self._noted_s < self._note_every_s:
            self._write_note(version)

    def _write_note(self, version: _Version) -> None:
        now_s = self._clock.wall_s()
        self._local.execute(
            'INSERT INTO mirror ("only", seen_s, source) VALUES (1, ?, ?)'
            ' ON CONFLICT ("only") DO UPDATE SET seen_s = excluded.seen_s, source = excluded.source',
            (now_s, version.installation),
        )
        self._noted_s = now_s

    def _read(self, database: Database, table: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """All rows by their key."""
        names, keys = self._shape(table)
        places = [names.index(key) for key in keys]
        rows = database.rows(f"SELECT {columns(names)} FROM {table}")
        return {tuple(row[place] for place in places): row for row in rows}

    def _shape(self, table: str) -> tuple[list[str], list[str]]:
        """The columns, and those of the key. Both databases have the same schema."""
        found = self._local.rows(f"PRAGMA table_info({table})")
        return [row[1] for row in found], [row[1] for row in found if row[5]]

    def _delete(self, table: str, wanted: dict[tuple[Any, ...], tuple[Any, ...]]) -> None:
        _, keys = self._shape(table)
        where = " AND ".join(f'"{key}" = ?' for key in keys)
        for key in self._read(self._local, table).keys() - wanted.keys():
            self._local.execute(f"DELETE FROM {table} WHERE {where}", key)

    def _write(self, table: str, wanted: dict[tuple[Any, ...], tuple[Any, ...]]) -> None:
        names, keys = self._shape(table)
        there = self._read(self._local, table)
        rest = [name for name in names if name not in keys]
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in rest)
        update = f"DO UPDATE SET {changes}" if rest else "DO NOTHING"
        statement = (
            f"INSERT INTO {table} ({columns(names)}) VALUES ({', '.join('?' * len(names))})"
            f" ON CONFLICT ({columns(keys)}) {update}"
        )
        for key, row in wanted.items():
            if there.get(key) != row:
                self._local.execute(statement, row)


def seen_s(local: Database) -> float | None:
    """When the copy was last true, in Unix seconds; None where there is no copy, and tenancy is the database's own."""
    noted = local.row("SELECT seen_s FROM mirror")
    return None if noted is None else float(noted[0])
