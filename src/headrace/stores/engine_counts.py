"""What did the engines count by themselves? Two readings of each stretch of their counters."""

from collections.abc import Sequence

from headrace.policies.engine_counts import Stretch
from headrace.stores.database import Database, columns

_FIELDS = Stretch.__struct_fields__
_KEY = ("replica", "generation", "incarnation", "since_s")
_INSERT = (
    f"INSERT INTO engine_count ({columns(_FIELDS)}) VALUES ({', '.join('?' * len(_FIELDS))})"
    f" ON CONFLICT ({columns(_KEY)}) DO UPDATE SET "
    + ", ".join(f'"{name}" = excluded."{name}"' for name in _FIELDS if name not in _KEY)
)


class EngineCounts:
    """One row for each stretch, in the database of a ledger; made longer in place until the next one begins."""

    def __init__(self, database: Database) -> None:
        """Takes over the database, and closes it."""
        self._database = database

    def close(self) -> None:
        self._database.close()

    def save(self, stretches: Sequence[Stretch]) -> None:
        with self._database.transaction():
            for stretch in stretches:
                self._database.execute(_INSERT, [getattr(stretch, name) for name in _FIELDS])


def between(database: Database, *, since_s: float | None, until_s: float | None) -> list[Stretch]:
    """The stretches that lie whole in [since_s, until_s), Unix seconds."""
    terms = {"since_s >= ?": since_s, "until_s < ?": until_s}
    asked = {term: value for term, value in terms.items() if value is not None}
    condition = f"WHERE {' AND '.join(asked)}" if asked else ""
    rows = database.rows(
        f"SELECT {columns(_FIELDS)} FROM engine_count {condition} ORDER BY since_s", list(asked.values())
    )
    return [Stretch(*row) for row in rows]
