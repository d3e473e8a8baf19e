"""What does a deployment look like at this moment? Its versions, their replicas, and what the data planes say of them."""

from collections.abc import Iterable, Sequence

from headrace.control.lives import Life
from headrace.control.steering import DeploymentSeen, TargetSeen
from headrace.control.wanted import WantedVersions
from headrace.core.deployments import AppliedVersion
from headrace.core.load import NO_LOAD, PlaneLoad


class Sight:
    """State: `load` and when it was said, `load_s`; `cold_start_s`, what the last start of each version took."""

    def __init__(self, wanted: WantedVersions) -> None:
        self._wanted = wanted
        self.load: PlaneLoad = NO_LOAD
        self.load_s = 0.0
        self.cold_start_s: dict[tuple[str, int], float] = {}

    def of(self, name: str, lives: Sequence[Life], *, also: Iterable[int]) -> DeploymentSeen:
        """Everything about that name.

        Args:
            lives: Its replicas.
            also: Versions that are looked at without being wanted, or having replicas.
        """
        wanted = self._wanted.get(name)
        numbers = {*also, *(life.row.version for life in lives)}
        if wanted is not None:
            numbers.add(wanted.version)
        found = {number: self._wanted.version(name, number) for number in sorted(numbers)}
        return DeploymentSeen(
            name,
            wanted,
            self._wanted.reason(name),
            {number: self._target(each, lives) for number, each in found.items() if each is not None},
            self._wanted.words(name),
        )

    def _target(self, applied: AppliedVersion, lives: Sequence[Life]) -> TargetSeen:
        mine = [life for life in lives if life.row.version == applied.version]
        cold_starts = [cold for life in mine if (cold := life.status().cold_start) is not None]
        if cold_starts:
            self.cold_start_s[applied.name, applied.version] = cold_starts[-1].total_s
        return TargetSeen(
            applied,
            tuple(life.seen(self.load) for life in mine),
            next((each for each in self.load.targets if each.target == applied.key), None),
            self.load_s,
            cold_starts[-1] if cold_starts else None,
        )
