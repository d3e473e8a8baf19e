"""Which database belongs to a data directory, and how is it opened?"""

from pathlib import Path

from headrace.stores import sqlite
from headrace.stores.database import Database


def open_database(data: Path, *, must_exist: bool = False) -> Database:
    """The database of that data directory, on the schema of this version.

    Args:
        must_exist: For commands that only read: a mistyped directory is an error and not a new empty database.
    Raises: ConfigError when it can't be had, or was written by a newer version.
    """
    return sqlite.open_file(data / sqlite.DATABASE_NAME, must_exist=must_exist)
