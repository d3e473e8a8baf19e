"""Does a level differ from the baseline, and by enough to matter? Blocks in random order, paired differences, one verdict each.

In each block every arm has one repetition, in an order that chance decides, so that what changes with time (a warmer machine, a
neighbour) falls on all alike. A block's difference is the logarithm of the level's figure over the baseline's of the same block; a t
interval of their mean takes blocks as independent, and requests within a block as what they are. Each of K comparisons has an alpha of
alpha / K (Bonferroni), so that the chance of any wrong verdict is alpha.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from statistics import fmean, stdev

import msgspec

from headrace.core.chance import Chance
from headrace.core.experiments import BASELINE, Arm, Experiment, Measured, Repetition
from headrace.core.load_records import LoadRun, Outcome
from headrace.core.verdicts import Interval, Judgement, Verdict
from headrace.policies import distributions, proportions, quantiles
from headrace.policies import quality as quality_rules
from headrace.policies.load_figures import Measure, Since, taken_s
from headrace.policies.proportions import Share
from headrace.policies.quality import Mark

FAILURES_MATTER_FROM = 0.005
_POWER = 0.8


class Finding(StrEnum):
    """What an arm is to the baseline.

    BETTER, WORSE: by more than the margin, which is shown. SAME: by no more than the margin either way, which is shown too.
    OPEN: there is not enough evidence.
    """

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    OPEN = "open"


class Contrast(msgspec.Struct, frozen=True):
    """One arm against the baseline, by one metric.

    Attributes:
        ratio: The arm's figure over the baseline's, with bounds.
        blocks: In how many both have one.
        blocks_needed: About how many would decide, were it as it seems; 0 where it is decided.
    """

    metric: Measured
    finding: Finding
    ratio: Interval
    blocks: int
    blocks_needed: int = 0


class ArmVerdict(msgspec.Struct, frozen=True):
    """All that is known of one arm.

    Attributes:
        finding: By the primary metric, and by what must not be lost for it: whole answers and quality.
        why: In a sentence.
        others: By every other metric, for the reader: they decide nothing.
        failures: Of the requests, against the baseline's.
        quality: Of the cases, against the baseline's; None without cases.
    """

    arm: str
    finding: Finding
    why: str
    primary: Contrast
    others: tuple[Contrast, ...]
    failures: Judgement
    quality: Judgement | None = None

    @property
    def wins(self) -> bool:
        return self.finding is Finding.BETTER


class ExperimentReport(msgspec.Struct, frozen=True):
    """What an experiment showed.

    Attributes:
        arms: All but the baseline, in the order of the file; the combination last.
        winners: The best level of each variable that has one that is better.
        chosen: The arm to go by: the combination where it's better, else the best single level, else the baseline.
        void: Repetitions that were left out, with their reasons.
    """

    name: str
    question: str
    digest: str
    verdict: Verdict
    says: str
    chosen: str
    winners: tuple[str, ...]
    arms: tuple[ArmVerdict, ...]
    repetitions: tuple[Repetition, ...]
    void: tuple[str, ...]
    comparisons: int
    alpha: float
    margin: float
    metric: Measured
    environment: dict[str, str] = {}


def figures(run: LoadRun) -> dict[Measured, float | None]:
    """What one repetition is summed up to: plain nearest ranks, from the intended send; what they vary by, the blocks show."""
    records = [record for record in run.records if run.window.holds(record)]
    answers = [record for record in records if record.outcome is Outcome.OK]
    length_s = max(1e-9, run.window.to_s - run.window.from_s)
    found: dict[Measured, float | None] = {
        Measured.REQUESTS_PER_S: len(answers) / length_s,
        Measured.OUTPUT_TOKENS_PER_S: sum(record.output_tokens or 0 for record in answers) / length_s,
    }
    for measure, metrics in _QUANTILES.items():
        taken = (taken_s(record, measure, Since.INTENDED) for record in answers)
        values = [value for value in taken if value is not None]
        for metric, share in metrics:
            found[metric] = quantiles.nearest_rank(values, share) if values else None
    return found


_QUANTILES = {
    Measure.TTFT: ((Measured.TTFT_P50, 0.5), (Measured.TTFT_P95, 0.95)),
    Measure.TPOT: ((Measured.TPOT_P50, 0.5), (Measured.TPOT_P95, 0.95)),
    Measure.TOTAL: ((Measured.TOTAL_P50, 0.5), (Measured.TOTAL_P95, 0.95)),
}


def singles(experiment: Experiment) -> list[Arm]:
    """One variable changed, all others as in the baseline."""
    return [
        Arm(f"{variable}={level}", variable, level, (changes,))
        for variable, levels in experiment.variables.items()
        for level, changes in levels.items()
    ]


def comparisons(experiment: Experiment) -> int:
    """How many verdicts share the alpha: each level, and the combination where there can be one."""
    return len(singles(experiment)) + (len(experiment.variables) > 1)


def order(arms: Sequence[Arm], chance: Chance) -> list[Arm]:
    """All of them, each once, in an order in which every other is as probable."""
    left, drawn = list(arms), []
    while left:
        drawn.append(left.pop(chance.randrange(len(left))))
    return drawn


def combination(experiment: Experiment, verdicts: Sequence[ArmVerdict]) -> Arm | None:
    """The best level of each variable together; None where fewer than two variables have one that is better."""
    best = [arm for arm in singles(experiment) if arm.name in winners(experiment, verdicts)]
    if len(best) < 2:
        return None
    return Arm(
        " + ".join(arm.name for arm in best), changes=tuple(each for arm in best for each in arm.changes)
    )


def winners(experiment: Experiment, verdicts: Sequence[ArmVerdict]) -> tuple[str, ...]:
    """Of each variable the level that is better by most."""
    found = []
    for variable in experiment.variables:
        names = {arm.name for arm in singles(experiment) if arm.variable == variable}
        better = [each for each in verdicts if each.arm in names and each.wins]
        if better:
            found.append(max(better, key=_gain).arm)
    return tuple(found)


def _gain(verdict: ArmVerdict) -> float:
    ratio = verdict.primary.ratio.estimate or 1.0
    return -ratio if verdict.primary.metric.is_better_lower else ratio


def judge(experiment: Experiment, arm: Arm, repetitions: Iterable[Repetition]) -> ArmVerdict:
    """One arm against the baseline, by the blocks in which both count."""
    done = [each for each in repetitions if not each.void]
    own = {each.block: each for each in done if each.arm == arm.name}
    base = {each.block: each for each in done if each.arm == BASELINE.name}
    blocks = sorted(own.keys() & base.keys())
    pairs = [(own[block], base[block]) for block in blocks]
    alpha = experiment.primary.alpha / comparisons(experiment)
    metric, margin = experiment.primary.metric, experiment.primary.margin
    primary = contrast(metric, pairs, margin=margin, alpha=alpha)
    failures = proportions.judge_against_control(
        _failed(mine for mine, _ in pairs),
        _failed(its for _, its in pairs),
        ratio_max=1.0,
        alpha=alpha,
        matters_from=FAILURES_MATTER_FROM,
    )
    judged = _quality(experiment, [mine for mine in done if mine.arm == arm.name], base.values(), alpha)
    finding, why = _together(primary, failures, judged, margin)
    others = tuple(
        contrast(each, pairs, margin=margin, alpha=alpha) for each in Measured if each is not metric
    )
    return ArmVerdict(arm.name, finding, why, primary, others, failures, judged)


def contrast(
    metric: Measured, pairs: Sequence[tuple[Repetition, Repetition]], *, margin: float, alpha: float
) -> Contrast:
    """By how much the first of each pair differs from the second, in that metric.

    The bounds are exp(m -+ t s / sqrt(B)), with m and s the mean and the standard deviation of the B logarithms of the ratios.
    """
    logs = [
        math.log(mine / its)
        for mine, its in ((a.figures.get(metric), b.figures.get(metric)) for a, b in pairs)
        if mine and its
    ]
    if len(logs) < 2:
        estimate = math.exp(logs[0]) if logs else None
        return Contrast(metric, Finding.OPEN, Interval(estimate, None, None), len(logs), len(logs) + 2)
    mean, spread = fmean(logs), stdev(logs)
    reach = distributions.student_quantile(1 - alpha, len(logs) - 1) * spread / math.sqrt(len(logs))
    low, high, limit = mean - reach, mean + reach, math.log1p(margin)
    finding = _found(low, high, limit, is_better_lower=metric.is_better_lower)
    needed = _needed(mean, spread, limit, alpha) if finding is Finding.OPEN else 0
    ratio = Interval(*map(math.exp, (mean, low, high)))
    return Contrast(metric, finding, ratio, len(logs), max(needed, len(logs) + 1) if needed else 0)


def _found(low: float, high: float, limit: float, *, is_better_lower: bool) -> Finding:
    if -limit <= low and high <= limit:
        return Finding.SAME
    if high < -limit:
        return Finding.BETTER if is_better_lower else Finding.WORSE
    if low > limit:
        return Finding.WORSE if is_better_lower else Finding.BETTER
    return Finding.OPEN


def _needed(mean: float, spread: float, limit: float, alpha: float) -> int:
    """(z_alpha + z_power)^2 s^2 / d^2, with d the distance from the nearer limit."""
    distance = max(abs(abs(mean) - limit), limit / 10)
    z = distributions.normal_quantile(1 - alpha) + distributions.normal_quantile(_POWER)
    return math.ceil((z * spread / distance) ** 2)


def _failed(repetitions: Iterable[Repetition]) -> Share:
    listed = list(repetitions)
    return Share(sum(each.unsuccessful for each in listed), sum(each.intended for each in listed))


def _quality(
    experiment: Experiment, own: Iterable[Repetition], base: Iterable[Repetition], alpha: float
) -> Judgement | None:
    """By the cases of the first repetition in which they were asked; more of the same cases would not be more cases."""
    if experiment.quality is None:
        return None
    mine, its = (next((each.marks for each in listed if each.marks), {}) for listed in (own, base))
    cases = sorted(mine.keys() & its.keys())
    return quality_rules.judge_pairs(
        [Mark(mine[case]) for case in cases],
        [Mark(its[case]) for case in cases],
        margin=experiment.quality.margin,
        alpha=alpha,
    )


def _together(
    primary: Contrast, failures: Judgement, judged: Judgement | None, margin: float
) -> tuple[Finding, str]:
    """What is faster and answers worse, or less often, is not better."""
    if failures.verdict is Verdict.FAIL:
        return Finding.WORSE, "more of its requests get no whole answer"
    if judged is not None and judged.verdict is Verdict.FAIL:
        return Finding.WORSE, "it answers the cases worse"
    if primary.finding is Finding.BETTER and judged is not None and judged.verdict is not Verdict.PASS:
        return Finding.OPEN, "it is better, and that it answers the cases as well is not shown"
    if not primary.blocks:
        return Finding.OPEN, "no block in which it and the baseline can be compared"
    if primary.finding is Finding.OPEN:
        return Finding.OPEN, f"not enough evidence: it takes about {primary.blocks_needed} blocks"
    if primary.finding is Finding.SAME:
        return Finding.SAME, f"no difference of more than {margin:.0%}, which is shown"
    return primary.finding, f"{primary.finding} by more than {margin:.0%}, which is shown"


def report(
    experiment: Experiment,
    repetitions: Sequence[Repetition],
    *,
    digest: str,
    environment: dict[str, str] | None = None,
) -> ExperimentReport:
    """What all repetitions that were done add up to, also before they are all done."""
    verdicts = [judge(experiment, arm, repetitions) for arm in singles(experiment)]
    won = winners(experiment, verdicts)
    together = combination(experiment, verdicts)
    if together is not None:
        verdicts.append(judge(experiment, together, repetitions))
    chosen = _chosen(verdicts, won, together)
    verdict, says = _said(verdicts, chosen, has_begun=bool(repetitions))
    return ExperimentReport(
        name=experiment.name,
        question=experiment.question,
        digest=digest,
        verdict=verdict,
        says=says,
        chosen=chosen,
        winners=won,
        arms=tuple(verdicts),
        repetitions=tuple(sorted(repetitions, key=_place)),
        void=tuple(_void(repetitions)),
        comparisons=comparisons(experiment),
        alpha=experiment.primary.alpha,
        margin=experiment.primary.margin,
        metric=experiment.primary.metric,
        environment=environment or {},
    )


def _place(repetition: Repetition) -> tuple[int, float]:
    return repetition.block, repetition.began_s


def _chosen(verdicts: Sequence[ArmVerdict], won: Sequence[str], together: Arm | None) -> str:
    by_name = {each.arm: each for each in verdicts}
    candidates = [by_name[name] for name in won]
    if together is not None and by_name[together.name].wins:
        candidates.append(by_name[together.name])
    return max(candidates, key=_gain).arm if candidates else BASELINE.name


def _said(verdicts: Sequence[ArmVerdict], chosen: str, *, has_begun: bool) -> tuple[Verdict, str]:
    """It is decided when every comparison is; a winner beside an open question is told as such."""
    if not has_begun:
        return Verdict.ERROR, "no repetition has been made yet"
    waiting = [each.arm for each in verdicts if each.finding is Finding.OPEN]
    if all(not each.primary.blocks for each in verdicts):
        return Verdict.ERROR, "no block in which a level and the baseline can be compared"
    if chosen != BASELINE.name:
        says = f"{chosen} is better than the baseline"
    elif waiting:
        says = "no difference is shown"
    else:
        says = "no level is better than the baseline"
    if waiting:
        return Verdict.INCONCLUSIVE, f"{says}; not enough evidence of {', '.join(waiting)}"
    return Verdict.PASS, says


def _void(repetitions: Iterable[Repetition]) -> Iterator[str]:
    for each in repetitions:
        if each.void:
            yield f"{each.arm}, block {each.block}: {'; '.join(each.void)}"
