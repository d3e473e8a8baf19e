"""Two revisions answered the same cases: is the candidate worse, by more than was agreed to beforehand?

A paired comparison looks at the cases in which they differ. What both get right, or both wrong, says nothing about which is
better, and comparing two totals would drown the difference in the spread between easy and hard cases.
"""

import math

import msgspec

from headrace.core.verdicts import Interval, Judgement, Reason, Verdict
from headrace.policies import distributions


class Pairs(msgspec.Struct, frozen=True):
    """Cases by who got them right."""

    both: int
    candidate_only: int
    accepted_only: int
    neither: int

    @property
    def cases(self) -> int:
        return self.both + self.candidate_only + self.accepted_only + self.neither

    @property
    def differing(self) -> int:
        return self.candidate_only + self.accepted_only


def worse_p(pairs: Pairs) -> float:
    """The exact one-sided p of McNemar's test: a sign test over the cases that differ.

    Source: Q. McNemar, Psychometrika 12 (1947) 153; exact form: binomial(differing, 1/2).
    """
    return distributions.binomial_at_least(pairs.accepted_only, pairs.differing, 0.5)


def two_sided_p(pairs: Pairs) -> float:
    """The same, two-sided, as it is commonly quoted."""
    most = max(pairs.candidate_only, pairs.accepted_only)
    return min(1.0, 2.0 * distributions.binomial_at_least(most, pairs.differing, 0.5))


def difference(pairs: Pairs, *, alpha: float) -> Interval:
    """The candidate's share of right answers less the accepted one's, by Tango's score interval.

    The bounds are the differences d at which (c - b - n d) / sqrt(n (2 q + d (1 - d))) reaches -z and z, with c and b the
    cases that only the candidate and only the accepted one got right, and q the most likely share of b at that d: the
    larger root of 2n q^2 + ((2n + b - c) d - b - c) q - b d (1 - d) = 0.
    It is made for showing that something is not worse, and it has a width also where no case differs. Its chance of error,
    counted out over all tables of 40 to 600 cases: 0.051 on average where 0.05 is asked for, at most 0.068 (where the
    candidate is right about nothing that the accepted one got wrong), and at most 0.026 where 0.025 is.

    Source: T. Tango, Statistics in Medicine 17 (1998) 891.
    """
    found = (pairs.candidate_only - pairs.accepted_only) / pairs.cases if pairs.cases else None
    return Interval(found, *_bounds(pairs, alpha=alpha))


def cases_needed(margin: float, *, alpha: float, differing: float = 0.0, power: float = 0.5) -> int:
    """How many cases show, with chance `power`, that an equally good candidate isn't worse by more than `margin`.

    Solved from the score above, which grows with the root of the number of cases. Where no case differs it is
    z^2 (1 - margin) / margin: 268 cases for a margin of 0.01 at an alpha of 0.05, and 25 for 0.1.

    Args:
        margin: Above 0.
        differing: Share of the cases that only one of the two gets right.
    """
    z = distributions.normal_quantile(1 - alpha) + distributions.normal_quantile(power)
    return math.ceil((z / _score(differing / 2, differing / 2, 1, -margin)) ** 2)


def judge(pairs: Pairs, *, margin: float, alpha: float) -> Judgement:
    """Is the candidate not worse than the accepted revision by more than `margin`, a share of right answers?

    Passes where the whole interval lies above -margin, fails where it lies below (and McNemar's exact test agrees, whatever
    the numbers), and is inconclusive between: "not significantly worse" alone shows nothing, a set of five cases can't but be that.
    It is inconclusive too where a candidate that gets nothing right would pass, as the accepted one gets next to nothing right
    itself: such cases can't tell a good model from a bad one (what ICH guideline E10 calls assay sensitivity).

    Args:
        margin: Stated before the answers are seen. Negative: the candidate must be better by that much.
    """
    low, high = _bounds(pairs, alpha=alpha)
    needed = (
        0
        if margin <= 0
        else cases_needed(margin, alpha=alpha, differing=pairs.differing / max(1, pairs.cases))
    )

    def judged(verdict: Verdict, reason: Reason) -> Judgement:
        measure = difference(pairs, alpha=alpha)
        return Judgement(verdict, reason, measure, -margin, alpha, pairs.cases, pairs.cases, needed)

    if not pairs.cases:
        return judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)
    if low >= -margin:
        if low < 0.0 and _is_met_by_nothing(pairs, margin=margin, alpha=alpha):
            return judged(Verdict.INCONCLUSIVE, Reason.INSENSITIVE)
        return judged(Verdict.PASS, Reason.SHOWN_NOT_WORSE)
    if high < -margin and (margin < 0 or worse_p(pairs) <= alpha):
        return judged(Verdict.FAIL, Reason.SHOWN_WORSE)
    return judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES if pairs.cases < needed else Reason.UNDECIDED)


def _is_met_by_nothing(pairs: Pairs, *, margin: float, alpha: float) -> bool:
    right = pairs.both + pairs.accepted_only
    low, _ = _bounds(Pairs(0, 0, right, pairs.cases - right), alpha=alpha)
    return low >= -margin


def _bounds(pairs: Pairs, *, alpha: float) -> tuple[float, float]:
    n, b, c = pairs.cases, pairs.accepted_only, pairs.candidate_only
    if not n:
        return -1.0, 1.0
    z, found = distributions.normal_quantile(1.0 - alpha), (c - b) / n
    return (
        distributions.root(lambda d: _score(b, c, n, d) > z, -1.0, found),
        distributions.root(lambda d: _score(b, c, n, d) > -z, found, 1.0),
    )


def _score(b: float, c: float, n: int, d: float) -> float:
    """How far the found difference lies above a true one of `d`, in standard deviations."""
    linear = (2 * n + b - c) * d - b - c
    q = (math.sqrt(max(0.0, linear * linear + 8 * n * b * d * (1 - d))) - linear) / (4 * n)
    variance = n * (2 * q + d * (1 - d))
    distance = c - b - n * d
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)
