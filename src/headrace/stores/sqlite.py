"""SQLite, as a file in the data directory: durable settings, and the surface of stores.database over it."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.stores import directory, schema
from headrace.stores.database import DatabaseUnavailable, Kind, Row, Values

DATABASE_NAME = "headrace.db"
BUSY_TIMEOUT_S = 5.0


class SqliteDatabase:
    """See stores.database.Database. Owner of `connection`, in autocommit mode outside `transaction` and `snapshot`."""

    kind = Kind.SQLITE

    def __init__(self, path: Path) -> None:
        """Opens it, whatever its schema is. Raises ConfigError when it can't be had."""
        self._path = path
        self._alone = threading.RLock()
        with as_config_error(path):
            self.connection = connect(path)

    @property
    def name(self) -> str:
        return str(self._path)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._alone, as_config_error(self._path), transaction(self.connection):
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._alone, as_config_error(self._path), snapshot(self.connection):
            yield

    def execute(self, statement: str, values: Values = ()) -> int:
        with self._alone, as_config_error(self._path):
            return self.connection.execute(statement, tuple(values)).rowcount

    def rows(self, statement: str, values: Values = ()) -> list[Row]:
        with self._alone, as_config_error(self._path):
            return self.connection.execute(statement, tuple(values)).fetchall()

    def row(self, statement: str, values: Values = ()) -> Row | None:
        found = self.rows(statement, values)
        return found[0] if found else None

    def each(self, statement: str, values: Values = ()) -> Iterator[Row]:
        assert self.connection.in_transaction, "rows that are read bit by bit must be of one moment"
        return self.connection.execute(statement, tuple(values))

    def has_table(self, name: str) -> bool:
        return self.row("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)) is not None

    def utc_day(self, column: str) -> str:
        return f"date({column}, 'unixepoch')"

    def close(self) -> None:
        with self._alone:
            self.connection.close()


def open_database(path: Path, *, must_exist: bool = False) -> sqlite3.Connection:
    """The connection alone, for the ledger, whose writer has statements of its own."""
    return open_file(path, must_exist=must_exist).connection


def open_file(path: Path, *, must_exist: bool = False) -> SqliteDatabase:
    """The database on an up-to-date schema.

    Args:
        must_exist: For commands that only read: a mistyped directory is an error and not a new empty database.
    Raises: ConfigError when it can't be opened, or was written by a newer version.
    """
    if must_exist and not path.exists():
        raise ConfigError(f"{path}: no such database; name the directory of a running service with --data")
    database = SqliteDatabase(path)
    try:
        # A command of a newer version leaves the schema of an older, running service alone.
        schema.bring_up(
            database, lambda: ["the service that runs on it"] if directory.is_in_use(path.parent) else []
        )
    except BaseException:
        database.close()
        raise
    return database


def connect(path: Path) -> sqlite3.Connection:
    """A connection with our settings and no look at the schema. Raises sqlite3.Error and OSError as they come."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite would create the file by the umask, usually readable by all; -wal and -shm take over this file's mode.
    # Only a new file is opened here: closing any descriptor of a database that this process has open would drop all of
    # its POSIX locks (sqlite.org/howtocorrupt.html, 2.2), and the next process would delete the log under our feet.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a commit is on the disk when it returns. NORMAL would lose the last commits with the power.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction: committed at the end, rolled back on any error. Takes the write lock at once, so that
    two processes queue for it (BUSY_TIMEOUT_S) and neither fails on an upgrade from a read lock."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has already rolled back by itself after some errors, a full disk among them.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """One read transaction: every statement in it sees the same moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def as_config_error(path: Path) -> Iterator[None]:
    """Turns what a disk or a lock did to us into one line for the operator. For commands, not for the ledger's writer."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise  # a bug of ours, not the operator's
    except sqlite3.DatabaseError as error:
        raise DatabaseUnavailable(f"{path}: {error}") from error
    except OSError as error:
        raise DatabaseUnavailable(f"{path}: {error.strerror}") from error
