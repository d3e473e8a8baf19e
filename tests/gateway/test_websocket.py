"""Over WebSocket the walk is the one of HTTP: the same events, errors, limits and records, one request after another."""

import json
import time

import pytest
from websockets.exceptions import ConnectionClosed

from tests.gateway.rig import Rig, error_of, rig, words
from tests.support.provider import wait_until
from tests.support.websocket import CLOSE, PING, TEXT, ask, dial, frame, hear, question, raw

TEXT_OF_ALL = words(20)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": True}, "n": 2}),
        ("/v1/completions", {"prompt": "hello", "messages": None}),
    ],
    ids=["chat", "chat with usage", "text"],
)
def test_each_event_of_the_stream_is_one_message(solo: Rig, path: str, fields: dict[str, object]) -> None:
    """B1: byte by byte, in the same order; what HTTP says in headers comes first, the end is explicit."""
    streamed = solo.ask(path=path, **fields)
    with dial(solo.provider.port, solo.key, path=path) as connection:
        told = ask(connection, **fields)
    assert told.events == streamed.payloads[:-1]
    assert told.opening["headers"] == {
        "x-headrace-model-revision": "unpinned",
        "x-headrace-config-version": "1",
    }
    assert told.end == {"object": "headrace.done", "request_id": told.opening["request_id"]}
    assert len(told.texts) == len(streamed.payloads) + 1


@pytest.mark.parametrize(
    "faults",
    [
        *("unicode:one_byte", "u2028", "crlf", "comments", "delta:1", "big:300000", "usage:cumulative"),
        "tools:parallel",
    ],
)
def test_what_is_difficult_in_a_stream_is_the_same_here(solo: Rig, faults: str) -> None:
    """T6a, T38."""
    fields: dict[str, object] = {}
    if faults.startswith("tools"):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        fields = {"tools": [tool], "tool_choice": "required"}
    solo.set_faults(faults)
    streamed = solo.ask(**fields)
    with dial(solo.provider.port, solo.key) as connection:
        told = ask(connection, **fields)
    assert told.events == streamed.payloads[:-1]


def test_requests_follow_each_other_on_one_connection_and_each_has_its_record(solo: Rig) -> None:
    """The ledger can't tell them from those of HTTP but by their ids and times."""
    streamed = solo.record(solo.ask())
    with dial(solo.provider.port, solo.key) as connection:
        answers = [ask(connection) for _ in range(3)]
    ids = {told.opening["request_id"] for told in answers}
    assert len(ids) == 3
    for told in answers:
        assert told.text == TEXT_OF_ALL
        record = solo.record(told.opening["request_id"])
        assert record.ttft_s is not None
        for field in (
            "tenant",
            "key_id",
            "model",
            "revision",
            "endpoint",
            "is_streaming",
            "outcome",
            "reason",
        ):
            assert getattr(record, field) == getattr(streamed, field)
        for field in ("status", "prompt_tokens", "completion_tokens", "usage_source", "attempts"):
            assert getattr(record, field) == getattr(streamed, field)


@pytest.mark.parametrize(
    ("faults", "fields"),
    [
        ("error:400", {}),
        ("error:429:1", {}),
        ("error:500", {}),
        ("error_first:503", {}),
        ("garbage", {}),
        ("", {"model": "unknown"}),
        ("", {"max_tokens": 0}),
        ("", {"temperature": "hot"}),
        ("", {"messages": []}),
    ],
)
def test_an_error_before_the_answer_is_that_of_http(
    solo: Rig, faults: str, fields: dict[str, object]
) -> None:
    """Status, headers and error object; and the connection stays."""
    solo.set_faults(faults)
    over_http = solo.ask(**fields)
    with dial(solo.provider.port, solo.key) as connection:
        told = ask(connection, **fields)
        solo.set_faults("")
        # A replica that asked for a rest has it first.
        wait_until(lambda: ask(connection).text == TEXT_OF_ALL, what="the replica's rest to be over")
    assert len(told.texts) == 1
    end = told.end
    assert (end["object"], end["status"]) == ("headrace.error", over_http.status)
    assert end["headers"]["x-headrace-reason"] == end["error"]["code"]
    headers = over_http.head.decode()
    for name, value in end["headers"].items():
        assert f"{name}: {value}" in headers
    assert {**end["error"], "request_id": ""} == {**error_of(over_http), "request_id": ""}


