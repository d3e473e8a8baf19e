"""What do the checks of a rollout say together, and is there enough to say anything? Budgets of results, and minimum samples."""

from collections.abc import Sequence

import msgspec

from headrace.core.deployment_terms import Gate, Step
from headrace.core.verdicts import Reason as Shortage
from headrace.core.verdicts import Verdict
from headrace.policies.rollout_gates import Judge, Material, name_of
from headrace.policies.rollout_state import (
    QUALITY_PREFIX,
    WHOLE_PPM,
    Acceptance,
    AcceptanceRun,
    Checked,
    Reason,
    Rollout,
    Seen,
    Stage,
)

replace = msgspec.structs.replace

SHARE_MIN = 0.5
"""A step counts once the candidate got this part of the share that it should get: else what it got may be no fair sample."""

FAILURES = Gate("failure_rate", max_delta=0.01)
FAILURES_ALONE = Gate("failure_rate", compare="absolute", max=0.05)
"""Hold where no gate looks at failures: a rollout that nothing watches would promote what answers nobody."""


# While requests come.


def live_gates(rollout: Rollout) -> tuple[Gate, ...]:
    """The gates that are judged by requests, in the present stage.

    Where the candidate gets everything there is no concurrent control: only bounds of the metric itself can be judged.
    """
    gates = [gate for gate in rollout.terms.gates if not gate.metric.startswith(QUALITY_PREFIX)]
    has_callers = rollout.stage is Stage.STEPPING or rollout.is_between
    is_alone = has_callers and (rollout.weight_ppm if rollout.is_between else rollout.share_ppm) >= WHOLE_PPM
    if has_callers:
        gates = [gate for gate in gates if gate.metric != "agreement"]
        if is_alone:
            gates = [gate for gate in gates if gate.compare == "absolute"]
    if all(gate.metric != FAILURES.metric for gate in gates):
        gates.insert(0, FAILURES_ALONE if is_alone else FAILURES)
    return tuple(gates)


def checked(rollout: Rollout, seen: Seen, judge: Judge) -> Rollout:
    """After a check: each gate judged, and its budgets charged.

    A failed check is counted whenever it comes, for the statistics have allowed for looking early; a passed one counts
    only when the sample is complete, which `lack` says.
    """
    gates, ended = live_gates(rollout), rollout.candidate_did.ended
    is_new = ended > rollout.looked_at or not rollout.looks
    rollout = replace(rollout, looks=rollout.looks + is_new, looked_at=ended, check_s=0.0)
    material = Material(
        candidate=rollout.candidate_did,
        control=rollout.accepted_did,
        pairs=rollout.pairs,
        acceptance=rollout.acceptance,
        slot_cost=_slot_cost(rollout, seen),
        look=rollout.looks,
        gates=len(gates),
        samples_min=_minimum(rollout).min_requests,
        blind=seen.blind,
    )
    fails, errors, results = dict(rollout.fails), dict(rollout.errors), []
    for gate in gates:
        judgement, name = judge(gate, material), name_of(gate)
        results.append(Checked(name, judgement, gate.dry_run))
        if gate.dry_run:
            continue
        if judgement.verdict is Verdict.FAIL:
            fails[name] = fails.get(name, 0) + 1
        errors[name] = errors.get(name, 0) + 1 if judgement.verdict is Verdict.ERROR else 0
    return replace(rollout, checked=tuple(results), fails=fails, errors=errors)


def _slot_cost(rollout: Rollout, seen: Seen) -> float:
    """The candidate's as a multiple of the accepted version's; alike where nobody says what either costs."""
    ours, theirs = (seen.of(version).slot_cost for version in (rollout.candidate, rollout.accepted))
    return ours / theirs if ours and theirs else 1.0


def over_budget(rollout: Rollout) -> tuple[Reason, str] | None:
    """The gate that has used up its failed checks, or those that couldn't be made."""
    for name, count in rollout.fails.items():
        if count >= rollout.terms.fail_limit:
            return Reason.GATE_FAILED, f"{name} failed {count} checks"
    for name, count in rollout.errors.items():
        if count >= rollout.terms.error_limit:
            return Reason.GATE_ERRORS, f"{name} could not be checked {count} times in a row"
    return None


