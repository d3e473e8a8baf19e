"""How large is a share of events, and is the candidate's larger than the accepted revision's at the same time?

Everywhere `alpha` is one-sided: the chance, at most, that one bound or one verdict is wrong. Two bounds of 0.05 are what is
commonly called a 90 % interval.
"""

import math

import msgspec

from headrace.core.verdicts import Interval, Judgement, Reason, Verdict
from headrace.policies import distributions


class Share(msgspec.Struct, frozen=True):
    """So many events (failures, say) in so many trials."""

    events: int
    trials: int

    @property
    def value(self) -> float | None:
        return self.events / self.trials if self.trials else None


def wilson(share: Share, *, alpha: float) -> Interval:
    """The score interval of a share: right on average also near 0 and 1, where the textbook one fails.

    (p + z^2/2n +- z sqrt(p q / n + z^2/4n^2)) / (1 + z^2/n)

    Source: E. B. Wilson, JASA 22 (1927) 209.
    """
    return Interval(share.value, *_wilson_bounds(share, alpha=alpha))


def exact(share: Share, *, alpha: float) -> Interval:
    """The interval that is never wrong more often than stated, however small the numbers.

    Source: C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404. With no event in n trials the upper bound is
    1 - alpha^(1/n), about 3/n at 0.05.
    """
    return Interval(share.value, *_exact_bounds(share, alpha=alpha))


def difference(candidate: Share, control: Share, *, alpha: float) -> Interval:
    """The candidate's share less the control's, of independent trials.

    p1 - p2 - sqrt((p1 - l1)^2 + (u2 - p2)^2), and likewise upward, with l and u from each one's Wilson interval.

    Source: R. G. Newcombe, Statistics in Medicine 17 (1998) 873, method 10.
    """
    first, second = candidate.value, control.value
    if first is None or second is None:
        return Interval(None, -1.0, 1.0)
    (low, high), (control_low, control_high) = (
        _wilson_bounds(share, alpha=alpha) for share in (candidate, control)
    )
    found = first - second
    return Interval(
        found,
        found - math.hypot(first - low, control_high - second),
        found + math.hypot(high - first, second - control_low),
    )


def worse_p(candidate: Share, control: Share, *, odds_ratio: float = 1.0) -> float:
    """How probable so many or more of the events would be at the candidate if its odds were `odds_ratio` times the control's.

    At 1 it is Fisher's exact test, one-sided; it needs no event on either side, and holds for any numbers. Of rare events the
    odds ratio is the ratio of the shares.
    """
    total = candidate.events + control.events
    return distributions.shared_at_least(
        candidate.events, candidate.trials, control.trials, total=total, odds_ratio=odds_ratio
    )


def not_worse_p(candidate: Share, control: Share, *, odds_ratio: float) -> float:
    """How probable so many or fewer would be: what is improbable shows that the candidate's odds are below that."""
    total = candidate.events + control.events
    return distributions.shared_at_most(
        candidate.events, candidate.trials, control.trials, total=total, odds_ratio=odds_ratio
    )


def judge_against_control(
    candidate: Share,
    control: Share,
    *,
    ratio_max: float,
    alpha: float,
    matters_from: float = 0.0,
    samples_min: int = 0,
    needs_proof: bool = False,
) -> Judgement:
    """Does the candidate have more bad events than `ratio_max` times the control's, of the same time?

    Fails only where that is shown, by an exact test: a false failure has a chance of at most `alpha`. It may fail before
    `samples_min`, as chance is accounted for; it can't pass before.

    Args:
        ratio_max: Largest ratio of odds that is agreed to, at least 1 as a rule.
        matters_from: A difference of shares up to this never fails: one failure beside many thousand without is soon
            significant, and seldom important.
        needs_proof: Pass only where it is shown that the ratio is below `ratio_max`, which takes many events; else where
            the contrary isn't shown.
    """
    measure = difference(candidate, control, alpha=alpha)

    def judged(verdict: Verdict, reason: Reason) -> Judgement:
        return Judgement(
            verdict, reason, measure, ratio_max, alpha, candidate.trials, control.trials, samples_min
        )

    if (
        measure.estimate is not None
        and measure.estimate > matters_from
        and worse_p(candidate, control, odds_ratio=ratio_max) <= alpha
    ):
        return judged(Verdict.FAIL, Reason.SHOWN_WORSE)
    if min(candidate.trials, control.trials) < max(1, samples_min):
        return judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)
    if not needs_proof:
        return judged(Verdict.PASS, Reason.NOT_SHOWN_WORSE)
    if not_worse_p(candidate, control, odds_ratio=ratio_max) <= alpha:
        return judged(Verdict.PASS, Reason.SHOWN_NOT_WORSE)
    return judged(Verdict.INCONCLUSIVE, Reason.UNDECIDED)


