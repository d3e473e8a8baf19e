"""How slow are the slowest few, and is the candidate's tail longer than the accepted revision's at the same time?

A quantile's bounds are order statistics: of n values the k-th smallest lies above the true quantile q with the chance that
fewer than k of n fall below it, a binomial tail. That holds for any distribution (H. A. David, H. N. Nagaraja, Order
Statistics, section 7.1). Where n is too small for a bound there is none, and no figure is made up.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import msgspec

from headrace.core.verdicts import Interval, Judgement, Reason, Verdict
from headrace.policies import distributions


class Ordered(Protocol):
    """Values in order, however they are kept."""

    @property
    def size(self) -> int: ...

    def at(self, rank: int) -> float | None:
        """The value of this rank, 1 the smallest; None if it is only known to be above all bounds."""
        ...


class Samples:
    """Values that are all known."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = sorted(values)

    @property
    def size(self) -> int:
        return len(self._values)

    def at(self, rank: int) -> float | None:
        return self._values[rank - 1]


class Histogram(msgspec.Struct, frozen=True):
    """Values counted between fixed edges.

    Attributes:
        edges: Upper edges of the buckets, rising, all above 0.
        counts: One for each edge, and one more for what is above the last.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(self.counts)

    def at(self, rank: int) -> float | None:
        """Inside a bucket by its share of the way through, in the logarithm: buckets are log-spaced, and latencies too."""
        sums = list(accumulate(self.counts))
        bucket = bisect_left(sums, rank)
        if bucket == len(self.edges):
            return None
        high = self.edges[bucket]
        if bucket == 0:
            return high
        low = self.edges[bucket - 1]
        way = (rank - sums[bucket - 1] - 0.5) / self.counts[bucket]
        return low * math.exp(way * math.log(high / low))


def nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest of them that at least that share doesn't exceed.

    Args:
        values: At least one; any order.
    """
    return sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


def interval(values: Ordered, quantile: float, *, alpha: float, worth: int | None = None) -> Interval:
    """A quantile, with the bounds that these many values can bear; `alpha` is one-sided.

    Args:
        worth: How many independent values they stand for, where they depend on each other (policies.blocks); at most their
            number. Each of those is taken to be a run of neighbours in their order, and its bound their outermost.
    """
    if not values.size:
        return Interval(None, None, None)
    n = values.size if worth is None else worth
    # The greatest rank that too few values would have to fall below, and the smallest that too many would have to.
    low = distributions.last_true(
        0, n, lambda rank: distributions.binomial_at_most(rank - 1, n, quantile) <= alpha
    )
    high = 1 + distributions.last_true(
        0, n, lambda rank: distributions.binomial_at_least(rank, n, quantile) > alpha
    )
    run = values.size / max(1, n)
    return Interval(
        values.at(max(1, math.ceil(values.size * quantile))),
        values.at(math.floor((low - 1) * run) + 1) if low else None,
        values.at(math.ceil(high * run - 1e-9)) if high <= n else None,
    )


def ratio(candidate: Ordered, control: Ordered, quantile: float, *, alpha: float) -> Interval:
    """The candidate's quantile as a multiple of the control's.

    On logarithms, log r - sqrt((log q1 - log l1)^2 + (log u2 - log q2)^2), and likewise upward: the square-and-add rule, which takes
    nothing for granted but the two intervals.

    Source: G. Y. Zou, A. Donner, Statistics in Medicine 27 (2008) 1693.
    """
    first, second = interval(candidate, quantile, alpha=alpha), interval(control, quantile, alpha=alpha)
    ours, theirs = first.estimate, second.estimate
    if not ours or not theirs:
        return Interval(None, None, None)

    def reach(own: float | None, other: float | None) -> float | None:
        return math.exp(math.hypot(math.log(own / ours), math.log(other / theirs))) if own and other else None

    found, down, up = ours / theirs, reach(first.low, second.high), reach(first.high, second.low)
    return Interval(found, found / down if down else None, found * up if up else None)


def judge_against_control(
    candidate: Ordered,
    control: Ordered,
    *,
    quantile: float,
    ratio_max: float,
    alpha: float,
    samples_min: int = 0,
    needs_proof: bool = False,
) -> Judgement:
    """Is the candidate's quantile more than `ratio_max` times the control's? Fails and passes as shares of failures do.

    See proportions.judge_against_control; a tail that the samples can't show is inconclusive, never a pass.
    """
    return _judged(
        ratio(candidate, control, quantile, alpha=alpha),
        limit=ratio_max,
        alpha=alpha,
        sizes=(candidate.size, control.size),
        samples_min=max(samples_min, samples_needed(quantile, alpha=alpha)),
        needs_proof=needs_proof,
    )


def judge_against_limit(
    values: Ordered,
    *,
    quantile: float,
    limit: float,
    alpha: float,
    samples_min: int = 0,
    needs_proof: bool = False,
) -> Judgement:
    """Is a quantile above a fixed limit?"""
    return _judged(
        interval(values, quantile, alpha=alpha),
        limit=limit,
        alpha=alpha,
        sizes=(values.size, values.size),
        samples_min=max(samples_min, samples_needed(quantile, alpha=alpha)),
        needs_proof=needs_proof,
    )


def samples_needed(quantile: float, *, alpha: float) -> int:
    """How many values have an upper bound of this quantile: ln(alpha) / ln(q), 59 for the 95th percentile at 0.05."""
    return math.ceil(math.log(alpha) / math.log(quantile))


def _judged(
    measure: Interval,
    *,
    limit: float,
    alpha: float,
    sizes: tuple[int, int],
    samples_min: int,
    needs_proof: bool,
) -> Judgement:
    if measure.low is not None and measure.low > limit:
        verdict, reason = Verdict.FAIL, Reason.SHOWN_WORSE
    elif min(sizes) < samples_min or measure.estimate is None:
        verdict, reason = Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES
    elif not needs_proof:
        verdict, reason = Verdict.PASS, Reason.NOT_SHOWN_WORSE
    elif measure.high is not None and measure.high <= limit:
        verdict, reason = Verdict.PASS, Reason.SHOWN_NOT_WORSE
    else:
        verdict, reason = Verdict.INCONCLUSIVE, Reason.UNDECIDED
    return Judgement(verdict, reason, measure, limit, alpha, *sizes, samples_min)
