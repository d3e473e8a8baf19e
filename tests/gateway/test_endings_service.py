"""The rows of core/endings.py that need a service of their own: a full queue, a slow reader, a stop, a bug, a dead fleet. And:
no row of the table is left out."""

import os
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from headrace.core.endings import ENDINGS, Stage
from headrace.core.outcome import Reason
from tests.gateway import test_durable, test_endings, test_endings_limits
from tests.gateway.endings import (
    STREAMED,
    WAYS,
    Row,
    Seen,
    Way,
    attempts_of,
    books,
    case_name,
    cases,
    check,
    check_answer,
    check_log,
    check_record,
    read_to_end,
    ways_of,
)
from tests.gateway.rig import Rig, read_answer, read_events, request_id, rig
from tests.gateway.test_large_bodies import children
from tests.support import buggy_headrace
from tests.support.provider import wait_until
from tests.support.wire import Exchange

pytestmark = pytest.mark.slow

UNSTARTED, WORKING, ANSWERING = Stage.UNSTARTED, Stage.WORKING, Stage.ANSWERING
NEVER_EJECTS = "[health]\nfailures_to_eject = 1000000\n"


# --- the queue ---

QUEUE_MAX = 4
SERVICE_MS = 80
QUEUE_CONFIG = f"[admission]\nqueue_length_max = {QUEUE_MAX}\n"
QUEUED = [
    (Reason.CLIENT_GONE, UNSTARTED),
    (Reason.DEADLINE, UNSTARTED),
    (Reason.QUEUE_FULL, UNSTARTED),
    (Reason.WAIT_TOO_LONG, UNSTARTED),
]
TIME_OVER = (Reason.QUEUE_TIME_OVER, UNSTARTED)
# Of so many requests none was held, and a wait is expected that is short and sure.
SHORT_ONES = 20
DEADLINES_MS = {Reason.DEADLINE: 4000, Reason.WAIT_TOO_LONG: SERVICE_MS // 4}


@pytest.fixture(scope="module")
def narrow() -> Iterator[Rig]:
    """One slot, a short queue, and a measured service time."""
    with rig({"slots": 64, "ttft_ms": SERVICE_MS}, config=QUEUE_CONFIG, upstream_slots=1) as running:
        assert running.ask().status == 200
        running.wait_until_idle()  # with its record on disk, which would else be the first test's
        yield running


@contextmanager
def held(narrow: Rig, *, waiting: int) -> Iterator[None]:
    """Someone has the slot, and so many wait, until the block ends."""
    narrow.set_faults("stall:1")
    with ExitStack() as stack:
        read_events(stack.enter_context(narrow.open()), 1)
        for _ in range(waiting):
            stack.enter_context(narrow.open())
        wait_until(
            lambda: narrow.provider.metric("headrace_queue_length") == waiting,
            what=f"a queue of {waiting}",
        )
        try:
            yield
        finally:
            narrow.set_faults("")


@pytest.mark.parametrize(("row", "way"), cases(QUEUED), ids=case_name)
def test_what_ends_in_the_queue_ends_as_the_table_says(narrow: Rig, row: Row, way: Way) -> None:
    """T6, T9."""
    reason = row[0]
    headers = way.headers
    if reason is Reason.DEADLINE:  # who held the slot in other tests was at work for long, as far as is known
        for _ in range(SHORT_ONES):
            assert narrow.ask().status == 200
        narrow.wait_until_idle()
    if reason in DEADLINES_MS:
        headers += f"x-headrace-deadline-ms: {DEADLINES_MS[reason]}\r\n"
    with (
        # In this order: the longer somebody has held the slot, the longer a wait must be expected.
        books(narrow, row) as before,
        held(narrow, waiting=QUEUE_MAX if reason is Reason.QUEUE_FULL else 0),
    ):
        with narrow.open(stream=way.stream, headers=headers) as connection:
            seen = Seen() if reason is Reason.CLIENT_GONE else Seen(read_to_end(connection, way))
        check(before, row, way, seen)
    narrow.wait_until_idle()


@pytest.fixture
def impatient() -> Iterator[Rig]:
    """A rig for each: once somebody has held the slot that long, the next is refused for the wait that it can expect."""
    config = QUEUE_CONFIG + "queue_wait_max_s = 3.0\n"
    with rig({"slots": 64}, config=config, upstream_slots=1) as running:
        yield running


@pytest.mark.parametrize("way", WAYS, ids=case_name)
def test_who_has_waited_as_long_as_anybody_may_ends_as_the_table_says(impatient: Rig, way: Way) -> None:
    with (
        books(impatient, TIME_OVER) as before,
        held(impatient, waiting=0),
        impatient.open(stream=way.stream, headers=way.headers) as connection,
    ):
        check(before, TIME_OVER, way, Seen(read_to_end(connection, way)))
    impatient.wait_until_idle()


DISPLACED = (Reason.DISPLACED, UNSTARTED)


@pytest.mark.parametrize("way", WAYS, ids=case_name)
def test_who_loses_its_place_in_the_queue_ends_as_the_table_says(narrow: Rig, way: Way) -> None:
    """The queue is full, and what comes goes before the one that said it could wait."""
    headers = f"{way.headers}x-headrace-priority: low\r\n"
    with (
        held(narrow, waiting=QUEUE_MAX - 1),
        books(narrow, DISPLACED) as before,
        narrow.open(stream=way.stream, headers=headers) as connection,
    ):
        wait_until(lambda: narrow.provider.metric("headrace_queue_length") == QUEUE_MAX, what="a full queue")
        with narrow.open():
            check(before, DISPLACED, way, Seen(read_to_end(connection, way)))
    narrow.wait_until_idle()


# --- a slow reader ---

SLOW_READER = (Reason.SLOW_READER, ANSWERING)
EVENTS = 20_000
LONG: dict[str, Any] = {"logprobs": True, "top_logprobs": 5}


@pytest.fixture(scope="module")
def talkative() -> Iterator[Rig]:
    """An answer that no buffer on the way takes in whole, in small events, and a short patience."""
    config = "[request]\nwrite_stall_limit_s = 0.5\n"
    with rig({"slots": 64, "tokens": EVENTS}, config=config) as running:
        yield running


@pytest.mark.parametrize("way", STREAMED, ids=case_name)
def test_a_caller_that_takes_nothing_ends_as_the_table_says(talkative: Rig, way: Way) -> None:
    """T12: it is cut at the write stall limit, the engine stops, and it pays for what was generated."""
    with books(talkative, SLOW_READER) as before, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", talkative.provider.port))
        with talkative.open(stream=True, headers=way.headers, connection=connection, **LONG):
            check(before, SLOW_READER, way, Seen())
            answer = read_answer(connection)
            assert answer.end in ("fin", "reset")
            assert not answer.data.endswith(b"0\r\n\r\n")
            assert b"[DONE]" not in answer.data
    assert 0 < talkative.records(limit=1)[0].completion_tokens < EVENTS
    talkative.wait_until_idle()


# --- the service stops ---

STOPS: list[Row] = [(Reason.STOPPING, stage) for stage in Stage]
DRAINING = (Reason.DRAINING, UNSTARTED)
DRAIN_CONFIG = "[server]\ndrain_s = 2.0\n[admission]\nqueue_length_max = 64\n"


def test_a_service_that_stops_ends_every_request_as_the_table_says() -> None:
    """T61: streams that have begun, work that has not answered, and what waits, in every way at once; and who comes later."""
    slots = len(STREAMED) + len(WAYS)
    with rig({"slots": 64}, config=DRAIN_CONFIG, upstream_slots=slots) as one, ExitStack() as stack:
        one.set_faults(f"stall:3@1-{len(STREAMED)}, stall:0@{len(STREAMED) + 1}+")
        opened: list[tuple[Row, Way, socket.socket, bytes]] = []

        def open_all(stage: Stage) -> None:
            for way in ways_of((Reason.STOPPING, stage)):
                connection = stack.enter_context(one.open(stream=way.stream, headers=way.headers))
                begun = read_events(connection, 3) if stage is ANSWERING else b""
                opened.append(((Reason.STOPPING, stage), way, connection, begun))

        open_all(ANSWERING)
        open_all(WORKING)
        one.engine.wait_for_stats(lambda stats: stats["running"] == slots)
        open_all(UNSTARTED)
        wait_until(lambda: one.provider.metric("headrace_queue_length") == len(WAYS), what="the rest to wait")
        one.provider.process.send_signal(signal.SIGTERM)
        wait_until(lambda: one.provider.get("/readyz")[0] == 503, what="the signal to be heard")
        for way in WAYS:
            with (
                books(one, DRAINING, has_account=False) as before,
                one.open(stream=way.stream, headers=way.headers) as connection,
            ):
                answer = read_to_end(connection, way, closes=True)
                check(before, DRAINING, way, Seen(answer), has_account=False, closes=True)
        answers = [(row, way, read_answer(c, data=begun)) for row, way, c, begun in opened]
        assert one.provider.process.wait(60) == 0
        records = {str(record.request_id): record for record in one.records()}
        assert len(records) == slots
        for row, way, answer in answers:
            ending = ENDINGS[row]
            events = 3 if row[1] is ANSWERING else 0
            # Where the answer had begun, its head was sent before anybody knew of the stop.
            check_answer(ending, way, Seen(answer, events), closes=row[1] is not ANSWERING)
            check_log(one, ending, request_id(answer))
            if row[1] is UNSTARTED:
                assert request_id(answer) not in records
            else:
                record = records[request_id(answer)]
                check_record(ending, record, attempts_of(one, record), events=events)


# --- a bug of ours ---

BUGS: list[Row] = [(Reason.INTERNAL, stage) for stage in Stage]
BUG_EVENTS = buggy_headrace.EVENTS
BUGGY = [sys.executable, "-P", buggy_headrace.__file__]


@pytest.fixture(scope="module")
def buggy() -> Iterator[Rig]:
    with rig({"slots": 64}, config=NEVER_EJECTS, program=BUGGY) as running:
        yield running


@pytest.mark.parametrize(("row", "way"), cases(BUGS), ids=case_name)
def test_a_bug_of_ours_ends_as_the_table_says(buggy: Rig, row: Row, way: Way) -> None:
    """And takes nothing down with it: the slot is free again, and the next request is served."""
    stage = row[1]
    buggy.set_faults(f"stall:{BUG_EVENTS}" if stage is ANSWERING else "")
    with (
        books(buggy, row) as before,
        buggy.open(stream=way.stream, headers=way.headers, bug=stage.value) as connection,
    ):
        answer = read_to_end(connection, way)
        check(before, row, way, Seen(answer, BUG_EVENTS if stage is ANSWERING else 0))
    assert any(line.get("request_id") == request_id(answer) for line in buggy.bugs())
    wait_until(buggy.is_idle, what="the slot to be free")
    buggy.set_faults("")
    assert buggy.record(buggy.ask()).outcome == "delivered"


# --- a large body that nobody can read ---

UNREAD = (Reason.BODY_UNREAD, UNSTARTED)
LARGE = [{"role": "user", "content": "large " * 60_000}]


@pytest.mark.parametrize("way", WAYS, ids=case_name)
def test_a_body_whose_reader_dies_ends_as_the_table_says(narrow: Rig, way: Way) -> None:
    assert narrow.record(narrow.ask(messages=LARGE)).outcome == "delivered"
    (child,) = children(narrow)
    os.kill(child, signal.SIGSTOP)
    with (
        books(narrow, UNREAD, has_account=False) as before,
        narrow.open(stream=way.stream, headers=way.headers, messages=LARGE) as connection,
    ):
        wait_until(lambda: narrow.provider.metric("headrace_bodies_reading") == 1, what="the body to be read")
        os.kill(child, signal.SIGKILL)
        check(before, UNREAD, way, Seen(read_to_end(connection, way)), has_account=False)
    narrow.wait_until_idle()


# --- no room, no replica, no ledger ---

PRESSED = (Reason.PRESSED, UNSTARTED)
NO_REPLICA = (Reason.NO_READY_REPLICA, UNSTARTED)
NO_LEDGER = (Reason.LEDGER_BEHIND, UNSTARTED)
RESTING = (Reason.RESTING, UNSTARTED)


def test_a_process_without_room_ends_what_comes_as_the_table_says() -> None:
    """T15: its limit on memory is below what it needs to live."""
    with rig({"slots": 64}, config="[pressure]\nmemory_bytes_max = 1048576\n") as one:
        wait_until(
            lambda: one.provider.status()["pressure"]["level"] == "refuse", what="the pressure to be felt"
        )
        for way in WAYS:
            with (
                books(one, PRESSED, has_account=False) as before,
                one.open(stream=way.stream, headers=way.headers) as connection,
            ):
                answer = read_to_end(connection, way, closes=True)
                check(before, PRESSED, way, Seen(answer), has_account=False, closes=True)


def test_a_model_without_replicas_ends_as_the_table_says() -> None:
    with rig({"slots": 64}) as one:
        one.engine.kill()
        wait_until(
            lambda: one.provider.metric("headrace_replica_ready") == 0,
            limit_s=90,
            what="the replica to be out",
        )
        for way in WAYS:
            with (
                books(one, NO_REPLICA) as before,
                one.open(stream=way.stream, headers=way.headers) as connection,
            ):
                check(before, NO_REPLICA, way, Seen(read_to_end(connection, way)))


def test_a_model_whose_replicas_all_rest_ends_as_the_table_says() -> None:
    """T26: the first request is told by the replica, those after it by us."""
    with rig({"slots": 64, "faults": "error:429:60"}) as one:
        assert one.ask().status == 503
        one.wait_until_idle()
        for way in WAYS:
            with (
                books(one, RESTING) as before,
                one.open(stream=way.stream, headers=way.headers) as connection,
            ):
                check(before, RESTING, way, Seen(read_to_end(connection, way)))
        assert one.engine.stats()["requests"] == 1


def test_a_ledger_that_cannot_write_ends_as_the_table_says() -> None:
    """T29: somebody keeps the database locked. One record waits for it; when it is free again, that is written, and work goes on."""
    with rig({"slots": 64}) as one:
        with closing(sqlite3.connect(one.provider.data / "headrace.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            waiting = one.ask()
            assert waiting.status == 200
            wait_until(
                lambda: any(line["event"] == "ledger.failing" for line in one.provider.log_lines()),
                limit_s=90,
                what="the ledger to give up",
            )
            for way in WAYS:
                with one.open(stream=way.stream, headers=way.headers) as connection:
                    answer = read_to_end(connection, way)
                    check_answer(ENDINGS[NO_LEDGER], way, Seen(answer), has_account=False)
                    check_log(one, ENDINGS[NO_LEDGER], request_id(answer))
            database.execute("ROLLBACK")
        assert one.record(waiting).outcome == "delivered"
        wait_until(lambda: one.ask().status == 200, what="work to be taken again")


# --- workers whose service says nothing ---

UNKNOWN = (Reason.WORK_UNKNOWN, UNSTARTED)
UNSURE = (Reason.QUOTA_UNAVAILABLE, UNSTARTED)


@pytest.fixture(scope="module")
def pair() -> Iterator[Rig]:
    with rig({"slots": 64}, config="[server]\nworkers = 2\n") as running:
        yield running


def answer_in_silence(pair: Rig, way: Way, **request: Any) -> Exchange:
    """What a worker says while the service is stopped."""
    os.kill(pair.provider.pid, signal.SIGSTOP)
    try:
        with pair.open(stream=way.stream, **request) as connection:
            return read_to_end(connection, way)
    finally:
        os.kill(pair.provider.pid, signal.SIGCONT)


@pytest.mark.parametrize("way", WAYS, ids=case_name)
def test_named_work_of_which_the_service_says_nothing_ends_as_the_table_says(pair: Rig, way: Way) -> None:
    """T54."""
    headers = f"{way.headers}idempotency-key: {way}\r\n"
    with books(pair, UNKNOWN, has_account=False) as before:
        answer = answer_in_silence(pair, way, headers=headers)
        check(before, UNKNOWN, way, Seen(answer), has_account=False)


@pytest.mark.parametrize("way", WAYS, ids=case_name)
def test_a_quota_of_which_the_service_says_nothing_ends_as_the_table_says(pair: Rig, way: Way) -> None:
    """T54: a tenant for each, of whose quota no worker holds anything yet."""
    pair.provider.cli("tenants", "create", str(way), "--quota", "requests/day=1000")
    key = pair.provider.key(str(way))
    with books(pair, UNSURE) as before:
        answer = answer_in_silence(pair, way, headers=way.headers, key=key)
        check(before, UNSURE, way, Seen(answer))


# --- a place where it may not run ---

LOCATION = (Reason.LOCATION, UNSTARTED)


def test_a_request_that_may_not_run_there_ends_as_the_table_says() -> None:
    with rig({"slots": 64}, config='[server]\nlocation = "us"\n') as one:
        key = one.provider.key("bank")
        one.provider.cli("tenants", "set", "bank", "--location", "eu")
        wait_until(lambda: one.ask(key=key).status == 403, what="the agreement to be in force")
        one.wait_until_idle()
        for way in WAYS:
            with (
                books(one, LOCATION) as before,
                one.open(stream=way.stream, headers=way.headers, key=key) as connection,
            ):
                check(before, LOCATION, way, Seen(read_to_end(connection, way)))


# --- all of it ---

COVERED = {
    *test_endings.COVERED,
    *test_endings_limits.COVERED,
    *test_durable.COVERED,
    *cases([*QUEUED, TIME_OVER]),
    *cases(
        [
            DISPLACED,
            SLOW_READER,
            *STOPS,
            DRAINING,
            *BUGS,
            UNREAD,
            PRESSED,
            NO_REPLICA,
            NO_LEDGER,
            RESTING,
            UNKNOWN,
            LOCATION,
            UNSURE,
        ]
    ),
}


def test_every_row_of_the_table_is_injected_in_every_way() -> None:
    """A row that nobody can bring about has no place in a contract."""
    wanted = set(cases((row.reason, row.stage) for row in ENDINGS.values()))
    assert wanted - COVERED == set()
    assert COVERED - wanted == set()
