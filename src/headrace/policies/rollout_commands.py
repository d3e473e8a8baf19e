"""What does an operator's word do to a rollout? Changes of its state alone; what follows, the next step finds out."""

from enum import StrEnum

import msgspec

from headrace.core.deployment_terms import RolloutTerms
from headrace.core.fleet import target_key
from headrace.policies import rehearsal, rollout
from headrace.policies.rehearsal import NotRehearsed
from headrace.policies.rollout_state import Reason, Result, RolloutState, Stage

replace = msgspec.structs.replace


class Command(StrEnum):
    """What can be said.

    HOLD: stay in this stage; a failed gate still rolls back, and `max_duration_s` still ends it. RESUME: no longer.
    PROMOTE: leave this stage or step now, whatever its checks say. PROMOTE_FULLY: leave out all that are left.
    ABORT: back to the accepted version. RETRY: once more with the version whose rollout ended last.
    REHEARSE: start another version beside what serves, to see that it could be gone back to.
    """

    HOLD = "hold"
    RESUME = "resume"
    PROMOTE = "promote"
    PROMOTE_FULLY = "promote_fully"
    ABORT = "abort"
    RETRY = "retry"
    REHEARSE = "rehearse"


class Said(msgspec.Struct, frozen=True):
    """An operator's word, and what it was said to.

    Attributes:
        number: Of the word; each is heard once.
        version, terms: What is to be rehearsed.
    """

    name: str
    state: RolloutState
    command: Command
    version: int | None = None
    terms: RolloutTerms | None = None
    number: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        is_done: False where there was nothing to do; then nothing has changed.
        text: For people.
        wants: A version that is to be wanted again, so that its rollout begins.
    """

    is_done: bool
    text: str
    wants: int | None = None


def obey(said: Said) -> tuple[RolloutState, Answer]:
    """The state after an operator's word, which changes nothing where there is nothing that it could mean."""
    after, answer = _obeyed(said)
    return replace(after, heard=max(said.state.heard, said.number)), answer


def _obeyed(said: Said) -> tuple[RolloutState, Answer]:
    name, state, command = said.name, said.state, said.command
    if command is Command.RETRY:
        return _again(name, state)
    if command is Command.REHEARSE:
        return _rehearsed(said)
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
                is_waved=True,
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
    if ended is None or ended.result is Result.PROMOTED or ended.candidate == state.accepted:
        return state, Answer(False, f"{name} has no rollout that could be repeated: nothing has changed")
    text = f"the rollout of {target_key(name, ended.candidate)} begins again"
    if state.answered == ended.candidate:
        return replace(state, answered=None), Answer(True, text)
    # Another version is wanted since; by us, where this one was rolled back.
    return state, Answer(True, text, wants=ended.candidate)


def _rehearsed(said: Said) -> tuple[RolloutState, Answer]:
    if said.version is None or said.terms is None:
        return said.state, Answer(False, f"name a version of {said.name} to rehearse: nothing has changed")
    try:
        after = rehearsal.begun(said.name, said.state, said.version, said.terms)
    except NotRehearsed as error:
        return said.state, Answer(False, str(error))
    target = target_key(said.name, said.version)
    return after, Answer(True, f"{target} is started beside what serves; no request of a customer goes to it")


def _place(state: RolloutState) -> str:
    current = state.rollout
    assert current is not None
    if current.stage is not Stage.STEPPING:
        return current.stage.value
    step = current.steps[current.step]
    return f"step {current.step + 1} of {len(current.steps)} ({step.weight:g} %)"
