"""Everything of a data directory arrives in the central database, once, or nothing does."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.core.prices import Item
from headrace.core.tenant import TenantLimits
from headrace.stores import fleet_tables, mirror, moving, opening, schema, sqlite, tenants
from headrace.stores.ledger import Ledger
from headrace.stores.mirror import Mirror
from headrace.stores.moving import MOVED
from headrace.stores.postgres import PostgresDatabase
from headrace.stores.prices import Draft, open_prices
from headrace.stores.sqlite import SqliteDatabase
from headrace.stores.tenants import TenantStore
from tests.stores.test_ledger import execution_record, usage_record

DEFAULTS = TenantLimits(requests_per_minute=60, requests_burst=6, concurrency_max=4)


class Rig:
    """A data directory with something in every table, and an empty central database."""

    def __init__(self, data: Path, url: str) -> None:
        self.clock = ManualClock()
        self.data = data
        self.url = url
        store = tenants.open_tenants(data, clock=self.clock)
        store.create_tenant("acme", {"weight": 2})
        record, _ = store.create_key("acme")
        store.rotate(record.id, overlap_s=60)
        store.note_uses({record.id: 5.0})
        store.close()
        book = open_prices(data, clock=self.clock)
        book.enter([Draft("EUR", {Item.INPUT: "0.15"}, model="m")])
        book.close()
        ledger = Ledger(data / sqlite.DATABASE_NAME, clock=self.clock, on_failure=print)
        ledger.start()
        for number in range(2500):
            ledger.append(
                usage_record(f"req_{number}"), [execution_record(f"req_{number}", outcome="upstream_lost")]
            )
        ledger.append(usage_record("req_bad", prompt_tokens=-1), [])
        ledger.stop()
        self.local = SqliteDatabase(data / sqlite.DATABASE_NAME)
        for row in (
            "orphan VALUES ('req_o', 'acme', 'k', 'm', 'r0', 0, 1, 1.5, 2.5)",
            "admin VALUES ('a1', zeroblob(32), 'viewer', '', 1.5, NULL, NULL)",
            "correction VALUES (1, 'acme', 'req_1', 'm', 'p1', 'EUR', -5, 'why', 1.5)",
            "invoice VALUES (1, 'acme', '2026-11', 1.5, 2.5, 3.5, '{}', zeroblob(32))",
            "invoiced VALUES (1, 1)",
        ):
            self.local.execute(f"INSERT INTO {row}")
        self.central = PostgresDatabase(url)
        schema.migrate(self.central)


@pytest.fixture
def rig(tmp_path: Path, new_postgres_url: Callable[[], str]) -> Iterator[Rig]:
    made = Rig(tmp_path / "data", new_postgres_url())
    yield made
    made.local.close()
    made.central.close()


def test_every_row_of_every_table_is_there_as_it_was(rig: Rig) -> None:
    copied = moving.move(rig.local, rig.central, clock=rig.clock)
    assert set(copied) == set(MOVED)
    assert min(copied.values()) > 0, "a table without rows shows nothing"
    for table in MOVED:
        names = ", ".join(f'"{row[1]}"' for row in rig.local.rows(f"PRAGMA table_info({table})"))
        statement = f"SELECT {names} FROM {table} ORDER BY 1, 2"
        assert rig.central.rows(statement) == rig.local.rows(statement), table
    copy = Mirror(SqliteDatabase(rig.data / sqlite.DATABASE_NAME), PostgresDatabase(rig.url), clock=rig.clock)
    copy.refresh()
    copy.close()
    assert mirror.seen_s(rig.local) == rig.clock.wall_s()
    pepper = (rig.data / "pepper").read_bytes()
    central = TenantStore(PostgresDatabase(rig.url), pepper, clock=rig.clock)
    assert len(central.key_ring(DEFAULTS)) == 2
    central.close()


def test_every_table_is_moved_or_is_each_databases_own(rig: Rig) -> None:
    tables = rig.central.rows("SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = 'public'")
    own = {"migration", "installation", "mirror", "outbox", "shipping", "gateway", "engine_count"}
    of_this_machine = {
        "deployment_version",
        "deployment_wanted",
        "rollout_word",
        "capacity_record",
        *fleet_tables.TABLES,
    }
    assert {name for (name,) in tables} == {*MOVED, *own, *of_this_machine}


def test_a_database_that_holds_something_gets_nothing(rig: Rig) -> None:
    rig.central.execute("INSERT INTO tenant (name, created_s) VALUES ('globex', 1)")
    with pytest.raises(ConfigError, match="isn't empty"):
        moving.move(rig.local, rig.central, clock=rig.clock)
    assert rig.central.rows("SELECT name FROM tenant") == [("globex",)]
    assert mirror.seen_s(rig.local) is None


def test_a_move_that_died_at_its_end_is_ended_by_the_next(rig: Rig) -> None:
    moving.move(rig.local, rig.central, clock=rig.clock)
    rig.local.execute("DELETE FROM mirror")
    moving.move(rig.local, rig.central, clock=rig.clock)
    assert mirror.seen_s(rig.local) is not None
    assert rig.central.row("SELECT count(*) FROM usage") == (2500,)


def test_the_directory_remembers_a_file_wherever_it_is_asked_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opening.remember(tmp_path, "file:url")
    assert opening.remembered(tmp_path) == f"file:{tmp_path}/url"
