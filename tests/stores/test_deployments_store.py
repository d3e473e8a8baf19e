"""What was applied is kept as it was, by a number that only grows; which of it is wanted is one newest row."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from headrace.core.clock import ManualClock
from headrace.core.deployment_terms import ScaleTerms
from headrace.core.deployments import Artifact, DeploymentSpec, EngineKind, Identity, Revision
from headrace.core.errors import ConfigError
from headrace.core.fleet import Task
from headrace.stores import audit, deployments, opening, schema
from headrace.stores.database import Database, DatabaseUnavailable
from headrace.stores.deployments import REMOVED, ROLLBACK_TARGETS, DeploymentStore
from headrace.stores.postgres import PostgresDatabase
from tests.stores.conftest import Connect


def spec(name: str = "chat", replicas_max: int = 1) -> DeploymentSpec:
    return DeploymentSpec(Identity(name, EngineKind.EMBEDDED), scale=ScaleTerms(max=replicas_max))


def revision(letter: str = "a") -> Revision:
    return Revision(Task.CHAT, EngineKind.EMBEDDED, weights=Artifact("m", sha256=letter * 64))


@pytest.fixture
def applied(database: Database, clock: ManualClock) -> DeploymentStore:
    return DeploymentStore(database, clock=clock, actor="cli:me")


def test_versions_count_from_one_for_each_name(applied: DeploymentStore) -> None:
    first, is_new = applied.apply(spec(), revision("a"), "# one")
    assert (first.key, first.file_text, first.actor, is_new) == ("chat@v1", "# one", "cli:me", True)
    assert applied.apply(spec(), revision("b"), "# two")[0].version == 2
    assert applied.apply(spec("other"), revision("a"), "")[0].version == 1
    assert [each.version for each in applied.versions("chat")] == [2, 1]
    assert {name: each.version for name, each in applied.wanted().items()} == {"chat": 2, "other": 1}
    assert applied.wanted()["chat"] == applied.version("chat", 2)


def test_what_is_applied_already_is_not_applied_again(applied: DeploymentStore) -> None:
    """Another comment in the file is no change; another bound of the fleet is one, with the same digest."""
    first, _ = applied.apply(spec(), revision(), "# one")
    number = applied.revision()
    assert applied.apply(spec(), revision(), "# two") == (first, False)
    assert applied.revision() == number
    second, is_new = applied.apply(spec(replicas_max=2), revision(), "# one")
    assert (second.version, second.revision.digest, is_new) == (2, first.revision.digest, True)


def test_an_older_version_is_wanted_again_and_stays_what_it_was(applied: DeploymentStore) -> None:
    first, _ = applied.apply(spec(), revision("a"), "")
    applied.apply(spec(), revision("b"), "")
    assert applied.rollback_target("chat") == first
    assert applied.want("chat", 1)
    assert not applied.want("chat", 1)
    assert applied.wanted()["chat"] == first
    assert [(wish.version, wish.reason) for wish in applied.history("chat")] == [
        (1, "apply"),
        (2, "apply"),
        (1, "rollback"),
    ]
    again, is_new = applied.apply(spec(), revision("b"), "")
    assert (again.version, is_new) == (3, True)


def test_who_went_back_once_does_not_come_to_what_was_left_by_going_back_again(
    applied: DeploymentStore, database: Database
) -> None:
    """At night nobody wants the version that was rolled back in the evening."""
    for weights in ("a", "b", "c"):
        applied.apply(spec(), revision(weights), "")
    applied.want("chat", 2, reason="rolled_back", instead_of=3)
    assert applied.rollback_target("chat").version == 1
    assert [each.version for each in applied.within_reach()] == [2, 1, 3]
    database.execute(
        "INSERT INTO deployment_state (name, accepted, rollout, epoch) VALUES ('chat', 2, '{\"proven\": []}', 1)"
    )
    with pytest.raises(ConfigError, match="rollback chat --to V"):
        applied.rollback_target("chat")


def test_a_removed_deployment_is_wanted_no_more_and_forgets_nothing(applied: DeploymentStore) -> None:
    applied.apply(spec(), revision("a"), "")
    assert applied.remove("chat")
    assert not applied.remove("chat")
    assert applied.wanted() == {}
    assert applied.require("chat").version == REMOVED
    assert applied.rollback_target("chat").version == 1
    assert applied.apply(spec(), revision("a"), "")[0].version == 2


def test_what_there_is_not_is_told_with_what_there_is(applied: DeploymentStore) -> None:
    with pytest.raises(ConfigError, match="no deployment `chat`; none was ever applied"):
        applied.rollback_target("chat")
    applied.apply(spec(), revision(), "")
    with pytest.raises(ConfigError, match="no deployment `chaat`; did you mean `chat`"):
        applied.remove("chaat")
    with pytest.raises(ConfigError, match="chat has no version 7; it has 1"):
        applied.want("chat", 7)
    with pytest.raises(ConfigError, match="nothing to go back to: no version served before version 1"):
        applied.rollback_target("chat")


def test_a_version_that_was_applied_never_changes(applied: DeploymentStore, database: Database) -> None:
    applied.apply(spec(), revision(), "")
    for statement in (
        "UPDATE deployment_version SET actor = 'x'",
        "DELETE FROM deployment_version",
        "UPDATE deployment_wanted SET version = 0",
        "DELETE FROM deployment_wanted",
    ):
        with pytest.raises(Exception, match="never changed"), database.transaction():
            database.execute(statement)


def test_every_change_is_in_the_audit_log(applied: DeploymentStore, database: Database) -> None:
    applied.apply(spec(), revision("a"), "")
    applied.apply(spec(), revision("b"), "")
    applied.acting("admin:x").want("chat", 1, reason="rollback")
    applied.remove("chat")
    found = audit.entries(database)
    assert [(entry.action, entry.actor, entry.target) for entry in found] == [
        ("deployment.apply", "cli:me", "chat"),
        ("deployment.apply", "cli:me", "chat"),
        ("deployment.rollback", "admin:x", "chat"),
        ("deployment.remove", "cli:me", "chat"),
    ]
    assert [entry.changes["version"] for entry in found] == [(None, 1), (1, 2), (2, 1), (1, None)]
    assert found[0].changes["digest"] == (None, revision("a").digest)


def test_what_a_rollback_needs_is_kept(applied: DeploymentStore) -> None:
    """Of a removed deployment too: removing it is undone by a rollback."""
    letters = "abcdef"
    for letter in letters:
        applied.apply(spec(), revision(letter), "")
    kept = letters[-1 - ROLLBACK_TARGETS :]
    assert _reached(applied) == {letter * 64 for letter in kept}
    applied.want("chat", 1)
    assert "a" * 64 in _reached(applied)
    applied.remove("chat")
    assert "a" * 64 in _reached(applied)


def _reached(applied: DeploymentStore) -> set[str]:
    return {a.sha256 for version in applied.within_reach() for a in version.revision.artifacts().values()}


def test_two_who_apply_at_once_get_two_versions(connect: Connect, clock: ManualClock) -> None:
    stores = {letter: DeploymentStore(connect(), clock=clock) for letter in "ab"}
    versions = [store.apply(spec(), revision(letter), "")[0].version for letter, store in stores.items()]
    assert versions == [1, 2]
    assert stores["a"].wanted() == stores["b"].wanted()


def test_a_version_of_a_newer_headrace_is_told_as_one(applied: DeploymentStore, database: Database) -> None:
    database.execute(
        "INSERT INTO deployment_version (name, version, file_text, spec, lock, digest, actor, applied_s)"
        " VALUES ('chat', 1, '', ?, '{}', '', '', 0.0)",
        (msgspec.json.encode({"tomorrow": 1}).decode(),),
    )
    with pytest.raises(ConfigError, match="applied by a newer headrace"):
        applied.version("chat", 1)


def test_a_machines_deployments_are_its_own_and_its_audit_log_is_the_central_one(
    tmp_path: Path, clock: ManualClock, new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_postgres_url()
    monkeypatch.setenv("CENTRAL", url)
    opening.remember(tmp_path, "env:CENTRAL")
    central = PostgresDatabase(url)
    schema.migrate(central)
    store = deployments.open_deployments(tmp_path, clock=clock, actor="cli:me")
    store.apply(spec(), revision(), "")
    store.close()
    assert [entry.action for entry in audit.entries(central)] == ["deployment.apply"]
    assert central.rows("SELECT * FROM deployment_version") == []
    central.close()
    local = opening.open_local(tmp_path)
    assert local.row("SELECT count(*) FROM deployment_version") == (1,)
    assert audit.entries(local) == []
    local.close()


def test_what_was_applied_is_known_while_the_central_database_is_away_but_nothing_changes_unaudited(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T54: the controller starts without it."""
    with closing(deployments.open_deployments(tmp_path, clock=clock)) as store:
        store.apply(spec(), revision(), "")
    monkeypatch.setenv("CENTRAL", "postgresql://headrace@127.0.0.1:1/nowhere")
    opening.remember(tmp_path, "env:CENTRAL")
    with closing(deployments.open_deployments(tmp_path, clock=clock)) as store:
        assert store.wanted()["chat"].version == 1
        with pytest.raises(DatabaseUnavailable):
            store.remove("chat")
        assert store.wanted()["chat"].version == 1