@pytest.mark.parametrize(
    ("faults", "reason"),
    [("cut:5", "upstream_lost"), ("close:5", "upstream_truncated"), ("error_event:5", "upstream_error")],
)
def test_an_answer_that_breaks_ends_with_an_error_and_the_connection_stays(
    solo: Rig, faults: str, reason: str
) -> None:
    """T3: the error is explicit, so no client can take it for the end; nothing comes twice."""
    solo.set_faults(faults)
    with dial(solo.provider.port, solo.key) as connection:
        told = ask(connection)
        solo.set_faults("")
        assert ask(connection).text == TEXT_OF_ALL
    assert told.text == words(5)
    assert (told.end["object"], told.end["error"]["code"]) == ("headrace.error", "replica_failed")
    assert told.end["error"]["request_id"] == told.opening["request_id"]
    record = solo.record(told.opening["request_id"])
    assert (record.outcome, record.reason) == ("broken", reason)


def test_a_failure_before_the_answer_is_tried_elsewhere(pair: Rig) -> None:
    """T17."""
    pair.engines[0].set_faults("error:500")
    with dial(pair.provider.port, pair.key) as connection:
        answers = [ask(connection) for _ in range(8)]
    assert {told.text for told in answers} == {TEXT_OF_ALL}
    records = [pair.record(told.opening["request_id"]) for told in answers]
    assert {record.attempts for record in records} == {1, 2}


# Ending early


@pytest.mark.parametrize("events", [0, 1, 10])
def test_a_cancelled_request_stops_the_engine_and_leaves_the_connection(solo: Rig, events: int) -> None:
    """T5: for the engine and the ledger like a caller who left."""
    solo.set_faults(f"stall:{events}")
    before, aborted = solo.records(), solo.engine.stats()["aborted"]
    with dial(solo.provider.port, solo.key) as connection:
        connection.send(question())
        for _ in range(events + 1 if events else 0):
            connection.recv(timeout=60)
        solo.engine.wait_for_stats(lambda stats: stats["running"] == 1)
        connection.send('{"cancel": true}')
        told = hear(connection)
        solo.engine.wait_for_stats(lambda stats: stats["aborted"] == aborted + 1)
        assert solo.engine.stats()["running"] == 0
        solo.set_faults("")
        assert ask(connection).text == TEXT_OF_ALL
    assert told.end["object"] == "headrace.cancelled"
    (_, record) = solo.new_records(before, 2)
    assert record.request_id == told.end["request_id"]
    assert (record.outcome, record.reason, record.status) == ("cancelled", "client_gone", 499)
    assert record.completion_tokens == events


def test_cancelling_what_is_over_changes_nothing(solo: Rig) -> None:
    """The message may cross the end of the answer: it never ends the next one."""
    with dial(solo.provider.port, solo.key) as connection:
        connection.send('{"cancel": true}')
        assert ask(connection).text == TEXT_OF_ALL
        connection.send('{"cancel": true}')
        connection.send('{"cancel": true}')
        assert ask(connection).text == TEXT_OF_ALL


def test_a_new_request_may_follow_a_cancel_at_once(solo: Rig) -> None:
    solo.set_faults("stall:1@1")
    with dial(solo.provider.port, solo.key) as connection:
        connection.send(question())
        solo.engine.wait_for_stats(lambda stats: stats["running"] == 1)
        connection.send('{"cancel": true}')
        connection.send(question())
        assert hear(connection).end["object"] == "headrace.cancelled"
        assert hear(connection).end["object"] == "headrace.done"


def test_a_client_that_leaves_stops_the_engine(solo: Rig) -> None:
    """T5: with a close frame, and without a word."""
    solo.set_faults("stall:3")
    before, aborted = solo.records(), solo.engine.stats()["aborted"]
    with dial(solo.provider.port, solo.key) as connection:
        connection.send(question())
        hear(connection, until=["chat.completion.chunk"])
    with raw(solo.provider.port, solo.key) as socket:
        socket.send(frame(TEXT, question().encode()))
        assert socket.message()["object"] == "headrace.open"
    solo.engine.wait_for_stats(lambda stats: stats["aborted"] == aborted + 2)
    assert {record.outcome for record in solo.new_records(before, 2)} == {"cancelled"}


