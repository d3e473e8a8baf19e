"""What do starts take here? Measured ones, kept by revision and hardware, for whoever must know how long the next one takes."""

from collections import deque
from collections.abc import Iterable, Mapping

from headrace.core.deployments import AppliedVersion
from headrace.policies import cold_start
from headrace.policies.cold_start import STARTS_MAX, ColdStart, Figures

# Of one deployment, all revisions together.
KEPT_MAX = 5 * STARTS_MAX


class ColdStarts:
    """State: `_starts` by deployment, newest last; `_figures` found by deployment and digest, until the next start.

    Args:
        hardware: Of this machine, in words that are equal for equal machines.
        stored: Of earlier controllers, newest last.
    """

    def __init__(self, *, hardware: str, stored: Iterable[ColdStart] = ()) -> None:
        self._hardware = hardware
        self._starts: dict[str, deque[ColdStart]] = {}
        self._figures: dict[tuple[str, str], Figures | None] = {}
        for start in stored:
            self._starts.setdefault(start.deployment, deque(maxlen=KEPT_MAX)).append(start)

    def note(self, applied: AppliedVersion, stages: Mapping[str, float], *, at_s: float) -> ColdStart | None:
        """A start that ended well; None where that very one was noted before, as after a restart of the controller.

        Args:
            stages: Seconds by stage, in the order in which they came.
            at_s: Unix seconds.
        """
        start = ColdStart(applied.name, applied.revision.digest, self._hardware, dict(stages), at_s)
        known = self._starts.setdefault(applied.name, deque(maxlen=KEPT_MAX))
        if any(each.stages == start.stages for each in known):
            return None
        known.append(start)
        for key in [key for key in self._figures if key[0] == applied.name]:
            del self._figures[key]
        return start

    def figures(self, applied: AppliedVersion) -> Figures | None:
        """What a start of that version takes; None where the deployment was never started."""
        digest = applied.revision.digest
        key = applied.name, digest
        if key not in self._figures:
            self._figures[key] = cold_start.figures(
                tuple(self._starts.get(applied.name, ())),
                deployment=applied.name, digest=digest, hardware=self._hardware,
            )  # fmt: skip
        return self._figures[key]
