"""What the tests of stores share: databases of both kinds, a model store that doesn't wait, and a place that serves files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.stores import schema, sqlite
from headrace.stores.database import Database, Kind
from headrace.stores.downloads import Patience
from headrace.stores.postgres import PostgresDatabase
from headrace.stores.registry import ModelStore
from tests.support.file_server import FileServer, file_server
from tests.support.tiny_models import Heard

Connect = Callable[[], Database]


@pytest.fixture(params=list(Kind), ids=lambda kind: kind.name.lower())
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Opens one more connection to the database of the test, which is empty at first, and has no schema."""
    opened: list[Database] = []
    url = request.getfixturevalue("new_postgres_url")() if request.param is Kind.POSTGRES else ""

    def open_one() -> Database:
        made = PostgresDatabase(url) if url else sqlite.SqliteDatabase(tmp_path / sqlite.DATABASE_NAME)
        opened.append(made)
        return made

    yield open_one
    for database in opened:
        database.close()


@pytest.fixture
def database(connect: Connect) -> Database:
    """With the newest schema, on each kind of server."""
    opened = connect()
    schema.migrate(opened)
    return opened


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
