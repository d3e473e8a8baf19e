"""Which version should serve, and how far is the change to it? The state machine of a rollout; it does no I/O.

    preparing -> acceptance -> mirroring -> stepping -> promoting -> promoted
        |            |             |            |           |
        +------------+-------------+------------+-----------+----> rolled back, aborted or superseded

`step` looks at what is wanted and what is seen, and returns the new state; `wish` says how everything should be then. From
every stage there is one step back to the accepted version, whose replicas are there until the candidate is promoted: a
rollback is a change of routes, and processes end after it. A rollout ends once. Time alone never takes it forward, and
`max_duration_s` ends it where nothing else does.
"""

import msgspec

from headrace.core.verdicts import Verdict
from headrace.policies import rehearsal
from headrace.policies import rollout_checks as checks
from headrace.policies import rollout_gates as gates
from headrace.policies.rollout_gates import Judge
from headrace.policies.rollout_samples import EMPTY, Pairs
from headrace.policies.rollout_state import (
    Ended,
    Reason,
    Result,
    Rollout,
    RolloutState,
    Seen,
    Stage,
    Wanted,
    stages_of,
)

replace = msgspec.structs.replace

LOOK_GAP_MAX_S = 60.0
"""More than this between two looks counts as this: nobody looked after it meanwhile."""

SETTLE_S = 120.0
"""After a rollout the accepted version keeps at least its replicas for so long."""

PROVEN_MAX = 32
"""So many versions that were accepted once are remembered."""

UNDECIDED_MAX = 10
"""So many checks with enough requests may leave a gate undecided before `rollout.inconclusive` decides."""


def step(
    state: RolloutState, wanted: Wanted | None, seen: Seen, *, now_s: float, judge: Judge = gates.judge
) -> RolloutState:
    """What follows from what is wanted and seen; equal to `state`, but for times and counts, where nothing does.

    Args:
        wanted: None where the deployment was removed.
        now_s: Of any clock that doesn't go backwards while the machine is up.
    """
    state = _looked(state, seen, now_s)
    while (following := _advanced(state, wanted, seen, judge)) != state:
        state = following
    is_timed = state.rollout is not None or state.rehearsal is not None
    is_timed = is_timed or state.previous is not None or state.floor_s > 0.0
    return replace(state, at_s=now_s if is_timed else None)


def ended(state: RolloutState, result: Result, reason: Reason, detail: str = "") -> RolloutState:
    """The rollout under way is over. Whatever its result, exactly one version is accepted from here on."""
    rollout = state.rollout
    assert rollout is not None
    epilogue = Ended(
        number=rollout.number,
        candidate=rollout.candidate,
        accepted=rollout.accepted,
        result=result,
        reason=reason,
        stage=rollout.stage,
        step=rollout.step,
        age_s=rollout.age_s,
        detail=detail,
        was_recreate=rollout.is_recreate,
        checked=rollout.checked,
    )
    state = replace(state, rollout=None, ended=epilogue, floor=rollout.capacity, floor_s=SETTLE_S)
    if result is not Result.PROMOTED:
        return state
    is_kept = not rollout.is_recreate and not rollout.is_return and rollout.terms.keep_previous_s > 0.0
    return replace(
        state,
        accepted=rollout.candidate,
        floor=min(rollout.capacity, rollout.replicas_max),
        proven=_proven(state.proven, rollout),
        previous=rollout.accepted if is_kept and rollout.capacity else None,
        previous_replicas=rollout.capacity,
        keep_s=rollout.terms.keep_previous_s,
        kept_s=0.0,
    )


def _proven(before: tuple[int, ...], rollout: Rollout) -> tuple[int, ...]:
    """With both versions of a rollout that ended well, each once."""
    both = (rollout.candidate,) if rollout.accepted is None else (rollout.accepted, rollout.candidate)
    return (*(version for version in before if version not in both), *both)[-PROVEN_MAX:]


def _looked(state: RolloutState, seen: Seen, now_s: float) -> RolloutState:
    """Time has passed, and versions have done something in it."""
    elapsed_s = 0.0 if state.at_s is None else min(LOOK_GAP_MAX_S, max(0.0, now_s - state.at_s))
    rollout = state.rollout
    if rollout is not None:
        rollout = replace(
            rollout,
            age_s=rollout.age_s + elapsed_s,
            stage_s=rollout.stage_s + elapsed_s,
            check_s=rollout.check_s + elapsed_s,
        )
        if rollout.is_open or rollout.is_between:
            rollout = replace(
                rollout,
                candidate_did=rollout.candidate_did.plus(seen.of(rollout.candidate).fresh),
                accepted_did=rollout.accepted_did.plus(seen.of(rollout.accepted).fresh),
                pairs=rollout.pairs.plus(seen.fresh_pairs),
            )
    return replace(
        state,
        kept_s=state.kept_s if state.previous is None else state.kept_s + elapsed_s,
        floor_s=max(0.0, state.floor_s - elapsed_s),
        rollout=rollout,
        rehearsal=None if state.rehearsal is None else rehearsal.aged(state.rehearsal, elapsed_s),
    )


