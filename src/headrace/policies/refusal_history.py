"""What was turned away, and when? Counts by minute and reason, since refusals leave no record: a refused flood must not fill the disk.

Data planes report counts that only grow. What was added since the last report is put to the minute in which it was seen.
"""

from collections import Counter, deque
from typing import NamedTuple

from headrace.core.endings import ENDINGS
from headrace.core.ids import TargetKey
from headrace.core.load import PlaneLoad, TargetLoad
from headrace.core.outcome import Outcome

KEEP_S = 3 * 86_400.0
MODELS_MAX = 256
UNNAMED = "other"
"""Refusals whose reason ends requests that had begun as well, so that reports don't tell the two apart."""

_MINUTE_S = 60.0
_OUTCOMES: dict[str, set[Outcome]] = {}
for _ending in ENDINGS.values():
    _OUTCOMES.setdefault(_ending.reason.value, set()).add(_ending.outcome)
_ALWAYS_REFUSED = frozenset(reason for reason, outcomes in _OUTCOMES.items() if outcomes == {Outcome.REFUSED})


class Refused(NamedTuple):
    """What was turned away of one model.

    Attributes:
        reasons: How many by reason; UNNAMED where that isn't known.
        known_from_s: Unix seconds from which on it is known, at the earliest when it was asked from.
    """

    reasons: dict[str, int]
    known_from_s: float


class RefusalHistory:
    """State: `_minutes` by model, oldest first, of the last KEEP_S; `_last`, each target's counts when it was last seen."""

    def __init__(self, *, wall_s: float) -> None:
        self._begun_s = wall_s
        self._minutes: dict[str, deque[tuple[float, Counter[str]]]] = {}
        self._last: dict[TargetKey, TargetLoad] = {}

    def saw(self, load: PlaneLoad, *, wall_s: float) -> None:
        """A report of all data planes together."""
        for target in load.targets:
            last = self._last.get(target.target)
            if last is not None and last.refused == target.refused:
                continue
            added = target.since(last)
            self._last[target.target] = target.copy()
            if added.refused:
                self._add(target.name, _reasons(added), wall_s)
        if len(self._last) > len(load.targets):
            there = {target.target for target in load.targets}
            self._last = {key: last for key, last in self._last.items() if key in there}

    def _add(self, model: str, reasons: Counter[str], wall_s: float) -> None:
        minute_s = wall_s - wall_s % _MINUTE_S
        kept = self._minutes.get(model)
        if kept is None:
            if len(self._minutes) >= MODELS_MAX:
                del self._minutes[next(iter(self._minutes))]
            kept = self._minutes[model] = deque()
        if kept and kept[-1][0] >= minute_s:
            kept[-1][1].update(reasons)
        else:
            kept.append((minute_s, reasons))
        while kept[0][0] < wall_s - KEEP_S:
            kept.popleft()

    def since(self, model: str, since_s: float, *, wall_s: float) -> Refused:
        """From the minute of that Unix time on."""
        found: Counter[str] = Counter()
        for minute_s, reasons in self._minutes.get(model, ()):
            if minute_s + _MINUTE_S > since_s:
                found.update(reasons)
        return Refused(dict(found), max(since_s, self._begun_s, wall_s - KEEP_S))


def _reasons(added: TargetLoad) -> Counter[str]:
    known = Counter({reason: count for reason, count in added.causes.items() if reason in _ALWAYS_REFUSED})
    rest = added.refused - known.total()
    return known + Counter({UNNAMED: rest}) if rest > 0 else known