def lack(rollout: Rollout) -> Reason | None:
    """What a step needs before its checks mean that it may go on."""
    ended, minimum = rollout.candidate_did.ended, _minimum(rollout)
    if rollout.stage is Stage.MIRRORING:
        if any(gate.metric == "agreement" for gate in live_gates(rollout)):
            ended = min(ended, rollout.pairs.compared)
    elif rollout.share_ppm < WHOLE_PPM:
        both = ended + rollout.accepted_did.ended
        if ended * WHOLE_PPM < SHARE_MIN * rollout.share_ppm * both:
            return Reason.SHARE
    judgements = [item.judgement for item in rollout.checked if not item.is_dry]
    is_short = any(judgement.reason is Shortage.TOO_FEW_SAMPLES for judgement in judgements)
    if is_short or ended < minimum.min_requests:
        return Reason.REQUESTS
    return Reason.TIME if rollout.stage_s < minimum.min_s else None


def asks_nothing(rollout: Rollout) -> bool:
    """Whoever wrote `min_requests = 0` wants no judgement: the stage lasts its least time, and failures still end it."""
    minimum = _minimum(rollout)
    is_over = minimum.min_requests == 0 and rollout.stage_s >= minimum.min_s
    return is_over and not rollout.fails and not needs_promotion(rollout)


def _minimum(rollout: Rollout) -> Step:
    if rollout.stage is Stage.MIRRORING:
        mirror = rollout.terms.mirror
        return Step(100.0, mirror.min_requests)
    return rollout.steps[rollout.step]


def needs_promotion(rollout: Rollout) -> bool:
    """An operator must say that it goes on: after a shadow, and to end a comparison of two versions."""
    match rollout.stage, rollout.terms.strategy:
        case (Stage.MIRRORING, "shadow") | (Stage.STEPPING, "ab"):
            return True
        case _:
            return False


def undecided_gates(rollout: Rollout) -> str:
    """Those that there was not enough evidence for, for people."""
    names = [
        item.metric
        for item in rollout.checked
        if not item.is_dry and item.judgement.verdict is Verdict.INCONCLUSIVE
    ]
    names += [item.gate for item in rollout.acceptance if item.verdict is Verdict.INCONCLUSIVE]
    return ", ".join(names)


# Before they come: acceptance sets.


def acceptance_gates(rollout: Rollout) -> tuple[Gate, ...]:
    return tuple(gate for gate in rollout.terms.gates if gate.metric.startswith(QUALITY_PREFIX))


def with_results(rollout: Rollout, seen: Sequence[Acceptance]) -> Rollout:
    """With what runs of the present attempt have found. An error has found nothing: that set is still missing."""
    missing = runs_missing(rollout)
    found = tuple(
        result
        for result in seen
        if result.verdict is not Verdict.ERROR
        and (result.of, result.attempt) == (rollout.mark, rollout.attempt)
        and any(run.gate == result.gate for run in missing)
    )
    return replace(rollout, acceptance=(*rollout.acceptance, *found)) if found else rollout


def runs_missing(rollout: Rollout) -> tuple[AcceptanceRun, ...]:
    """Sets that are to be run."""
    done = {result.gate for result in rollout.acceptance}
    return tuple(
        AcceptanceRun(rollout.mark, gate.metric, rollout.attempt, rollout.candidate, rollout.accepted)
        for gate in acceptance_gates(rollout)
        if gate.metric not in done
    )


def first_of(rollout: Rollout, verdict: Verdict) -> Acceptance | None:
    """The first set with this result, of those that decide."""
    dry = {gate.metric for gate in acceptance_gates(rollout) if gate.dry_run}
    for result in rollout.acceptance:
        if result.verdict is verdict and result.gate not in dry:
            return result
    return None


def errors_of_attempt(rollout: Rollout, seen: Sequence[Acceptance]) -> str:
    """Why runs of the present attempt could not be made, "" if none says so."""
    runs = {(run.of, run.gate, run.attempt) for run in runs_missing(rollout)}
    return "; ".join(
        f"{result.gate}: {result.detail}"
        for result in seen
        if result.verdict is Verdict.ERROR and (result.of, result.gate, result.attempt) in runs
    )
