"""How probable is a count? Tails of the binomial and of the hypergeometric distribution, exact to rounding."""

import math
from collections.abc import Callable
from statistics import NormalDist

_TINY = 1e-300
_NEGLIGIBLE = 1e-18  # of the largest term


def normal_quantile(probability: float) -> float:
    """The point below which a standard normal value lies with this probability."""
    return NormalDist().inv_cdf(probability)


def student_quantile(probability: float, degrees: int) -> float:
    """The point below which a value of Student's t distribution lies with this probability, at least a half.

    From P(T > t) = I_(v/(v + t^2))(v/2, 1/2) / 2, DLMF 8.17 and the definition of the distribution.
    """
    tail = 2.0 * (1.0 - probability)
    return root(lambda t: beta_cdf(degrees / (degrees + t * t), degrees / 2, 0.5) > tail, 0.0, 1e6)


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b).

    Source: NIST Digital Library of Mathematical Functions, 8.17.22 (its continued fraction, summed by Lentz's method as
    Thompson and Barnett, 1986, have it) and 8.17.4 (I_x(a, b) = 1 - I_(1-x)(b, a), on the side where it converges fast).
    """
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta_cdf(1.0 - x, b, a)
    front = math.exp(
        a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a + 1.0) - math.lgamma(b)
    )
    # The first term is 1; it takes about the root of the larger of a and b until the others change nothing.
    numerator, denominator, fraction, change, term = 2.0, 1.0, 2.0, 2.0, 0
    while abs(change - 1.0) > 1e-15:
        term += 1
        half = term // 2
        if term % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        denominator = 1.0 / (1.0 + factor * denominator or _TINY)
        numerator = 1.0 + factor / numerator or _TINY
        change = numerator * denominator
        fraction *= change
    return front * (fraction - 1.0)


def binomial_at_most(count: int, trials: int, probability: float) -> float:
    """P(X <= count) of X ~ Binomial(trials, probability); by the beta function, DLMF 8.17.5."""
    if count < 0:
        return 0.0
    return 1.0 if count >= trials else beta_cdf(1.0 - probability, trials - count, count + 1)


def binomial_at_least(count: int, trials: int, probability: float) -> float:
    """P(X >= count) of X ~ Binomial(trials, probability)."""
    if count <= 0:
        return 1.0
    return 0.0 if count > trials else beta_cdf(probability, count, trials - count + 1)


def shared_at_least(count: int, first: int, second: int, *, total: int, odds_ratio: float = 1.0) -> float:
    """Of `total` events among `first + second` trials, the chance that `count` or more fell to the first, given `odds_ratio`.

    That is the upper tail of Fisher's noncentral hypergeometric distribution, weights C(first, k) C(second, total - k)
    odds_ratio^k (Fisher, 1935; A. Agresti, Categorical Data Analysis, section 16.6). At a ratio of 1 it is the one-sided p of Fisher's exact test.

    The weights fall on both sides of their greatest, so they are summed from there by the ratio of neighbours, until they
    no longer count.
    """
    low, high = max(0, total - second), min(first, total)

    def step(k: int) -> float:
        """The weight at `k`, as a multiple of that at `k - 1`."""
        return odds_ratio * (first - k + 1) * (total - k + 1) / (k * (second - total + k))

    top = last_true(low, high, lambda k: step(k) >= 1.0)
    everything = tail = 0.0
    weight, k = 1.0, top
    while k <= high and weight > _NEGLIGIBLE:
        everything += weight
        tail += weight if k >= count else 0.0
        k += 1
        weight *= step(k) if k <= high else 0.0
    weight, k = 1.0, top
    while k > low and weight > _NEGLIGIBLE:
        weight /= step(k)
        k -= 1
        everything += weight
        tail += weight if k >= count else 0.0
    return min(1.0, tail / everything)


def shared_at_most(count: int, first: int, second: int, *, total: int, odds_ratio: float = 1.0) -> float:
    """The lower tail: the chance that `count` or fewer fell to the first."""
    return shared_at_least(total - count, second, first, total=total, odds_ratio=1.0 / odds_ratio)


def root(rises: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition that holds below a point and not above it changes, to the last bit that matters."""
    for _ in range(60):
        middle = (low + high) / 2
        if rises(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def last_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The greatest number in (low, high] for which it holds, as it does for all before it; `low` if there is none."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
