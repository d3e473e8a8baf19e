"""Replicas that die and replicas that hang, with streams open: nobody waits longer than the stall limit or is told lies."""

import signal
import socket
import time

import pytest

from tests.gateway.rig import (
    Rig,
    assert_broken,
    assert_delivered,
    elapsed_s,
    read_answer,
    read_events,
    rig,
    words,
)
from tests.support.provider import wait_until

pytestmark = pytest.mark.slow

TOKENS = 200
STREAMS = 64
STALL_LIMIT_S = 1.0
STALLS = f"""
[request]
stall_limit_s = {STALL_LIMIT_S}
first_event_limit_s = {STALL_LIMIT_S}
retry_floor_per_s = 1000

[health]
failures_to_eject = 3
ejection_s = 60
"""


def replica_of(running: Rig, index: int) -> str:
    return f"127.0.0.1:{running.engines[index].port}"


def test_killing_a_replica_breaks_its_streams_honestly_and_touches_no_other() -> None:
    """T1: kill -9 one of two replicas with 32 open streams each."""
    options = {"slots": 64, "itl_ms": 15, "tokens": TOKENS}
    with rig(options, options) as two:
        victim = two.engines[0]
        connections = [two.open() for _ in range(STREAMS)]
        begun = [(connection, read_events(connection, 3)) for connection in connections]
        wait_until(lambda: victim.stats()["running"] == STREAMS // 2, what="half of the streams on each")
        victim.kill(signal.SIGKILL)
        killed_s = time.monotonic()
        answers = [read_answer(connection, data=data) for connection, data in begun]
        for connection in connections:
            connection.close()
        broken = [answer for answer in answers if "[DONE]" not in answer.payloads]
        assert len(broken) == STREAMS // 2
        assert elapsed_s(killed_s) < 20, "an end that is seen at once, not a stall"
        for answer in answers:
            if answer in broken:
                count = len(answer.events) - 1
                assert 3 <= count < TOKENS
                assert_broken(answer, text=words(count))
            else:
                assert_delivered(answer, text=words(TOKENS))
        records = two.new_records([], STREAMS)
        assert len(records) == STREAMS
        ends = [(record.outcome, record.reason) for record in records]
        assert ends.count(("broken", "upstream_lost")) == STREAMS // 2
        assert ends.count(("delivered", "ok")) == STREAMS // 2
        two.wait_until_idle()


def test_a_replica_that_hangs_is_left_at_the_stall_limit_and_then_ejected() -> None:
    """T2, T20, REPORTS 54: SIGSTOP in the middle of a stream. Health by requests alone: it still accepts connections."""
    options = {"slots": 64, "itl_ms": 20, "tokens": TOKENS}
    with rig(options, options, config=STALLS) as two:
        hung = two.engines[0]
        connections: list[socket.socket] = []
        while not hung.stats()["running"]:
            connections.append(two.open())
            read_events(connections[-1], 1)
        on_hung = connections[-1]
        hung.kill(signal.SIGSTOP)
        stopped_s = time.monotonic()
        try:
            answer = read_answer(on_hung)
            waited_s = elapsed_s(stopped_s)
            assert b'"error"' in answer.data
            assert answer.end == "fin"
            assert b"[DONE]" not in answer.data
            assert STALL_LIMIT_S - 0.1 <= waited_s < STALL_LIMIT_S + 20
            # Whoever is sent there now is retried elsewhere, and soon nobody is.
            for _ in range(30):
                assert two.ask(max_tokens=2).status == 200
            misrouted = two.provider.metric(
                "headrace_attempts_total", replica=replica_of(two, 0), outcome="upstream_stalled"
            )
            assert misrouted - 1 <= 3
            assert two.provider.metric("headrace_replica_ejected", replica=replica_of(two, 0)) == 1
        finally:
            hung.kill(signal.SIGCONT)
        # Awake again, it finds that everybody has gone.
        hung.wait_for_stats(lambda stats: stats["running"] == stats["waiting"] == 0)
        assert hung.stats()["aborted"] >= 1
        for connection in connections:
            connection.close()
        two.wait_until_idle()


def test_a_stall_limit_holds_from_the_last_event_and_not_from_the_start() -> None:
    """An answer that takes three times the limit, with events in between, is not a stall; one that stops is, at once."""
    config = STALLS.replace("first_event_limit_s = 1.0", "first_event_limit_s = 300")
    with rig({"slots": 64, "tokens": 8}, config=config) as one:
        one.set_faults("slow:400")
        assert_delivered(one.ask(), text=words(8))
        one.set_faults("stall:3")
        started_s = time.monotonic()
        assert_broken(one.ask(), text=words(3))
        assert elapsed_s(started_s) < 20
        # The same inside a whole answer.
        started_s = time.monotonic()
        assert one.ask(stream=False).status == 502
        assert elapsed_s(started_s) < 20
        one.wait_until_idle()
