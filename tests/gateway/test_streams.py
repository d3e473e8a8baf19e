"""Streams that end as they should not, and bytes that come as they like: the caller always knows what it has."""

import itertools
import time
from typing import Any

import pytest

from headrace.engines.scripted_answer import U0085_WORDS, U2028_WORDS, UNICODE_WORDS
from tests.gateway.rig import (
    Rig,
    assert_broken,
    assert_delivered,
    elapsed_s,
    error_of,
    header,
    read_answer,
    words,
)
from tests.support.provider import wait_until

TOKENS = 20
TEXT = words(TOKENS)
TRIALS_OF_EACH_CUT = 5
TOOL: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}],
    "tool_choice": "required",
}


def text_of(alphabet: tuple[str, ...]) -> str:
    return "".join(itertools.islice(itertools.cycle(alphabet), TOKENS))


# --- ends that are none ---


@pytest.mark.parametrize("fault", ["close", "close_raw"])
def test_a_stream_that_ends_without_a_finish_is_an_error_and_never_a_success(solo: Rig, fault: str) -> None:
    """T3: a hundred trials of each kind, cut after every number of events."""
    reason = {"close": "upstream_truncated", "close_raw": "upstream_lost"}[fault]
    for events in range(1, TOKENS + 1):
        solo.set_faults(f"{fault}:{events}")
        answers = [solo.ask() for _ in range(TRIALS_OF_EACH_CUT)]
        for answer in answers:
            assert_broken(answer, text=words(events))
        record = solo.record(answers[-1])
        assert (record.outcome, record.reason, record.completion_tokens) == ("broken", reason, events)


@pytest.mark.parametrize("fault", ["close:0", "close_raw:0", "cut:0", "refuse"])
def test_a_stream_that_ends_before_its_first_event_has_a_real_status(solo: Rig, fault: str) -> None:
    """T3: headers wait for the first event."""
    solo.set_faults(fault)
    answer = solo.ask()
    assert answer.status == 502
    assert error_of(answer)["code"] == "replica_failed"
    assert header(answer, "x-should-retry") == "false"


def test_a_stream_ends_at_done_although_the_replica_keeps_its_message_open(solo: Rig) -> None:
    """T4: the slot is free at once, and the half-open connection is used for nobody else."""
    solo.set_faults("done_open@1")
    started_s = time.monotonic()
    assert_delivered(solo.ask(), text=TEXT)
    wait_until(solo.is_idle, what="the slot to be free")
    assert elapsed_s(started_s) < 10, "the stall limit would have been 30 s"
    assert_delivered(solo.ask(), text=TEXT)


def test_a_finish_reason_alone_ends_a_stream_well(solo: Rig) -> None:
    solo.set_faults("no_done")
    answer = solo.ask()
    assert_delivered(answer, text=TEXT)
    assert solo.record(answer).outcome == "delivered"


def test_a_reset_after_ten_events_shows_ten_events_once_although_another_replica_is_healthy(
    pair: Rig,
) -> None:
    """REPORTS 48: after the first byte there is no way back to a retry."""
    pair.engines[0].set_faults("cut:10")
    answers = [pair.ask() for _ in range(20)]
    broken = [answer for answer in answers if "[DONE]" not in answer.payloads]
    assert 0 < len(broken) < 20
    for answer in answers:
        if answer in broken:
            assert_broken(answer, text=words(10))
        else:
            assert_delivered(answer, text=TEXT)
    assert [execution.outcome for execution in pair.executions(broken[0])] == ["upstream_lost"]


# --- errors inside a stream ---


@pytest.mark.parametrize("after", [1, 5, TOKENS])
def test_an_error_event_in_a_stream_reaches_the_caller_and_no_done_follows_it(solo: Rig, after: int) -> None:
    """REPORTS 7: the engine sends `[DONE]` after its error; the caller must not see it."""
    solo.set_faults(f"error_event:{after}")
    for _ in range(5):
        answer = solo.ask()
        assert_broken(answer, text=words(after))
        assert answer.events[-1]["error"]["code"] == "replica_failed"
        assert b"scripted error" not in answer.body, "the engine's words are its own"


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_in_the_first_event_has_its_real_status(solo: Rig, stream: bool) -> None:
    """REPORTS 5: an over-long prompt is answered 200 with the error inside; a whole answer can do the same."""
    solo.set_faults("error_first:400")
    answer = solo.ask(stream=stream)
    assert answer.status == 400
    assert error_of(answer)["code"] == "invalid_request"
    record = solo.record(answer)
    assert (record.outcome, record.reason, record.usage_source) == ("failed", "upstream_rejected", "none")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("code", [500, 503])
