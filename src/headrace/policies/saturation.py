"""Where does more load bring no more? The knee of a sweep of callers, what is done there, and which level to try next.

In a closed loop N callers who wait for their answers get X(N) results per second. While there is room, X grows in proportion to
N; beyond it X stays, and only the waiting grows. The knee is where the line through the origin and the last level that still
grew meets the plateau, N* = X_max x N / X(N): with six slots, four callers at 4/s and a plateau of 6/s it is six, though nobody
tried six. That is then tried.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.capacity import Bound
from headrace.core.verdicts import Interval

TOLERANCE = 0.05
"""What is within this share of the most that was reached is as much."""
FAILURES_MAX = 0.05
"""Beyond this share of requests that got no whole answer, a level shows a service that is past its end."""


class Point(NamedTuple):
    """One level of a sweep.

    Attributes:
        per_s: Results per second, with bounds.
        failed_share: Of what was asked, but for what was cancelled as planned.
        is_slow: Whether it is beyond a bound of time that the caller has set.
    """

    callers: int
    per_s: Interval
    failed_share: float = 0.0
    is_slow: bool = False

    @property
    def most(self) -> float:
        return self.per_s.estimate or 0.0

    @property
    def is_past(self) -> bool:
        return self.failed_share > FAILURES_MAX or self.is_slow


class Knee(NamedTuple):
    """What a sweep came to.

    Attributes:
        callers: The fewest with which it does about all that it can.
        per_s: Results per second that it can do.
    """

    bound: Bound
    callers: int
    per_s: Interval


def next_callers(points: Sequence[Point], *, callers_max: int) -> int | None:
    """How many to try next; None when more would tell nothing new.

    One, two, four and so on until there is no more, or it is past its end; then the knee itself, where it wasn't tried.
    """
    if not points:
        return 1
    tried = {point.callers for point in points}
    last = max(points, key=_callers)
    if not is_saturated(points):
        if last.callers >= callers_max:
            return None
        return min(callers_max, 2 * last.callers)
    guess = estimate(points)
    return guess if guess not in tried and guess <= callers_max else None


def is_saturated(points: Sequence[Point]) -> bool:
    """Whether the levels show an end: requests fail or take too long, or twice in a row more callers brought no more."""
    return bound(points) is not Bound.NONE


def bound(points: Sequence[Point]) -> Bound:
    """What showed the end."""
    ordered = sorted(points, key=_callers)
    for point in ordered:
        if point.is_past:
            return Bound.FAILURES if point.failed_share > FAILURES_MAX else Bound.LATENCY
    flat = 0
    for index in range(1, len(ordered)):
        before = max(point.most for point in ordered[:index])
        grew = ordered[index].most > before * (1 + TOLERANCE)
        flat = 0 if grew else flat + 1
        if flat >= 2:  # a single level may have had a bad moment
            return Bound.THROUGHPUT
    return Bound.NONE


def knee(points: Sequence[Point]) -> Knee:
    """What the sweep came to; of one that showed no end, the most that was seen.

    Args:
        points: At least one.
    """
    ordered = sorted(points, key=_callers)
    fine = [point for point in ordered if not point.is_past] or ordered[:1]
    best = max(fine, key=_most)
    # A service that thrashes does less with more callers: those levels aren't what it can do.
    plateau = [point for point in fine if point.most >= best.most * (1 - TOLERANCE)]
    return Knee(bound(points), plateau[0].callers, together([point.per_s for point in plateau]))


def together(found: Sequence[Interval]) -> Interval:
    """The mean of levels that all show the same, each weighed by how narrow it is; its bounds are the mean's.

    Bounds at a distance d_i of estimates x_i: sum(x_i / d_i^2) / sum(1 / d_i^2), +- 1 / sqrt(sum(1 / d_i^2)).
    """
    narrow = [
        (each.estimate, (each.high - each.low) / 2)
        for each in found
        if each.estimate is not None
        and each.low is not None
        and each.high is not None
        and each.high > each.low
    ]
    if not narrow:
        values = [each.estimate for each in found if each.estimate is not None]
        return Interval(sum(values) / len(values) if values else None, None, None)
    weight = sum(reach**-2 for _, reach in narrow)
    mean = sum(value * reach**-2 for value, reach in narrow) / weight
    reach = 1 / math.sqrt(weight)
    return Interval(mean, mean - reach, mean + reach)


def estimate(points: Sequence[Point]) -> int:
    """Where the line through the last level that grew meets the plateau, in whole callers."""
    ordered = sorted((point for point in points if not point.is_past), key=_callers)
    if not ordered:
        return 1
    most = max(point.most for point in ordered)
    enough = next(index for index, point in enumerate(ordered) if point.most >= most * (1 - TOLERANCE))
    growing = [point for point in ordered[:enough] if point.most > 0]
    if not growing:
        return ordered[0].callers
    last = growing[-1]
    return max(last.callers + 1, round(most * last.callers / last.most))


def _callers(point: Point) -> int:
    return point.callers


def _most(point: Point) -> float:
    return point.most
