"""REPORTS 60: tool calls of a stream are told apart by their index, whatever index the engine gave them."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols import answers, mending
from headrace.protocols.assembling import AnswerAssembler
from tests.protocols.chunks import chunk, pieces

ARGUMENTS = st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers(), max_size=3)


def call(index: int | None, id_: str | None = None, arguments: str = "") -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if id_ is not None:
        piece |= {"id": id_, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return piece


def event(*calls: Any, index: int = 0, finish: str | None = None) -> bytes:
    return chunk({"index": index, "delta": {"tool_calls": list(calls)}, "finish_reason": finish})


def reading() -> answers.StreamedAnswer:
    return answers.StreamedAnswer(choices=1, wants_usage=True, hides_cached=True, hides_progress=False)


def indexes(*events: bytes) -> list[list[Any]]:
    """Of the calls in each event, as a caller sees them."""
    answer = reading()
    seen = [json.loads(answer.take(each) or b"{}") for each in events]
    return [
        [piece.get("index") for c in each["choices"] for piece in c["delta"]["tool_calls"]] for each in seen
    ]


@given(
    arguments=st.lists(ARGUMENTS, min_size=1, max_size=4),
    given_index=st.sampled_from(["all the same", "none", "its own", "from three"]),
    repeats_id=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_calls_under_any_index_are_kept_apart_and_their_arguments_are_json(
    arguments: list[dict[str, Any]], given_index: str, repeats_id: bool, seed: int
) -> None:
    """T38, REPORTS 60: streamed and assembled; engines send one call after the other, cut anywhere."""
    chance = Random(seed)
    answer, assembler = reading(), AnswerAssembler(is_chat=True)
    joined: dict[int, str] = {}
    for number, argument in enumerate(arguments):
        index = {"all the same": 0, "none": None, "its own": number, "from three": number + 3}[given_index]
        id_ = f"call_{number}"
        for position, piece in enumerate(pieces(json.dumps(argument), chance)):
            names_it = position == 0 or repeats_id
            shown = answer.take(event(call(index, id_ if names_it else None, piece)))
            assert shown is not None
            assembler.take(shown)
            (seen,) = json.loads(shown)["choices"][0]["delta"]["tool_calls"]
            joined[seen["index"]] = joined.get(seen["index"], "") + seen["function"]["arguments"]
    assert [json.loads(joined[index]) for index in sorted(joined)] == arguments
    whole = json.loads(assembler.body())["choices"][0]["message"]["tool_calls"]
    assert [json.loads(each["function"]["arguments"]) for each in whole] == arguments
    assert [each["id"] for each in whole] == [f"call_{number}" for number in range(len(arguments))]


def test_pieces_of_two_calls_may_take_turns() -> None:
    """Where each says whose it is."""
    assert indexes(
        event(call(0, "a"), call(0, "b")), event(call(0, "a", "1")), event(call(0, "b", "2")), event(call(0))
    ) == [[0, 1], [0], [1], [1]]


def test_an_index_that_was_given_away_is_not_given_twice() -> None:
    assert indexes(event(call(0, "a")), event(call(0, "b")), event(call(1, "c")), event(call(1))) == [
        [0],
        [1],
        [2],
        [2],
    ]


def test_an_id_that_comes_late_belongs_to_the_call_that_had_none() -> None:
    assert indexes(event(call(0)), event(call(0, "a")), event(call(0, "b"))) == [[0], [0], [1]]


def test_each_choice_has_its_own_calls() -> None:
    answer = answers.StreamedAnswer(choices=2, wants_usage=True, hides_cached=True, hides_progress=False)
    for index in (0, 1):
        each = event(call(0, f"call_{index}"), index=index)
        assert answer.take(each) is each


@pytest.mark.parametrize("piece", ["text", {"index": "1"}, {"index": [0]}, {"index": True}])
def test_a_call_of_another_shape_is_passed_on_as_it_came(piece: Any) -> None:
    each = event(piece)
    assert reading().take(each) is each


def test_what_is_right_is_not_touched() -> None:
    each = event(call(0, "a"), call(1, "b"))
    assert reading().take(each) is each


def test_all_else_keeps_its_bytes() -> None:
    data = b'{"x": 1.50, "choices": [{"index": 0, "delta": {"y": 1e2, "tool_calls": [{"id": "a", "z": 12345678901234567890}]}}]}'
    assert mending.mended(data, [mending.Mend(0, 0, 1)]) == (
        b'{"x":1.50,"choices":[{"index":0,"delta":{"y":1e2,"tool_calls":[{"index":1,"id":"a","z":12345678901234567890}]}}]}'
    )


def test_an_empty_finish_reason_becomes_null() -> None:
    """T3: some engines send one with every piece; clients know null and the five words."""
    shown = reading().take(chunk({"index": 0, "delta": {"content": "a"}, "finish_reason": ""}))
    assert json.loads(shown or b"")["choices"][0] == {
        "index": 0,
        "delta": {"content": "a"},
        "finish_reason": None,
    }
    body, _ = answers.read_whole(
        b'{"choices": [{"finish_reason": "stop"}, {"finish_reason": ""}]}', hides_cached=True
    )
    assert [choice["finish_reason"] for choice in json.loads(body)["choices"]] == ["stop", None]
