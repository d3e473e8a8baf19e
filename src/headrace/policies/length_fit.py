"""Which distribution describes so many lengths? A lognormal one where that is close enough, and their own quantiles elsewhere."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from statistics import NormalDist

import msgspec

from headrace.core.workload import LengthKind, Lengths, constant

KS_MAX = 0.05
_QUANTILES = 101


class LengthFit(msgspec.Struct, frozen=True):
    """What describes so many lengths.

    Attributes:
        mu, sigma: Of the logarithms, also where a lognormal distribution is no good description.
        ks: Greatest distance between the shares of lengths up to any one of them, as they are and as a lognormal distribution
            with these bounds has them.
        chosen: What is used.
    """

    samples: int
    mu: float
    sigma: float
    ks: float
    chosen: Lengths


def fit(found: Sequence[int]) -> LengthFit:
    """The one length, a lognormal distribution, or quantiles; a length of 0 counts as 1, as nothing shorter can be asked for."""
    values = sorted(max(1, value) for value in found)
    logs = [math.log(value) for value in values]
    mu = math.fsum(logs) / len(logs)
    sigma = math.sqrt(math.fsum((each - mu) ** 2 for each in logs) / len(logs))
    low, high = values[0], values[-1]
    if low == high:
        return LengthFit(len(values), mu, 0.0, 0.0, constant(low))
    median = min(float(high), max(float(low), math.exp(mu)))
    lognormal = Lengths(
        LengthKind.LOGNORMAL, median=round(median, 1), sigma=round(sigma, 3), minimum=low, maximum=high
    )
    ks = _distance(values, mu, sigma)
    # As few as these differ by that much from any distribution, also from their own: 1.36 / sqrt(n) is its 95th percentile.
    if ks <= KS_MAX + 1.36 / math.sqrt(len(values)):
        return LengthFit(len(values), mu, sigma, ks, lognormal)
    steps = _QUANTILES - 1
    at = [values[min(len(values) - 1, round(step / steps * (len(values) - 1)))] for step in range(_QUANTILES)]
    quantiles = Lengths(LengthKind.EMPIRICAL, quantiles=tuple(at), minimum=low, maximum=max(high, low))
    return LengthFit(len(values), mu, sigma, ks, quantiles)


def _distance(values: Sequence[int], mu: float, sigma: float) -> float:
    """Kolmogorov's and Smirnov's, between whole numbers as they are and as they would be rounded."""
    below = NormalDist(mu, sigma).cdf
    distance, high = 0.0, values[-1]
    for value in sorted(set(values)):
        expected = 1.0 if value == high else below(math.log(value + 0.5))
        distance = max(distance, abs(bisect_right(values, value) / len(values) - expected))
    return distance
