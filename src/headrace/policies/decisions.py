"""What was decided, why, and from what? A record that is enough to decide again, and to see whether the same comes out."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class Decision(msgspec.Struct, frozen=True):
    """One decision about one deployment.

    Attributes:
        kind: What was decided about: "scale", "rollout", "replica"; who decides it again is found by it.
        reason: In one word, snake_case.
        inputs: All that it was decided from, as JSON: state, terms, what was seen, and the moment.
        outcome: What came out, as JSON.
    """

    kind: str
    deployment: str
    reason: str
    inputs: msgspec.Raw
    outcome: msgspec.Raw


def decision(kind: str, deployment: str, reason: str, inputs: Any, outcome: Any) -> Decision:
    """Of values that msgspec can write."""
    return Decision(kind, deployment, reason, _raw(inputs), _raw(outcome))


Replay = Callable[[bytes], Any]
"""Decides again from the inputs of a record; returns the outcome, or raises ValueError for inputs of another shape."""


def difference(recorded: Decision, replays: Mapping[str, Replay]) -> str | None:
    """What is different when it is decided again; "" if nothing is, None where nobody can tell."""
    replay = replays.get(recorded.kind)
    if replay is None:
        return None
    try:
        again = _raw(replay(bytes(recorded.inputs)))
    except ValueError as error:  # of msgspec as well
        return f"its inputs can't be read: {error}"
    before, after = _plain(recorded.outcome), _plain(again)
    if before == after:
        return ""
    return f"{_text(before)} was decided, and {_text(after)} is now"


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _plain(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
