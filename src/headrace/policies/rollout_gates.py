"""Does a candidate meet one condition, by what it and the accepted version did in the same time?

The rule, for every gate: it fails where it is shown that the candidate is worse than agreed, with a chance of at most
`1 - confidence` of a false failure over all gates and all looks of a step together; it passes where there are requests
enough and that is not shown; without requests enough it is inconclusive. Silence is therefore never a pass. Looks and gates
share that chance (policies/looks.py), so checking often doesn't make failures of chance out of good candidates.
"""

import math
import re
from collections.abc import Callable, Sequence

import msgspec

from headrace.core.deployment_terms import Gate
from headrace.core.load import EDGES_S
from headrace.core.verdicts import Interval, Judgement, Reason, Verdict
from headrace.policies import distributions, looks, proportions, quantiles
from headrace.policies.proportions import Share
from headrace.policies.quantiles import Histogram
from headrace.policies.rollout_samples import Counts, Pairs, Sample
from headrace.policies.rollout_state import Acceptance

_TAIL = re.compile(r"(ttft|itl|total)_p([1-9][0-9]?)")
_UNKNOWN = Interval(None, None, None)


class Material(msgspec.Struct, frozen=True):
    """What a gate is judged by.

    Attributes:
        candidate, control: What the two versions did since the stage was opened.
        slot_cost: What a second of a slot costs, of the candidate as a multiple of the accepted version's.
        look: Which look at this stage's growing sample it is, 1 the first.
        gates: How many are judged beside each other.
        samples_min: Requests of the candidate that the stage asks for.
        blind: Why nothing is known of what they did, "" if it is.
    """

    candidate: Sample
    control: Sample
    pairs: Pairs = Pairs()
    acceptance: tuple[Acceptance, ...] = ()
    slot_cost: float = 1.0
    look: int = 1
    gates: int = 1
    samples_min: int = 0
    blind: str = ""


Judge = Callable[[Gate, Material], Judgement]


def name_of(gate: Gate) -> str:
    """What tells it from a rollout's other gates: one metric may have a bound of its own, and one against the control."""
    return gate.metric if gate.compare == "control" else f"{gate.metric} (absolute)"


def judge(gate: Gate, material: Material) -> Judgement:
    """One of four results, with its figures."""
    alpha = looks.alpha_at(material.look, alpha=looks.shared(1.0 - gate.confidence, among=material.gates))
    if material.blind:
        return _not_made(material, alpha)
    if gate.metric == "failure_rate":
        return _failures(gate, material, alpha)
    if gate.metric == "agreement":
        return _agreement(gate, material, alpha)
    if (tail := _TAIL.fullmatch(gate.metric)) is not None:
        return _latency(gate, material, alpha, name=tail[1], quantile=int(tail[2]) / 100.0)
    if gate.metric in ("cost_per_request", "cost_per_qualified_result"):
        return _cost(gate, material, alpha)
    return _not_made(material, alpha)


def _not_made(material: Material, alpha: float) -> Judgement:
    return Judgement(
        Verdict.ERROR,
        Reason.NOT_MADE,
        _UNKNOWN,
        0.0,
        alpha,
        material.candidate.ended,
        material.control.ended,
        material.samples_min,
    )


def _failures(gate: Gate, material: Material, alpha: float) -> Judgement:
    candidate = Share(material.candidate.failed, material.candidate.ended)
    if gate.compare == "absolute":
        limit = 0.0 if gate.max is None else gate.max
        return proportions.judge_against_limit(
            candidate, limit=limit, alpha=alpha, samples_min=material.samples_min
        )
    return proportions.judge_against_control(
        candidate,
        Share(material.control.failed, material.control.ended),
        ratio_max=1.0 if gate.max_ratio is None else gate.max_ratio,
        matters_from=0.0 if gate.max_delta is None else gate.max_delta,
        alpha=alpha,
        samples_min=material.samples_min,
    )


def _agreement(gate: Gate, material: Material, alpha: float) -> Judgement:
    """Of mirrored answers; there is no control, for the accepted version's answers are the measure."""
    disagreement_max = 0.0 if gate.min is None else 1.0 - gate.min
    return proportions.judge_against_limit(
        Share(material.pairs.differing, material.pairs.compared),
        limit=disagreement_max,
        alpha=alpha,
        samples_min=material.samples_min,
    )


