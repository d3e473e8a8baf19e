"""PostgreSQL behind the surface of stores.database: one connection, made again when it was lost, and no wait without end."""

import functools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import conninfo, errors
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import TransactionStatus

from headrace.core.errors import ConfigError
from headrace.stores import schema
from headrace.stores.database import DatabaseUnavailable, Kind, Row, RowRefused, Values, columns

PATIENCE_S = 10.0
CONNECT_TIMEOUT_S = 3
# Whoever changes something queues here, as writers of SQLite do for its lock. The number is ours alone by its oddity.
_WRITERS = 0x68656164_72616365
# Whatever the server's default is: above this level a writer would see what was there before it began to wait for the others.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_FETCH_ROWS = 2000
_HIDDEN = "***"


class _Truth(Dumper):
    """True and False as 1 and 0: our tables hold truth as a number, as SQLite does."""

    oid = psycopg.adapters.types["int2"].oid

    def dump(self, obj: object) -> bytes:
        return b"1" if obj else b"0"


class _Number(Loader):
    """A sum of integers is an integer: PostgreSQL makes a numeric of it, which holds any."""

    def load(self, data: Buffer) -> int | Decimal:
        text = bytes(data).decode()
        return int(text) if text.lstrip("-").isdigit() else Decimal(text)


class _Connection(psycopg.Connection[Row]):
    """A connection that gives up on a server that says nothing. After that it is of no use, and is closed."""

    patience_s = PATIENCE_S

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, self.patience_s if timeout is None else timeout)
        except errors._WaitTimeout:
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {self.patience_s:g} s") from None


class PostgresDatabase:
    """See stores.database.Database.

    State: `_connection`, None until the first use and after it was lost; `_is_together` inside a transaction or snapshot.

    Args:
        url: With everything that libpq takes, the password among it. It is in no message.
        patience_s: How long one statement may take, here and on the server.
    """

    kind = Kind.POSTGRES

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        """Doesn't connect yet. Raises ConfigError for a URL that can't be one, without showing it."""
        self._facts = parse_url(url)
        self._patience_s = patience_s
        self._alone = threading.RLock()
        self._connection: _Connection | None = None
        self._is_together = False

    @property
    def name(self) -> str:
        facts = self._facts
        user = f"{facts['user']}@" if facts.get("user") else ""
        port = f":{facts['port']}" if facts.get("port") else ""
        return f"postgresql://{user}{facts.get('host') or facts.get('hostaddr') or ''}{port}/{facts.get('dbname') or ''}"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Writers wait for each other from its beginning on, so that what one reads stays true until it has written."""
        with self._together(f"{_BEGIN}; {self._limit()}; SELECT pg_advisory_xact_lock({_WRITERS})"):
            yield

    @contextmanager
    def concurrent_transaction(self) -> Iterator[None]:
        """One change that may happen beside others: for rows whose key says all that there is to agree on."""
        with self._together(f"{_BEGIN}; {self._limit()}"):
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._together(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {self._limit()}"):
            yield

    def execute(self, statement: str, values: Values = ()) -> int:
        with self._asking() as connection:
            return connection.execute(*_worded(statement, values)).rowcount

    def rows(self, statement: str, values: Values = ()) -> list[Row]:
        with self._asking() as connection:
            return connection.execute(*_worded(statement, values)).fetchall()

    def row(self, statement: str, values: Values = ()) -> Row | None:
        found = self.rows(statement, values)
        return found[0] if found else None

    def each(self, statement: str, values: Values = ()) -> Iterator[Row]:
        with self._asking() as connection:
            in_transaction = connection.info.transaction_status is TransactionStatus.INTRANS
            assert in_transaction, "rows that are read bit by bit must be of one moment"
            with connection.cursor(name="each") as cursor:
                cursor.itersize = _FETCH_ROWS
                yield from cursor.execute(*_worded(statement, values))

    def load(self, table: str, names: Sequence[str], rows: Sequence[Row]) -> int:
        """Writes many rows, inside a transaction; those whose key is there already stay as they are. Returns how many are new.

        Raises RowRefused when one breaks a rule of the table; then the transaction is over.
        """
        if not rows:
            return 0
        # A table of this connection alone, as of this schema: behind a pooler, the connection may be an old one.
        staging, quoted = f"staging_{table}_{schema.NEWEST}", columns(names)
        with self._asking() as connection, connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TEMPORARY TABLE IF NOT EXISTS {staging} (LIKE {table} INCLUDING DEFAULTS) ON COMMIT DELETE ROWS"
            )
            try:
                with cursor.copy(f"COPY {staging} ({quoted}) FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
                cursor.execute(
                    f"INSERT INTO {table} ({quoted}) SELECT {quoted} FROM {staging} ON CONFLICT DO NOTHING"
                )
                loaded = cursor.rowcount
                cursor.execute(f"TRUNCATE {staging}")  # more may come within the same transaction
            except (psycopg.IntegrityError, psycopg.DataError) as error:
                raise RowRefused(self._told(error)) from error
            return loaded

    def has_table(self, name: str) -> bool:
        found = self.row(
            "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename = ?",
            (name,),
        )
        return found is not None

    def utc_day(self, column: str) -> str:
        return f"to_char(to_timestamp({column}) AT TIME ZONE 'UTC', 'YYYY-MM-DD')"

    def close(self) -> None:
        with self._alone:
            self._drop()

    def _limit(self) -> str:
        return f"SET LOCAL statement_timeout = {int(self._patience_s * 1000)}"

    @contextmanager
    def _together(self, begin: str) -> Iterator[None]:
        with self._asking() as connection:
            assert not self._is_together, "transactions don't nest"
            self._is_together = True
            try:
                connection.execute(begin)
                yield
                connection.execute("COMMIT")
            except BaseException:
                # What a lost connection had begun is rolled back by the server, when it finds out.
                if not connection.closed:
                    with suppress(psycopg.Error):
                        connection.execute("ROLLBACK")
                raise
            finally:
                self._is_together = False

    @contextmanager
    def _asking(self) -> Iterator[_Connection]:
        """The connection for this thread alone; what goes wrong with it becomes one line for the operator."""
        with self._alone:
            try:
                if self._connection is None:
                    if self._is_together:
                        # A new connection would do the rest of a change whose beginning was lost.
                        raise DatabaseUnavailable(
                            f"{self.name}: the connection was lost in the middle of a transaction"
                        )
                    self._connection = self._connect()
                yield self._connection
            except errors.UndefinedTable as error:
                raise DatabaseUnavailable(
                    f"{self.name}: hasn't the schema of this version ({self._told(error)}); see: headrace db status"
                ) from None
            except psycopg.Error as error:
                is_ours = isinstance(error, psycopg.IntegrityError | psycopg.ProgrammingError)
                if is_ours and not isinstance(error, errors.InsufficientPrivilege):
                    raise  # a bug, not the operator's
                raise DatabaseUnavailable(f"{self.name}: {self._told(error)}") from None
            finally:
                if self._connection is not None and self._connection.closed:
                    self._drop()

    def _connect(self) -> _Connection:
        connection = _Connection.connect(
            **{"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "headrace", **self._facts},
            autocommit=True,
            # Prepared statements belong to one connection of the server, and a pooler in between hands out another.
            prepare_threshold=None,
        )
        # The server's own limit, in a transaction, comes first: that one leaves the connection usable.
        connection.patience_s = self._patience_s + 1.0
        connection.adapters.register_dumper(bool, _Truth)
        connection.adapters.register_loader("numeric", _Number)
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _told(self, error: psycopg.Error) -> str:
        """What the server or the network said, in one line, without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        password = str(self._facts.get("password") or "")
        return text.replace(password, _HIDDEN) if password else text