def test_a_second_request_is_refused_while_one_is_in_progress(solo: Rig) -> None:
    """And does not disturb it; whoever insists is closed out with 1008."""
    solo.set_faults("stall:3")
    refusals = solo.provider.metric("headrace_refusals_total", code="invalid_request")
    with dial(solo.provider.port, solo.key) as connection:
        connection.send(question())
        first = hear(connection, until=["headrace.open"]).opening
        connection.send(question())
        busy = hear(connection, until=["headrace.busy"]).end
        assert (busy["status"], busy["error"]["code"]) == (400, "invalid_request")
        assert busy["error"]["request_id"] != first["request_id"]
        connection.send('{"cancel": true}')
        assert hear(connection).end == {"object": "headrace.cancelled", "request_id": first["request_id"]}
        assert solo.provider.metric("headrace_refusals_total", code="invalid_request") == refusals + 1
        connection.send(question())
        for _ in range(17):
            connection.send(question())
        with pytest.raises(ConnectionClosed) as closed:
            hear(connection, until=[])
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


# What HTTP says in headers


def test_the_deadline_of_the_handshake_holds_for_each_request(solo: Rig) -> None:
    solo.set_faults("stall:1")
    with dial(solo.provider.port, solo.key, headers={"x-headrace-deadline-ms": "300"}) as connection:
        for _ in range(2):
            end = ask(connection).end
            assert (end["status"], end["error"]["code"]) == (504, "deadline_exceeded")


def test_headers_in_a_message_hold_for_the_next_request_alone(solo: Rig) -> None:
    """A browser can set none in the handshake."""
    solo.set_faults("stall:1@1, ttft:600@2")
    with dial(solo.provider.port, solo.key) as connection:
        connection.send('{"headers": {"X-Headrace-Deadline-Ms": "300"}}')
        assert ask(connection).end["error"]["code"] == "deadline_exceeded"
        assert ask(connection).text == TEXT_OF_ALL


def test_work_with_a_key_is_done_once_here_too(solo: Rig) -> None:
    """Idempotency-Key, given for one request: who asks again gets the same events, here and over HTTP, and no replica works."""
    name = '{"headers": {"Idempotency-Key": "over a websocket"}}'
    before = solo.engine.stats()["requests"]
    with dial(solo.provider.port, solo.key) as connection:
        answers = []
        for _ in range(2):
            connection.send(name)
            answers.append(ask(connection, stream=True))
        first, again = answers
        connection.send(name)
        other = ask(connection, stream=True, max_tokens=3).end
        unnamed = ask(connection, stream=True, max_tokens=3)
    assert (again.events, again.end["object"]) == (first.events, "headrace.done")
    assert again.opening["headers"]["x-headrace-idempotent-replay"] == "true"
    original = again.opening["headers"]["x-headrace-original-request-id"]
    assert original == first.opening["request_id"] != again.opening["request_id"]
    assert (other["status"], other["error"]["param"]) == (400, "Idempotency-Key")
    assert unnamed.end["object"] == "headrace.done"
    over_http = solo.ask(headers="idempotency-key: over a websocket\r\n", stream=True)
    assert over_http.payloads == [*first.events, "[DONE]"]
    assert solo.engine.stats()["requests"] == before + 2


