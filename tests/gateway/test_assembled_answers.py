"""Engines that only stop for a caller who streams: we stream from them, and the caller of a whole answer can't tell."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.rig import CHAT, Rig, error_of, rig
from tests.support.provider import wait_until

CALL: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
TOOL: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}],
    "tool_choice": "required",
}


@pytest.fixture(scope="module")
def llama_rig() -> Iterator[Rig]:
    with rig({"slots": 64, "owned_by": "llamacpp", "log": True}) as running:
        yield running


@pytest.fixture
def llama(llama_rig: Rig) -> Iterator[Rig]:
    """An engine in the dialect of llama.cpp."""
    llama_rig.set_faults("")
    yield llama_rig
    llama_rig.wait_until_idle()


@pytest.mark.parametrize(
    ("path", "fields", "faults"),
    [
        (CHAT, CALL, ""),
        (CHAT, {**CALL, "max_tokens": 5}, ""),
        (CHAT, {**CALL, "n": 3}, ""),
        (CHAT, {**CALL, **TOOL}, ""),
        (CHAT, {**CALL, **TOOL}, "tools:parallel"),
        (CHAT, {**CALL, **TOOL, "max_tokens": 5}, "tools:parallel"),
        (CHAT, {**CALL, "logprobs": True, "top_logprobs": 2}, ""),
        (CHAT, CALL, "unicode, slice:1"),
        (CHAT, CALL, "u2028"),
        (CHAT, CALL, "usage:cumulative"),
        (CHAT, CALL, "usage:with_choices"),
        ("/v1/completions", {"prompt": "hello"}, ""),
        ("/v1/completions", {"prompt": "hello", "n": 2, "max_tokens": 3}, ""),
    ],
)
def test_an_assembled_answer_equals_the_whole_one(
    llama: Rig, path: str, fields: dict[str, Any], faults: str
) -> None:
    """Text, tool calls, log-probabilities, finish reasons and usage, as the engine itself puts them together."""
    llama.set_faults(faults)
    question = {"model": "scripted", **fields}
    _, direct = llama.engine.request("POST", path, json.dumps(question).encode())
    expected = json.loads(direct)
    expected["usage"].pop("prompt_tokens_details", None)
    status, _, body = llama.provider.post(path, question, key=llama.key)
    assert (status, json.loads(body)) == (200, expected)
    # The answer is whole with its [DONE]; the engine may still be writing the end of its message.
    wait_until(lambda: llama.engine.executions()[-1]["stream"], what="an execution that was streamed")


@pytest.mark.parametrize("fault", ["stall:0", "stall:7"])
def test_a_caller_of_an_assembled_answer_that_leaves_stops_the_engine(llama: Rig, fault: str) -> None:
    """vllm#10806 in REPORTS; and no more is on record than was generated."""
    llama.set_faults(fault)
    known, before = llama.records(), llama.engine.stats()
    with llama.open(stream=False):
        llama.engine.wait_for_stats(lambda now: now["running"] == 1)
    llama.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + 1)
    (record,) = llama.new_records(known, 1)
    assert (record.outcome, record.is_streaming) == ("cancelled", False)
    assert record.completion_tokens <= llama.engine.executions()[-1]["completion_tokens"]


@pytest.mark.parametrize(
    "fault", ["close:7", "close_raw:7", "cut:7", "error_event:7", "content_type", "html"]
)
def test_part_of_an_answer_is_never_assembled_to_a_whole_one(llama: Rig, fault: str) -> None:
    llama.set_faults(fault)
    answer = llama.ask(stream=False)
    assert answer.status == 502
    assert error_of(answer)["code"] == "replica_failed"


def test_a_stream_of_that_engine_is_a_stream(llama: Rig) -> None:
    answer = llama.ask(stream_options={"include_usage": True})
    assert answer.payloads[-1] == "[DONE]"
    assert answer.events[-1]["usage"]["completion_tokens"] == 20
    assert b"timings" not in answer.body
