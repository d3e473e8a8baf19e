"""Does something grow while the load stays the same? The slope of samples over time, with bounds that one jump can't fool.

Neighbouring samples of memory are hardly independent, so the slope is that of the means of equal parts of the time.
"""

import math
from collections.abc import Sequence

from headrace.core.verdicts import Interval

PARTS = 10
_T_95 = 1.860  # Student's t of PARTS - 2 = 8 degrees of freedom, one-sided 5 %


def slope(samples: Sequence[tuple[float, float]]) -> Interval:
    """Units per second, of samples (time, value); None where they are fewer than PARTS, or at one moment."""
    ordered = sorted(samples)
    if len(ordered) < PARTS or ordered[0][0] == ordered[-1][0]:
        return Interval(None, None, None)
    size = len(ordered) / PARTS
    parts = [ordered[round(i * size) : round((i + 1) * size)] for i in range(PARTS)]
    points = [(_mean([t for t, _ in part]), _mean([v for _, v in part])) for part in parts]
    mean_t, mean_v = _mean([t for t, _ in points]), _mean([v for _, v in points])
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    found = sum((t - mean_t) * (v - mean_v) for t, v in points) / spread
    rest = sum((v - mean_v - found * (t - mean_t)) ** 2 for t, v in points)
    reach = _T_95 * math.sqrt(rest / (PARTS - 2) / spread)
    return Interval(found, found - reach, found + reach)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
