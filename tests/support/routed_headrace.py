"""headrace whose models are revisions of others by a test's word: `python routed_headrace.py FILE up ...`; run it instead of `headrace`.

FILE, looked at all the time, says which model of the servers behind it is which version of which name, and how each name is
routed (see tests/support/routes.py). What the data planes report is written beside it, with the ending `.load`.
"""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from headrace.__main__ import run
from headrace.app.service import Service
from headrace.core.fleet import Deployment, FleetSnapshot, Route

LOOK_EVERY_S = 0.02


class Router:
    """State: `_snapshot`, the newest of the controller, and `_version` of the last that was published instead of it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_ns = 0
        self._snapshot = FleetSnapshot()
        self._version = 0
        self._service: Any = None
        self.publish: Any = Service._publish

    def published(self, service: Service, snapshot: FleetSnapshot) -> None:
        self._snapshot = snapshot
        if self._service is None:
            self._service = service
            self._look()
        else:
            self._publish()

    def _look(self) -> None:
        changed_ns = self._file.stat().st_mtime_ns
        if changed_ns != self._read_ns:
            self._read_ns = changed_ns
            self._publish()
        draft = self._file.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(self._service._front.load()))
        draft.replace(self._file.with_suffix(".load"))
        asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _publish(self) -> None:
        wanted = json.loads(self._file.read_text())
        self._version += 1
        deployments = {}
        for name, changes in wanted["targets"].items():
            if name in self._snapshot.deployments:
                deployment = _target(self._snapshot.deployments[name], changes)
                deployments[deployment.key] = deployment
        routes = msgspec.convert(wanted["routes"], dict[str, Route])
        self.publish(self._service, FleetSnapshot(self._version, deployments, routes))


def _target(offered: Deployment, changes: dict[str, Any]) -> Deployment:
    has_replicas = changes.pop("has_replicas", True)
    generation = changes.pop("generation")
    changes = {"revision": f"sha256:{changes['version']}", "upstream_model": offered.name, **changes}
    replicas = [replace(replica, generation=replica.generation + generation) for replica in offered.replicas]
    return replace(offered, **changes, replicas=tuple(replicas) if has_replicas else ())


if __name__ == "__main__":
    router = Router(Path(sys.argv.pop(1)))
    Service._publish = lambda self, snapshot: router.published(self, snapshot)  # type: ignore[method-assign]
    run()
