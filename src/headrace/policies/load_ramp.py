"""Up to which rate does a service follow? Steps upwards until answers stay behind, then two between what it did and what it didn't."""

import math
from collections.abc import Sequence

import msgspec

from headrace.core.load_records import LoadRun, Outcome
from headrace.policies import load_levels
from headrace.policies.load_figures import Measure
from headrace.policies.load_report import LoadReport

FACTOR = 1.5
CLOSER = 2
STEPS_MAX = 32


class Step(msgspec.Struct, frozen=True, order=True):
    """One rate, and what came of it.

    Attributes:
        intended_per_s: Of this step's requests; a short step has a few more or fewer than its rate says.
        good_share: Whole answers in time, of the intended requests but those that were cancelled as planned.
        is_followed: Next to all were answered, and as fast as they came.
    """

    rate_per_s: float
    intended_per_s: float
    goodput_per_s: float
    good_share: float
    ttft_p50_s: float | None
    total_p50_s: float | None
    is_followed: bool
    is_void: bool


def step(run: LoadRun, report: LoadReport, *, rate_per_s: float, before: Sequence[Step]) -> Step:
    """What a run says of its rate. `before` are the steps that were made before it.

    As many requests are worked on at once as Little's law says, of the time that an answer took at the first step; more than that
    left over is a queue.
    """
    total_p50_s = report.of(Measure.TOTAL).at(0.5).value
    calm_s = (before[0].total_p50_s if before else total_p50_s) or 0.0
    judged = report.intended - report.outcomes[Outcome.CANCELLED]
    is_void = bool(report.generator.void)
    return Step(
        rate_per_s,
        report.rates.intended_per_s,
        report.goodput.per_s,
        report.outcomes[Outcome.OK] / judged if judged else 0.0,
        report.of(Measure.TTFT).at(0.5).value,
        total_p50_s,
        not is_void and load_levels.keeps_up(run, callers=1 + math.ceil(rate_per_s * calm_s)),
        is_void,
    )


def next_rate(steps: Sequence[Step], *, first_per_s: float) -> float | None:
    """The next one to try, or None where enough is known."""
    if not steps:
        return first_per_s
    if len(steps) >= STEPS_MAX or steps[-1].is_void:
        return None
    behind = [each.rate_per_s for each in steps if not each.is_followed]
    if not behind:
        return steps[-1].rate_per_s * FACTOR
    most = followed(steps)
    climbed = next(number for number, each in enumerate(steps, 1) if not each.is_followed)
    if most is None or len(steps) - climbed >= CLOSER:
        return None
    return math.sqrt(most * min(rate for rate in behind if rate > most))


def followed(steps: Sequence[Step]) -> float | None:
    """The highest rate that was followed, with none below it that wasn't; None for none."""
    behind = min((each.rate_per_s for each in steps if not each.is_followed), default=math.inf)
    return max(
        (each.rate_per_s for each in steps if each.is_followed and each.rate_per_s < behind), default=None
    )