def _advanced(state: RolloutState, wanted: Wanted | None, seen: Seen, judge: Judge) -> RolloutState:
    """One thing that follows at once, or the state as it is."""
    if wanted is None:
        return _removed(state, seen)
    if wanted.version != state.answered:
        return _answered(state, wanted, seen)
    rollout = state.rollout
    if rollout is None:
        return _at_rest(state) if state.rehearsal is None else rehearsal.advanced(state, seen)
    if (stopped := _stopped(state, rollout, seen)) is not None:
        return stopped
    if rollout.is_between and not rollout.is_waved and rollout.check_s >= rollout.terms.interval_s:
        return _checked_between(state, rollout, seen, judge)
    match rollout.stage:
        case Stage.PREPARING:
            return _prepared(state, rollout, seen)
        case Stage.ACCEPTANCE:
            return _accepted(state, rollout, seen)
        case Stage.MIRRORING | Stage.STEPPING:
            return _watched(state, rollout, seen, judge)
        case _:  # PROMOTING
            return _promoted(state, rollout, seen)


def _at_rest(state: RolloutState) -> RolloutState:
    if state.previous is not None and state.kept_s >= state.keep_s:
        return replace(state, previous=None)
    return replace(state, floor=state.floor if state.floor_s > 0.0 else 0)


# What is wanted has changed.


def _removed(state: RolloutState, seen: Seen) -> RolloutState:
    if state.rollout is not None:
        return ended(state, Result.ABORTED, Reason.OPERATOR, "the deployment was removed")
    state = rehearsal.interrupted(state, seen, "the deployment was removed")
    return replace(state, accepted=None, answered=None, previous=None, floor=0, floor_s=0.0)


def _answered(state: RolloutState, wanted: Wanted, seen: Seen) -> RolloutState:
    rollout = state.rollout
    if rollout is not None and rollout.candidate != wanted.version:
        if wanted.version == state.accepted:
            return ended(state, Result.ABORTED, Reason.OPERATOR)
        return ended(state, Result.SUPERSEDED, Reason.NEWER_VERSION, f"by version {wanted.version}")
    if rollout is not None or wanted.version == state.accepted:
        return replace(state, answered=wanted.version)
    accepted = seen.of(state.accepted)
    is_return = wanted.is_return and wanted.version in state.proven
    rollout = Rollout(
        number=state.count + 1,
        candidate=wanted.version,
        accepted=state.accepted,
        terms=wanted.terms,
        stages=stages_of(wanted.terms, is_first=state.accepted is None, is_return=is_return),
        capacity=max(accepted.ready, accepted.wished),
        replicas_min=wanted.replicas_min,
        replicas_max=wanted.replicas_max,
        is_return=is_return,
    )
    state = rehearsal.interrupted(state, seen, "a rollout has begun")
    # What was kept ready of the version before is either the candidate now, or makes room for it.
    return replace(state, answered=wanted.version, count=state.count + 1, rollout=rollout, previous=None)


def _stopped(state: RolloutState, rollout: Rollout, seen: Seen) -> RolloutState | None:
    """What ends a rollout in any stage."""
    candidate = seen.of(rollout.candidate)
    if candidate.is_hopeless:
        return ended(state, Result.ROLLED_BACK, Reason.REPLICAS_FAILED, candidate.failure)
    if rollout.age_s >= rollout.terms.max_duration_s:
        return ended(state, Result.ROLLED_BACK, Reason.MAX_DURATION, f"it waited for: {rollout.waits_for}")
    is_beginning = rollout.stage is Stage.PREPARING and candidate.present == 0
    if is_beginning and seen.refusal and not rollout.is_recreate:
        return ended(state, Result.ROLLED_BACK, Reason.DOES_NOT_FIT, seen.refusal)
    return None


# Stage by stage.


def _prepared(state: RolloutState, rollout: Rollout, seen: Seen) -> RolloutState:
    if rollout.is_recreate and seen.of(rollout.accepted).present:
        return _waiting(state, rollout, Reason.OLD_REPLICAS)
    if seen.of(rollout.candidate).ready < rollout.replicas_needed(seen):
        return _waiting(state, rollout, Reason.REPLICAS)
    return _left(state, rollout)


def _accepted(state: RolloutState, rollout: Rollout, seen: Seen) -> RolloutState:
    """Judged by the results of the acceptance sets; one that could not be run is run again after an interval."""
    rollout = checks.with_results(rollout, seen.acceptance)
    state = replace(state, rollout=rollout)
    failed = checks.first_of(rollout, Verdict.FAIL)
    if failed is not None:
        return ended(state, Result.ROLLED_BACK, Reason.GATE_FAILED, f"{failed.gate}: {failed.detail}")
    if rollout.is_waved:
        return _left(state, rollout)
    if checks.runs_missing(rollout):
        broken = checks.errors_of_attempt(rollout, seen.acceptance)
        if not broken:
            return _waiting(state, rollout, Reason.ACCEPTANCE_RUN)
        if rollout.attempt + 1 >= rollout.terms.error_limit:
            return ended(state, Result.ROLLED_BACK, Reason.GATE_ERRORS, broken)
        if rollout.check_s < rollout.terms.interval_s:
            return _waiting(state, rollout, Reason.ACCEPTANCE_RUN)
        return replace(state, rollout=replace(rollout, attempt=rollout.attempt + 1, check_s=0.0))
    if checks.first_of(rollout, Verdict.INCONCLUSIVE) is not None:
        return _undecided(state, rollout)
    return _left(state, rollout)


