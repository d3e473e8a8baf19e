"""Every step of the schema leads back as well, and nothing is lost on the way that the older schema has a place for."""

import pytest

from headrace.core.errors import ConfigError
from headrace.stores import schema
from headrace.stores.database import Database, Kind
from headrace.stores.migrations import MIGRATIONS
from headrace.stores.steps import Migration
from tests.stores.conftest import Connect


@pytest.fixture
def database(connect_empty: Connect) -> Database:
    """Without a schema."""
    return connect_empty()


_POSTGRES_SHAPE = (
    "SELECT 'column', table_name, column_name, data_type, is_nullable, coalesce(column_default, '')"
    " FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'migration'"
    " UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes"
    " WHERE schemaname = 'public' AND tablename <> 'migration'"
    " UNION ALL SELECT 'trigger', event_object_table, trigger_name, event_manipulation, action_timing, action_statement"
    " FROM information_schema.triggers"
    " UNION ALL SELECT 'function', routine_name, '', '', '', '' FROM information_schema.routines"
    " WHERE routine_schema = 'public'"
    " UNION ALL SELECT 'constraint', conrelid::regclass::text, pg_get_constraintdef(oid), '', '', '' FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'migration'"
)


def shape(database: Database) -> set[tuple[object, ...]]:
    """Everything that a schema consists of: tables and views with their columns, indexes, triggers, functions."""
    if database.kind is Kind.POSTGRES:
        return set(database.rows(_POSTGRES_SHAPE))
    things: set[tuple[object, ...]] = set(
        database.rows(
            "SELECT type, name, tbl_name FROM sqlite_schema WHERE name NOT IN ('migration', 'sqlite_sequence')"
        )
    )
    for kind, name, _ in list(things):
        if kind in ("table", "view"):
            things |= {(name, *column[1:]) for column in database.rows(f"PRAGMA table_info({name})")}
    return things


def test_each_step_back_undoes_its_step_forward(database: Database) -> None:
    shapes = [shape(database)]
    for number in range(1, schema.NEWEST + 1):
        schema.migrate(database, to=number)
        shapes.append(shape(database))
    for number in range(schema.NEWEST - 1, -1, -1):
        assert schema.downgrade(database, to=number) == 1
        assert shape(database) == shapes[number], MIGRATIONS[number].name
    assert schema.migrate(database) == schema.NEWEST
    assert shape(database) == shapes[-1]


def test_names_of_steps_are_unlike_each_other() -> None:
    assert len({migration.name for migration in MIGRATIONS}) == len(MIGRATIONS)


USAGE = """
INSERT INTO usage (request_id, tenant, key_id, model, revision, endpoint, is_streaming, started_s, outcome, reason, status,
    prompt_tokens, completion_tokens, cached_tokens, usage_source, queue_wait_s, ttft_s, total_s, attempts)
VALUES ('req_1', 'acme', 'k', 'm', 'r', 'e', 1, 1.5, 'delivered', 'ok', 200, 3, 2, 1, 'final', 0.0, 0.25, 1.0, 2)
"""


def test_the_attempt_in_the_row_of_its_request_goes_back_to_a_row_of_its_own(database: Database) -> None:
    schema.migrate(database, to=3)
    database.execute(USAGE)
    database.execute(
        "UPDATE usage SET replica = 'r0', generation = 4, served_started_s = 1.75, served_s = 0.5, served_ttft_s = 0.125"
    )
    database.execute(
        "INSERT INTO attempt VALUES ('req_1', 1, 'r1', 0, 1.5, 0.25, NULL, 'unreachable', 0, 0, 0, 0, 'unknown')"
    )
    shown = database.rows("SELECT * FROM execution ORDER BY attempt")
    assert [row[1] for row in shown] == [1, 2]
    schema.downgrade(database, to=2)
    assert database.rows("SELECT * FROM execution ORDER BY attempt") == shown
    schema.migrate(database, to=3)
    assert database.rows("SELECT * FROM execution ORDER BY attempt") == shown


def test_a_step_back_that_would_lose_rows_is_refused_with_what_they_are(database: Database) -> None:
    schema.migrate(database, to=4)
    database.execute("INSERT INTO tenant (name, created_s) VALUES ('plain', 1)")
    database.execute("INSERT INTO tenant (name, created_s, weight) VALUES ('acme', 1, 3), ('globex', 1, 2)")
    with pytest.raises(ConfigError, match=r"schema 3 can't hold 2 tenants with a share of their own.*--lose"):
        schema.downgrade(database, to=3)
    assert schema.number(database) == 4
    assert database.row("SELECT count(*) FROM tenant WHERE weight > 1") == (2,)
    assert schema.downgrade(database, to=3, lose=True) == 1
    assert database.rows("SELECT name FROM tenant ORDER BY name") == [("acme",), ("globex",), ("plain",)]


def test_a_step_that_fails_changes_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.migrate(database, to=1)
    broken = Migration(
        "broken", up=("CREATE TABLE half (x INTEGER)", "CREATE TABLE half (x INTEGER)"), down=()
    )
    monkeypatch.setattr(schema, "MIGRATIONS", (MIGRATIONS[0], broken))
    with pytest.raises(Exception, match="half"):
        schema.migrate(database, to=2)
    assert schema.number(database) == 1
    assert not database.has_table("half")
