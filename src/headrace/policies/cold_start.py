"""How long until a replica that is started now answers? What earlier starts took, by stage, and what that says of this one."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headrace.policies.quantiles import nearest_rank

# Older starts say less: disks, caches and models change.
STARTS_MAX = 20
# What one that takes longer than all before it may still take, as a share of what it has taken.
_LONGER_SHARE = 0.25
_LEFT_MIN_S = 1.0


class ColdStart(msgspec.Struct, frozen=True):
    """One start, measured from the decision to the first answer.

    Attributes:
        digest: Of the revision that was started.
        hardware: What it was started on, in words that are equal for equal machines.
        stages: Seconds by stage, in the order in which they came.
        at_s: Unix seconds when it was ready.
    """

    deployment: str
    digest: str
    hardware: str
    stages: dict[str, float]
    at_s: float

    @property
    def total_s(self) -> float:
        return sum(self.stages.values())


class Stage(NamedTuple):
    """What one stage took."""

    name: str
    p50_s: float
    p95_s: float


class Figures(msgspec.Struct, frozen=True):
    """What the last starts took.

    Attributes:
        totals_s: Of each, ascending; at least one.
        stages: In the order of the newest start.
        is_like: They are of another revision, or of other hardware, because this one has never been started there.
    """

    totals_s: tuple[float, ...]
    stages: tuple[Stage, ...]
    is_like: bool = False

    @property
    def p50_s(self) -> float:
        return nearest_rank(self.totals_s, 0.5)

    @property
    def p95_s(self) -> float:
        return nearest_rank(self.totals_s, 0.95)

    def left_s(self, elapsed_s: float) -> float:
        """How long a start that has taken that long will still take, so that nine of ten callers who come back then find it
        ready: by those that took longer."""
        longer = [total_s - elapsed_s for total_s in self.totals_s if total_s > elapsed_s]
        left_s = nearest_rank(longer, 0.9) if longer else _LONGER_SHARE * elapsed_s
        return max(_LEFT_MIN_S, left_s)


def figures(starts: Sequence[ColdStart], *, deployment: str, digest: str, hardware: str) -> Figures | None:
    """Of the last starts of this revision on this hardware; where there are none, of what is most like it: the revision
    elsewhere, the deployment's other revisions here, then anywhere. None where the deployment was never started.

    Args:
        starts: Newest last.
    """
    own = [start for start in starts if start.deployment == deployment]
    choices = (
        [start for start in own if start.digest == digest and start.hardware == hardware],
        [start for start in own if start.digest == digest],
        [start for start in own if start.hardware == hardware],
        own,
    )
    for index, chosen in enumerate(choices):
        if chosen:
            return _figures(chosen[-STARTS_MAX:], is_like=index > 0)
    return None


def _figures(starts: Sequence[ColdStart], *, is_like: bool) -> Figures:
    stages = []
    for name in starts[-1].stages:
        took_s = sorted(start.stages[name] for start in starts if name in start.stages)
        stages.append(Stage(name, nearest_rank(took_s, 0.5), nearest_rank(took_s, 0.95)))
    return Figures(tuple(sorted(start.total_s for start in starts)), tuple(stages), is_like)
