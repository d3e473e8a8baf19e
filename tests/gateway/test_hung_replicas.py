"""A replica that accepts work and says nothing: found out by its silence, left aside, and used again when it speaks."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.gateway.rig import Rig, assert_broken, read_answer, read_events, rig, words
from tests.support.provider import wait_until

pytestmark = pytest.mark.slow

STALL_S = 2.0
CONFIG = f"""
[request]
stall_limit_s = {STALL_S}
first_event_limit_s = {2 * STALL_S}

[health]
ejection_s = 60
quiet_s = 0.3
"""
OPTIONS = {"slots": 64}


@contextmanager
def fleet(count: int) -> Iterator[Rig]:
    with rig(*[OPTIONS] * count, config=CONFIG) as running:
        yield running
        running.wait_until_idle()


def first_circuit(running: Rig) -> str:
    """Of the replica that the tests make hang."""
    (deployment,) = running.provider.status()["deployments"]
    (circuit,) = (
        replica["circuit"]
        for replica in deployment["replicas"]
        if replica["id"] == f"127.0.0.1:{running.engines[0].port}"
    )
    return str(circuit)


def requests(running: Rig) -> list[int]:
    return [engine.stats()["requests"] for engine in running.engines]


def test_a_replica_stopped_in_the_middle_of_its_streams_is_out_at_the_stall_limit() -> None:
    """T2, T27: an honest end for who was there, at most three more that go there, and nothing for the other's streams."""
    with fleet(2) as pair, ExitStack() as stack:
        pair.set_faults("slow:50")
        streams = [stack.enter_context(pair.open()) for _ in range(8)]
        wait_until(lambda: all(engine.stats()["running"] for engine in pair.engines), what="streams on both")
        begun = [read_events(stream, 3) for stream in streams]
        before = requests(pair)[0]
        hung = pair.engines[0].stats()["running"]
        pair.engines[0].kill(signal.SIGSTOP)
        stopped_s = time.monotonic()
        pair.engines[1].set_faults("")
        answers = [read_answer(stream, data=data) for stream, data in zip(streams, begun, strict=True)]
        assert time.monotonic() - stopped_s <= 20 * STALL_S
        broken = [answer for answer in answers if answer.end == "fin"]
        assert len(broken) == hung
        for answer in broken:
            assert_broken(answer, text=answer.text)
        assert first_circuit(pair) == "open"
        assert [pair.ask().status for _ in range(30)] == [200] * 30
        pair.engines[0].kill(signal.SIGCONT)
        assert requests(pair)[0] <= before + 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_replica_that_hangs_for_callers_in_a_hurry_is_ejected_although_its_health_page_is_fine(
    stream: bool,
) -> None:
    """T20: no caller waits for the stall limit, and whole answers have none; the silence adds up over all of them."""
    with fleet(2) as pair:
        pair.engines[0].set_faults("stall:0")
        headers = "x-headrace-deadline-ms: 400\r\n"
        late, until_s = 0, time.monotonic() + 60.0
        while first_circuit(pair) != "open":
            late += pair.ask(stream=stream, headers=headers).status != 200
            assert time.monotonic() < until_s, f"not ejected after {late} lost requests"
        assert late <= 2 * STALL_S / 0.4 + 2
        events = [line["event"] for line in pair.provider.log_lines()]
        assert "replica.ejected" in events
        lost = requests(pair)[0]
        assert [pair.ask(stream=stream).status for _ in range(20)] == [200] * 20
        assert requests(pair)[0] == lost


def test_one_hung_replica_of_three_hangs_only_who_is_already_there_and_returns_when_it_speaks() -> None:
    """REPORTS 54 and 88: others are used as soon as it is quiet, long before its limit; a probe that finds it again ends its
    time out."""
    with fleet(3) as three, ExitStack() as stack:
        assert {three.ask().status for _ in range(12)} == {200}
        three.engines[0].kill(signal.SIGSTOP)
        # One after the other, so that the first to come to the stopped one waits there while the others are asked.
        waiting = [stack.enter_context(three.open()) for _ in range(6)]
        time.sleep(0.7)  # longer than it may be quiet
        began_s = time.monotonic()
        assert [three.ask().status for _ in range(60)] == [200] * 60
        assert time.monotonic() - began_s < 30.0
        answers = [read_answer(stream) for stream in waiting]
        assert {answer.status for answer in answers} == {200}, "who waited there was tried elsewhere"
        assert {answer.text for answer in answers} == {words(20)}
        wait_until(lambda: first_circuit(three) == "open", what="the ejection")
        # Its next probe is not answered; the one after the continuation is.
        wait_until(
            lambda: any(
                replica["reason"]
                for deployment in three.provider.status()["deployments"]
                for replica in deployment["replicas"]
            ),
            what="a probe without an answer",
            limit_s=90,
        )
        three.engines[0].kill(signal.SIGCONT)
        before = requests(three)[0]
        wait_until(lambda: first_circuit(three) != "open", what="the end of its time out", limit_s=90)
        wait_until(lambda: three.ask().status == 200 and requests(three)[0] > before, what="its next request")
        assert first_circuit(three) != "open"


def test_models_are_listed_and_served_although_the_first_replica_is_dead() -> None:
    """REPORTS 84 and 90: the list is ours, and no caller belongs to a replica."""
    with fleet(2) as pair:
        pair.engines[0].kill()
        pair.engines[0].process.wait(60)
        status, _, body = pair.provider.get("/v1/models", key=pair.key)
        assert (status, body.count(b'"scripted"')) == (200, 1)
        assert [pair.ask().status for _ in range(10)] == [200] * 10
