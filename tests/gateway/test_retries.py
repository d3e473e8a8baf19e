"""When does another replica get its turn? Only while nothing was delivered, only for faults that another might not have,
and only within a budget."""

import random
import time

import pytest

from tests.gateway.rig import Rig, assert_delivered, error_of, request_id, rig, words
from tests.support.provider import wait_until

TEXT = words(20)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fault", ["refuse", "cut:0", "close_raw:0", "close:0", "garbage", "html", "error:500"]
)
def test_a_fault_before_the_first_byte_is_tried_once_elsewhere_and_the_caller_never_knows(
    pair: Rig, fault: str, stream: bool
) -> None:
    """T17: one of two replicas fails every request."""
    pair.engines[0].set_faults(fault)
    # So many that chance can't send all of them to the same replica first.
    answers = [pair.ask(stream=stream) for _ in range(40)]
    assert {answer.status for answer in answers} == {200}
    if stream:
        for answer in answers:
            assert_delivered(answer, text=TEXT)
    attempts = [pair.executions(answer) for answer in answers]
    assert {len(each) for each in attempts} == {1, 2}
    assert {each[-1].outcome for each in attempts} == {"completed"}
    for each in attempts:
        assert len({execution.replica for execution in each}) == len(each), "never the same replica twice"


@pytest.mark.slow
def test_a_dead_replica_of_three_costs_no_request() -> None:
    """T17: connection refused, from the first request after the kill until the replica is taken out."""
    options = {"slots": 64}
    with rig(options, options, options) as three:
        assert {three.ask().status for _ in range(12)} == {200}
        before = three.provider.metric("headrace_retries_total")
        three.engines[0].kill()
        three.engines[0].process.wait(60)
        for _ in range(100):
            assert_delivered(three.ask(), text=TEXT)
        retries = three.provider.metric("headrace_retries_total") - before
        assert 0 < retries <= 20


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_when_every_replica_fails_the_load_on_them_grows_by_a_fifth_at_most(stream: bool) -> None:
    """T18: the budget without its floor, so that the bound is exact."""
    config = "[request]\nretry_floor_per_s = 0\n[health]\nfailures_to_eject = 1000000\n"
    options = {"slots": 64, "faults": "error:500"}
    with rig(options, options, config=config) as failing:
        requests = 200
        answers = [failing.ask(stream=stream) for _ in range(requests)]
        assert {answer.status for answer in answers} == {502}
        worked = sum(engine.stats()["requests"] for engine in failing.engines)
        assert requests < worked <= 1.2 * requests
        failing.wait_until_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_hundred_bad_requests_are_the_caller_s_and_speak_against_nobody(solo: Rig, stream: bool) -> None:
    """T25: no retry, no ejection, and the status that the engine gave."""
    assert solo.ask().status == 200  # whatever happened before is forgiven
    solo.set_faults("error:400")
    before = solo.engine.stats()
    answers = [solo.ask(stream=stream) for _ in range(100)]
    assert {answer.status for answer in answers} == {400}
    assert error_of(answers[0])["message"] == "scripted error"
    assert solo.engine.stats()["requests"] == before["requests"] + 100
    assert solo.provider.metric("headrace_replica_ejected") == 0


def test_a_bad_request_is_not_tried_elsewhere(pair: Rig) -> None:
    pair.engines[0].set_faults("error:400")
    answers = [pair.ask() for _ in range(20)]
    assert {answer.status for answer in answers} == {200, 400}
    assert {len(pair.executions(answer)) for answer in answers} == {1}


@pytest.mark.slow
def test_a_replica_that_closes_idle_connections_costs_no_request(solo: Rig) -> None:
    """REPORTS 58: calls spaced around the moment that the engine closes."""
    solo.set_faults("keepalive_close:4")
    spacing = random.Random(58)
    answers = []
    for index in range(400):
        answers.append(solo.ask(stream=index % 2 == 0))
        time.sleep(spacing.uniform(0.002, 0.006))
    assert [answer.status for answer in answers] == [200] * 400
    assert len(solo.executions(answers[-1])) == 1


def test_a_replica_in_front_of_which_every_connection_dies_is_not_asked_for_ever(solo: Rig) -> None:
    """A dead kept-alive connection allows one more go on a fresh one; that one counts."""
    assert solo.ask().status == 200
    before = solo.engine.stats()
    solo.set_faults("refuse")
    answer = solo.ask()
    assert answer.status == 502
    assert solo.engine.stats()["requests"] - before["requests"] <= 2
    wait_until(lambda: solo.record(request_id(answer)).attempts == 1, what="one attempt")
