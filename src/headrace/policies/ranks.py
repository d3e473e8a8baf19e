"""Does one thing grow with another, and are some values smaller than others? By ranks alone, whatever their distribution."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from headrace.core.verdicts import Interval
from headrace.policies import distributions


def slope(points: Sequence[tuple[float, float]], *, alpha: float) -> Interval:
    """The median of the slopes between all pairs of points, which a single leap doesn't move.

    Source: P. K. Sen, JASA 63 (1968) 1379: between the slopes of ranks (N -+ z s) / 2, where N are the pairs and
    s^2 = n (n - 1) (2 n + 5) / 18.
    """
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] != a[0])
    if not slopes:
        return Interval(None, None, None)
    n, pairs = len(points), len(slopes)
    reach = distributions.normal_quantile(1 - alpha) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = math.floor((pairs - reach) / 2) - 1, math.ceil((pairs + reach) / 2)
    middle = (slopes[(pairs - 1) // 2] + slopes[pairs // 2]) / 2
    if low < 0 or high >= pairs:
        return Interval(middle, None, None)
    return Interval(middle, slopes[low], slopes[high])


def sooner_p(quick: Sequence[float], slow: Sequence[float]) -> float:
    """How likely it is that values as much below the others as these come of one distribution.

    By ranks and the normal approximation, one-sided, with corrections for ties and for continuity.

    Source: H. B. Mann, D. R. Whitney, Annals of Mathematical Statistics 18 (1947) 50.
    """
    n, m = len(quick), len(slow)
    if not n or not m:
        return 1.0
    ours, theirs = Counter(quick), Counter(slow)
    below, u, ties = 0, 0.0, 0
    for value in sorted({*ours, *theirs}):
        u += ours[value] * (below + theirs[value] / 2)
        below += theirs[value]
        ties += (ours[value] + theirs[value]) ** 3 - ours[value] - theirs[value]
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc(-(u + 0.5 - n * m / 2) / math.sqrt(2 * variance))
