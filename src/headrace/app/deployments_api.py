"""What can be done over the admin port with deployments? What the commands can, and the same way.

Docs: docs/reference/admin-api.md.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headrace.app.planning import Planner
from headrace.config import Config
from headrace.config import deployments as files
from headrace.config.deployments import DeploymentFile
from headrace.control.admin_reading import existing, names, parted
from headrace.control.admin_routes import AdminRoute, Asked, Reply, Turn, reply
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, InvalidRequest
from headrace.core.roles import Role
from headrace.policies import planning
from headrace.stores import views
from headrace.stores.deployments import DeploymentStore, open_deployments
from headrace.stores.downloads import Silent

BODY_BYTES_MAX = 4 * 1024 * 1024
FILES_MAX = 100


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """One deployment file: its text, and that of the prompt templates that it names."""

    name: str
    text: str
    templates: dict[str, str] = {}


class _Files(msgspec.Struct, forbid_unknown_fields=True):
    files: list[_File]


class _Rollback(msgspec.Struct, forbid_unknown_fields=True):
    to: int | None = None


class DeploymentsApi:
    """Answers out of the data directory, opened for each: what a plan must look up can take minutes."""

    def __init__(self, data: Path, config: Callable[[], Config], *, clock: Clock) -> None:
        self._data = data
        self._config = config
        self._clock = clock

    def routes(self) -> tuple[AdminRoute, ...]:
        """The table."""
        named = "/admin/v1/deployments/{name}"
        return (
            _row("GET", "/admin/v1/deployments", Role.VIEWER, self._list),
            _row("GET", named, Role.VIEWER, self._show),
            _row("POST", "/admin/v1/deployments/plan", Role.OPERATOR, self._plan, fields=names(_Files)),
            _row("POST", "/admin/v1/deployments/apply", Role.OPERATOR, self._apply, fields=names(_Files)),
            _row("POST", f"{named}/rollback", Role.OPERATOR, self._rollback, fields=names(_Rollback)),
            _row("DELETE", named, Role.OPERATOR, self._remove),
        )

    def _list(self, asked: Asked) -> Reply:
        with self._store(asked) as store:
            return reply(listed(store))

    def _show(self, asked: Asked) -> Reply:
        with self._store(asked) as store:
            name = asked.named["name"]
            existing(store.require, name)
            return reply(shown(store, name))

    def _plan(self, asked: Asked) -> Reply:
        with self._store(asked) as store:
            plans = self._planner(store).plan(_files(asked))
        return reply({"plans": [planning.facts(plan) for plan in plans]})

    def _apply(self, asked: Asked) -> Reply:
        with self._store(asked) as store:
            plans, applied = self._planner(store).apply(_files(asked))
            refusals = [f"{plan.file}: {refusal}" for plan in plans for refusal in plan.refusals]
            if refusals:
                raise InvalidRequest("\n".join(refusals), param="files")
            return reply(
                {
                    "applied": [views.applied(each.version, is_new=each.is_new) for each in applied],
                    "change": store.revision(),
                }
            )

    def _rollback(self, asked: Asked) -> Reply:
        wanted, _ = parted(asked.fields, _Rollback)
        with self._store(asked) as store:
            existing(store.require, asked.named["name"])
            target, is_new = self._planner(store).rollback(asked.named["name"], wanted.to)
            return reply({"applied": [views.applied(target, is_new=is_new)], "change": store.revision()})

    def _remove(self, asked: Asked) -> Reply:
        with self._store(asked) as store:
            existing(store.require, asked.named["name"])
            was_wanted = self._planner(store).remove(asked.named["name"])
            return reply({"removed": was_wanted, "change": store.revision()})

    def _planner(self, store: DeploymentStore) -> Planner:
        return Planner(self._data, self._config(), store, clock=self._clock, progress=Silent())

    @contextmanager
    def _store(self, asked: Asked) -> Iterator[DeploymentStore]:
        store = open_deployments(self._data, clock=self._clock, actor=asked.caller.actor)
        try:
            yield store
        finally:
            store.close()


def listed(store: DeploymentStore) -> dict[str, Any]:
    """Every name that was ever applied, as JSON has it."""
    wanted = store.wanted()
    return {
        "deployments": [views.deployment(wish, wanted.get(name)) for name, wish in store.wishes().items()],
        "change": store.revision(),
    }


def shown(store: DeploymentStore, name: str) -> dict[str, Any]:
    """One name: what is wanted of it, its versions and when each was wanted."""
    wish, wanted = store.require(name), store.wanted().get(name)
    return {
        **views.deployment(wish, wanted),
        "spec": None if wanted is None else wanted.spec,
        "revision": None if wanted is None else wanted.revision,
        "file": None if wanted is None else wanted.file_text,
        "versions": [views.version(each) for each in store.versions(name)],
        "history": [views.wish(each) for each in store.history(name)],
    }


def _files(asked: Asked) -> list[DeploymentFile]:
    given, _ = parted(asked.fields, _Files)
    if not 0 < len(given.files) <= FILES_MAX:
        raise InvalidRequest(f"`files` holds 1 to {FILES_MAX} deployment files", param="files")
    read = [files.given(each.text, each.templates, file=each.name) for each in given.files]
    known = {file.spec.name for file in read}
    if len(known) < len(read):
        raise ConfigError("two of the files have the same `deployment.name`")
    return read


def _row(
    method: str, path: str, role: Role, answer: Callable[[Asked], Reply], *, fields: tuple[str, ...] = ()
) -> AdminRoute:
    return AdminRoute(
        method, path, role, answer, fields=fields, turn=Turn.DEPLOYMENTS, body_bytes_max=BODY_BYTES_MAX
    )
