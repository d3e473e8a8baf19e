"""SQLite and PostgreSQL keep the same promises to the stores."""

import threading
import time
from collections.abc import Callable
from decimal import Decimal

import psycopg
import pytest

from headrace.core.errors import ConfigError
from headrace.stores import schema
from headrace.stores.database import Database, columns, wordings
from headrace.stores.postgres import PostgresDatabase
from headrace.stores.steps import append_only, append_only_gone
from tests.stores.conftest import Connect
from tests.support.postgres import PASSWORD, PostgresServer


def test_values_come_back_as_they_went_in(database: Database) -> None:
    database.execute(
        'CREATE TABLE thing (id INTEGER PRIMARY KEY AUTOINCREMENT, "user" TEXT NOT NULL, weight REAL,'
        " digest BLOB, is_new INTEGER NOT NULL) STRICT"
    )
    names = columns(("user", "weight", "digest", "is_new"))
    values = ("a%b?'\"\\ü\N{GRINNING FACE}", 0.1 + 0.2, bytes(range(256)), True)
    assert database.execute(f"INSERT INTO thing ({names}) VALUES (?, ?, ?, ?)", values) == 1
    assert database.rows(
        f"INSERT INTO thing ({names}) VALUES (?, ?, ?, ?) RETURNING id", ("", None, None, False)
    ) == [(2,)]
    assert database.rows(f"SELECT {names} FROM thing ORDER BY id") == [(*values[:3], 1), ("", None, None, 0)]
    assert database.row(f"SELECT {names} FROM thing WHERE \"user\" LIKE 'a%' AND id = ?", (1,)) is not None
    assert database.row("SELECT id FROM thing WHERE id = ?", (3,)) is None
    assert database.execute("UPDATE thing SET is_new = ? WHERE is_new = ?", (1, 0)) == 1
    assert database.has_table("thing")
    assert not database.has_table("no_thing")


def test_sums_are_whole_numbers_and_text_sorts_by_its_bytes(database: Database) -> None:
    database.execute("CREATE TABLE thing (name TEXT NOT NULL, amount INTEGER) STRICT")
    big = 2**62
    for name, amount in (("b", big), ("B", 1), ("a", None), ("ä", 2), ("_", -4)):
        database.execute("INSERT INTO thing VALUES (?, ?)", (name, amount))
    total = database.row("SELECT sum(amount) FROM thing")
    assert total == (big - 1,)
    assert isinstance(total[0], int)
    assert not isinstance(total[0], Decimal)
    assert [name for (name,) in database.rows("SELECT name FROM thing ORDER BY name")] == [
        "B",
        "_",
        "a",
        "b",
        "ä",
    ]
    assert database.row("SELECT count(*) FILTER (WHERE amount > ?) FROM thing", (0,)) == (3,)
    assert database.rows("SELECT amount FROM thing ORDER BY amount NULLS FIRST LIMIT 1") == [(None,)]


def test_days_are_those_of_utc(database: Database) -> None:
    database.execute("CREATE TABLE thing (at_s REAL NOT NULL) STRICT")
    database.execute("INSERT INTO thing VALUES (?), (?), (?)", (0.0, 1_700_006_399.9, 1_700_006_400.0))
    day = database.utc_day("at_s")
    assert database.rows(f"SELECT {day} FROM thing ORDER BY at_s") == [
        ("1970-01-01",),
        ("2023-11-14",),
        ("2023-11-15",),
    ]


def test_a_change_is_whole_or_not_there(database: Database, connect: Connect) -> None:
    other = connect()

    def half() -> None:
        with database.transaction():
            database.execute("INSERT INTO tenant (name, created_s) VALUES ('acme', 1)")
            assert database.row("SELECT count(*) FROM tenant") == (1,)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    with database.transaction():
        database.execute("INSERT INTO tenant (name, created_s) VALUES ('globex', 1)")
        assert other.rows("SELECT name FROM tenant") == []
    assert other.rows("SELECT name FROM tenant") == [("globex",)]


def test_a_snapshot_sees_one_moment(database: Database, connect: Connect) -> None:
    other = connect()
    with database.snapshot():
        assert database.row("SELECT count(*) FROM tenant") == (0,)
        other.execute("INSERT INTO tenant (name, created_s) VALUES ('acme', 1)")
        assert database.row("SELECT count(*) FROM tenant") == (0,)
        assert list(database.each("SELECT name FROM tenant")) == []
    assert database.row("SELECT count(*) FROM tenant") == (1,)


