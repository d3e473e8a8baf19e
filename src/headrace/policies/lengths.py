"""Which length stands at a share of a distribution? Drawn by one number each, so that nothing else changes when one is changed."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import NormalDist

from headrace.core.workload import LengthKind, Lengths

_LEAST = 2.0**-54  # a chance of exactly 0 has no place in a distribution without a lower end
_STEPS = 2000


def sampler(lengths: Lengths) -> Callable[[float], int]:
    """A function from a share in [0, 1) to the length that this share of all is not above: with a chance, a draw."""
    low, high = lengths.minimum, lengths.maximum
    match lengths.kind:
        case LengthKind.CONSTANT:
            assert lengths.value is not None, "checked with the file"
            value = min(high, max(low, lengths.value))
            return lambda share: value
        case LengthKind.UNIFORM:
            return lambda share: low + int(share * (high - low + 1))
        case LengthKind.EMPIRICAL:
            return _between(lengths.quantiles, low, high)
        case _:
            assert lengths.median is not None, "checked with the file"
            return _lognormal(lengths.median, lengths.sigma or 0.0, low, high)


def _lognormal(median: float, sigma: float, low: int, high: int) -> Callable[[float], int]:
    inverse, exp = NormalDist().inv_cdf, math.exp

    def draw(share: float) -> int:
        value = median * exp(sigma * inverse(share or _LEAST))
        return low if value <= low else high if value >= high else round(value)

    return draw


def _between(quantiles: Sequence[int], low: int, high: int) -> Callable[[float], int]:
    steps = len(quantiles) - 1
    points = [min(high, max(low, each)) for each in quantiles]

    def draw(share: float) -> int:
        index = int(place := share * steps)
        below = points[index]
        return round(below + (place - index) * (points[index + 1] - below))

    return draw


def mean(lengths: Lengths) -> float:
    """Of all that may be drawn, within the bounds."""
    draw = sampler(lengths)
    return math.fsum(draw((step + 0.5) / _STEPS) for step in range(_STEPS)) / _STEPS


def quantile(lengths: Lengths, share: float) -> int:
    """The length that this share of all is not above."""
    return sampler(lengths)(min(share, 1.0 - 2.0**-53))


def zipf(count: int, skew: float) -> Callable[[float], int]:
    """A function from a share in [0, 1) to one of 0 .. count - 1, the first the likeliest: n-th in proportion to n ** -skew."""
    sums = list(accumulate((number + 1) ** -skew for number in range(count)))
    whole = sums[-1]
    return lambda share: bisect_left(sums, share * whole)
