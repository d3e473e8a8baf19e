"""How do we open the one database: durable settings, and a schema that only moves forward."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.stores.migrations import MIGRATIONS

DATABASE_NAME = "headrace.db"
BUSY_TIMEOUT_S = 5.0


def open_database(path: Path, *, must_exist: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode on an up-to-date schema; group statements with `transaction`.

    The caller may hand it from thread to thread but must not share it between threads at one moment.

    Args:
        must_exist: For commands that only read: a mistyped directory is an error and not a new empty database.
    Raises: ConfigError when it can't be opened, or was written by a newer version.
    """
    if must_exist and not path.exists():
        raise ConfigError(f"{path}: no such database; name the directory of a running service with --data")
    with as_config_error(path):
        connection = connect(path)
        try:
            migrate(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


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
        raise ConfigError(f"{path}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Brings the schema forward to the newest number; each step is one transaction with its entry in `migration`."""
    number = _schema_number(connection)
    while number < len(MIGRATIONS):
        with transaction(connection):
            # Read again under the write lock: another process may be migrating at this moment.
            number = _schema_number(connection)
            if number < len(MIGRATIONS):
                number += 1
                _apply(connection, number)
    if number > len(MIGRATIONS):
        raise ConfigError(
            f"{path}: written by a newer headrace (schema {number}, this version knows {len(MIGRATIONS)});"
            " upgrade headrace, or restore the backup made before the upgrade"
        )


def _apply(connection: sqlite3.Connection, number: int) -> None:
    name, statements = MIGRATIONS[number - 1]
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL,"
        " applied_s INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER))) STRICT"
    )
    for statement in statements:
        connection.execute(statement)
    connection.execute("INSERT INTO migration (number, name) VALUES (?, ?)", (number, name))


def _schema_number(connection: sqlite3.Connection) -> int:
    has_table = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'migration'").fetchone()
    if has_table is None:
        return 0
    (number,) = connection.execute("SELECT coalesce(max(number), 0) FROM migration").fetchone()
    return int(number)
