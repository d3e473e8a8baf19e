"""A provider whose routes a test writes: revisions of one name, each a model of a scripted engine of its own."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.fleet import PPM
from headrace.core.load import PlaneLoad, TargetLoad
from tests.gateway.rig import NO_LIMITS, Rig
from tests.support.provider import provider, wait_until
from tests.support.scripted import scripted_engine

PROGRAM = Path(__file__).with_name("routed_headrace.py")
NAME = "chat"


class RoutedRig(Rig):
    """Engine n (from 1) serves version n of the model `chat`.

    State: `_targets` and `_routes` as they are in the file; `_generation` of all replicas.
    """

    file: Path
    _generation = 0

    def begin(self, file: Path) -> None:
        """Of replicas nothing is known any more, such as that they were ejected."""
        self.file = file
        self._generation += 1
        self._targets: dict[str, dict[str, Any]] = {
            f"chat-{version}": {"name": NAME, "version": version, "generation": self._generation}
            for version in range(1, len(self.engines) + 1)
        }
        self._routes: dict[str, Any] = {}

    def route(self, *weights: float, **more: Any) -> None:
        """Version n gets the n-th share; returns once every plane goes by it. The first is the accepted one, unless
        `accepted` says which."""
        accepted = more.pop("accepted", 1)
        arms = [(f"{NAME}@v{version}", round(weight * PPM)) for version, weight in enumerate(weights, 1)]
        arms.sort(key=lambda arm: arm[0] != f"{NAME}@v{accepted}")
        self._routes = {
            NAME: {"arms": [{"target": target, "weight_ppm": weight} for target, weight in arms], **more}
        }
        self.publish()

    def change(self, version: int, **fields: Any) -> None:
        """Other fields of that version's deployment, as core.fleet has them, and `has_replicas`; in force with `publish`."""
        self._targets[f"chat-{version}"].update(fields)

    def withdraw(self, version: int) -> None:
        del self._targets[f"chat-{version}"]

    def publish(self) -> None:
        before = self.load().snapshot_version
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps({"targets": self._targets, "routes": self._routes}))
        draft.replace(self.file)
        wait_until(lambda: self.load().snapshot_version > before, what="every plane to go by the new routes")

    def load(self) -> PlaneLoad:
        """What the planes have reported."""
        return msgspec.json.decode(self.file.with_suffix(".load").read_bytes(), type=PlaneLoad)

    def target(self, version: int, until: Callable[[TargetLoad], object] = lambda _: True) -> TargetLoad:
        """What is reported of that version, once it is as `until` says."""
        key = f"{NAME}@v{version}"

        def found() -> TargetLoad | None:
            load = next((each for each in self.load().targets if each.target == key), None)
            return load if load is not None and until(load) else None

        load: TargetLoad = wait_until(found, what=f"the load of {key}")
        return load


@contextmanager
def routed_rig(*engines: dict[str, Any], config: str = "", slots: int | None = None) -> Iterator[RoutedRig]:
    """Each engine with its options of `scripted_engine`; the first has all of the weight."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="routes-")))
        file = folder / "routes.json"
        file.write_text('{"targets": {}, "routes": {}}')
        started = [
            stack.enter_context(scripted_engine(models=(f"{NAME}-{version}",), **options))
            for version, options in enumerate(engines, 1)
        ]
        running = stack.enter_context(
            provider(
                upstreams=[engine.url for engine in started],
                config=config + NO_LIMITS,
                upstream_slots=slots,
                ready=False,
                program=[sys.executable, str(PROGRAM), str(file)],
            )
        )
        wait_until(
            lambda: running.metric("headrace_replica_ready") == len(started), what="every replica to be ready"
        )
        wait_until(file.with_suffix(".load").exists, what="the first report")
        rig = RoutedRig(running, started)
        rig.begin(file)
        rig.route(1.0, *(0.0 for _ in engines[1:]))
        wait_until(lambda: running.get("/readyz")[0] == 200, what="/readyz")
        yield rig
