"""A replica that leaves the fleet ends what it has begun, and is seen to until the last of it."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headrace.core.load import PlaneLoad
from tests.gateway.rig import (
    Exchange,
    assert_broken,
    assert_delivered,
    error_of,
    read_answer,
    read_events,
    words,
)
from tests.support.provider import wait_until
from tests.support.routes import NAME, RoutedRig, routed_rig

STREAMS = 20


@pytest.fixture(params=[1, 2], ids=["one process", "two workers"])
def rig(request: pytest.FixtureRequest) -> Iterator[RoutedRig]:
    config = f"[server]\nworkers = {request.param}\n"
    with routed_rig({"slots": STREAMS, "tokens": 6}, config=config, slots=STREAMS) as made:
        yield made


def in_flight(load: PlaneLoad) -> int:
    return sum(use.in_flight for use in load.replicas)


def test_of_twenty_streams_none_is_cut_before_the_replica_stops_and_then_each_ends_with_an_error(
    rig: RoutedRig,
) -> None:
    """T57, REPORTS 77: control hears how many still run, by replica and generation, and that none does any more."""
    rig.set_faults("slow:300")
    with ExitStack() as stack:
        streams = [stack.enter_context(rig.open(model=NAME)) for _ in range(STREAMS)]
        begun = [read_events(stream, 1) for stream in streams]
        rig.change(1, has_replicas=False)
        rig.publish()
        assert rig.target(1, lambda load: load.in_flight == STREAMS).queued == 0
        assert in_flight(rig.load()) == STREAMS
        refused = rig.ask(model=NAME)
        assert (refused.status, error_of(refused)["code"]) == (503, "no_ready_replica")
        for stream, data in zip(streams, begun, strict=True):
            assert_delivered(read_answer(stream, data=data), text=words(6))
    wait_until(lambda: not rig.load().replicas, what="the replica to be free")
    rig.change(1, has_replicas=True)
    rig.publish()
    rig.set_faults("stall:2")
    with ExitStack() as stack:
        streams = [stack.enter_context(rig.open(model=NAME)) for _ in range(STREAMS)]
        begun = [read_events(stream, 3) for stream in streams]
        rig.change(1, has_replicas=False)
        rig.publish()
        rig.engine.kill()  # the time to drain is over
        answers: list[Exchange] = [
            read_answer(stream, data=data) for stream, data in zip(streams, begun, strict=True)
        ]
    for answer in answers:
        assert_broken(answer, text=words(2))
    load = rig.target(1, lambda load: load.arrived == load.ended)
    assert (load.delivered, load.broken) == (STREAMS, STREAMS)
    wait_until(lambda: not in_flight(rig.load()), what="nothing to run")
