"""Who does what a command about deployments asks for? The service that runs on the data directory, else this process itself."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from headrace import config
from headrace.app import deployments_api
from headrace.app.planning import Planner
from headrace.cli import identity, models, status
from headrace.config.deployments import DeploymentFile
from headrace.core.errors import ConfigError
from headrace.policies import planning
from headrace.policies.planning import Plan
from headrace.stores import directory, views
from headrace.stores.deployments import DeploymentStore, open_deployments

# What a plan looks up may have to be fetched.
PLAN_LIMIT_S = 3600.0
_PATH = "/admin/v1/deployments"
Json = dict[str, Any]


class Desk(Protocol):
    """What can be asked for; answers are as the admin port gives them."""

    @property
    def is_served(self) -> bool:
        """Whether a service runs, which then does what was asked."""
        ...

    def plan(self, files: Sequence[DeploymentFile]) -> list[Plan]: ...

    def apply(self, files: Sequence[DeploymentFile]) -> Json:
        """Raises ConfigError with every reason where one of them is refused; then none is applied."""
        ...

    def rollback(self, name: str, version: int | None) -> Json: ...

    def remove(self, name: str) -> Json: ...

    def listed(self) -> Json: ...

    def shown(self, name: str) -> Json: ...


@contextmanager
def desk(arguments: argparse.Namespace) -> Iterator[Desk]:
    """The one for the data directory of the command line."""
    data = config.data_directory(arguments.data)
    if directory.is_in_use(data):
        yield _Service(data)
        return
    file = getattr(arguments, "config", None) or config.environment("config")
    settings = config.load(Path(file) if file else None)
    data.mkdir(parents=True, exist_ok=True)
    store = open_deployments(data, clock=identity.CLOCK, actor=identity.actor())
    try:
        yield _Here(data, settings, store)
    finally:
        store.close()


class _Service:
    """Over the admin port."""

    is_served = True

    def __init__(self, data: Path) -> None:
        self._data = data

    def plan(self, files: Sequence[DeploymentFile]) -> list[Plan]:
        answer = self._ask("POST", f"{_PATH}/plan", _sent(files))
        return msgspec.convert(answer["plans"], list[Plan])

    def apply(self, files: Sequence[DeploymentFile]) -> Json:
        return self._ask("POST", f"{_PATH}/apply", _sent(files))

    def rollback(self, name: str, version: int | None) -> Json:
        return self._ask("POST", f"{_PATH}/{quote(name, safe='')}/rollback", {"to": version})

    def remove(self, name: str) -> Json:
        return self._ask("DELETE", f"{_PATH}/{quote(name, safe='')}")

    def listed(self) -> Json:
        return self._ask("GET", _PATH)

    def shown(self, name: str) -> Json:
        return self._ask("GET", f"{_PATH}/{quote(name, safe='')}")

    def _ask(self, method: str, path: str, fields: Json | None = None) -> Json:
        _, answer = status.fetch(self._data, path, method=method, fields=fields, limit_s=PLAN_LIMIT_S)
        return answer


class _Here:
    """On the data directory, while no service uses it."""

    is_served = False

    def __init__(self, data: Path, settings: config.Config, store: DeploymentStore) -> None:
        self._store = store
        self._planner = Planner(data, settings, store, clock=identity.CLOCK, progress=models.progress())

    def plan(self, files: Sequence[DeploymentFile]) -> list[Plan]:
        return self._planner.plan(files)

    def apply(self, files: Sequence[DeploymentFile]) -> Json:
        plans, applied = self._planner.apply(files)
        if refusals := [f"{plan.file}: {why}" for plan in plans for why in plan.refusals]:
            raise ConfigError("\n".join(refusals))
        return self._changed([views.applied(each.version, is_new=each.is_new) for each in applied])

    def rollback(self, name: str, version: int | None) -> Json:
        target, is_new = self._planner.rollback(name, version)
        return self._changed([views.applied(target, is_new=is_new)])

    def remove(self, name: str) -> Json:
        return {"removed": self._planner.remove(name), "change": self._store.revision()}

    def listed(self) -> Json:
        return _plain(deployments_api.listed(self._store))

    def shown(self, name: str) -> Json:
        return _plain(deployments_api.shown(self._store, name))

    def _changed(self, applied: list[views.Json]) -> Json:
        return {"applied": applied, "change": self._store.revision()}


def _sent(files: Sequence[DeploymentFile]) -> Json:
    return {
        "files": [{"name": file.name, "text": file.text, "templates": dict(file.templates)} for file in files]
    }


def _plain(value: Any) -> Json:
    """As it would have arrived over the admin port."""
    plain: Json = msgspec.json.decode(msgspec.json.encode(value))
    return plain


def facts(plans: Sequence[Plan]) -> list[Json]:
    """Plans as JSON has them."""
    return [dict(planning.facts(plan)) for plan in plans]
