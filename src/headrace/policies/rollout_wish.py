"""How should routes and replicas be, given where a rollout stands? A function, so that saying it again changes nothing."""

from headrace.policies import rehearsal
from headrace.policies import rollout_checks as checks
from headrace.policies.rollout_state import (
    WHOLE_PPM,
    Arm,
    Mirror,
    ReplicaBounds,
    Rollout,
    RolloutState,
    Seen,
    Stage,
    Wish,
    ppm,
)

NONE = ReplicaBounds(0, 0)


def wish(state: RolloutState, seen: Seen) -> Wish:
    """Everything as it should be now; a version that isn't named should have no replica."""
    rollout = state.rollout
    replicas: dict[int, ReplicaBounds] = {}
    if state.previous is not None:
        replicas[state.previous] = ReplicaBounds(state.previous_replicas, state.previous_replicas)
    if state.accepted is not None:
        replicas[state.accepted] = _accepted_bounds(state, seen)
    if rollout is None:
        if (trial := state.rehearsal) is not None:
            replicas[trial.version] = ReplicaBounds(trial.beside + 1, trial.beside + 1)
        return Wish(
            _arms(state.accepted, None, 0),
            replicas=replicas,
            acceptance=rehearsal.runs_missing(trial) if trial is not None else (),
        )
    replicas[rollout.candidate] = _candidate_bounds(rollout, seen)
    candidate = seen.of(rollout.candidate)
    arms = _arms(state.accepted, rollout.candidate, rollout.weight_ppm if candidate.ready else 0)
    is_mirrored = rollout.stage is Stage.MIRRORING and rollout.is_open and candidate.ready > 0
    return Wish(
        arms=arms if state.accepted is not None else _first_arms(rollout),
        is_sticky=rollout.terms.sticky == "conversation" and rollout.weight_ppm > 0,
        is_experiment=rollout.terms.strategy == "ab",
        mirror=Mirror(rollout.candidate, ppm(rollout.terms.mirror.percent)) if is_mirrored else None,
        replicas=replicas,
        acceptance=checks.runs_missing(rollout) if rollout.stage is Stage.ACCEPTANCE else (),
    )


def _first_arms(rollout: Rollout) -> tuple[Arm, ...]:
    """Where nobody else serves, the first version does as soon as it is ready, unless its answers are to be looked at before."""
    return () if Stage.ACCEPTANCE in rollout.stages else (Arm(rollout.candidate, WHOLE_PPM),)


def _arms(accepted: int | None, candidate: int | None, weight_ppm: int) -> tuple[Arm, ...]:
    """The accepted version first. Nothing goes to a candidate that has no share, or no replica."""
    if accepted is None:
        return ()
    if candidate is None or not weight_ppm:
        return (Arm(accepted, WHOLE_PPM),)
    return (Arm(accepted, WHOLE_PPM - weight_ppm), Arm(candidate, weight_ppm))


def _accepted_bounds(state: RolloutState, seen: Seen) -> ReplicaBounds:
    rollout, ended = state.rollout, state.ended
    if rollout is not None:
        return NONE if rollout.is_recreate else ReplicaBounds(rollout.capacity)
    # Both didn't fit: what was there before comes back once the other has gone.
    is_restored = ended is not None and ended.was_recreate and ended.candidate != state.accepted
    if ended is not None and is_restored and seen.of(ended.candidate).present:
        return NONE
    return ReplicaBounds(state.floor)


def _candidate_bounds(rollout: Rollout, seen: Seen) -> ReplicaBounds:
    if rollout.is_recreate and rollout.stage is Stage.PREPARING and seen.of(rollout.accepted).present:
        return NONE
    return ReplicaBounds(rollout.replicas_needed(seen))
