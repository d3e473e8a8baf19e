"""What do the stores ask of a database? One small surface over SQLite and PostgreSQL, and the SQL that both take.

Stores write each statement once, and whoever adds one keeps to this:

- Values are `?`, never in the text. A `?` stands for nothing else, not even inside quotes.
- Names that a standard reserves are quoted: `"user"`, `"only"`, `"order"`, `"group"`. PostgreSQL reads a bare `user` as
  the role that is logged in, without an error. `columns` quotes the fields of a record.
- A condition is no number: `count(*) FILTER (WHERE outcome = 'failed')`, not `sum(outcome = 'failed')`.
- `ON CONFLICT (key) DO NOTHING` or `DO UPDATE SET x = excluded.x`; not `INSERT OR IGNORE`, not `REPLACE`.
- `RETURNING` instead of the last row's number; `coalesce`, not `ifnull`; `CASE`, not `iif`; `||` joins text.
- `ORDER BY` a column that may be NULL says `NULLS FIRST` or `NULLS LAST`. Text sorts by its bytes on both.
- Every column of the result that is not summed stands in GROUP BY.
- Text holds no NUL character. Truth is 0 or 1 in an INTEGER column, and comes back as that.
- Dates are made by `Database.utc_day`. Everything else about time is seconds in a REAL column.
- Tables are written in the words of SQLite's STRICT tables (INTEGER, REAL, TEXT, BLOB), and become BIGINT, DOUBLE
  PRECISION, TEXT and BYTEA there. A number that the database gives out is `INTEGER PRIMARY KEY AUTOINCREMENT`.
- What they don't share, triggers above all, is a `Dialects`: the statements of one and of the other.

Sums of integers are exact on both; SQLite's end at 64 bits, with an error.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from headrace.core.errors import ConfigError

Row = tuple[Any, ...]
Values = Sequence[object]


class Kind(Enum):
    """Whose database it is; the value is what people call it."""

    SQLITE = "SQLite"
    POSTGRES = "PostgreSQL"


@dataclass(frozen=True, slots=True)
class Dialects:
    """One thing in the words of each, where no words are common."""

    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]


Statement = str | Dialects


class DatabaseUnavailable(ConfigError):
    """The database can't be had, or hasn't our schema: nobody knows what is in it, so nothing may be said not to be there."""


class RowRefused(Exception):
    """A row breaks a rule of its table: a bug of whoever made it, and not the operator's."""


class Database(Protocol):
    """An open database, with the schema that this version knows.

    Threads may share it: a transaction or a snapshot has it alone, and the others wait. Every method raises
    DatabaseUnavailable, in one line for the operator, where the database can't be had.
    """

    @property
    def kind(self) -> Kind: ...

    @property
    def name(self) -> str:
        """What a message calls it: a path, or an address without its password."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """One change, whole or not at all. It waits for others who change something, so what it reads stays true."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Reads that all see the same moment."""
        ...

    def execute(self, statement: str, values: Values = ()) -> int:
        """How many rows it changed."""
        ...

    def rows(self, statement: str, values: Values = ()) -> list[Row]:
        """All rows of the result: for results that are known to be small."""
        ...

    def row(self, statement: str, values: Values = ()) -> Row | None:
        """The first row of the result."""
        ...

    def each(self, statement: str, values: Values = ()) -> Iterator[Row]:
        """The rows of a result of any size, in bounded memory; inside a transaction or a snapshot."""
        ...

    def has_table(self, name: str) -> bool: ...

    def utc_day(self, column: str) -> str:
        """An expression: the UTC day, `2026-11-29`, of a column of Unix seconds."""
        ...

    def close(self) -> None: ...


def columns(names: Iterable[str]) -> str:
    """A list of columns, quoted, for a statement."""
    return ", ".join(f'"{name}"' for name in names)


def wordings(statement: Statement, kind: Kind) -> tuple[str, ...]:
    """The statements for a database of that kind."""
    match statement:
        case str():
            return (statement,)
        case Dialects(sqlite, postgres):
            return sqlite if kind is Kind.SQLITE else postgres