def parse_url(url: str) -> dict[str, Any]:
    """What the URL says, as libpq understands it. Raises ConfigError that shows nothing of it."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigError("the address of the database must begin with postgresql://")
    try:
        facts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        facts = None  # its message quotes what it can't read, which may be a piece of the password
    if facts is None or not _is_plausible(facts):
        raise ConfigError(
            "the address of the database can't be read as postgresql://USER:PASSWORD@HOST:PORT/NAME;"
            " characters of a password that mean something in a URL are written as %40 and the like"
        )
    return dict(facts)


def _is_plausible(facts: Mapping[str, object]) -> bool:
    """Whether no piece of a password with a `/` or `@` in it was taken for a port or a name."""
    ports, name = str(facts.get("port") or "0"), str(facts.get("dbname") or "")
    return all(port.isdecimal() for port in ports.split(",")) and "@" not in name


_TYPES = {
    "INTEGER PRIMARY KEY AUTOINCREMENT": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    # Text sorts by its bytes, as in SQLite, whatever the language of the server: the keys of the ledger are sorted by time.
    "TEXT": 'TEXT COLLATE "C"',
    "BLOB": "BYTEA",
}
_TYPE = re.compile("|".join(rf"\b{word}\b" for word in _TYPES))
_TABLE_OPTIONS = re.compile(r"\)\s*(STRICT|WITHOUT ROWID)(\s*,\s*(STRICT|WITHOUT ROWID))*\s*$")
_DEFINITION = re.compile(r"\s*(CREATE TABLE|ALTER TABLE)\b")


def _worded(statement: str, values: Values) -> tuple[Any, ...]:
    """The statement in the words of PostgreSQL, and its values if there are any."""
    if values:
        return _with_values(statement), tuple(values)
    return (_defining(statement),)


@functools.lru_cache(maxsize=1024)
def _with_values(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


@functools.lru_cache(maxsize=1024)
def _defining(statement: str) -> str:
    """A definition of a table has other types here; everything else stays as it is."""
    if _DEFINITION.match(statement) is None:
        return statement
    return _TYPE.sub(lambda found: _TYPES[found.group()], _TABLE_OPTIONS.sub(")", statement))
