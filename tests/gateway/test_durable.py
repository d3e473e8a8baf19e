"""Claims about durable tenants: what they saw to end is on the disk, and what isn't on the disk they don't see to end."""

import itertools
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import pytest

from headrace.core.endings import ENDINGS, Stage
from headrace.core.outcome import Reason
from tests.gateway.endings import (
    TOKENS,
    Seen,
    attempts_of,
    cases,
    check_answer,
    check_log,
    check_record,
    read_to_end,
    ways_of,
)
from tests.gateway.rig import Rig, read_answer, read_events, request_id, rig
from tests.support.provider import wait_until
from tests.support.raw_replica import raw_replica
from tests.support.wire import Exchange

T = TypeVar("T")

UNRECORDED = [(Reason.UNRECORDED, Stage.WORKING), (Reason.UNRECORDED, Stage.ANSWERING)]
COVERED = set(cases(UNRECORDED))


def durable_key(running: Rig) -> str:
    running.provider.cli("tenants", "create", "bank", "--durable", "on")
    return running.provider.key("bank")


def while_busy(running: Rig, ask: Callable[[Callable[[], object]], T]) -> T:
    """What `ask` returns while somebody has the database locked and the ledger's commits wait; it gets what ends that.

    After 5 s the ledger says that it fails. On a machine on which it took so long, it is done again.
    """
    for _ in range(10):
        failures = running.provider.metric("headrace_ledger_failures_total")
        with closing(
            sqlite3.connect(running.provider.data / "headrace.db", isolation_level=None, timeout=60)
        ) as database:
            database.execute("BEGIN IMMEDIATE")
            result = ask(lambda: database.execute("ROLLBACK"))
            if database.in_transaction:
                database.execute("ROLLBACK")
        if running.provider.metric("headrace_ledger_failures_total") == failures:
            return result
        wait_until(lambda: not is_failing(running), what="the ledger to be well again")
    raise AssertionError("this machine is too slow")


@contextmanager
def disk_refusing(running: Rig) -> Iterator[None]:
    """Every write of the ledger fails at once: its table is elsewhere for the time."""
    with closing(sqlite3.connect(running.provider.data / "headrace.db", timeout=60)) as database:
        database.execute("ALTER TABLE usage RENAME TO usage_elsewhere")
        yield
        database.execute("ALTER TABLE usage_elsewhere RENAME TO usage")


def waiting_bytes(connection: socket.socket) -> bytes:
    """What has come and was not read yet; it stays there."""
    connection.setblocking(False)
    try:
        return connection.recv(1 << 20, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def is_failing(running: Rig) -> bool:
    return running.provider.metric("headrace_ledger_failing") == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_durable_tenant_saw_to_end_is_on_the_disk_at_that_moment(workers: int) -> None:
    """T28: no record is waited for; with several workers their service answers for the disk."""
    with rig({"slots": 8, "tokens": TOKENS}, config=f"[server]\nworkers = {workers}\n") as one:
        key = durable_key(one)
        with closing(sqlite3.connect(one.provider.data / "headrace.db")) as database:
            for number in range(30):
                answer = one.ask(key=key, stream=bool(number % 2))
                (found,) = database.execute(
                    "SELECT count(*) FROM usage WHERE request_id = ? AND outcome = 'delivered'",
                    (request_id(answer),),
                ).fetchone()
                assert found == 1, number
        one.wait_until_idle()
        assert one.provider.status()["ledger"]["duplicates"] == 0
        assert one.provider.metric("headrace_requests_total", outcome="delivered") == 30
        assert one.provider.metric("headrace_attempts_total") == 30


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2])
def test_only_the_end_waits_for_the_disk(workers: int) -> None:
    """Every token comes while the disk is busy; the end comes once it isn't, and a key that is used again gets it again."""
    with rig({"slots": 8, "tokens": TOKENS}, config=f"[server]\nworkers = {workers}\n") as one:
        key = durable_key(one)
        names = itertools.count()

        def ask(release: Callable[[], object]) -> tuple[str, bytes, Exchange]:
            name = f"idempotency-key: {next(names)}\r\n"
            with one.open(key=key, headers=name) as connection:
                data = read_events(connection, TOKENS)
                assert one.ask().is_complete, "an ordinary tenant does not wait"
                early = data + waiting_bytes(connection)
                release()
                return name, early, read_answer(connection, data=data)

        name, early, answer = while_busy(one, ask)
        assert b"[DONE]" not in early
        assert answer.is_complete
        assert one.record(answer).outcome == "delivered"
        again = one.ask(key=key, headers=name)
        assert (again.is_complete, again.text) == (True, answer.text)


