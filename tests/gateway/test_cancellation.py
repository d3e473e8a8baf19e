"""A caller that leaves takes its work with it: the engine stops, the slot is free, and what was generated is on record."""

import socket

import pytest

from tests.gateway.rig import Rig, assert_delivered, read_answer, read_events, words
from tests.support.provider import wait_until

TOKENS = 20
PROMPT_TOKENS = 2  # "hello"


def leave_after(rig: Rig, events: int, *, callers: int, key: str = "") -> None:
    """So many callers open a stream that stalls after that many events, read them, and close."""
    rig.set_faults(f"stall:{events}")
    before = rig.engine.stats()
    connections = [rig.open(key=key) for _ in range(callers)]
    if events:
        for connection in connections:
            read_events(connection, events)
    else:
        rig.engine.wait_for_stats(lambda now: now["running"] == callers)
    for connection in connections:
        connection.close()
    rig.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + callers)


def check_cancellations(rig: Rig, events: int, *, rounds: int, callers: int) -> None:
    before = rig.records()
    known = {execution["id"] for execution in rig.engine.executions()}
    for _ in range(rounds):
        leave_after(rig, events, callers=callers)
    rig.wait_until_idle()
    count = rounds * callers
    records = rig.new_records(before, count)
    assert len(records) == count
    assert {(r.outcome, r.reason, r.status, r.attempts) for r in records} == {
        ("cancelled", "client_gone", 499, 1)
    }
    generated = {
        execution["id"]: execution["completion_tokens"]
        for execution in rig.engine.executions()
        if execution["id"] not in known
    }
    assert generated == dict.fromkeys(generated, events)
    assert {record.request_id: record.completion_tokens for record in records} == generated
    source = "cumulative" if events else "unknown"
    assert {record.usage_source for record in records} == {source}


@pytest.mark.parametrize("events", [0, 1, 10, TOKENS])
def test_a_caller_that_leaves_a_stream_stops_the_engine_and_pays_for_what_was_generated(
    solo: Rig, events: int
) -> None:
    """T5, REPORTS 18, 26: before the first event, after one, in the middle, and after all the text. The ledger and the
    engine's own log agree on every request."""
    check_cancellations(solo, events, rounds=2, callers=5)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("events", [0, 1, 10, TOKENS])
def test_five_hundred_callers_leave_and_every_count_returns_to_zero(solo: Rig, events: int) -> None:
    """T5 in full."""
    check_cancellations(solo, events, rounds=10, callers=50)


def test_a_caller_that_leaves_in_the_middle_of_a_flow_stops_it(solo: Rig) -> None:
    """REPORTS 23: the engine would go on for a minute; it is not read to the end."""
    solo.set_faults("slow:3000")
    before = solo.engine.stats()
    with solo.open() as connection:
        read_events(connection, 1)
    solo.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_before_the_first_token_stops_the_engine(solo: Rig, stream: bool) -> None:
    """vllm#10806 in REPORTS: a caller of a whole answer that is killed is noticed too."""
    solo.set_faults("ttft:60000")
    before = solo.engine.stats()
    known = solo.records()
    connections = [solo.open(stream=stream) for _ in range(5)]
    solo.engine.wait_for_stats(lambda now: now["running"] == 5)
    for connection in connections:
        connection.close()
    solo.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + 5)
    records = solo.new_records(known, 5)
    assert [(record.outcome, record.usage_source) for record in records] == [("cancelled", "unknown")] * 5


def test_a_caller_that_only_closes_its_sending_half_has_left(solo: Rig) -> None:
    """A proxy in front that is done with us shuts down its half first."""
    solo.set_faults("stall:3")
    before = solo.engine.stats()
    with solo.open() as connection:
        read_events(connection, 3)
        connection.shutdown(1)
        solo.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + 1)


@pytest.mark.slow
@pytest.mark.parametrize("events", [0, 1, TOKENS])
def test_a_tenant_s_count_of_requests_in_progress_returns_to_zero(solo: Rig, events: int) -> None:
    """T5: after forty cancelled requests a tenant with room for four still has room for four."""
    key = solo.provider.key("narrow", concurrency=4, requests_per_minute=0)
    for _ in range(10):
        leave_after(solo, events, callers=4, key=key)
        wait_until(solo.is_idle, what="the cancelled requests to be over")
    solo.set_faults("stall:1")
    connections = [solo.open(key=key) for _ in range(4)]
    for connection in connections:
        assert b" 200 OK" in read_events(connection, 1)
    assert solo.ask(key=key).status == 429
    for connection in connections:
        connection.close()


def test_an_estimate_of_a_cancelled_stream_counts_the_tokens_that_came(pair: Rig) -> None:
    """REPORTS 26: an engine without running counts; the caller leaves after 10 of 20 events."""
    pair.set_faults("stall:10")
    known = pair.records()
    with pair.open() as connection:
        read_events(connection, 10)
    (record,) = pair.new_records(known, 1)
    assert (record.outcome, record.usage_source) == ("cancelled", "estimated")
    assert (record.prompt_tokens, record.completion_tokens) == (PROMPT_TOKENS, 10)


def test_other_streams_do_not_notice_those_who_leave(solo: Rig) -> None:
    solo.set_faults("slow:10")
    staying = [solo.open() for _ in range(4)]
    leaving = [solo.open() for _ in range(12)]
    for connection in leaving:
        read_events(connection, 2)
        connection.close()
    assert_all_delivered(staying)


def assert_all_delivered(connections: list[socket.socket]) -> None:
    for connection in connections:
        assert_delivered(read_answer(connection), text=words(TOKENS))
        connection.close()
