"""A replica that says it has enough is left alone for as long as it asks, and its word reaches the caller if nobody else can."""

import time

import pytest

from tests.gateway.rig import Rig, error_of, header, rig

PAIR = ({"slots": 64}, {"slots": 64})


def attempts(running: Rig) -> list[int]:
    return [engine.stats()["requests"] for engine in running.engines]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["error:429:60", "error:503:60"])
def test_a_busy_replica_is_passed_over_left_alone_and_stays_in(fault: str, stream: bool) -> None:
    """T26: 429 speaks of load, not of health. One request finds it out; none goes there after that."""
    with rig(*PAIR) as running:
        running.engines[0].set_faults(fault)
        answers = [running.ask(stream=stream) for _ in range(20)]
        assert {answer.status for answer in answers} == {200}
        assert attempts(running)[0] == 1
        assert running.provider.metric("headrace_replica_ejected") == 0
        outcomes = [execution.outcome for answer in answers for execution in running.executions(answer)]
        assert outcomes.count("upstream_busy") == 1
        running.wait_until_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_the_only_replica_s_retry_after_is_passed_on_and_holds_for_those_who_come_after(stream: bool) -> None:
    """T26: as 503, because the limit is ours and not the tenant's; the second one is told without asking the replica."""
    with rig({"slots": 64, "faults": "error:429:7"}) as running:
        first, second = running.ask(stream=stream), running.ask(stream=stream)
        assert header(first, "retry-after") == "7"
        for answer in (first, second):
            assert (answer.status, header(answer, "x-headrace-reason")) == (503, "saturated")
            assert header(answer, "retry-after") in ("7", "6", "5", "4")  # what is left of it
            assert error_of(answer)["code"] == "saturated"
        assert attempts(running) == [1]
        running.wait_until_idle()


def test_a_shorter_rest_does_not_shorten_a_longer_one() -> None:
    """REPORTS 52: two requests at once, told 3 seconds and nothing; the replica is asked again after the 3, not before."""
    with rig({"slots": 64, "faults": "error:429:3@1, error:429@2, ttft:300"}, config="") as running:
        began_s = time.monotonic()
        with running.open() as one, running.open() as two:
            for connection in (one, two):
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        while running.ask().status == 503:
            time.sleep(0.05)
        assert 2.5 <= time.monotonic() - began_s <= 20.0
        assert attempts(running)[0] == 3
        running.wait_until_idle()


def test_a_short_rest_is_waited_for() -> None:
    """Without a Retry-After it is `health.rest_s`; who comes meanwhile finds the queue, not a refusal."""
    with rig({"slots": 64, "faults": "error:429@1"}) as running:
        assert running.ask().status == 503
        began_s = time.monotonic()
        assert running.ask().status == 200
        assert time.monotonic() - began_s >= 0.5
        running.wait_until_idle()