def _latency(gate: Gate, material: Material, alpha: float, *, name: str, quantile: float) -> Judgement:
    """A slow tail. Latencies are of what was delivered, so the gate on failures must stand beside this one, and always does."""
    candidate, control = (
        _histogram(getattr(sample, name)) for sample in (material.candidate, material.control)
    )
    if gate.compare == "absolute":
        return quantiles.judge_against_limit(
            candidate, quantile=quantile, limit=gate.max or 0.0, alpha=alpha, samples_min=material.samples_min
        )
    return quantiles.judge_against_control(
        candidate,
        control,
        quantile=quantile,
        ratio_max=_ratio_max(gate, quantiles.interval(control, quantile, alpha=alpha).estimate),
        alpha=alpha,
        samples_min=material.samples_min,
    )


def _ratio_max(gate: Gate, control: float | None) -> float:
    """The largest ratio to the control's value that is agreed to: as a ratio, as a difference, or the larger of both."""
    allowed = [1.0 if gate.max_delta is None else 0.0]
    if gate.max_ratio is not None:
        allowed = [gate.max_ratio]
    if gate.max_delta is not None and control:
        allowed.append(1.0 + gate.max_delta / control)
    return max(allowed)


def _cost(gate: Gate, material: Material, alpha: float) -> Judgement:
    """Time of slots, by their price, for each answer, or for each that is as it should be.

    The ratio of two means: log r +- z sqrt(v1 / (n1 m1^2) + v2 / (n2 m2^2)), by the delta method. Of the answers that were
    delivered so many are counted as qualified as the acceptance set found right of the same version; without one, all.
    """
    samples = material.candidate, material.control
    sizes = material.candidate.delivered, material.control.delivered
    limit = _ratio_max(gate, None)

    def judged(verdict: Verdict, reason: Reason, measure: Interval) -> Judgement:
        return Judgement(verdict, reason, measure, limit, alpha, *sizes, material.samples_min)

    if min(sizes) < 2 or not all(sample.busy_s for sample in samples):
        return judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES, _UNKNOWN)
    ours, theirs = (sample.busy_s / sample.delivered for sample in samples)
    found = material.slot_cost * ours / theirs
    if gate.metric == "cost_per_qualified_result":
        found *= _qualified_ratio(material.acceptance)
    spread = math.sqrt(sum(_squared_error(sample.total) for sample in samples))
    factor = math.exp(distributions.normal_quantile(1.0 - alpha) * spread)
    measure = Interval(found, found / factor, found * factor)
    if found / factor > limit:
        return judged(Verdict.FAIL, Reason.SHOWN_WORSE, measure)
    if min(sizes) < material.samples_min:
        return judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES, measure)
    return judged(Verdict.PASS, Reason.NOT_SHOWN_WORSE, measure)


def _qualified_ratio(acceptance: Sequence[Acceptance]) -> float:
    """By how much fewer of the candidate's answers are as they should be; 1 where no set says."""
    for result in acceptance:
        if result.candidate_share and result.accepted_share:
            return result.accepted_share / result.candidate_share
    return 1.0


def _squared_error(counts: Counts) -> float:
    """The squared relative error of the mean of durations in a histogram."""
    size = sum(counts)
    middles = [_middle(index) for index in range(len(counts))]
    mean = sum(count * middle for count, middle in zip(counts, middles, strict=True)) / size
    variance = sum(count * (middle - mean) ** 2 for count, middle in zip(counts, middles, strict=True)) / size
    return variance / (size * mean * mean)


def _middle(bucket: int) -> float:
    """Between the edges of a bucket, in the logarithm; the first and the last one's only edge."""
    if bucket == 0:
        return EDGES_S[0]
    if bucket == len(EDGES_S):
        return EDGES_S[-1]
    return math.sqrt(EDGES_S[bucket - 1] * EDGES_S[bucket])


def _histogram(counts: Counts) -> Histogram:
    return Histogram(EDGES_S, (*counts, *(0,) * (len(EDGES_S) + 1 - len(counts))))