def test_an_error_in_the_first_event_is_tried_on_another_replica(pair: Rig, code: int, stream: bool) -> None:
    """REPORTS 50: nothing has reached the caller, so it never hears of it."""
    pair.engines[0].set_faults(f"error_first:{code}")
    answers = [pair.ask(stream=stream) for _ in range(12)]
    assert {answer.status for answer in answers} == {200}
    assert 2 in {len(pair.executions(answer)) for answer in answers}


def test_a_stream_under_another_content_type_is_not_passed_on(solo: Rig) -> None:
    solo.set_faults("content_type")
    for _ in range(10):
        assert solo.ask().status == 502


# --- bytes ---


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("u2028", text_of(U2028_WORDS)),
        ("u0085", text_of(U0085_WORDS)),
        ("unicode", text_of(UNICODE_WORDS)),
        ("unicode:one_byte", text_of(UNICODE_WORDS)),
        ("unicode, slice:3, crlf", text_of(UNICODE_WORDS)),
        ("u2028, slice:1", text_of(U2028_WORDS)),
    ],
)
def test_text_arrives_byte_for_byte_in_the_official_client(solo: Rig, faults: str, expected: str) -> None:
    """REPORTS 1 and 14: line separators that only look like line ends, and characters cut anywhere."""
    solo.set_faults(faults)
    with solo.client() as client:
        stream = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text.encode() == expected.encode()


@pytest.mark.parametrize("fields", [{}, TOOL], ids=["text", "tool arguments"])
def test_an_event_of_200_kilobytes_is_delivered(solo: Rig, fields: dict[str, Any]) -> None:
    """REPORTS 3."""
    solo.set_faults("big:200000")
    answer = solo.ask(**fields)
    assert answer.payloads[-1] == "[DONE]"
    assert max(len(payload) for payload in answer.payloads) > 200_000
    deltas = [event["choices"][0]["delta"] for event in answer.events]
    pieces = [
        delta["tool_calls"][0]["function"]["arguments"] if "tool_calls" in delta else delta.get("content")
        for delta in deltas
    ]
    assert "".join(piece or "" for piece in pieces).count("x" * 200_000) == 1


@pytest.mark.parametrize(
    "faults", ["crlf", "cr", "comments", "comments, crlf, slice:1", "cr, slice:2", "delta:1"]
)
def test_the_caller_gets_the_same_events_however_the_replica_frames_them(solo: Rig, faults: str) -> None:
    solo.set_faults(faults)
    answer = solo.ask()
    assert_delivered(answer, text=TEXT)
    assert b": ping" not in answer.body
    assert b"\r" not in answer.body


def test_a_replica_s_comments_are_no_answer_and_start_none(solo: Rig) -> None:
    """A comment line and then an early error: the caller still gets the real status."""
    solo.set_faults("comments, error_first:400")
    assert solo.ask().status == 400


# --- time ---


def test_a_deadline_before_the_first_byte_is_504_and_the_engine_is_stopped(solo: Rig) -> None:
    solo.set_faults("ttft:20000")
    before = solo.engine.stats()
    answer = solo.ask(headers="x-headrace-deadline-ms: 200\r\n")
    assert answer.status == 504
    assert error_of(answer)["code"] == "deadline_exceeded"
    solo.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + 1)
    assert solo.record(answer).reason == "deadline_exceeded"


@pytest.mark.slow
def test_a_deadline_inside_a_stream_is_an_error_event_and_the_engine_is_stopped(solo: Rig) -> None:
    solo.set_faults("stall:5")
    before = solo.engine.stats()
    answer = solo.ask(headers="x-headrace-deadline-ms: 1000\r\n")
    assert_broken(answer, text=words(5))
    assert answer.events[-1]["error"]["code"] == "deadline_exceeded"
    solo.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + 1)
    record = solo.record(answer)
    assert (record.outcome, record.reason, record.status) == ("broken", "deadline_exceeded", 504)
    assert record.completion_tokens == 5


def test_streams_on_one_connection_follow_each_other(solo: Rig) -> None:
    """A delivered stream leaves its connection fit for the next request."""
    with solo.open() as connection:
        assert_delivered(read_answer(connection), text=TEXT)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {solo.key}\r\n"
        body = b'{"model":"scripted","messages":[{"role":"user","content":"again"}],"max_tokens":3}'
        connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert words(3).encode() in read_answer(connection).body
