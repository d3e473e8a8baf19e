"""A load generator's figures: every request has one record, what it says is what its caller saw, and nothing is made up."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.load_records import LoadRecord, LoadRun, Outcome
from headrace.core.workload import ArrivalKind, Arrivals, Cancel, Prefixes, Turns, Workload, constant
from headrace.evidence import requests
from headrace.evidence.load import LoadTerms, Target, run_load
from tests.support.crooked_server import (
    CHUNK,
    END,
    STREAM_HEAD,
    USAGE,
    Cut,
    Piece,
    crooked_server,
    event,
    head,
    whole,
)
from tests.support.scripted import scripted_engine

GOOD = b'{"choices":[{"message":{"content":"yes"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'
STREAM = [STREAM_HEAD + event(CHUNK), event(CHUNK), event(USAGE) + event(b"[DONE]") + END]


def workload(*, rate_per_s: float = 50.0, **fields: Any) -> Workload:
    made: dict[str, Any] = {
        "arrivals": Arrivals(ArrivalKind.CONSTANT, rate_per_s=rate_per_s),
        "input_tokens": constant(30),
        "output_tokens": constant(5),
    }
    return Workload("test", **(made | fields))


def run(
    url: str, asked: Workload, *, with_uvloop: bool = True, stop: asyncio.Event | None = None, **terms: Any
) -> LoadRun:
    said = LoadTerms(**({"duration_s": 1.0, "learns_lengths": False, "deadline_s": 30.0} | terms))
    runner = uvloop.run if with_uvloop else asyncio.run
    return runner(
        run_load(Target(url, "scripted", "secret"), asked, clock=SystemClock(), terms=said, stop=stop)
    )


def one(pieces: Sequence[Piece], *, streams: bool, **terms: Any) -> LoadRecord:
    """What becomes of a single request that is answered like that."""
    with crooked_server(lambda number, request: pieces) as server:
        found = run(server.url, workload(stream_share=float(streams), requests_max=1), **terms)
    (record,) = found.records
    return record


def outcomes(found: LoadRun) -> Counter[str]:
    return Counter(record.outcome.value for record in found.records)


@pytest.mark.slow
@pytest.mark.parametrize("with_uvloop", [True, False])
def test_every_request_of_the_plan_is_sent_at_its_time_and_its_answer_is_timed(with_uvloop: bool) -> None:
    with scripted_engine(slots=64, ttft_ms=50, itl_ms=10, tokens=5) as engine:
        found = run(engine.url, workload(stream_share=0.5), with_uvloop=with_uvloop)
        asked = engine.stats()
    assert outcomes(found) == {"ok": len(found.records)}
    assert [record.number for record in found.records] == list(range(len(found.records)))
    assert len(found.records) in (49, 50)
    assert asked["requests"] == asked["done"] == len(found.records)
    for record in found.records:
        assert record.sent_s is not None
        assert record.first_s is not None
        assert record.last_s is not None
        assert record.due_s == pytest.approx((record.number + 1) / 50.0)
        assert record.due_s <= record.sent_s
        assert record.first_s - record.sent_s >= 0.049
        assert record.last_s <= record.ended_s
        assert record.output_tokens == 5
        if record.is_streamed:
            assert (record.events, record.gaps.count) == (5, 4)
            assert record.gaps.sum_s == pytest.approx(record.last_s - record.first_s)
        else:
            assert record.first_s == record.last_s == record.ended_s
    assert found.processes[0].sent == len(found.records)
    assert found.lateness.max_s >= found.lateness.p99_s >= found.lateness.p50_s >= 0.0


@pytest.mark.slow
def test_a_slow_server_holds_nothing_up_and_what_finds_no_room_is_counted_as_unsent() -> None:
    with crooked_server(lambda number, request: [0.5, whole(GOOD)]) as server:
        found = run(server.url, workload(rate_per_s=40.0, stream_share=0.0), open_max=10)
    assert outcomes(found)["unsent"] >= 1
    assert outcomes(found)["ok"] + outcomes(found)["unsent"] == len(found.records)
    assert {record.reason for record in found.records if record.outcome is Outcome.UNSENT} == {"open_max"}
    assert all(record.sent_s is None for record in found.records if record.outcome is Outcome.UNSENT)
    assert len(found.records) in (39, 40)


def test_a_closed_loop_has_as_many_requests_open_as_it_has_callers_and_keeps_their_connections() -> None:
    with crooked_server(lambda number, request: [0.02, whole(GOOD)]) as server:
        found = run(server.url, workload(stream_share=0.0), concurrency=3, duration_s=0.6)
        assert server.connections == 3
    assert outcomes(found) == {"ok": len(found.records)}
    assert len(found.records) > 6
    moments = sorted(
        [(record.sent_s or 0.0, 1) for record in found.records]
        + [(record.ended_s, -1) for record in found.records],
        key=lambda moment: (moment[0], moment[1]),
    )
    under_way = most = 0
    for _, step in moments:
        under_way += step
        most = max(most, under_way)
    assert most == 3
    assert (found.is_closed, found.concurrency) == (True, 3)


def test_a_refusing_server_is_not_hammered_by_a_closed_loop() -> None:
    busy = whole(b"{}", "retry-after: 1", status="429 Too Many Requests")
    with crooked_server(lambda number, request: [busy]) as server:
        found = run(server.url, workload(stream_share=0.0), concurrency=2, duration_s=0.5)
    assert outcomes(found) == {"refused": len(found.records)}
    assert len(found.records) <= 2 * 6


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    ("lines", "has_retry_after"), [(["retry-after: 3"], True), ([], False), (["retry-after: soon"], False)]
)
@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_refusal_says_whether_it_says_when_to_come_back(
    status: str, lines: list[str], has_retry_after: bool, streams: bool
) -> None:
    body = b'{"error":{"code":"saturated"}}'
    record = one([whole(body, *lines, status=status)], streams=streams)
    assert (record.outcome, record.reason, record.has_retry_after) == (
        Outcome.REFUSED,
        "saturated",
        has_retry_after,
    )
    assert record.first_s is None


@pytest.mark.parametrize(
    ("pieces", "outcome", "reason"),
    [
        (STREAM, Outcome.OK, ""),
        # Cut anywhere, and each byte by itself.
        ([bytes([byte]) for byte in b"".join(STREAM)], Outcome.OK, ""),
        ([STREAM_HEAD, event(USAGE) + event(b"[DONE]") + END], Outcome.FAILED, "no_output"),
        ([STREAM_HEAD, event(b'{"choices":[{"delta":{"content":""}}]}') + event(b"[DONE]") + END], Outcome.FAILED, "no_output"),
        (Cut([STREAM_HEAD, event(CHUNK)]), Outcome.BROKEN, "cut"),
        ([STREAM_HEAD, event(CHUNK) + END], Outcome.BROKEN, "cut"),
        (Cut([STREAM_HEAD, event(CHUNK) + b"zz\r\n"]), Outcome.BROKEN, "not_http"),
        ([STREAM_HEAD, event(CHUNK), event(b'{"error":{"code":"replica_failed","message":"m"}}') + END], Outcome.BROKEN, "replica_failed"),
        ([STREAM_HEAD, event(CHUNK), event(b'{"error":{"code":"deadline_exceeded"}}') + END], Outcome.LATE, "deadline_exceeded"),
        ([STREAM_HEAD, event(CHUNK) + event(b"x" * (8 << 20))], Outcome.BROKEN, "too_large"),
        ([whole(GOOD)], Outcome.FAILED, "not_a_stream"),
        (Cut([]), Outcome.FAILED, "closed"),
        (Cut([b"SSH-2.0-OpenSSH\r\n\r\n"]), Outcome.FAILED, "not_http"),
        ([head("200 OK", "x: " + "y" * 70_000)[:-4], 60.0], Outcome.FAILED, "not_http"),
        ([whole(b"{}", status="504 Gateway Timeout")], Outcome.LATE, "status_504"),
        ([whole(b"<html>", status="502 Bad Gateway")], Outcome.FAILED, "status_502"),
        ([whole(b"", "x-headrace-reason: replica_failed", status="502 Bad Gateway")], Outcome.FAILED, "replica_failed"),
        ([whole(b"x" * 70_000, status="500 Internal Server Error")], Outcome.FAILED, "status_500"),
    ],
)  # fmt: skip
def test_what_became_of_a_stream(pieces: Sequence[Piece], outcome: Outcome, reason: str) -> None:
    record = one(pieces, streams=True)
    assert (record.outcome, record.reason) == (outcome, reason)
    # REPORTS 98: no token, no time to the first one.
    assert (record.first_s is None) == (record.events == 0)
    assert record.first_s is None or (record.sent_s or 0.0) <= record.first_s <= record.ended_s


@pytest.mark.parametrize(
    ("pieces", "outcome", "reason"),
    [
        ([whole(GOOD)], Outcome.OK, ""),
        ([whole(GOOD)[:-5], whole(GOOD)[-5:]], Outcome.OK, ""),
        (
            [head("200 OK", "transfer-encoding: chunked"), b"%x\r\n%b\r\n" % (len(GOOD), GOOD), END],
            Outcome.OK,
            "",
        ),
        (Cut([head("200 OK", "content-type: application/json"), GOOD]), Outcome.OK, ""),
        ([head("100 Continue") + whole(GOOD)], Outcome.OK, ""),
        (Cut([whole(GOOD)[:-5]]), Outcome.BROKEN, "cut"),
        ([whole(b'{"choices":[{"message":{"content":""}}]}')], Outcome.FAILED, "no_output"),
        ([whole(b'{"error":{"code":"overloaded"}}')], Outcome.FAILED, "overloaded"),
        ([whole(b"fine, thanks")], Outcome.FAILED, "not_an_answer"),
    ],
)
def test_what_became_of_a_whole_answer(pieces: Sequence[Piece], outcome: Outcome, reason: str) -> None:
    record = one(pieces, streams=False)
    assert (record.outcome, record.reason) == (outcome, reason)
    assert (record.first_s is None) == (outcome is not Outcome.OK)


def test_counts_and_names_are_the_services_own() -> None:
    record = one(STREAM, streams=True)
    assert (record.input_tokens, record.cached_tokens, record.output_tokens) == (7, 4, 2)
    assert (record.request_id, record.events, record.planned_output_tokens) == ("theirs", 2, 5)


def test_a_request_says_who_asks_for_what_and_by_when() -> None:
    with crooked_server(lambda number, request: STREAM) as server:
        run(server.url, workload(requests_max=1, deadline_s=2.5))
        before, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert before.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"authorization: Bearer secret\r\n" in before
    assert b"x-headrace-deadline-ms: 2500\r\n" in before
    asked = json.loads(body)
    assert (asked["model"], asked["max_tokens"], asked["stream"]) == ("scripted", 5, True)
    assert asked["stream_options"] == {"include_usage": True}


@pytest.mark.slow
def test_an_answer_after_the_deadline_is_late_by_the_callers_clock_and_after_a_grace_nobody_waits() -> None:
    after = one([0.4, whole(GOOD)], streams=False, deadline_s=0.2)
    assert (after.outcome, after.reason) == (Outcome.LATE, "late")
    # A loris sends a byte at a time, and never comes to an end; what has begun is late too.
    loris = [STREAM_HEAD + event(CHUNK), *[piece for _ in range(600) for piece in (b"1", 0.1)]]
    never = one(loris, streams=True, deadline_s=0.2)
    assert (never.outcome, never.reason, never.events) == (Outcome.LATE, "no_end", 1)
    silent = one([60.0], streams=False, deadline_s=0.2)
    assert (silent.outcome, silent.reason) == (Outcome.LATE, "no_answer")


@pytest.mark.slow
def test_callers_leave_after_so_many_tokens_or_so_long_and_their_connections_are_closed() -> None:
    endless: list[Piece] = [STREAM_HEAD]
    for _ in range(3000):
        endless += [event(CHUNK), 0.02]
    for leaves in (Cancel(1.0, after_tokens=3), Cancel(1.0, after_s=0.1)):
        with crooked_server(lambda number, request: endless) as server:
            found = run(
                server.url,
                workload(rate_per_s=5.0, output_tokens=constant(50), requests_max=2, cancel=leaves),
            )
            assert server.hung_up.wait(30)
        assert outcomes(found) == {"cancelled": 2}
        assert {record.reason for record in found.records} <= {"after_tokens", "after_s"}


def test_a_caller_who_leaves_later_than_the_answer_ends_has_it() -> None:
    with crooked_server(lambda number, request: STREAM) as server:
        found = run(server.url, workload(rate_per_s=10.0, cancel=Cancel(1.0, after_s=60.0)))
    assert outcomes(found) == {"ok": len(found.records)}


@pytest.mark.slow
def test_a_turn_comes_after_the_answer_to_the_one_before_and_takes_it_along() -> None:
    slow: list[Piece] = [0.15, whole(b'{"choices":[{"message":{"content":"what was answered"}}]}')]
    asked = workload(
        rate_per_s=6.0, stream_share=0.0, turns=Turns(constant(3), gap_s=0.02, tokens=constant(5))
    )
    with crooked_server(lambda number, request: slow) as server:
        found = run(server.url, asked, duration_s=3.0)
        bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]
    later = [record for record in found.records if record.turn > 1 and record.outcome is Outcome.OK]
    assert later
    told = [body["messages"] for body in bodies if len(body["messages"]) > 1]
    assert len(told) == len(later)
    assert all(messages[1]["content"] == "what was answered" for messages in told)
    # It couldn't be sent before, so it wasn't due before: that isn't lateness of the generator.
    assert all(record.sent_s - record.due_s < 0.1 for record in later if record.sent_s is not None)


@pytest.mark.slow
def test_a_conversation_ends_where_an_answer_failed() -> None:
    asked = workload(rate_per_s=6.0, turns=Turns(constant(2), gap_s=0.01))
    with crooked_server(lambda number, request: [whole(b"{}", status="500 Oops")]) as server:
        found = run(server.url, asked)
    assert outcomes(found)["failed"]
    later = [record for record in found.records if record.turn == 2]
    assert later
    # The service is to blame for them, not the generator.
    assert {(record.outcome, record.reason, record.sent_s) for record in later} == {
        (Outcome.FAILED, "turn_before_failed", None)
    }


def test_the_first_of_a_group_is_cold_and_those_after_it_begin_with_the_same_text() -> None:
    asked = workload(
        rate_per_s=20.0,
        input_tokens=constant(60),
        stream_share=0.0,
        prefixes=Prefixes(groups=1, tokens=constant(40)),
    )
    with crooked_server(lambda number, request: [whole(GOOD)]) as server:
        found = run(server.url, asked)
        texts = [
            json.loads(each.partition(b"\r\n\r\n")[2])["messages"][0]["content"] for each in server.requests
        ]
    assert [record.is_cold for record in found.records] == [True] + [False] * (len(found.records) - 1)
    assert len({text[:100] for text in texts}) == 1
    assert len(set(texts)) == len(texts)


def test_a_server_that_is_not_there_fails_every_request_and_the_run_still_ends() -> None:
    found = run("http://127.0.0.1:9", workload(rate_per_s=10.0))
    assert outcomes(found) == {"failed": len(found.records)}
    assert {record.reason for record in found.records} == {"unreachable"}
    assert "no connection" in found.environment["last connection that failed"]


def test_a_url_that_is_none_is_told_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="must be http"):
        run("ftp://example", workload())


def test_a_run_that_is_stopped_reports_what_there_is_and_nothing_is_left_open() -> None:
    stop = asyncio.Event()

    def answer(number: int, request: bytes) -> Sequence[Piece]:
        if number == 3:
            stop.set()  # polled, so any thread may set it
        return [60.0] if number > 1 else [whole(GOOD)]

    with crooked_server(answer) as server:
        found = run(server.url, workload(rate_per_s=20.0, stream_share=0.0), duration_s=600.0, stop=stop)
    assert found.is_stopped
    assert found.duration_s < 500.0
    assert outcomes(found)["ok"] == 2
    assert outcomes(found)["cancelled"] >= 2
    assert {record.reason for record in found.records if record.outcome is Outcome.CANCELLED} == {"stopped"}


def test_a_run_is_over_with_its_trace_and_no_rate_is_thinned_by_the_time_after_it(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_ms,input_tokens,output_tokens,is_streamed\n0,9,3,0\n200,9,3,0\n400,9,3,0\n")
    with crooked_server(lambda number, request: [whole(GOOD)]) as server:
        found = run(server.url, requests.load(str(trace)), duration_s=30.0)
    assert len(found.records) == 3
    assert all(map(found.window.holds, found.records))
    assert found.window.to_s == found.duration_s < 1.0


def test_what_is_due_before_the_warm_up_is_over_is_outside_the_window() -> None:
    with crooked_server(lambda number, request: [whole(GOOD)]) as server:
        found = run(server.url, workload(rate_per_s=20.0, stream_share=0.0), warmup_s=0.5)
    inside = [record for record in found.records if found.window.holds(record)]
    assert (found.window.from_s, found.window.to_s) == (0.5, 1.0)
    assert 0 < len(inside) < len(found.records)


@pytest.mark.slow
def test_a_few_answers_tell_how_many_tokens_a_word_has_before_the_run_begins() -> None:
    with scripted_engine(slots=8) as engine:
        found = run(engine.url, workload(rate_per_s=10.0, input_tokens=constant(200)), learns_lengths=True)
        assert engine.stats()["requests"] > len(found.records)
    assert all(record.input_tokens == pytest.approx(200, rel=0.1) for record in found.records)


def test_a_stream_whose_message_goes_on_after_its_end_is_over_at_its_end() -> None:
    """T4: the record doesn't wait for the socket."""
    with crooked_server(lambda number, request: [b"".join(STREAM).removesuffix(END), 60.0]) as server:
        found = run(server.url, workload(requests_max=1))
    (record,) = found.records
    assert record.outcome is Outcome.OK
    assert record.ended_s < 30.0
