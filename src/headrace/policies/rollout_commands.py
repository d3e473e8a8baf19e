"""What does an operator's word do to a rollout? Changes of its state alone; what follows, the next step finds out."""

from enum import StrEnum

import msgspec

from headrace.core.fleet import target_key
from headrace.policies import rollout
from headrace.policies.rollout_state import Reason, Result, RolloutState, Stage

replace = msgspec.structs.replace


class Command(StrEnum):
    """What can be said.

    HOLD: stay in this stage; a failed gate still rolls back, and `max_duration_s` still ends it. RESUME: no longer.
    PROMOTE: leave this stage or step now, whatever its checks say. PROMOTE_FULLY: leave out all that are left.
    ABORT: back to the accepted version. RETRY: once more with the version whose rollout ended last.
    """

    HOLD = "hold"
    RESUME = "resume"
    PROMOTE = "promote"
    PROMOTE_FULLY = "promote_fully"
    ABORT = "abort"
    RETRY = "retry"


class Answer(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        is_done: False where there was nothing to do; then nothing has changed.
        text: For people.
    """

    is_done: bool
    text: str


def obey(name: str, state: RolloutState, command: Command) -> tuple[RolloutState, Answer]:
    """The state after an operator's word, which changes nothing where there is nothing that it could mean."""
    if command is Command.RETRY:
        return _again(name, state)
    current = state.rollout
    if current is None:
        return state, Answer(False, f"{name} has no rollout in progress: nothing has changed")
    candidate = target_key(name, current.candidate)
    match command:
        case Command.HOLD:
            changed = replace(current, is_held=True)
            return replace(state, rollout=changed), Answer(True, f"{candidate} is held in {_place(state)}")
        case Command.RESUME:
            changed = replace(current, is_held=False)
            return replace(state, rollout=changed), Answer(True, f"{candidate} goes on from {_place(state)}")
        case Command.PROMOTE:
            if current.stage in (Stage.PREPARING, Stage.PROMOTING):
                changed = replace(current, is_held=False)
                text = f"{candidate} goes on as soon as its replicas are ready"
                return replace(state, rollout=changed), Answer(True, text)
            changed = replace(current, is_held=False, is_waved=True)
            return replace(state, rollout=changed), Answer(True, f"{candidate} leaves {_place(state)}")
        case Command.PROMOTE_FULLY:
            changed = replace(
                current,
                stage=Stage.PROMOTING,
                is_open=False,
                is_held=False,
                is_waved=False,
                stage_s=0.0,
                waits_for=Reason.REPLICAS,
            )
            text = f"{candidate} takes over as soon as all its replicas are ready"
            return replace(state, rollout=changed), Answer(True, text)
        case _:  # ABORT
            text = f"the rollout of {candidate} is aborted"
            if state.accepted is not None:
                text += f": {target_key(name, state.accepted)} gets all requests"
            return rollout.ended(state, Result.ABORTED, Reason.OPERATOR), Answer(True, text)


def _again(name: str, state: RolloutState) -> tuple[RolloutState, Answer]:
    ended = state.ended
    if state.rollout is not None:
        return state, Answer(False, f"{name} has a rollout in progress: nothing has changed")
    if ended is None or ended.result is Result.PROMOTED or state.answered != ended.candidate:
        return state, Answer(False, f"{name} has no rollout that could be repeated: nothing has changed")
    text = f"the rollout of {target_key(name, ended.candidate)} begins again"
    return replace(state, answered=None), Answer(True, text)


def _place(state: RolloutState) -> str:
    current = state.rollout
    assert current is not None
    if current.stage is not Stage.STEPPING:
        return current.stage.value
    step = current.steps[current.step]
    return f"step {current.step + 1} of {len(current.steps)} ({step.weight:g} %)"