def _watched(state: RolloutState, rollout: Rollout, seen: Seen, judge: Judge) -> RolloutState:
    """A stage with requests: opened once its replicas are ready, then checked again and again."""
    if not rollout.is_open:
        if seen.of(rollout.candidate).ready < rollout.replicas_needed(seen):
            return _waiting(state, rollout, Reason.REPLICAS)
        return replace(state, rollout=_opened(rollout))
    if rollout.is_waved or checks.asks_nothing(rollout):
        return _left(state, rollout)
    if rollout.check_s < rollout.terms.interval_s:
        return state
    rollout = checks.checked(rollout, seen, judge)
    state = replace(state, rollout=rollout)
    if (over := checks.over_budget(rollout)) is not None:
        return ended(state, Result.ROLLED_BACK, *over)
    if (lack := checks.lack(rollout)) is not None:
        return _waiting(state, rollout, lack)
    verdicts = {item.judgement.verdict for item in rollout.checked if not item.is_dry}
    if verdicts <= {Verdict.PASS}:
        if checks.needs_promotion(rollout):
            return _waiting(state, rollout, Reason.PROMOTION)
        return _left(state, rollout)
    if verdicts & {Verdict.FAIL, Verdict.ERROR}:
        return _waiting(state, rollout, Reason.NEXT_CHECK)
    rollout = replace(rollout, undecided=rollout.undecided + 1)
    if rollout.undecided < UNDECIDED_MAX:
        return _waiting(state, rollout, Reason.EVIDENCE)
    return _undecided(state, rollout)


def _checked_between(state: RolloutState, rollout: Rollout, seen: Seen, judge: Judge) -> RolloutState:
    """Replicas for more may take long to start, and an operator may hold what is left: what has a share stays under its gates."""
    rollout = checks.checked(rollout, seen, judge)
    state = replace(state, rollout=rollout)
    over = checks.over_budget(rollout)
    return state if over is None else ended(state, Result.ROLLED_BACK, *over)


def _promoted(state: RolloutState, rollout: Rollout, seen: Seen) -> RolloutState:
    if seen.of(rollout.candidate).ready < rollout.replicas_needed(seen):
        return _waiting(state, rollout, Reason.REPLICAS)
    if rollout.is_held:
        return _waiting(state, rollout, Reason.HELD)
    return ended(state, Result.PROMOTED, Reason.PASSED)


# How a rollout moves.


def _waiting(state: RolloutState, rollout: Rollout, reason: Reason) -> RolloutState:
    return replace(state, rollout=replace(rollout, waits_for=reason))


def _undecided(state: RolloutState, rollout: Rollout) -> RolloutState:
    """There were requests enough, and still nobody can say: what is done then, the terms say."""
    match rollout.terms.inconclusive:
        case "promote":
            return _left(state, rollout)
        case "rollback":
            return ended(state, Result.ROLLED_BACK, Reason.UNDECIDED, checks.undecided_gates(rollout))
        case _:  # "hold"
            return _waiting(state, rollout, Reason.EVIDENCE)


def _opened(rollout: Rollout) -> Rollout:
    """Its share of the traffic comes into force; what is judged is what happens from now on."""
    return replace(
        rollout,
        is_open=True,
        weight_ppm=rollout.share_ppm if rollout.stage is Stage.STEPPING else rollout.weight_ppm,
        stage_s=0.0,
        check_s=0.0,
        looks=0,
        looked_at=0,
        undecided=0,
        fails={},
        errors={},
        candidate_did=EMPTY,
        accepted_did=EMPTY,
        pairs=Pairs(),
        checked=(),
        waits_for=Reason.REQUESTS,
    )


def _left(state: RolloutState, rollout: Rollout) -> RolloutState:
    """On to the next step or stage, unless somebody holds it. The share in force stays until the next one is ready."""
    if rollout.is_held:
        return _waiting(state, rollout, Reason.HELD)
    stage, number = rollout.stage, rollout.step
    if stage is Stage.STEPPING and number + 1 < len(rollout.steps):
        number += 1
    else:
        stage = rollout.stages[rollout.stages.index(stage) + 1]
    following = replace(
        rollout,
        stage=stage,
        step=number,
        is_open=False,
        is_waved=False,
        stage_s=0.0,
        check_s=0.0,
        waits_for=Reason.REPLICAS,
    )
    return replace(state, rollout=following)
