"""A deployment that was scaled to zero: who comes waits for its first replica, a bounded number, and starts without a herd."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.gateway.rig import Exchange, assert_delivered, error_of, header, read_answer, words
from tests.support.routes import NAME, RoutedRig, routed_rig

SLOTS = 2


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def shared(request: pytest.FixtureRequest) -> Iterator[RoutedRig]:
    config = f"[server]\nworkers = {request.param}\n[admission]\nqueue_wait_max_s = 1.0\n"
    with routed_rig({"slots": 8, "tokens": 3, "ttft_ms": 20}, config=config, slots=SLOTS) as made:
        yield made


@pytest.fixture
def rig(shared: RoutedRig) -> Iterator[RoutedRig]:
    yield shared
    wake(shared)
    shared.wait_until_idle()


def sleep(rig: RoutedRig, *, room: int, ready_in_s: float = 30.0, cold_start_s: float = 30.0) -> None:
    """Without replicas from now on, but with a waiting room."""
    expected_s = time.monotonic() + ready_in_s
    rig.change(
        1, has_replicas=False, waiting_room_max=room, retry_after_s=cold_start_s, ready_expected_s=expected_s
    )
    rig.publish()


def wake(rig: RoutedRig) -> None:
    rig.change(1, has_replicas=True)
    rig.publish()


def refused(answer: Exchange) -> float:
    """How long it is to stay away, of one that was told to come back."""
    assert (answer.status, error_of(answer)["code"]) == (503, "no_ready_replica")
    wait_s = header(answer, "retry-after")
    assert wait_s is not None
    return float(wait_s)


def test_of_fifty_that_arrive_as_many_as_there_is_room_for_wait_and_are_served_and_the_rest_come_back_later(
    rig: RoutedRig,
) -> None:
    """T58, REPORTS 81: none fails because a port is open before its engine is ready, and none is in a herd."""
    before = rig.target(1)
    sleep(rig, room=10)
    with ExitStack() as stack:
        callers = [stack.enter_context(rig.open(model=NAME)) for _ in range(50)]
        waits = rig.target(1, lambda load: load.queued == 10 and load.since(before).refused == 40)
        assert waits.since(before).arrived == 50, "what says that a replica is wanted"
        assert 20 < waits.wait_s <= 30
        wake(rig)
        answers = [read_answer(caller) for caller in callers]
    served = [answer for answer in answers if answer.status == 200]
    assert len(served) == 10
    for answer in served:
        assert_delivered(answer, text=words(3))
    for answer in answers:
        assert answer in served or 20 < refused(answer) <= 31
    assert rig.engine.stats()["running_max"] <= SLOTS


def test_who_has_less_time_than_the_start_takes_is_told_at_once(rig: RoutedRig) -> None:
    sleep(rig, room=10)
    answer = rig.ask(model=NAME, headers="x-headrace-deadline-ms: 5000\r\n")
    assert 20 < refused(answer) <= 31


def test_a_request_waits_longer_for_a_start_than_it_would_in_a_queue_and_not_for_ever(rig: RoutedRig) -> None:
    """Of `queue_wait_max_s` it has had nothing before there is a replica."""
    sleep(rig, room=10, ready_in_s=1.0, cold_start_s=3.0)
    began_s = time.monotonic()
    assert refused(rig.ask(model=NAME)) >= 1
    assert time.monotonic() - began_s >= 1.9


def test_who_leaves_the_waiting_room_is_not_served(rig: RoutedRig) -> None:
    before = rig.engine.stats()["requests"]
    sleep(rig, room=10)
    with rig.open(model=NAME):
        rig.target(1, lambda load: load.queued == 1)
    rig.target(1, lambda load: load.queued == 0)
    wake(rig)
    assert rig.ask(model=NAME).status == 200
    assert rig.engine.stats()["requests"] == before + 1


def test_a_start_that_is_given_up_turns_away_who_comes_then(rig: RoutedRig) -> None:
    sleep(rig, room=0, cold_start_s=7.0)
    assert refused(rig.ask(model=NAME)) == 7
