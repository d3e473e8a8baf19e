"""Work that waits for a slot: bounded, in the order of deadlines, and never on a replica beyond its slots."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.gateway.rig import (
    Rig,
    assert_delivered,
    error_of,
    header,
    read_answer,
    read_events,
    request_id,
    rig,
    words,
)
from tests.support.provider import wait_until
from tests.support.wire import Exchange

QUEUE_MAX = 20
TEXT = words(20)
CONFIG = f"[admission]\nqueue_length_max = {QUEUE_MAX}\n"


@pytest.fixture(scope="module")
def narrow_rig() -> Iterator[Rig]:
    # The engine itself would take more: what holds it to one at a time is the provider.
    with rig({"slots": 64, "log": True}, config=CONFIG, upstream_slots=1) as running:
        yield running


@pytest.fixture
def narrow(narrow_rig: Rig) -> Iterator[Rig]:
    """One slot and a queue of twenty."""
    narrow_rig.set_faults("")
    yield narrow_rig
    narrow_rig.wait_until_idle()


@contextmanager
def held(narrow: Rig) -> Iterator[None]:
    """Someone has the slot, until the block ends."""
    narrow.set_faults("stall:1@1")
    with narrow.open() as holder:
        read_events(holder, 1)
        yield


def wait_for_queue(narrow: Rig, length: int) -> None:
    wait_until(lambda: narrow.provider.metric("headrace_queue_length") == length, what=f"a queue of {length}")


def test_two_hundred_callers_who_leave_the_queue_never_reach_the_engine_and_disturb_nobody(
    narrow: Rig,
) -> None:
    """T6, REPORTS 25: ten times a full queue of cancelled requests, then ten that are served."""
    before = narrow.engine.stats()
    known = narrow.records()
    with held(narrow):
        for _ in range(200 // QUEUE_MAX):
            waiting = [narrow.open() for _ in range(QUEUE_MAX)]
            wait_for_queue(narrow, QUEUE_MAX)
            for connection in waiting:
                connection.close()
            wait_for_queue(narrow, 0)
    for _ in range(10):
        assert_delivered(narrow.ask(), text=TEXT)
    assert narrow.engine.stats()["requests"] == before["requests"] + 1 + 10
    records = narrow.new_records(known, 211)
    in_queue = [record for record in records if record.attempts == 0]
    assert len(in_queue) == 200
    assert {(r.outcome, r.usage_source, r.completion_tokens) for r in in_queue} == {("cancelled", "none", 0)}


def test_who_stays_in_the_queue_is_served_although_others_leave_it(narrow: Rig) -> None:
    """T6: every second one leaves."""
    with held(narrow):
        waiting = []
        for length in range(1, QUEUE_MAX + 1):
            waiting.append(narrow.open())
            wait_for_queue(narrow, length)
        for connection in waiting[::2]:
            connection.close()
        wait_for_queue(narrow, QUEUE_MAX // 2)
    for connection in waiting[1::2]:
        answer = read_answer(connection)
        connection.close()
        assert_delivered(answer, text=TEXT)
        assert narrow.record(answer).queue_wait_s > 0


def test_the_nearest_deadline_is_served_first(narrow: Rig) -> None:
    deadlines_ms = [90_000, 30_000, 120_000, 60_000]
    with held(narrow):
        waiting = []
        for length, deadline_ms in enumerate(deadlines_ms, start=1):
            waiting.append(narrow.open(headers=f"x-headrace-deadline-ms: {deadline_ms}\r\n"))
            wait_for_queue(narrow, length)
    ids = {}
    for connection, deadline_ms in zip(waiting, deadlines_ms, strict=True):
        ids[request_id(read_answer(connection))] = deadline_ms
        connection.close()
    ran = [ids[execution["id"]] for execution in narrow.engine.executions() if execution["id"] in ids]
    assert ran == sorted(deadlines_ms)


@pytest.mark.slow
def test_a_deadline_that_passes_in_the_queue_is_504_and_is_never_dispatched() -> None:
    """T9. By a provider that knows no pace yet: one that does turns away earlier who would get no answer in time."""
    with rig({"slots": 64, "log": True}, upstream_slots=1) as fresh:
        with held(fresh):
            answer = fresh.ask(headers="x-headrace-deadline-ms: 200\r\n")
        assert answer.status == 504
        assert header(answer, "x-headrace-reason") == "deadline_exceeded"
        assert fresh.engine.stats()["requests"] == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_refuses_with_503_and_says_when_to_come_back(narrow: Rig, stream: bool) -> None:
    before = narrow.engine.stats()
    with held(narrow):
        waiting = [narrow.open() for _ in range(QUEUE_MAX)]
        wait_for_queue(narrow, QUEUE_MAX)
        answer = narrow.ask(stream=stream)
        for connection in waiting:
            connection.close()
    assert answer.status == 503
    assert error_of(answer)["code"] == "saturated"
    assert header(answer, "x-headrace-reason") == "saturated"
    assert header(answer, "x-should-retry") == "true"
    assert int(header(answer, "retry-after") or "0") >= 1
    assert narrow.engine.stats()["requests"] == before["requests"] + 1


@pytest.mark.slow
def test_a_replica_never_runs_more_than_its_slots_whatever_becomes_of_the_requests() -> None:
    """Ten times more callers than slots; a third of their requests fails, in four ways."""
    slots, callers, requests_each = 4, 40, 5
    faults = "slow:1, cut:5@1/7, close:3@1/5, error:500@1/11, error_event:2@1/13"
    with rig(
        {"slots": 64, "faults": faults}, upstream_slots=slots, config="[request]\nattempts_max = 1\n"
    ) as wide:
        answers: list[Exchange] = []

        def call() -> None:
            answers.extend(wide.ask() for _ in range(requests_each))

        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = wide.engine.stats()
        assert stats["running_max"] <= slots
        wide.wait_until_idle()
        assert len(answers) == callers * requests_each
        delivered = sum("[DONE]" in answer.payloads for answer in answers)
        refused = sum(answer.status == 503 for answer in answers)
        assert stats["requests"] == len(answers) - refused
        assert stats["done"] == delivered > 0
        assert len(wide.new_records([], len(answers) - refused)) == len(answers) - refused