def judge_against_limit(
    share: Share, *, limit: float, alpha: float, samples_min: int = 0, needs_proof: bool = False
) -> Judgement:
    """Is a share of bad events above a fixed limit? As `judge_against_control`, by Clopper and Pearson's bounds."""
    low, high = _exact_bounds(share, alpha=alpha)

    def judged(verdict: Verdict, reason: Reason) -> Judgement:
        measure = Interval(share.value, low, high)
        return Judgement(verdict, reason, measure, limit, alpha, share.trials, 0, samples_min)

    if low > limit:
        return judged(Verdict.FAIL, Reason.SHOWN_WORSE)
    if share.trials < max(1, samples_min):
        return judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)
    if not needs_proof:
        return judged(Verdict.PASS, Reason.NOT_SHOWN_WORSE)
    if high <= limit:
        return judged(Verdict.PASS, Reason.SHOWN_NOT_WORSE)
    return judged(Verdict.INCONCLUSIVE, Reason.UNDECIDED)


def trials_without_event(limit: float, *, alpha: float) -> int:
    """How many trials without one event show that the share is at most `limit`: ln(alpha) / ln(1 - limit)."""
    return math.ceil(math.log(alpha) / math.log1p(-limit))


def trials_to_tell(
    control: float, candidate: float, *, alpha: float, power: float = 0.8, control_per_candidate: float = 1.0
) -> int:
    """About how many of the candidate's trials show, with chance `power`, that a share is worse by so much.

    (z_a sqrt((1 + 1/k) p q) + z_b sqrt(p1 q1 + p2 q2 / k))^2 / (p1 - p2)^2, with k control trials for each of the
    candidate's and p the mean share of all.

    Source: J. L. Fleiss, Statistical Methods for Rates and Proportions, 3rd edition, section 4.
    """
    k = control_per_candidate
    mean = (candidate + k * control) / (1 + k)
    z_alpha, z_power = distributions.normal_quantile(1 - alpha), distributions.normal_quantile(power)
    chance = z_alpha * math.sqrt((1 + 1 / k) * mean * (1 - mean))
    spread = z_power * math.sqrt(candidate * (1 - candidate) + control * (1 - control) / k)
    return math.ceil(((chance + spread) / (candidate - control)) ** 2)


def _wilson_bounds(share: Share, *, alpha: float) -> tuple[float, float]:
    n = share.trials
    if not n:
        return 0.0, 1.0
    p, z = share.events / n, distributions.normal_quantile(1.0 - alpha)
    middle = p + z * z / (2 * n)
    reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if share.events == 0 else (middle - reach) / scale
    high = 1.0 if share.events == n else (middle + reach) / scale
    return low, high


def _exact_bounds(share: Share, *, alpha: float) -> tuple[float, float]:
    events, trials = share.events, share.trials
    low, high = 0.0, 1.0
    if events > 0:
        low = distributions.root(
            lambda p: distributions.binomial_at_least(events, trials, p) <= alpha, 0.0, 1.0
        )
    if events < trials:
        high = distributions.root(
            lambda p: distributions.binomial_at_most(events, trials, p) > alpha, 0.0, 1.0
        )
    return low, high
