"""What was measured of replicas on this machine? The records that `headrace measure` keeps, by model, runtime and hardware.

They stand in the data directory itself, also where tenants are kept in a central database: what a machine can do is that
machine's. None is ever changed; a new measurement is a new record.
"""

from typing import NamedTuple

import msgspec

from headrace.core.capacity import CapacityRecord
from headrace.core.errors import ConfigError
from headrace.stores.database import Database

# Of one model; the oldest go first.
RECORDS_MAX = 200


class Kept(NamedTuple):
    """A record with its number, by which it is named."""

    number: int
    record: CapacityRecord


class CapacityStore:
    """The records of one data directory. One thread at a time."""

    def __init__(self, database: Database) -> None:
        """Takes over the database, and closes it."""
        self._database = database

    def close(self) -> None:
        self._database.close()

    def add(self, record: CapacityRecord) -> int:
        """Keeps it; returns its number."""
        with self._database.transaction():
            row = self._database.row(
                "INSERT INTO capacity_record (model, digest, runtime, hardware, measured_s, record)"
                " VALUES (?, ?, ?, ?, ?, ?) RETURNING number",
                (
                    record.model,
                    record.digest,
                    record.runtime,
                    msgspec.json.encode(record.hardware).decode(),
                    record.measured_s,
                    msgspec.json.encode(record).decode(),
                ),
            )
            assert row is not None, "RETURNING has a row"
            self._database.execute(
                "DELETE FROM capacity_record WHERE model = ? AND number NOT IN"
                " (SELECT number FROM capacity_record WHERE model = ? ORDER BY number DESC LIMIT ?)",
                (record.model, record.model, RECORDS_MAX),
            )
        return int(row[0])

    def records(self, *, model: str | None = None, digest: str | None = None) -> list[Kept]:
        """The newest first."""
        terms = {"model = ?": model, "digest = ?": digest}
        asked = {term: value for term, value in terms.items() if value is not None}
        condition = f"WHERE {' AND '.join(asked)}" if asked else ""
        rows = self._database.rows(
            f"SELECT number, record FROM capacity_record {condition} ORDER BY number DESC",
            list(asked.values()),
        )
        return [_kept(row[0], row[1]) for row in rows]

    def newest(self, *, model: str, digest: str = "") -> Kept | None:
        """Of that revision; where it was never measured, None."""
        found = self.records(model=model, digest=digest or None)
        return found[0] if found else None

    def require(self, name: str) -> Kept:
        """By its number, or the newest of a model. Raises ConfigError, naming what there is."""
        if name.isdecimal():
            row = self._database.row(
                "SELECT number, record FROM capacity_record WHERE number = ?", (int(name),)
            )
            if row is not None:
                return _kept(row[0], row[1])
        elif (found := self.newest(model=name)) is not None:
            return found
        known = sorted({kept.record.model for kept in self.records()})
        there = f"there are records of {', '.join(known)}" if known else "nothing was measured yet"
        raise ConfigError(f"no capacity record `{name}`; {there}: headrace measure list")


def _kept(number: int, record: str) -> Kept:
    return Kept(int(number), msgspec.json.decode(record, type=CapacityRecord))
