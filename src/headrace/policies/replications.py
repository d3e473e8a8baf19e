"""What do several runs say together? A mean between bounds by Student's t: one run of a simulation is one sample."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from headrace.core.verdicts import Interval
from headrace.policies import distributions


def mean(values: Sequence[float], *, alpha: float = 0.05) -> Interval:
    """Of independent runs, two-sided; no bounds from fewer than two."""
    if not values:
        return Interval(None, None, None)
    middle = fmean(values)
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return Interval(middle, None, None)
    half = t_quantile(len(values) - 1, alpha=alpha) * stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - half, middle + half)


def t_quantile(freedom: int, *, alpha: float) -> float:
    """The t that is passed, to either side, with that chance: P(|T| > t) = I_x(freedom / 2, 1 / 2), x = freedom /
    (freedom + t * t)."""

    def is_passed_more(t: float) -> bool:
        return distributions.beta_cdf(freedom / (freedom + t * t), freedom / 2, 0.5) > alpha

    return distributions.root(is_passed_more, 0.0, 1e4)
