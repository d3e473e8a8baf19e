"""Whole answers that are none: a fixed status from the catalogue, none of the replica's bytes, and a fit connection after."""

import json
from typing import Any

import pytest

from tests.gateway.rig import Rig, error_of, header, request_id, words

TEXT = words(20)
NOT_ANSWERS = [
    "html",
    "garbage",
    "json_huge:40000000",
    "header_injection:lf",
    "length_lie:longer",
    "length_lie:shorter",
    "cut:0",
    "cut:1",
    "close:1",
    "close_raw:1",
    "error:500",
    "error:418",
    "error_first:500",
    "error_hostile",
    "refuse",
]
ENGINE_WORDS = (b"Welcome", b"SSH-2.0", b"xxxxxxxx", b"scripted error", b"<script>", b"set-cookie", b"\x1b")


@pytest.mark.parametrize("fault", NOT_ANSWERS)
def test_what_is_no_answer_is_502_and_nothing_of_it_is_shown(solo: Rig, fault: str) -> None:
    """T36: the caller gets our words, with no way to tell what stands behind."""
    solo.set_faults(fault)
    answer = solo.ask(stream=False)
    assert answer.status == 502
    assert error_of(answer)["code"] == "replica_failed"
    assert error_of(answer)["request_id"] == request_id(answer)
    assert not any(word in answer.data for word in ENGINE_WORDS)
    assert answer.end == "open", "the caller's connection is not to blame"
    record = solo.record(answer)
    assert (record.outcome, record.status) == ("failed", 502)
    # What an engine spilled on its connection is not the next one's answer.
    solo.set_faults("")
    assert json.loads(solo.ask(stream=False).body)["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("stream", [True, False])
def test_a_replica_s_headers_stay_with_it(solo: Rig, stream: bool) -> None:
    """T36, T45: it forges our identity headers and sets a cookie."""
    solo.set_faults("header_injection")
    answer = solo.ask(stream=stream)
    assert answer.status == 200
    assert b"forged" not in answer.data
    assert header(answer, "set-cookie") is None
    assert answer.head.count(b"x-request-id") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_head_without_end_is_garbage(solo: Rig, stream: bool) -> None:
    solo.set_faults("head_huge:1000000")
    assert solo.ask(stream=stream).status == 502


def test_a_whole_answer_that_stops_in_the_middle_fails_at_the_deadline(solo: Rig) -> None:
    solo.set_faults("stall:1")
    answer = solo.ask(stream=False, headers="x-headrace-deadline-ms: 500\r\n")
    assert answer.status == 504


def test_a_whole_answer_with_a_deadline_stops_the_engine(solo: Rig) -> None:
    solo.set_faults("ttft:30000")
    before = solo.engine.stats()
    answer = solo.ask(stream=False, headers="x-headrace-deadline-ms: 200\r\n")
    assert answer.status == 504
    assert header(answer, "x-should-retry") == "false"
    solo.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + 1)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/embeddings", {"input": ["hello", "world"]}),
    ],
)
def test_a_whole_answer_is_the_engine_s_own(solo: Rig, path: str, fields: dict[str, Any]) -> None:
    """Field by field."""
    question = {"model": "scripted", **fields}
    _, direct = solo.engine.request("POST", path, json.dumps(question).encode())
    expected = json.loads(direct)
    answer = solo.provider.post(path, question, key=solo.key)
    assert (answer[0], json.loads(answer[2])) == (200, expected)