def test_what_a_writer_has_read_stays_true_until_it_has_written(database: Database, connect: Connect) -> None:
    """Each adds one to what it has read; without the wait for each other some additions would be lost."""
    database.execute("CREATE TABLE thing (number INTEGER NOT NULL) STRICT")
    database.execute("INSERT INTO thing VALUES (0)")

    def add(own: Database) -> None:
        for _ in range(20):
            with own.transaction():
                found = own.row("SELECT number FROM thing")
                assert found is not None
                own.execute("UPDATE thing SET number = ?", (found[0] + 1,))

    threads = [
        threading.Thread(target=add, args=(own,)) for own in (connect(), connect(), database, database)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.row("SELECT number FROM thing") == (80,)


def test_writers_wait_for_each_other_whatever_level_of_isolation_the_server_prefers(
    new_postgres_url: Callable[[], str],
) -> None:
    url = f"{new_postgres_url()}?options=-cdefault_transaction_isolation%3Dserializable"
    first, second = PostgresDatabase(url), PostgresDatabase(url)
    first.execute("CREATE TABLE thing (number INTEGER NOT NULL)")
    first.execute("INSERT INTO thing VALUES (0)")
    failures: list[ConfigError] = []

    def add() -> None:
        try:
            with second.transaction():
                second.execute("UPDATE thing SET number = number + 1")
        except ConfigError as error:
            failures.append(error)

    with psycopg.connect(url, autocommit=True) as admin:
        with first.transaction():
            first.execute("UPDATE thing SET number = number + 1")
            waiting = threading.Thread(target=add)
            waiting.start()
            while not admin.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                pass
        waiting.join()
    assert not failures
    assert first.row("SELECT number FROM thing") == (2,)
    first.close()
    second.close()


def test_a_large_result_is_read_bit_by_bit(database: Database) -> None:
    database.execute("CREATE TABLE thing (number INTEGER NOT NULL) STRICT")
    rows = 5001
    for start in range(0, rows, 1000):
        count = min(1000, rows - start)
        database.execute(
            f"INSERT INTO thing VALUES {', '.join(['(?)'] * count)}", tuple(range(start, start + count))
        )
    with database.snapshot():
        read = database.each("SELECT number FROM thing WHERE number >= ? ORDER BY number", (1,))
        assert [number for (number,) in read] == list(range(1, rows))


def test_a_table_that_only_grows(database: Database) -> None:
    database.execute("CREATE TABLE thing (number INTEGER NOT NULL) STRICT")
    for wording in wordings(append_only("thing"), database.kind):
        database.execute(wording)
    database.execute("INSERT INTO thing VALUES (1), (2)")
    for statement in ("UPDATE thing SET number = 3", "DELETE FROM thing WHERE number = 1"):
        with pytest.raises(Exception, match="never changed"):
            database.execute(statement)
    assert database.row("SELECT count(*), sum(number) FROM thing") == (2, 3)
    database.execute("DROP TABLE thing")
    for wording in wordings(append_only_gone("thing"), database.kind):
        database.execute(wording)


def test_every_change_of_a_tenant_is_counted_once_however_it_is_made(database: Database) -> None:
    before = database.row("SELECT revision FROM tenancy")
    assert before is not None
    database.execute("INSERT INTO tenant (name, created_s) VALUES ('acme', 1), ('globex', 1)")
    database.execute("UPDATE tenant SET weight = 2 WHERE name = 'acme'")
    database.execute("INSERT INTO tenant (name, created_s) VALUES ('acme', 1) ON CONFLICT DO NOTHING")
    assert database.row("SELECT revision FROM tenancy") == (before[0] + 3,)


# PostgreSQL alone.


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://headrace:{PASSWORD}@[::1/x",
        f"postgresql://headrace:a/{PASSWORD}@host/x",
        f"postgresql://headrace:{PASSWORD}@host:port/x",
        f"mysql://headrace:{PASSWORD}@host/x",
        f"host=x password={PASSWORD}",
    ],
)
def test_a_bad_address_is_refused_without_a_piece_of_it(url: str) -> None:
    """REPORTS 100: libpq quotes what it can't read."""
    with pytest.raises(ConfigError) as refused:
        PostgresDatabase(url)
    assert PASSWORD not in str(refused.value)
    assert refused.value.__cause__ is None


def test_no_message_and_no_name_holds_the_password(postgres: PostgresServer) -> None:
    """REPORTS 100: wrong database, wrong password, nobody there, an answer that isn't PostgreSQL's."""
    wrong = postgres.url("no_such_database")
    closed = wrong.replace(str(postgres.port), "1")
    other = wrong.replace(PASSWORD, f"{PASSWORD}x").replace("no_such_database", "postgres")
    for url in (wrong, closed, other):
        database = PostgresDatabase(url)
        with pytest.raises(ConfigError, match=r"postgresql://headrace@127\.0\.0\.1") as refused:
            database.rows("SELECT 1")
        database.close()
        shown = [str(refused.value), repr(refused.value), database.name, repr(database)]
        assert not [text for text in shown if PASSWORD in text]


def test_a_lost_connection_is_made_again_but_not_within_a_change(
    postgres: PostgresServer, new_postgres_url
) -> None:
    database = PostgresDatabase(new_postgres_url())
    schema.migrate(database)

    def cut() -> None:
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headrace'"
            )

    cut()
    with pytest.raises(ConfigError):
        database.rows("SELECT 1")
    assert database.rows("SELECT 1") == [(1,)]

    def change() -> None:
        with database.transaction():
            database.execute("INSERT INTO tenant (name, created_s) VALUES ('acme', 1)")
            cut()
            with pytest.raises(ConfigError):
                database.execute("INSERT INTO tenant (name, created_s) VALUES ('globex', 1)")
            database.execute("INSERT INTO tenant (name, created_s) VALUES ('initech', 1)")

    with pytest.raises(ConfigError, match="middle"):
        change()
    assert database.rows("SELECT name FROM tenant") == []
    database.close()


def test_a_server_that_says_nothing_is_given_up_on(new_postgres_url: Callable[[], str]) -> None:
    """T54: slow, and holding a lock that we want."""
    url = new_postgres_url()
    database = PostgresDatabase(url, patience_s=0.3)
    schema.migrate(database)
    before_s = time.monotonic()
    with pytest.raises(ConfigError, match="no answer"):
        database.rows("SELECT pg_sleep(60)")
    other = PostgresDatabase(url)
    with other.transaction(), pytest.raises(ConfigError, match="timeout"), database.transaction():
        raise AssertionError("the other one has the lock")
    assert time.monotonic() - before_s < 30
    assert database.rows("SELECT 1") == [(1,)]
    other.close()
    database.close()
