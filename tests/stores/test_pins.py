"""What deployments need is known from what was applied, accepted and still runs, and each need is said in words."""

from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.core.deployments import Artifact, DeploymentSpec, EngineKind, Identity, Revision
from headrace.core.errors import ConfigError
from headrace.core.fleet import Task
from headrace.core.ids import ReplicaId
from headrace.stores import directory, migrations, pins, schema, sqlite
from headrace.stores.database import Database
from headrace.stores.deployments import DeploymentStore
from headrace.stores.fleet import Change, DeploymentRow, FleetStore, ReplicaRow


def spec(name: str = "chat") -> DeploymentSpec:
    return DeploymentSpec(deployment=Identity(name=name, engine=EngineKind.SCRIPTED))


def revision(letter: str, **more: Artifact) -> Revision:
    weights = Artifact("hf://o/r@c/f", sha256=letter * 64)
    return Revision(task=Task.CHAT, engine=EngineKind.SCRIPTED, weights=weights, **more)  # type: ignore[arg-type]


@pytest.fixture
def deployments(database: Database, clock: ManualClock) -> DeploymentStore:
    return DeploymentStore(database, clock=clock)


@pytest.fixture
def fleet(database: Database, clock: ManualClock) -> FleetStore:
    store = FleetStore(database, clock=clock)
    store.take_lease("a test")
    return store


def test_what_is_wanted_and_what_a_rollback_may_need_is_pinned(
    deployments: DeploymentStore, fleet: FleetStore
) -> None:
    deployments.apply(spec(), revision("a"), "")
    deployments.apply(spec(), revision("b"), "")
    assert pins.needs(deployments, fleet) == {
        "a" * 64: ("a rollback may go back to chat@v1",),
        "b" * 64: ("chat@v2 is wanted",),
    }


def test_tokenizer_template_and_draft_are_pinned_with_their_weights(
    deployments: DeploymentStore, fleet: FleetStore
) -> None:
    parts = {part: Artifact(part, sha256=part[0] * 64) for part in ("tokenizer", "template", "draft")}
    deployments.apply(spec(), revision("a", **parts), "")
    assert pins.needs(deployments, fleet).keys() == {"a" * 64, "t" * 64, "d" * 64}


def test_what_was_accepted_or_runs_is_pinned_however_long_ago_it_was_wanted(
    deployments: DeploymentStore, fleet: FleetStore
) -> None:
    """In a rollout that takes long, or was stopped: many versions were applied since the one that answers."""
    for letter in "abcdefgh":
        deployments.apply(spec(), revision(letter), "")
    replica = ReplicaRow(ReplicaId("chat-0"), "chat", 2)
    fleet.write(Change(replicas={replica.id: replica}, deployments={"chat": DeploymentRow("chat", 1, "{}")}))
    found = pins.needs(deployments, fleet)
    assert found["a" * 64] == ("a rollback may go back to chat@v1", "chat@v1 is accepted")
    assert found["b" * 64] == ("chat-0 runs chat@v2",)
    assert "c" * 64 not in found


def test_a_removed_deployment_keeps_what_undoing_the_removal_needs(
    deployments: DeploymentStore, fleet: FleetStore
) -> None:
    deployments.apply(spec(), revision("a"), "")
    deployments.remove("chat")
    assert pins.needs(deployments, fleet) == {"a" * 64: ("a rollback may go back to chat@v1",)}


def test_a_replica_of_a_version_that_nobody_knows_stops_every_removal(
    deployments: DeploymentStore, fleet: FleetStore
) -> None:
    """What it needs can't be known, so nothing may be taken."""
    deployments.apply(spec(), revision("a"), "")
    replica = ReplicaRow(ReplicaId("chat-0"), "chat", 7)
    fleet.write(Change(replicas={replica.id: replica}))
    with pytest.raises(ConfigError, match="chat@v7 runs here and was never applied"):
        pins.needs(deployments, fleet)


def test_a_data_directory_without_deployments_needs_nothing(tmp_path: Path) -> None:
    assert pins.needs_of(tmp_path) == {}
    sqlite.open_file(tmp_path / sqlite.DATABASE_NAME).close()
    assert pins.needs_of(tmp_path) == {}


def test_a_database_of_an_older_version_is_read_as_it_is(tmp_path: Path) -> None:
    """A service that was upgraded starts with it, holds the directory, and hasn't brought it up yet."""
    database = sqlite.open_file(tmp_path / sqlite.DATABASE_NAME)
    names = [step.name for step in migrations.MIGRATIONS]
    schema.downgrade(database, to=names.index("applied deployments"))
    database.close()
    with directory.sole_user(tmp_path):
        assert pins.needs_of(tmp_path) == {}
