"""What the tests of stores share: databases of both kinds, a model store that doesn't wait, and a place that serves files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.core.clock import ManualClock
from headrace.stores import schema, sqlite
from headrace.stores.database import Database, Kind
from headrace.stores.downloads import Patience
from headrace.stores.postgres import PostgresDatabase
from headrace.stores.registry import ModelStore
from tests.support.file_server import FileServer, file_server
from tests.support.postgres import PostgresServer
from tests.support.tiny_models import Heard

Connect = Callable[[], Database]


class SharedPostgres:
    """A database with the newest schema for one test after the other: making one takes longer than most tests."""

    def __init__(self, url: str) -> None:
        self.url = url
        database = PostgresDatabase(url)
        schema.migrate(database)
        tables = [name for (name,) in database.rows(_TABLES) if name != "migration"]
        self._rows = {table: database.rows(f"SELECT * FROM {table}") for table in tables}
        database.close()

    def clean(self) -> None:
        """As it was when it was made."""
        with psycopg.connect(self.url) as admin:
            admin.execute("SET session_replication_role = replica")  # no trigger keeps its table as it is
            for (table,) in admin.execute(_TABLES).fetchall():
                if table not in (*self._rows, "migration"):
                    admin.execute(f"DROP TABLE {table}")
            admin.execute(f"TRUNCATE {', '.join(self._rows)} RESTART IDENTITY")
            for table, rows in self._rows.items():
                admin.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
                for row in rows:
                    admin.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)


_TABLES = "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = 'public'"


@pytest.fixture(scope="session")
def shared_postgres(postgres: PostgresServer) -> SharedPostgres:
    return SharedPostgres(postgres.lend_database())


def _connections(tmp_path: Path, url: str) -> Iterator[Connect]:
    opened: list[Database] = []

    def open_one() -> Database:
        made = PostgresDatabase(url) if url else sqlite.SqliteDatabase(tmp_path / sqlite.DATABASE_NAME)
        opened.append(made)
        return made

    yield open_one
    for database in opened:
        database.close()


@pytest.fixture(params=list(Kind), ids=lambda kind: kind.name.lower())
def connect_empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Opens one more connection to the database of the test, which has no schema at first."""
    url = request.getfixturevalue("new_postgres_url")() if request.param is Kind.POSTGRES else ""
    yield from _connections(tmp_path, url)


@pytest.fixture(params=list(Kind), ids=lambda kind: kind.name.lower())
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Opens one more connection to the database of the test, which has the newest schema and no rows."""
    url = ""
    if request.param is Kind.POSTGRES:
        shared: SharedPostgres = request.getfixturevalue("shared_postgres")
        shared.clean()
        url = shared.url
    else:
        sqlite.open_file(tmp_path / sqlite.DATABASE_NAME).close()
    yield from _connections(tmp_path, url)


@pytest.fixture
def database(connect: Connect) -> Database:
    """One connection to it."""
    return connect()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def served() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> ModelStore:
    """Waits by moving the clock."""
    return ModelStore(
        tmp_path / "models", known={}, clock=clock, patience=Patience(attempts_max=3, sleep=clock.advance)
    )
