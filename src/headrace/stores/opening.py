"""Which database belongs to a data directory, and how is it opened? One of its own, or one that several share.

The data directory of a service with a central database remembers where that is (the reference to its address, not the
address), so that a command that is only told `--data` changes the tenants that the service goes by, and no others.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from headrace import config
from headrace.core.errors import ConfigError
from headrace.stores import directory, schema, sqlite
from headrace.stores.database import Database
from headrace.stores.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from headrace.stores.postgres import PostgresDatabase

REFERENCE_NAME = "database"
# A service says that it is alive several times within this.
_ALIVE_S = 60.0
_MIGRATION_PATIENCE_S = 3600.0


def open_database(data: Path, *, must_exist: bool = False) -> Database:
    """The database that says who the tenants are, on the schema of this version.

    Args:
        must_exist: For commands that only read: a mistyped directory is an error and not a new empty database.
    Raises: ConfigError when it can't be had, was written by a newer version, or serves an older one at this moment.
    """
    if not (reference := remembered(data)):
        return sqlite.open_file(data / sqlite.DATABASE_NAME, must_exist=must_exist)
    central = connect_central(reference)
    try:
        schema.bring_up(central, lambda: served_by(central, data, is_service=False))
    except BaseException:
        central.close()
        raise
    return central


def open_local(data: Path) -> SqliteDatabase:
    """The database in the data directory itself: the ledger, and the tenants or a copy of them."""
    return sqlite.open_file(data / sqlite.DATABASE_NAME)


def prepare(data: Path, reference: str) -> None:
    """For a service that holds the directory: brings its databases to the schema of this version, and remembers where they are.

    Raises: ConfigError when the central one still serves gateways of an older version, or the directory belongs to another.
    """
    before = remembered(data)
    if before and not reference:
        raise ConfigError(
            f"{data} belongs to the central database at {before}; set `stores.database` to it. To go on without,"
            f" from the copy of its tenants that is here, delete {data / REFERENCE_NAME}"
        )
    local = SqliteDatabase(data / sqlite.DATABASE_NAME)
    try:
        schema.migrate(local)
        if not reference:
            local.execute("DELETE FROM mirror")  # what was a copy is its own from now on
    finally:
        local.close()
    if reference:
        remember(data, reference)


def remember(data: Path, reference: str) -> None:
    """From now on the central database there is the one that this directory belongs to."""
    kind, _, name = reference.partition(":")
    if kind == "file":  # commands are run from anywhere
        reference = f"file:{Path(name).expanduser().absolute()}"
    (data / REFERENCE_NAME).write_text(f"{reference}\n", encoding="utf-8")


def remembered(data: Path) -> str:
    """The reference to the address of the central database, "" where there is none."""
    try:
        return (data / REFERENCE_NAME).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{data / REFERENCE_NAME}: can't be read ({type(error).__name__})") from error


def connect_central(reference: str, *, patience_s: float = 10.0) -> "PostgresDatabase":
    """The central database, whatever its schema is; connects when it is first asked. Raises ConfigError."""
    url = config.resolve_secret(reference, key="stores.database")
    try:
        from headrace.stores.postgres import PostgresDatabase  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ConfigError(
            f"`stores.database` needs the extra for PostgreSQL ({error}): pip install 'headrace[postgres]'"
        ) from error
    return PostgresDatabase(url, patience_s=patience_s)


def migrate_central(reference: str, data: Path) -> None:
    """For a service that starts: takes the steps that the central database lacks, unless older services work with it.

    Raises: ConfigError, also where it can't be had.
    """
    central = connect_central(reference, patience_s=_MIGRATION_PATIENCE_S)
    try:
        schema.bring_up(central, lambda: served_by(central, data, is_service=True))
    finally:
        central.close()


def served_by(central: Database, data: Path, *, is_service: bool) -> list[str]:
    """The services that have lately said that they use it. `is_service`: the one on this data directory is we ourselves."""
    if not central.has_table("gateway"):
        return []
    own = own_id(data)
    rows = central.rows(
        "SELECT id, host, version FROM gateway WHERE seen_s > extract(epoch FROM clock_timestamp()) - ? ORDER BY host",
        (_ALIVE_S,),
    )
    others = [f"{host} with version {version}" for id_, host, version in rows if id_ != own]
    if not is_service and directory.is_in_use(data):
        others.append("the service on this machine")
    return others


def own_id(data: Path) -> str:
    """What tells the service of that data directory from others; "" while it has no database."""
    path = data / sqlite.DATABASE_NAME
    if not path.exists():
        return ""
    local = SqliteDatabase(path)
    try:
        row = local.row("SELECT id FROM installation") if local.has_table("installation") else None
    finally:
        local.close()
    return "" if row is None else str(row[0])