@pytest.mark.slow
def test_a_durable_answer_that_cannot_be_recorded_ends_as_the_table_says() -> None:
    """T29, strict: streams and whole answers are broken off when the disk refuses, and so they are recorded later."""
    with (
        raw_replica() as burst,
        rig({"slots": 64, "tokens": TOKENS}) as one,
        rig(upstreams=[burst.url]) as other,
    ):
        for running, row in ((other, UNRECORDED[0]), (one, UNRECORDED[1])):
            key = durable_key(running)
            with ExitStack() as stack:
                stack.enter_context(disk_refusing(running))
                asked = [
                    (
                        way,
                        stack.enter_context(running.open(key=key, stream=way.stream, headers=way.headers)),
                    )
                    for way in ways_of(row)
                ]
                seen = []
                for way, connection in asked:
                    events = TOKENS if row[1] is Stage.ANSWERING else 0
                    seen.append((way, Seen(read_to_end(connection, way), events=events)))
                assert is_failing(running)
                for way, each in seen:
                    check_answer(ENDINGS[row], way, each)
            for _, each in seen:
                assert each.answer is not None
                record = running.record(each.answer)
                check_record(ENDINGS[row], record, attempts_of(running, record), events=each.events)
                check_log(running, ENDINGS[row], record.request_id)
            running.wait_until_idle()
            assert running.provider.status()["ledger"]["duplicates"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2])
def test_with_a_lenient_ledger_the_end_waits_until_the_disk_refuses_and_no_longer(workers: int) -> None:
    """T29: the records are in memory and in the journal, new work is taken, and all is written when the disk is back."""
    config = f'[server]\nworkers = {workers}\n[ledger]\nmode = "lenient"\n'
    with rig({"slots": 8, "tokens": TOKENS}, config=config) as one:
        key = durable_key(one)
        with disk_refusing(one):
            first = one.ask(key=key)
            assert is_failing(one)
            later = [one.ask(key=each) for each in (key, one.key)]
            assert is_failing(one)
            assert one.provider.get("/readyz")[0] == 200
        for answer in (first, *later):
            assert answer.is_complete
            assert one.record(answer).outcome == "delivered"
        one.wait_until_idle()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1])
def test_a_deadline_and_a_caller_who_leaves_end_the_wait_for_the_disk(workers: int) -> None:
    """The record says what came of it, not what would have come."""
    with rig({"slots": 8, "tokens": TOKENS}, config=f"[server]\nworkers = {workers}\n") as one:
        key = durable_key(one)

        def ask(release: Callable[[], object]) -> tuple[str, Exchange]:
            with one.open(key=key) as leaving:
                head = read_events(leaving, TOKENS)
            with one.open(key=key, headers="x-headrace-deadline-ms: 1500\r\n") as late:
                return request_id(Exchange(head, "open")), read_answer(late)

        left, answer = while_busy(one, ask)
        assert not answer.is_complete
        assert answer.events[-1]["error"]["code"] == "saturated"
        assert one.record(answer).reason == "unrecorded"
        assert one.record(left).outcome == "cancelled"
        one.wait_until_idle()
        assert one.provider.status()["ledger"]["duplicates"] == 0