def test_a_whole_answer_and_a_stream_are_not_the_same_work(solo: Rig) -> None:
    """Here every answer is a stream, whatever the body says; over HTTP the same body asks for a whole one."""
    assert solo.ask(headers="idempotency-key: whole\r\n", stream=None).status == 200
    with dial(solo.provider.port, solo.key) as connection:
        connection.send('{"headers": {"Idempotency-Key": "whole"}}')
        end = ask(connection, stream=None).end
        assert (end["status"], end["error"]["param"]) == (400, "Idempotency-Key")
        assert ask(connection).text == TEXT_OF_ALL


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"authorization": "Bearer x"}, "headers: only"),
        ({"x-headrace-deadline-ms": "soon"}, "whole number of milliseconds"),
        ({"x-headrace-deadline-ms": "1\r\nx: y"}, "printable"),
    ],
)
def test_headers_that_cannot_be_meant_refuse_the_request(
    solo: Rig, headers: dict[str, str], told: str
) -> None:
    with dial(solo.provider.port, solo.key) as connection:
        connection.send(json.dumps({"headers": headers}))
        end = ask(connection).end
        assert (end["status"], end["error"]["code"]) == (400, "invalid_request")
        assert told in end["error"]["message"]
        assert ask(connection).text == TEXT_OF_ALL


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (question(stream=False), "stream"),
        (question(stream="yes"), "stream"),
        ("{}", "model"),
        ('{"cancel": false}', "model"),
        ("[]", None),
        ("", None),
        ('{"model": "scripted", "messages": [{"role": "user", "content": "\\ud800"}]}', None),
        ('{"a":' * 10_000, None),
    ],
)
def test_a_message_that_is_no_request_is_refused_and_the_connection_stays(
    solo: Rig, message: str, param: str | None
) -> None:
    """T33."""
    with dial(solo.provider.port, solo.key) as connection:
        connection.send(message)
        end = hear(connection).end
        assert (end["object"], end["status"], end["error"]["param"]) == ("headrace.error", 400, param)
        assert ask(connection).text == TEXT_OF_ALL


def test_limits_are_those_of_the_tenant_whichever_protocol_brings_the_request(solo: Rig) -> None:
    """A connection is no request: only messages count."""
    key = solo.provider.key("frugal", requests_per_minute=1, requests_burst=2)
    with dial(solo.provider.port, key) as first, dial(solo.provider.port, key) as second:
        assert ask(first).opening["headers"]["x-ratelimit-remaining-requests"] == "1"
        assert ask(second).end["object"] == "headrace.done"
        for connection in (first, second):
            end = ask(connection).end
            assert (end["status"], end["error"]["code"]) == (429, "rate_limited")
            assert int(end["headers"]["retry-after"]) >= 1
            assert end["headers"]["x-should-retry"] == "true"
    assert solo.provider.chat(key)[0] == 429


def test_a_concurrency_limit_counts_connections_together(solo: Rig) -> None:
    key = solo.provider.key("narrow", requests_per_minute=0, concurrency=1)
    solo.set_faults("stall:1@1")
    with dial(solo.provider.port, key) as first, dial(solo.provider.port, key) as second:
        first.send(question())
        hear(first, until=["headrace.open"])
        assert ask(second).end["error"]["code"] == "concurrency_limited"
        first.send('{"cancel": true}')
        hear(first)
        assert ask(second).text == TEXT_OF_ALL


def test_a_revoked_key_ends_no_answer_but_takes_no_further_request(solo: Rig) -> None:
    """T39: as over HTTP; then the connection closes with 1008."""
    key = solo.provider.key("leaver", requests_per_minute=0)
    solo.set_faults("slow:50")
    with dial(solo.provider.port, key) as connection:
        connection.send(question())
        hear(connection, until=["headrace.open"])
        key_id = key.split("_")[2]
        solo.provider.cli("keys", "revoke", key_id)
        wait_until(lambda: solo.provider.get("/v1/models", key=key)[0] == 401, what="the revocation")
        assert hear(connection).end["object"] == "headrace.done"
        end = ask(connection).end
        assert (end["status"], end["error"]["code"]) == (401, "unauthenticated")
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


# At rest and at the end


def test_a_ping_is_answered_in_the_middle_of_an_answer(solo: Rig) -> None:
    """T62: the pong comes while the engine is still silent."""
    solo.set_faults("stall:1")
    with dial(solo.provider.port, solo.key) as connection:
        connection.send(question())
        hear(connection, until=["headrace.open"])
        assert connection.ping().wait(timeout=60)
        connection.send('{"cancel": true}')
        hear(connection)


