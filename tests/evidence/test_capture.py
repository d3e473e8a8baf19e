"""A trace from the ledger says when, how long and how, and nothing of who or what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.usage import UsageRecord
from headrace.evidence import capture, traces
from headrace.evidence.capture import Captured

SECRET = b"s" * 32


def record(started_s: float, **changed: Any) -> UsageRecord:
    whole = UsageRecord(
        request_id=RequestId(f"req_{int(started_s * 1000):012x}_{len(changed)}"),
        tenant=TenantId("acme-secret"),
        key_id=KeyId("key-secret"),
        model="chat",
        revision="r1",
        endpoint="/v1/chat/completions",
        is_streaming=True,
        started_s=1_700_000_000.0 + started_s,
        outcome="delivered",
        reason="completed",
        status=200,
        prompt_tokens=100,
        completion_tokens=10,
        cached_tokens=0,
        usage_source="final",
        queue_wait_s=0.0,
        ttft_s=0.1,
        total_s=1.0,
        attempts=1,
    )
    return msgspec.structs.replace(whole, **changed)


def captured(*records: UsageRecord, **terms: Any) -> Captured:
    return capture.capture(records, secret=SECRET, **terms)


def test_a_trace_has_times_lengths_streams_and_what_was_cached() -> None:
    found = captured(
        record(0.0, cached_tokens=64),
        record(2.5, is_streaming=False, prompt_tokens=300, completion_tokens=7),
    )
    first, second = found.trace
    assert (first.at_s, first.input_tokens, first.output_tokens, first.cached_tokens) == (0.0, 100, 10, 64)
    assert (second.at_s, second.input_tokens, second.is_streamed) == (2.5, 300, False)
    assert (first.conversation, second.conversation) == ("", "")
    assert found.is_whole


def test_callers_who_left_do_so_again_and_would_have_got_more() -> None:
    found = captured(
        record(0.0, completion_tokens=40),
        record(1.0, outcome="cancelled", completion_tokens=3, total_s=0.75),
        record(2.0, outcome="cancelled", completion_tokens=90, total_s=0.5),
    )
    assert found.cancelled == 2
    assert [row.cancel_after_s for row in found.trace] == [None, 0.75, 0.5]
    assert [row.output_tokens for row in found.trace] == [40, 40, 91]
    assert any("callers who left would have been" in line for line in found.cannot_know)


def test_the_median_stands_for_lengths_that_nobody_reported_and_that_is_said() -> None:
    found = captured(
        record(0.0, prompt_tokens=50),
        record(1.0, usage_source="unknown", prompt_tokens=0, completion_tokens=0),
        record(2.0, prompt_tokens=70),
        record(3.0, prompt_tokens=90, completion_tokens=0, outcome="failed"),
    )
    assert [row.input_tokens for row in found.trace] == [50, 70, 70, 90]
    assert found.trace[3].output_tokens == 10
    assert found.unknown == 1
    assert any("How long 1 requests were" in line for line in found.cannot_know)
    assert captured(record(0.0, usage_source="unknown")).trace[0].input_tokens == 1


def test_other_endpoints_are_left_out_and_counted() -> None:
    found = captured(record(0.0, endpoint="/v1/embeddings"), record(5.0))
    assert (found.others, len(found.trace), found.trace[0].at_s) == (1, 1, 0.0)


def test_conversations_have_a_name_that_says_nothing_and_that_another_capture_does_not_use() -> None:
    turns = [record(0.0, user="alice"), record(5.0, user="alice", prompt_tokens=130), record(6.0, user="bob")]
    found = captured(*turns)
    first, second, other = found.trace
    assert first.conversation == second.conversation != ""
    assert other.conversation == ""
    assert found.conversations == 1
    again = capture.capture(turns, secret=b"t" * 32)
    assert again.trace[0].conversation != first.conversation


def test_nothing_of_who_asked_or_when_is_in_the_file(tmp_path: Path) -> None:
    turns = [record(0.0, user="alice"), record(5.0, user="alice", prompt_tokens=130)]
    path = tmp_path / "t.csv"
    found = captured(*turns)
    with path.open("w", encoding="utf-8", newline="") as file:
        traces.write(file, found.trace)
    text = path.read_text()
    for said in ("acme", "secret", "alice", "chat", "req_", "1700000000"):
        assert said not in text
    assert list(traces.read(path)) == found.trace


def test_a_capture_is_bounded_and_reads_no_more_than_it_takes() -> None:
    def endless() -> Iterator[UsageRecord]:
        for number in range(10):
            assert number < 4, "what is not taken is not read"
            yield record(float(number))

    found = capture.capture(endless(), secret=SECRET, requests_max=3)
    assert (len(found.trace), found.is_whole) == (3, False)
