"""A gateway's copy of tenants and keys is what the central database says, and outlives it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.core import keys
from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.core.prices import Item
from headrace.core.tenant import TenantLimits
from headrace.stores import fleet_tables, mirror, schema, sqlite
from headrace.stores.migrations import MIGRATIONS
from headrace.stores.mirror import MIRRORED, Mirror
from headrace.stores.postgres import PostgresDatabase
from headrace.stores.prices import Draft, PriceStore
from headrace.stores.shipping import SHIPPED
from headrace.stores.tenants import TenantStore
from tests.support.postgres import PostgresServer

PEPPER = bytes(range(32))
DEFAULTS = TenantLimits(requests_per_minute=60, requests_burst=6, concurrency_max=4)


class Rig:
    """The store that commands write to, and the one that a gateway reads."""

    def __init__(self, path: Path, url: str) -> None:
        self.clock = ManualClock()
        self.url = url
        central = PostgresDatabase(url)
        schema.migrate(central)
        self.central = TenantStore(central, PEPPER, clock=self.clock)
        self.local = sqlite.open_file(path)
        self.mirror = Mirror(sqlite.open_file(path), PostgresDatabase(url), clock=self.clock)

    def gateway(self) -> TenantStore:
        return TenantStore(sqlite.open_file(Path(self.local.name)), PEPPER, clock=self.clock)

    def close(self) -> None:
        self.central.close()
        self.local.close()
        self.mirror.close()


@pytest.fixture
def rig(tmp_path: Path, new_postgres_url: Callable[[], str]) -> Iterator[Rig]:
    made = Rig(tmp_path / sqlite.DATABASE_NAME, new_postgres_url())
    yield made
    made.close()


def test_a_key_made_and_revoked_centrally_is_so_here(rig: Rig) -> None:
    """T39."""
    assert rig.mirror.refresh()
    assert not rig.mirror.refresh()
    gateway = rig.gateway()
    gateway.key_ring(DEFAULTS)
    rig.central.create_tenant("acme", {"weight": 3})
    record, secret = rig.central.create_key("acme")
    assert not gateway.changed()
    assert rig.mirror.refresh()
    assert gateway.changed()
    ring = gateway.key_ring(DEFAULTS)
    assert ring == rig.central.key_ring(DEFAULTS)
    assert ring[keys.digest(PEPPER, secret.encode())].principal.tenant == "acme"
    assert gateway.ring_revision == rig.central.revision()
    rig.central.revoke(record.id)
    rig.mirror.refresh()
    assert gateway.changed()
    assert gateway.key_ring(DEFAULTS) == {}
    gateway.close()


def test_prices_set_centrally_are_the_prices_here(rig: Rig) -> None:
    """Also on top of others: the table takes no changes, and gets none."""
    central = PriceStore(PostgresDatabase(rig.url), clock=rig.clock, actor="cli:root")
    here = PriceStore(sqlite.open_file(Path(rig.local.name)), clock=rig.clock, actor="service")
    for price in ("0.15", "0.20"):
        central.enter([Draft("EUR", {Item.INPUT: price}, model="m")])
        assert rig.mirror.refresh()
        assert here.versions() == central.versions()
        assert here.revision() == central.revision()
    assert len(here.book()) == 2
    central.close()
    here.close()


def test_prices_of_a_central_database_that_came_back_from_a_backup_are_the_prices_here(rig: Rig) -> None:
    """Fewer, and others under the same numbers: a copy that could not follow would not hear of a revoked key either."""
    central = PriceStore(PostgresDatabase(rig.url), clock=rig.clock, actor="cli:root")
    here = PriceStore(sqlite.open_file(Path(rig.local.name)), clock=rig.clock, actor="service")
    for price in ("0.15", "0.20"):
        central.enter([Draft("EUR", {Item.INPUT: price}, model="m")])
    rig.mirror.refresh()
    with psycopg.connect(rig.url) as admin:
        admin.execute("SET session_replication_role = replica")  # as pg_restore does: no trigger keeps a row
        admin.execute("DELETE FROM price")
        admin.execute("UPDATE tenancy SET revision = 0")
    central.enter([Draft("EUR", {Item.INPUT: "0.30"}, model="m")])
    rig.mirror.refresh()
    assert here.versions() == central.versions()
    assert len(here.book()) == 1
    central.close()
    here.close()


def test_only_what_differs_is_written(rig: Rig) -> None:
    for name in ("acme", "globex", "initech"):
        rig.central.create_tenant(name)
        rig.central.create_key(name)
    rig.mirror.refresh()
    rig.local.execute("CREATE TABLE touched (name TEXT NOT NULL) STRICT")
    for table, column in (("tenant", "name"), ("api_key", "tenant")):
        for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            rig.local.execute(
                f"CREATE TRIGGER t_{table}_{event} AFTER {event} ON {table}"
                f" BEGIN INSERT INTO touched VALUES ({row}.{column}); END"
            )
    rig.central.change_tenant("globex", {"weight": 5})
    assert rig.mirror.refresh()
    assert rig.local.rows("SELECT name FROM touched") == [("globex",)]


def test_rows_that_are_gone_centrally_go_here_too_whatever_names_what(rig: Rig) -> None:
    rig.central.create_tenant("acme")
    record, _ = rig.central.create_key("acme")
    rig.central.rotate(record.id, overlap_s=0)
    rig.mirror.refresh()
    with psycopg.connect(rig.url) as admin:
        admin.execute("DELETE FROM api_key")
        admin.execute("DELETE FROM tenant")
    assert rig.mirror.refresh()
    assert rig.local.rows("SELECT name FROM tenant") == []
    assert rig.local.rows("SELECT id FROM api_key") == []


def test_the_copy_knows_when_it_was_last_true(rig: Rig) -> None:
    assert mirror.seen_s(rig.local) is None
    rig.mirror.refresh()
    first_s = mirror.seen_s(rig.local)
    assert first_s == rig.clock.wall_s()
    rig.clock.advance(9)
    rig.mirror.refresh()
    assert mirror.seen_s(rig.local) == first_s, "not a commit for every look"
    rig.clock.advance(2)
    rig.mirror.refresh()
    assert mirror.seen_s(rig.local) == rig.clock.wall_s()


def test_tenants_of_ones_own_are_never_overwritten(rig: Rig) -> None:
    gateway = rig.gateway()
    gateway.create_tenant("acme")
    gateway.close()
    with pytest.raises(ConfigError, match="headrace db move"):
        rig.mirror.refresh()
    assert rig.local.rows("SELECT name FROM tenant") == [("acme",)]


def test_another_database_than_before_changes_nothing_here(
    rig: Rig, postgres: PostgresServer, new_postgres_url: Callable[[], str]
) -> None:
    """T54: restarted empty. A new database under the old name must not revoke every key."""
    rig.central.create_tenant("acme")
    rig.central.create_key("acme")
    rig.mirror.refresh()
    stranger = PostgresDatabase(new_postgres_url())
    wrong = Mirror(sqlite.open_file(Path(rig.local.name)), stranger, clock=rig.clock)
    with pytest.raises(ConfigError, match="schema"):
        wrong.refresh()
    schema.migrate(stranger)
    with pytest.raises(ConfigError, match="another database"):
        wrong.refresh()
    schema.downgrade(stranger, to=schema.NEWEST - 1, lose=True)
    with pytest.raises(ConfigError, match="schema"):
        wrong.refresh()
    wrong.close()
    assert rig.local.row("SELECT count(*) FROM api_key") == (1,)


def test_every_table_has_its_place(rig: Rig) -> None:
    """A new table is copied down, shipped up, or said to stay where it is. What is copied down counts its changes."""
    tables = {
        name
        for (name,) in rig.local.rows(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        )
    }
    central_alone = {"admin", "audit", "audit_head", "correction", "invoice", "invoiced"}
    sent_by_others = {"key_use"}  # app.central
    each_its_own = {
        "migration",
        "tenancy",
        "installation",
        "mirror",
        "outbox",
        "shipping",
        "gateway",
        "usage_rejected",
        "engine_count",
        "deployment_version",
        "deployment_wanted",
        "rollout_word",
        "capacity_record",
        *fleet_tables.TABLES,
    }
    assert tables == {*MIRRORED, *SHIPPED, *central_alone, *sent_by_others, *each_its_own}
    counted = {
        table
        for table, statement in rig.local.rows(
            "SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'trigger'"
        )
        if "UPDATE tenancy SET revision" in statement
    }
    assert set(MIRRORED) <= counted
    assert len(MIGRATIONS) == schema.NEWEST
