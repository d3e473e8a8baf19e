"""A stream put together is the answer that would have come whole."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.assembling import AnswerAssembler
from tests.protocols.chunks import TEXT, choice, chunk, pieces, usage_of

CALL = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["call_1", "call_2"]),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.sampled_from(["f", "get_weather"]), "arguments": TEXT}),
    }
)
LOGPROB = st.fixed_dictionaries({"token": TEXT, "logprob": st.integers(-9, 0), "top_logprobs": st.just([])})
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXT},
    optional={
        "reasoning_content": TEXT,
        "tool_calls": st.lists(CALL, min_size=1, max_size=3),
        "x_unknown": TEXT,
    },
)
CHOICE = st.fixed_dictionaries(
    {"message": MESSAGE, "finish_reason": st.sampled_from(["stop", "length", "tool_calls"])},
    optional={
        "logprobs": st.fixed_dictionaries({"content": st.lists(LOGPROB, max_size=5)}),
        "x_number": st.integers(),
    },
)


def deltas(message: dict[str, Any], chance: Random) -> list[dict[str, Any]]:
    """The message as an engine streams it: the role first, then its texts and calls in pieces."""
    cut: list[dict[str, Any]] = [{"role": message["role"], "content": None}]
    for name in ("reasoning_content", "content", "x_unknown"):
        if name in message:
            cut += [{name: piece} for piece in pieces(message[name], chance)]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        start = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        cut.append({"tool_calls": [start]})
        for piece in pieces(function["arguments"], chance):
            cut.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return cut


def stream_of(whole: dict[str, Any], chance: Random) -> list[bytes]:
    """The events of the whole answer, the choices in turns by chance."""
    head = {key: whole[key] for key in whole if key not in ("choices", "usage")}
    queues: list[list[dict[str, Any]]] = []
    for number, part in enumerate(whole["choices"]):
        parts: list[dict[str, Any]] = [
            {"index": number, "delta": delta, "finish_reason": None}
            for delta in deltas(part["message"], chance)
        ]
        for token in part.get("logprobs", {}).get("content", ()):
            chance.choice(parts[1:]).setdefault("logprobs", {"content": []})
            holder = [p for p in parts if "logprobs" in p][-1]
            holder["logprobs"]["content"].append(token)
        last = {"index": number, "delta": {}, "finish_reason": part["finish_reason"]}
        if "logprobs" in part:
            last["logprobs"] = {"content": []}
        queues.append([*parts, last | {key: part[key] for key in part if key.startswith("x_")}])
    events = []
    while any(queues):
        queue = chance.choice([queue for queue in queues if queue])
        events.append(json.dumps({**head, "choices": [queue.pop(0)]}).encode())
    return [*events, json.dumps({**head, "choices": [], "usage": whole["usage"]}).encode()]


@given(choices=st.lists(CHOICE, min_size=1, max_size=3), seed=st.integers(0, 2**32))
def test_a_stream_assembled_is_the_whole_answer(choices: list[dict[str, Any]], seed: int) -> None:
    """T38: several choices, parallel calls with arguments split anywhere, log-probabilities, unknown fields."""
    whole = {
        "id": "chatcmpl-1",
        "created": 5,
        "model": "m",
        "system_fingerprint": "fp",
        "x_unknown": {"a": [1]},
        "object": "chat.completion",
        "choices": [{"index": index, **part} for index, part in enumerate(choices)],
        "usage": usage_of(5, 5),
    }
    assembler = AnswerAssembler(is_chat=True)
    for event in stream_of(whole, Random(seed)):
        assembler.take(event)
    assert json.loads(assembler.body()) == whole


@given(text=TEXT, seed=st.integers(0, 2**32))
def test_a_stream_of_text_assembled_is_the_whole_text(text: str, seed: int) -> None:
    cut = pieces(text, Random(seed))
    assembler = AnswerAssembler(is_chat=False)
    for position, piece in enumerate(cut):
        logprobs = {"tokens": [piece], "top_logprobs": [None], "text_offset": [position]}
        assembler.take(chunk({"index": 0, "text": piece, "logprobs": logprobs, "finish_reason": None}))
    assembler.take(chunk({"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}))
    assembled = json.loads(assembler.body())
    assert assembled["object"] == "text_completion"
    assert assembled["choices"] == [
        {
            "index": 0,
            "text": text,
            "logprobs": {
                "tokens": cut,
                "top_logprobs": [None] * len(cut),
                "text_offset": list(range(len(cut))),
            },
            "finish_reason": "stop",
        }
    ]


def test_arguments_split_at_every_byte_join_to_what_they_were() -> None:
    """T38."""
    arguments = json.dumps({"city": "\u00dcrümqi \U0001f600", "days": [1, 2]}, ensure_ascii=False)
    for place in range(len(arguments) + 1):
        assembler = AnswerAssembler(is_chat=True)
        for piece in (arguments[:place], arguments[place:]):
            assembler.take(chunk(choice("arguments", piece)))
        (call,) = json.loads(assembler.body())["choices"][0]["message"]["tool_calls"]
        assert call == {"function": {"arguments": arguments}}


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": [{"index": [0]}, {"index": 1}]},
        {"tool_calls": ["text", {"index": 0}]},
        {"tool_calls": [{"index": 0}, {"index": "1"}]},
        {"content": None},
        None,
    ],
)
def test_parts_of_an_odd_shape_are_kept_and_break_nothing(delta: Any) -> None:
    """T36: what is not indexed can't be merged, and is passed on as it came."""
    assembler = AnswerAssembler(is_chat=True)
    for _ in range(2):
        assembler.take(chunk({"delta": delta, "index": None}))
    message = json.loads(assembler.body())["choices"][0]["message"]
    assert message["content"] is None
    assert len(message.get("tool_calls", [])) == (4 if delta and "tool_calls" in delta else 0)
