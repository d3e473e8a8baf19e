"""What a caller finds in an answer by looking at its bytes is what is in it."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols import scanning
from headrace.protocols.scanning import UNCOUNTED, Counts, EventTooLarge, StreamScan

DELTAS = st.fixed_dictionaries(
    {},
    optional={"content": st.none() | st.text(), "role": st.just("assistant"), "reasoning_content": st.text()},
)


def events(*payloads: object) -> bytes:
    return b"".join(
        b"data: " + (each if isinstance(each, bytes) else msgspec.json.encode(each)) + b"\n\n"
        for each in payloads
    )


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


@given(st.lists(DELTAS, max_size=8), st.data())
def test_events_with_output_are_counted_wherever_the_stream_is_cut_and_whatever_is_said(
    deltas: list[dict[str, str | None]], data: st.DataObject
) -> None:
    """Text that looks like keys, quotes and errors among it."""
    stream = events(*(delta(**each) for each in deltas), b"[DONE]")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    scan, found = StreamScan(keeps_text=True), 0
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += scan.feed(stream[begin:end])
    assert found == sum(bool(each.get("content") or each.get("reasoning_content")) for each in deltas)
    assert scan.text() == "".join(each.get("content") or "" for each in deltas)
    assert (scan.is_done, scan.error, scan.usage) == (True, None, None)


def test_text_that_reads_like_the_protocol_is_only_text() -> None:
    tricks = [
        '","content":"x',
        '{"error":{"code":"no"}}',
        '"usage":{"prompt_tokens":9}',
        "[DONE]",
        "data: [DONE]\n\n",
    ]
    scan = StreamScan(keeps_text=True)
    assert scan.feed(events(*(delta(content=trick) for trick in tricks), delta(role='"content":"y"'))) == len(
        tricks
    )
    assert scan.text() == "".join(tricks)
    assert (scan.is_done, scan.error) == (False, None)
    assert scanning.counts(scan.usage) == UNCOUNTED


@pytest.mark.parametrize(
    "event",
    [
        delta(content=" "),
        delta(reasoning="hm"),
        delta(refusal="no"),
        {"choices": [{"text": "t"}]},
        delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
        json.dumps(delta(content="spaced")).encode(),
    ],
)
def test_whatever_a_caller_can_use_is_output(event: object) -> None:
    assert StreamScan(keeps_text=False).feed(events(event)) == 1


def test_an_error_is_no_output_and_its_word_is_kept() -> None:
    for error in (
        {"error": {"code": "replica_failed", "message": "m"}},
        {"error": {"code": "replica_failed", "text": "more", "name": "n"}},
        {"object": "error", "code": "replica_failed"},
    ):
        scan = StreamScan(keeps_text=True)
        assert scan.feed(events(error)) == 0
        assert scan.error is not None
        assert scanning.code_of(scan.error) == "replica_failed"


def test_comments_and_beginnings_are_no_output() -> None:
    """T6b: a heartbeat is not a token."""
    scan = StreamScan(keeps_text=False)
    assert scan.feed(b": keep-alive\n\n" + events(delta(role="assistant", content=""), delta())) == 0


def test_an_event_without_end_is_refused() -> None:
    with pytest.raises(EventTooLarge):
        StreamScan(keeps_text=False, event_bytes_max=100).feed(b"data: " + b"x" * 200)


def test_the_last_counts_of_a_stream_are_what_the_service_says() -> None:
    scan = StreamScan(keeps_text=False)
    details = {"cached_tokens": 3}
    running = delta(content="a") | {"usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    last = {
        "choices": [],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": details},
    }
    assert scan.feed(events(running, delta(content="b") | {"usage": None}, last)) == 2
    assert scanning.counts(scan.usage) == Counts(5, 3, 2)
    assert scanning.counts(None) == scanning.counts(b'{"usage":') == UNCOUNTED


def test_kept_text_that_cannot_be_read_says_nothing() -> None:
    scan = StreamScan(keeps_text=True)
    assert scan.feed(events(b'{"choices":[{"delta":{"content":"cut', delta(content="whole"))) == 2
    assert scan.text() == "whole"


@pytest.mark.parametrize(
    ("body", "has_output"),
    [
        ({"choices": [{"message": {"content": "yes"}}]}, True),
        ({"choices": [{"message": {"refusal": "no"}}]}, True),
        ({"choices": [{"text": "t"}]}, True),
        ({"choices": [{"message": {"content": None, "tool_calls": [{"id": "1"}]}}]}, True),
        ({"choices": [{"message": {"content": ""}}]}, False),
        ({"choices": []}, False),
    ],
)
def test_a_whole_answer_has_output_or_it_has_not(body: object, has_output: bool) -> None:
    answer = scanning.whole(msgspec.json.encode(body))
    assert answer is not None
    assert answer.has_output is has_output
    assert (answer.error, answer.counts) == ("", UNCOUNTED)


def test_what_is_no_answer_is_none_and_an_error_is_one_under_any_status() -> None:
    assert scanning.whole(b"<html>") is None
    assert scanning.whole(b'{"object":"list"}') is None
    failed = scanning.whole(b'{"error":{"message":"m"}}')
    assert failed is not None
    assert (failed.error, failed.has_output) == ("error", False)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"error":{"code":"saturated","type":"server_error"}}', "saturated"),
        (b'{"error":{"code":null,"type":"server_error"}}', "server_error"),
        (b'{"error":{"code":503}}', "503"),
        (b'{"error":{"code":[1]}}', ""),
        (b'{"error":"oh"}', ""),
        (b'{"code":"bare"}', "bare"),
        (b"[]", ""),
        (b"<html>", ""),
    ],
)
def test_the_word_for_an_error_is_found_in_every_shape(body: bytes, word: str) -> None:
    assert scanning.code_of(body) == word
