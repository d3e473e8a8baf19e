"""What is told of a rollout, and when? Each change as a reason and an outcome, made again from its inputs by `replay`."""

from typing import Any

import msgspec

from headrace.core.fleet import target_key
from headrace.policies import rollout
from headrace.policies.rollout_commands import Answer, Said, obey
from headrace.policies.rollout_samples import EMPTY, Pairs
from headrace.policies.rollout_state import (
    WHOLE_PPM,
    Checked,
    Rollout,
    RolloutState,
    Seen,
    Stage,
    Wanted,
    Wish,
)
from headrace.policies.rollout_wish import wish

KIND = "rollout"


class Inputs(msgspec.Struct, frozen=True):
    """All that one step was made from."""

    state: RolloutState
    wanted: Wanted | None
    seen: Seen
    now_s: float


def decide(inputs: Inputs) -> tuple[RolloutState, Wish]:
    """The state after it, and how everything should be then."""
    state = rollout.step(inputs.state, inputs.wanted, inputs.seen, now_s=inputs.now_s)
    return state, wish(state, inputs.seen)


def replay(inputs: bytes) -> dict[str, Any]:
    """The outcome of a step or of a word, decided again. Raises ValueError for inputs of another shape."""
    if "command" in msgspec.json.decode(inputs, type=dict[str, msgspec.Raw]):
        said = msgspec.json.decode(inputs, type=Said)
        return obeyed(said, *obey(said))
    found = msgspec.json.decode(inputs, type=Inputs)
    return outcome(found.state, *decide(found))


def obeyed(said: Said, after: RolloutState, answer: Answer) -> dict[str, Any]:
    """What came of an operator's word, as the decision log has it, by which whoever said it finds the answer."""
    before = said.state
    told: dict[str, Any] = {"word": said.number, **msgspec.to_builtins(answer)}
    if after.ended is not None and after.ended != before.ended:
        told["result"] = after.ended.result.value
    return told


def is_news(before: RolloutState, after: RolloutState) -> bool:
    """Whether something is different that must not be lost: not the time that has passed, nor what was counted in it."""
    return _untimed(before) != _untimed(after)


def reason(before: RolloutState, after: RolloutState) -> str | None:
    """In one word, why a step is recorded; None where nothing happened that anybody will ask for."""
    if after.ended != before.ended and after.ended is not None:
        return after.ended.reason.value
    old, new = before.rollout, after.rollout
    if after.rehearsed != before.rehearsed:
        return "rehearsed"
    if new is None:
        return "previous_ended" if before.previous is not None and after.previous is None else None
    if old is None or old.number != new.number:
        return "begun"
    if (old.stage, old.step) != (new.stage, new.step):
        return new.stage.value
    if old.is_open != new.is_open:
        return "opened"
    if old.attempt != new.attempt or old.acceptance != new.acceptance:
        return "acceptance_run"
    return "checked" if old.check_s > new.check_s and new.checked else None


def outcome(before: RolloutState, after: RolloutState, wished: Wish) -> dict[str, Any]:
    """What came of a step, as the decision log has it."""
    told: dict[str, Any] = {
        "accepted": after.accepted,
        "weights_ppm": {str(arm.version): arm.weight_ppm for arm in wished.arms},
        "mirrored_ppm": 0 if wished.mirror is None else wished.mirror.share_ppm,
    }
    if after.rollout is not None:
        told |= progress(after.rollout)
    if after.ended != before.ended and after.ended is not None:
        ended = msgspec.to_builtins(after.ended)
        told |= {name: ended[name] for name in ("candidate", "result", "reason", "stage", "step", "detail")}
        told["checks"] = [_check(each) for each in after.ended.checked]
    if after.rehearsed != before.rehearsed and after.rehearsed is not None:
        told["rehearsed"] = msgspec.to_builtins(after.rehearsed)
    return told


def summary(name: str, state: RolloutState, wished: Wish) -> dict[str, Any]:
    """How it stands, for status."""
    told: dict[str, Any] = {
        "weights": {
            target_key(name, arm.version): round(arm.weight_ppm / WHOLE_PPM, 6) for arm in wished.arms
        },
        "previous": state.previous,
        "previous_left_s": None if state.previous is None else round(max(0.0, state.keep_s - state.kept_s)),
    }
    if state.rollout is not None:
        told |= {"number": state.rollout.number, "age_s": round(state.rollout.age_s)}
        told |= progress(state.rollout)
    if state.ended is not None:
        last = msgspec.to_builtins(state.ended)
        del last["checked"]
        told["last"] = {**last, "checks": [_check(each) for each in state.ended.checked]}
    if state.rehearsal is not None:
        told["rehearsing"] = {
            "version": state.rehearsal.version,
            "age_s": round(state.rehearsal.age_s),
            "ready_s": state.rehearsal.ready_s,
        }
    if state.rehearsed is not None:
        told["rehearsed"] = msgspec.to_builtins(state.rehearsed)
    return told


def progress(current: Rollout) -> dict[str, Any]:
    """Where a rollout is, and what it waits for."""
    steps = current.steps if Stage.STEPPING in current.stages else ()
    is_stepping = current.stage is Stage.STEPPING
    return {
        "candidate": current.candidate,
        "strategy": current.terms.strategy,
        "stage": current.stage.value,
        "step": current.step + 1 if is_stepping else None,
        "steps": len(steps),
        "waits_for": current.waits_for.value,
        "is_held": current.is_held,
        "requests": current.candidate_did.ended,
        "requests_needed": steps[current.step].min_requests if is_stepping else None,
        "checks": [_check(each) for each in current.checked],
        "fails": dict(current.fails),
        "acceptance": [msgspec.to_builtins(each) for each in current.acceptance],
    }


def _check(each: Checked) -> dict[str, Any]:
    found = each.judgement
    return {
        "gate": each.metric,
        "verdict": found.verdict.value,
        "why": found.reason.value,
        "found": found.measure.estimate,
        "low": found.measure.low,
        "high": found.measure.high,
        "limit": found.limit,
        "requests": found.candidate_samples,
        "control_requests": found.control_samples,
        "is_dry": each.is_dry,
    }


def _untimed(state: RolloutState) -> RolloutState:
    current, trial = state.rollout, state.rehearsal
    replace = msgspec.structs.replace
    if current is not None:
        current = replace(
            current,
            age_s=0.0,
            stage_s=0.0,
            check_s=0.0,
            candidate_did=EMPTY,
            accepted_did=EMPTY,
            pairs=Pairs(),
        )
    if trial is not None:
        trial = replace(trial, age_s=0.0)
    return replace(state, at_s=None, kept_s=0.0, floor_s=0.0, rollout=current, rehearsal=trial)
