"""Every act is in the log with what it changed, and what was done to the log by hand is found."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.stores import audit, pepper, sqlite
from headrace.stores.audit import Act, Action
from headrace.stores.database import Database
from headrace.stores.tenants import TenantStore

PEPPER = bytes(range(32))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = sqlite.open_file(tmp_path / sqlite.DATABASE_NAME)
    yield opened
    opened.close()


@pytest.fixture
def store(database: Database) -> TenantStore:
    return TenantStore(database, PEPPER, clock=ManualClock(), actor="cli:root")


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One log for all examples of a property."""
    opened = sqlite.open_file(tmp_path_factory.mktemp("growing") / sqlite.DATABASE_NAME)
    yield opened
    opened.close()


def fill(database: Database, count: int) -> None:
    with database.transaction():
        for number in range(count):
            act = Act(
                float(number),
                "cli:root",
                Action.TENANT_CHANGE,
                "acme",
                "acme",
                {"weight": (number, number + 1)},
            )
            audit.record(database, act)


def by_hand(database: Database, *statements: str) -> None:
    """What somebody does with the sqlite3 shell who has read the schema."""
    with closing(sqlite3.connect(database.name)) as connection, connection:
        for (trigger,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'audit'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            connection.execute(statement)


def test_each_act_on_tenants_and_keys_is_in_the_log_with_what_it_changed(store: TenantStore) -> None:
    store.create_tenant("acme", {"weight": 3})
    store.change_tenant("acme", {"weight": 2, "organization": "acme-group"})
    key, _ = store.create_key("acme", name="ci")
    new, _ = store.on_behalf_of("admin:k3x9q2ab").rotate(key.id, overlap_s=0)
    store.revoke(new.id)
    created, changed, made, rotated, revoked = store.audit_entries()
    assert (created.action, created.actor, created.target, created.tenant) == (
        "tenant.create",
        "cli:root",
        "acme",
        "acme",
    )
    assert created.changes == {"weight": (1, 3)}
    assert changed.changes == {"weight": (3, 2), "organization": ("", "acme-group")}
    assert (made.action, made.target, made.changes["name"]) == ("key.create", key.id, (None, "ci"))
    assert (rotated.action, rotated.actor, rotated.target) == ("key.rotate", "admin:k3x9q2ab", key.id)
    assert rotated.changes["replaced_by"] == (None, new.id)
    assert (revoked.action, revoked.target, revoked.tenant) == ("key.revoke", new.id, "acme")
    assert [entry.number for entry in store.audit_entries()] == [1, 2, 3, 4, 5]
    assert store.verify_audit().problem == ""


def test_what_changes_nothing_is_no_act(store: TenantStore) -> None:
    store.create_tenant("acme")
    key, _ = store.create_key("acme")
    store.revoke(key.id)
    store.revoke(key.id)
    store.change_tenant("acme", {"weight": 1})
    with pytest.raises(ConfigError):
        store.create_tenant("acme")
    assert [entry.action for entry in store.audit_entries()] == ["tenant.create", "key.create", "key.revoke"]


def test_an_act_that_fails_is_not_in_the_log_and_an_entry_that_fails_undoes_the_act(
    store: TenantStore, database: Database
) -> None:
    by_hand(database, "ALTER TABLE audit_head RENAME TO gone")
    with pytest.raises(ConfigError, match="audit_head"):
        store.create_tenant("acme")
    assert not store.has_tenant("acme")
    by_hand(database, "ALTER TABLE gone RENAME TO audit_head")
    assert store.audit_entries() == []


def test_no_secret_is_in_the_log(store: TenantStore, database: Database) -> None:
    """T47."""
    store.create_tenant("acme")
    key, first = store.create_key("acme")
    _, second = store.rotate(key.id, overlap_s=10)
    shown = str(database.rows("SELECT * FROM audit")) + str(store.audit_entries())
    assert key.id in shown
    assert first[17:60] not in shown
    assert second[17:60] not in shown


def test_the_database_refuses_to_change_or_delete_an_entry(database: Database) -> None:
    fill(database, 3)
    for statement in ("UPDATE audit SET actor = 'nobody'", "DELETE FROM audit WHERE number = 3"):
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            database.execute(statement)
    assert audit.verify(database) == audit.Verdict(3, audit.entries(database)[-1].head, "")


TAMPERED = {
    "changed": ("UPDATE audit SET actor = 'nobody' WHERE number = 2", 1, "entry 2 was changed"),
    "another time": ("UPDATE audit SET at_s = at_s + 1 WHERE number = 4", 3, "entry 4 was changed"),
    "removed": ("DELETE FROM audit WHERE number = 3", 2, "entry 3 is missing"),
    "first removed": ("DELETE FROM audit WHERE number = 1", 0, "entry 1 is missing"),
    "end removed": ("DELETE FROM audit WHERE number >= 4", 3, "entries 4 to 5 are missing"),
    "all removed": ("DELETE FROM audit", 0, "entries 1 to 5 are missing"),
    "added": (
        "INSERT INTO audit SELECT 6, at_s, actor, action, target, tenant, changes, digest FROM audit WHERE number = 5",
        5,
        "entry 6 was changed",
    ),
    "swapped": (
        "UPDATE audit SET changes = (SELECT changes FROM audit AS other WHERE other.number = 7 - audit.number)"
        " WHERE number IN (3, 4)",
        2,
        "entry 3 was changed",
    ),
    "head forgotten": (
        "UPDATE audit_head SET number = 0, digest = NULL",
        5,
        "not the one that was written last",
    ),
}


@pytest.mark.parametrize(("statement", "in_order", "problem"), TAMPERED.values(), ids=TAMPERED)
def test_what_was_done_to_the_log_by_hand_is_found_and_told(
    database: Database, statement: str, in_order: int, problem: str
) -> None:
    fill(database, 5)
    by_hand(database, statement)
    verdict = audit.verify(database)
    assert problem in verdict.problem
    assert verdict.entries == in_order


def test_a_chain_computed_anew_is_found_by_a_head_that_was_noted(database: Database) -> None:
    fill(database, 4)
    noted = audit.verify(database).head
    assert audit.verify(database, head=noted).problem == ""
    fill(database, 1)
    assert audit.verify(database, head=noted).problem == ""
    by_hand(database, "DELETE FROM audit", "UPDATE audit_head SET number = 0, digest = NULL")
    fill(database, 3)
    assert audit.verify(database).problem == ""
    assert "entries 4 to 4 are missing" in audit.verify(database, head=noted).problem
    with database.transaction():
        audit.record(database, Act(3.0, "cli:root", Action.KEY_CREATE, "slipped in"))
    assert "entry 4 is another than the one noted" in audit.verify(database, head=noted).problem


@pytest.mark.parametrize(
    "head", ["", "x", "1", "0:" + "00" * 32, "1:00", "-1:" + "00" * 32, "1:" + "zz" * 32]
)
def test_what_is_no_head_is_refused(database: Database, head: str) -> None:
    if not head:
        assert audit.verify(database, head=head) == audit.Verdict(0, "", "")
        return
    with pytest.raises(ConfigError, match="is no head"):
        audit.verify(database, head=head)


def test_entries_are_found_by_time_tenant_and_number(database: Database) -> None:
    fill(database, 5)
    with database.transaction():
        audit.record(database, Act(9.0, "cli:root", Action.KEY_REVOKE, "k", "other"))
    numbers: Callable[[list[audit.Entry]], list[int]] = lambda found: [entry.number for entry in found]  # noqa: E731
    assert numbers(audit.entries(database, since_s=3.0)) == [4, 5, 6]
    assert numbers(audit.entries(database, tenant="other")) == [6]
    assert numbers(audit.entries(database, after=2, limit=2)) == [3, 4]
    assert numbers(audit.entries(database, tenant="nobody")) == []


@given(
    acts=st.lists(
        st.builds(
            Act,
            at_s=st.floats(1, 1e10),
            actor=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
            action=st.sampled_from(Action),
            target=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
            changes=st.dictionaries(
                st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5),
                st.tuples(st.none() | st.integers(-(2**53), 2**53), st.lists(st.booleans(), max_size=2)),
                max_size=3,
            ),
        ),
        max_size=8,
    )
)
def test_whatever_an_act_holds_comes_back_as_it_was_and_the_chain_holds(
    growing: Database, acts: list[Act]
) -> None:
    before = audit.verify(growing).entries
    with growing.transaction():
        for act in acts:
            audit.record(growing, act)
    verdict = audit.verify(growing)
    assert (verdict.entries, verdict.problem) == (before + len(acts), "")
    for act, entry in zip(acts, audit.entries(growing, after=before), strict=True):
        assert (entry.at_s, entry.actor, entry.action, entry.target) == (
            act.at_s,
            act.actor,
            act.action,
            act.target,
        )
        assert entry.changes == act.changes


def test_commands_that_run_at_once_make_one_unbroken_chain(tmp_path: Path) -> None:
    """Four processes that change tenants at the same time: every change is there, and none was lost or mixed up."""
    pepper.load(tmp_path / pepper.NAME)
    program = (
        "import sys; from pathlib import Path; from headrace.core.clock import SystemClock;"
        " from headrace.stores import tenants;"
        " store = tenants.open_tenants(Path(sys.argv[1]), clock=SystemClock(), actor='cli:' + sys.argv[2]);"
        " sys.stdin.read(1);"
        " [store.create_tenant(f't{sys.argv[2]}-{n}') and store.create_key(f't{sys.argv[2]}-{n}') for n in range(5)]"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(n)], stdin=subprocess.PIPE)
        for n in range(4)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.close()
    assert [process.wait(timeout=100) for process in running] == [0] * 4
    with closing(sqlite.open_file(tmp_path / sqlite.DATABASE_NAME)) as database:
        assert audit.verify(database).entries == 40
        assert audit.verify(database).problem == ""
        by_actor = [entry.actor for entry in audit.entries(database)]
        assert sorted(by_actor) == sorted(f"cli:{n}" for n in range(4) for _ in range(10))
