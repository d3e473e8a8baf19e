"""Which bytes does a deployment need, now or to go back? They are never removed, whoever asks."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from headrace.core.clock import SystemClock
from headrace.core.deployments import AppliedVersion
from headrace.core.errors import ConfigError
from headrace.stores import schema, sqlite
from headrace.stores.deployments import DeploymentStore
from headrace.stores.fleet import FleetStore
from headrace.stores.sqlite import SqliteDatabase

_TABLES = ("deployment_version", "deployment_wanted", "deployment_state", "replica")

Needs = Mapping[str, tuple[str, ...]]
"""Who needs an artifact, in words, by its SHA-256."""

AskNeeds = Callable[[], Needs]


def nobody() -> Needs:
    """For stores beside no deployment."""
    return {}


def needs_of(data: Path) -> Needs:
    """What the deployments of a data directory need; nothing where none was ever applied."""
    path = data / sqlite.DATABASE_NAME
    if not path.exists():
        return {}
    # As it is: a service that starts asks before it brings an older schema up, and an older one has no deployments.
    with closing(SqliteDatabase(path)) as database:
        schema.refuse_newer(database, schema.number(database))
        if not all(database.has_table(table) for table in _TABLES):
            return {}
        clock = SystemClock()
        return needs(DeploymentStore(database, clock=clock), FleetStore(database, clock=clock))


def needs(deployments: DeploymentStore, fleet: FleetStore) -> Needs:
    """What is wanted, what was wanted before it, what was accepted last, and what still runs."""
    said: dict[str, list[str]] = {}

    def note(version: AppliedVersion, why: str) -> None:
        for artifact in version.revision.artifacts().values():
            reasons = said.setdefault(artifact.sha256, [])
            if why not in reasons:
                reasons.append(why)

    wishes = deployments.wishes()
    for version in deployments.within_reach():
        is_wanted = wishes[version.name].version == version.version
        note(version, f"{version.key} is wanted" if is_wanted else f"a rollback may go back to {version.key}")
    for name, row in fleet.deployments().items():
        if row.accepted:
            note(_version(deployments, name, row.accepted), f"{name}@v{row.accepted} is accepted")
    for replica in fleet.replicas():
        if replica.version:
            version = _version(deployments, replica.deployment, replica.version)
            note(version, f"{replica.id} runs {version.key}")
    said.pop("", None)  # what others keep, and we can't read
    return {sha256: tuple(reasons) for sha256, reasons in said.items()}


def _version(deployments: DeploymentStore, name: str, number: int) -> AppliedVersion:
    try:
        return deployments.version(name, number)
    except ConfigError as error:
        raise ConfigError(f"{name}@v{number} runs here and was never applied: {error}") from error