def test_the_gauges_count_connections_and_their_streams(solo: Rig) -> None:
    metric = solo.provider.metric
    idle, total = metric("headrace_websocket_connections"), metric("headrace_connections")
    solo.set_faults("stall:1")
    with dial(solo.provider.port, solo.key) as connection, dial(solo.provider.port, solo.key):
        assert metric("headrace_websocket_connections") == idle + 2
        assert metric("headrace_connections") >= total + 2
        assert metric("headrace_streams_open") == 0
        connection.send(question())
        wait_until(lambda: metric("headrace_streams_open") == 1, what="the stream to be counted")
        connection.send('{"cancel": true}')
        hear(connection)
        assert metric("headrace_streams_open") == 0
    wait_until(lambda: metric("headrace_websocket_connections") == idle, what="the gauge to fall")


@pytest.mark.slow
def test_silence_is_filled_with_pings() -> None:
    """T6b: after `open`, before the first event and between two of them."""
    with rig({"slots": 4}, config="[request]\nheartbeat_s = 0.2\n") as running:
        running.set_faults("ttft:900")
        with raw(running.provider.port, running.key) as socket:
            socket.send(frame(TEXT, question().encode()))
            seen = [socket.receive()]
            while b"headrace.done" not in seen[-1][1]:
                seen.append(socket.receive())
        assert b"headrace.open" in seen[0][1]
        assert seen[1] == (PING, b"")
        assert [opcode for opcode, _ in seen].count(PING) >= 2
        assert len([opcode for opcode, _ in seen if opcode == TEXT]) == 20 + 3  # open, finish_reason, done
        running.wait_until_idle()


@pytest.mark.slow
def test_a_shutdown_lets_answers_end_and_closes_with_1001() -> None:
    """T61: idle connections at once, busy ones after their answer; the exit status is 0."""
    with rig({"slots": 4}) as running:
        running.set_faults("slow:100")
        with (
            dial(running.provider.port, running.key) as busy,
            dial(running.provider.port, running.key) as idle,
        ):
            busy.send(question())
            hear(busy, until=["headrace.open"])
            running.provider.process.terminate()
            with pytest.raises(ConnectionClosed) as closed:
                idle.recv(timeout=60)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
            assert hear(busy).end["object"] == "headrace.done"
            with pytest.raises(ConnectionClosed) as closed:
                busy.recv(timeout=60)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
        assert running.provider.process.wait(60) == 0


@pytest.mark.slow
def test_an_answer_that_outlasts_a_shutdown_ends_with_an_error() -> None:
    """T61: 503 as over HTTP, then 1001."""
    with rig({"slots": 4}, config="[server]\ndrain_s = 0.5\n") as running:
        running.set_faults("stall:1")
        with raw(running.provider.port, running.key) as socket:
            socket.send(frame(TEXT, question().encode()))
            assert socket.message()["object"] == "headrace.open"
            running.provider.process.terminate()
            seen = list(socket.frames())
        end = json.loads(seen[-2][1])
        assert (end["object"], end["error"]["code"]) == ("headrace.error", "no_ready_replica")
        assert (seen[-1][0], seen[-1][1][:2]) == (CLOSE, (1001).to_bytes(2, "big"))
        assert running.provider.process.wait(60) == 0


@pytest.mark.slow
def test_a_client_that_stops_reading_holds_the_replica_back_and_is_cut() -> None:
    """T12: at the write stall limit, as over HTTP; the engine is not read on meanwhile."""
    config = "[request]\nwrite_stall_limit_s = 1.0\n"
    with rig({"slots": 4, "tokens": 200_000}, config=config) as running:
        before = running.records()
        with raw(running.provider.port, running.key) as socket:
            socket.send(frame(TEXT, question().encode()))
            (record,) = running.new_records(before, 1)
            assert (record.outcome, record.reason) == ("cancelled", "slow_reader")
            assert record.total_s >= 1.0
            assert record.completion_tokens < 100_000
        running.wait_until_idle()


@pytest.mark.slow
def test_an_idle_connection_is_closed_and_a_ping_is_a_sign_of_life() -> None:
    with rig({"slots": 4}, config="[server]\nidle_timeout_s = 1.5\n") as running:
        with (
            dial(running.provider.port, running.key) as idle,
            dial(running.provider.port, running.key, ping_interval=0.3) as alive,
        ):
            began_s = time.monotonic()
            with pytest.raises(ConnectionClosed) as closed:
                idle.recv(timeout=60)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, time.monotonic() - began_s >= 1.4) == (1000, True)
            assert ask(alive).text == TEXT_OF_ALL
