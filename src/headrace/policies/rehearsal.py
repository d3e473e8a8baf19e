"""Could this deployment go back to an earlier version? Found out by doing all of it but the routes.

One replica of that version is started beside everything else, as any replica is: its bytes are there and are what their
digests say, it fits, it loads, it answers its canary. Then its acceptance sets are run. No request of a customer goes to
it, and it ends afterwards. What was shown stays with its date, so that nobody believes in an old rehearsal for ever.
"""

from collections.abc import Sequence

import msgspec

from headrace.core.deployment_terms import RolloutTerms
from headrace.core.fleet import target_key
from headrace.core.verdicts import Verdict
from headrace.policies.rollout_state import (
    QUALITY_PREFIX,
    Acceptance,
    AcceptanceRun,
    Rehearsal,
    Rehearsed,
    RolloutState,
    Seen,
)

replace = msgspec.structs.replace


class NotRehearsed(Exception):
    """A rehearsal can't begin now; its text is for people."""


def begun(name: str, state: RolloutState, version: int, terms: RolloutTerms) -> RolloutState:
    """With a rehearsal of that version under way. Raises NotRehearsed."""
    if state.rollout is not None:
        raise NotRehearsed(f"{name} has a rollout in progress; rehearse when it is over")
    if state.rehearsal is not None:
        raise NotRehearsed(f"{target_key(name, state.rehearsal.version)} is being rehearsed already")
    if state.accepted is None:
        raise NotRehearsed(f"{name} serves nobody yet: there is nothing to go back from")
    if version == state.accepted:
        raise NotRehearsed(f"{target_key(name, version)} is what serves; name an earlier version")
    number = state.rehearsals + 1
    rehearsal = Rehearsal(
        number=number,
        version=version,
        accepted=state.accepted,
        beside=state.previous_replicas if state.previous == version else 0,
        gates=tuple(gate.metric for gate in terms.gates if gate.metric.startswith(QUALITY_PREFIX)),
        error_limit=terms.error_limit,
        max_duration_s=terms.max_duration_s,
    )
    return replace(state, rehearsals=number, rehearsal=rehearsal)


def aged(rehearsal: Rehearsal, elapsed_s: float) -> Rehearsal:
    return replace(rehearsal, age_s=rehearsal.age_s + elapsed_s)


def interrupted(state: RolloutState, seen: Seen, why: str) -> RolloutState:
    """Something more important begins: what was shown so far is no evidence."""
    if state.rehearsal is None:
        return state
    return _over(state, state.rehearsal, seen, Verdict.ERROR, why)


def advanced(state: RolloutState, seen: Seen) -> RolloutState:
    """One thing that follows at once, or the state as it is."""
    rehearsal = state.rehearsal
    assert rehearsal is not None
    found = seen.of(rehearsal.version)
    if found.failures or found.is_hopeless:
        return _over(state, rehearsal, seen, Verdict.FAIL, found.failure or "its replica did not get ready")
    if seen.refusal and found.present <= rehearsal.beside:
        return _over(state, rehearsal, seen, Verdict.FAIL, seen.refusal)
    if rehearsal.age_s >= rehearsal.max_duration_s:
        return _over(state, rehearsal, seen, Verdict.FAIL, f"not done within {rehearsal.max_duration_s:g} s")
    if rehearsal.ready_s is None:
        if found.ready <= rehearsal.beside:
            return state
        return replace(state, rehearsal=replace(rehearsal, ready_s=rehearsal.age_s))
    return _accepted(state, rehearsal, seen)


def runs_missing(rehearsal: Rehearsal) -> tuple[AcceptanceRun, ...]:
    """Acceptance sets that are to be run, once it is ready.

    Held against its floor alone: an earlier version may well be less good than what has replaced it.
    """
    if rehearsal.ready_s is None:
        return ()
    done = {result.gate for result in rehearsal.acceptance}
    return tuple(
        AcceptanceRun(rehearsal.mark, gate, rehearsal.attempt, rehearsal.version, None)
        for gate in rehearsal.gates
        if gate not in done
    )


def _accepted(state: RolloutState, rehearsal: Rehearsal, seen: Seen) -> RolloutState:
    runs = {(run.of, run.gate, run.attempt) for run in runs_missing(rehearsal)}
    found = [result for result in seen.acceptance if (result.of, result.gate, result.attempt) in runs]
    errors = [result for result in found if result.verdict is Verdict.ERROR]
    rehearsal = replace(
        rehearsal,
        acceptance=(
            *rehearsal.acceptance,
            *(result for result in found if result.verdict is not Verdict.ERROR),
        ),
    )
    if errors and rehearsal.attempt + 1 >= rehearsal.error_limit:
        return _over(state, rehearsal, seen, Verdict.ERROR, _told(errors))
    if errors:
        return replace(state, rehearsal=replace(rehearsal, attempt=rehearsal.attempt + 1))
    if runs_missing(rehearsal):
        return replace(state, rehearsal=rehearsal)
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        if bad := [result for result in rehearsal.acceptance if result.verdict is verdict]:
            return _over(state, rehearsal, seen, verdict, _told(bad))
    return _over(state, rehearsal, seen, Verdict.PASS, "")


def _told(results: Sequence[Acceptance]) -> str:
    return "; ".join(f"{result.gate}: {result.detail or result.verdict}" for result in results)


def _over(
    state: RolloutState, rehearsal: Rehearsal, seen: Seen, verdict: Verdict, detail: str
) -> RolloutState:
    rehearsed = Rehearsed(
        version=rehearsal.version,
        verdict=verdict,
        at_s=seen.wall_s,
        ready_s=rehearsal.ready_s,
        acceptance=rehearsal.acceptance,
        detail=detail,
    )
    return replace(state, rehearsal=None, rehearsed=rehearsed)
