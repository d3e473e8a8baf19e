"""What was recorded of a decision is enough to decide again."""

import msgspec

from headrace.policies.decisions import Decision, Replay, decision, difference


class Inputs(msgspec.Struct):
    load: float


def decide(inputs: bytes) -> dict[str, int]:
    return {"replicas": round(msgspec.json.decode(inputs, type=Inputs).load)}


REPLAYS: dict[str, Replay] = {"scale": decide}


def made(load: object, replicas: int, *, kind: str = "scale") -> Decision:
    return decision(kind, "chat", "load_up", {"load": load}, {"replicas": replicas})


def test_the_same_inputs_lead_to_the_same_outcome() -> None:
    assert difference(made(3.2, 3), REPLAYS) == ""


def test_another_outcome_is_told_beside_the_one_of_then() -> None:
    assert difference(made(3.2, 4), REPLAYS) == '{"replicas":4} was decided, and {"replicas":3} is now'


def test_what_nobody_can_decide_again_is_neither_the_same_nor_another() -> None:
    assert difference(made(3.2, 3, kind="rollout"), REPLAYS) is None


def test_inputs_of_another_version_are_told_as_such() -> None:
    said = difference(made("much", 3), REPLAYS)
    assert said is not None
    assert said.startswith("its inputs can't be read: ")


def test_a_decision_survives_being_written_down() -> None:
    known = made(3.2, 3)
    assert msgspec.json.decode(msgspec.json.encode(known), type=Decision) == known
