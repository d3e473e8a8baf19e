"""What several planes report together: nothing falls because a worker ended, and nothing of it stays in progress."""

from headrace.app.plane_loads import GONE_MAX, PlaneLoads
from headrace.core.ids import ReplicaId
from headrace.core.load import PlaneLoad, ReplicaUse, TargetLoad


def report(version: int, target: str = "chat", **counts: int) -> PlaneLoad:
    load = TargetLoad(target=target, name="chat", revision="r", **counts)  # type: ignore[arg-type]
    return PlaneLoad(version, [load], [ReplicaUse(ReplicaId("a"), 0, counts.get("in_flight", 0))])


def test_a_worker_that_ends_takes_no_counts_with_it_but_all_that_it_had_in_progress() -> None:
    loads = PlaneLoads()
    loads.reported(0, report(3, arrived=5, delivered=3, in_flight=2))
    loads.reported(1, report(2, arrived=1, in_flight=1))
    assert loads.together().snapshot_version == 2
    loads.lost(1)
    loads.lost(0)
    loads.lost(0)
    loads.reported(0, report(4, arrived=2, in_flight=1))
    (load,) = loads.together().targets
    assert (load.arrived, load.delivered, load.in_flight) == (8, 3, 1)
    assert loads.together().snapshot_version == 4
    assert loads.together().in_flight(ReplicaId("a"), 0) == 1


def test_nothing_grows_with_the_targets_that_ever_were() -> None:
    loads = PlaneLoads()
    for number in range(GONE_MAX + 10):
        loads.reported(0, report(1, f"chat@v{number}", arrived=1))
        loads.lost(0)
    kept = [load.target for load in loads.together().targets]
    assert kept == [f"chat@v{number}" for number in range(10, GONE_MAX + 10)]


def test_before_anybody_has_reported_nothing_is_known() -> None:
    assert PlaneLoads().together() == PlaneLoad(0, [], [])
