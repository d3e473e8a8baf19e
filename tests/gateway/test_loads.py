"""Counts by target: what is reported stands still, and what metrics show never falls."""

import pytest

from headrace.core.fleet import Deployment, FleetSnapshot
from headrace.core.load import Histogram
from headrace.gateway.loads import GONE_MAX, Loads
from headrace.policies.deployment import QueueView
from headrace.telemetry.metrics import SECONDS, Metrics

SAMPLES_S = (0.0, 0.001, 0.0011, 0.3, 7.0, 599.0, 601.0, 5000.0)


class Idle:
    """Nothing runs."""

    version = 7

    def in_flight(self) -> dict[str, int]:
        return {"chat@v1": 1}

    def all_slots(self) -> list[object]:
        return []

    def queue(self, target: str) -> QueueView:
        return QueueView(2, 10, 1.5, None)


def target(version: int, revision: str = "r") -> Deployment:
    return Deployment("chat", "chat", frozenset(), revision, version=version)


def snapshot(*targets: Deployment) -> FleetSnapshot:
    return FleetSnapshot(1, {each.key: each for each in targets})


def test_what_was_reported_does_not_change_any_more() -> None:
    loads = Loads()
    loads.publish(snapshot(target(1)))
    load = loads.arrived(target(1), "chat@v1")
    reported = loads.report(Idle()).targets[0]  # type: ignore[arg-type]
    load.arrived += 1
    load.ttft.observe(1.0)
    assert (reported.arrived, reported.ttft.count, reported.queued, reported.wait_s) == (1, 0, 2, 1.5)


def test_of_a_target_that_is_gone_it_is_known_how_many_still_run() -> None:
    loads = Loads()
    loads.publish(snapshot(target(1)))
    for _ in range(3):
        loads.arrived(target(1), "chat@v1").delivered += 1
    loads.arrived(target(1), "chat@v1")
    loads.publish(snapshot())
    late = loads.arrived(target(2), "chat@v2")  # it was offered when the request was read
    late.refused += 1
    reported = {each.target: each for each in loads.report(Idle()).targets}  # type: ignore[arg-type]
    assert (reported["chat@v1"].in_flight, reported["chat@v1"].queued) == (1, 0)
    assert reported["chat@v2"].in_flight == 0


def test_the_revision_of_a_plain_name_is_the_newest() -> None:
    loads = Loads()
    for revision in ("a", "b"):
        loads.publish(snapshot(target(0, revision)))
    assert [each.revision for each in loads.report(Idle()).targets] == ["b"]  # type: ignore[arg-type]


def test_targets_that_were_are_forgotten_but_metrics_do_not_fall() -> None:
    loads, metrics = Loads(), Metrics()
    shown = 0
    for version in range(1, GONE_MAX + 20):
        loads.publish(snapshot(target(version)))
        loads.arrived(target(version), f"chat@v{version}").ttft.observe(0.5)
        loads.fill(metrics)
        count = sum(metrics.ttft_seconds.labels("chat").counts)
        assert count == shown + 1
        shown = count
    assert len(loads.report(Idle()).targets) == GONE_MAX + 1  # type: ignore[arg-type]


@pytest.mark.parametrize("sample_s", SAMPLES_S)
def test_metrics_count_a_time_in_the_bucket_that_it_belongs_to(sample_s: float) -> None:
    loads, metrics, direct = Loads(), Metrics(), Metrics()
    loads.publish(snapshot(target(0)))
    loads.arrived(target(0), "chat").ttft = Histogram()
    loads.arrived(target(0), "chat").ttft.observe(sample_s)
    loads.fill(metrics)
    direct.ttft_seconds.labels("chat").observe(sample_s)
    found, expected = (each.ttft_seconds.labels("chat") for each in (metrics, direct))
    assert (found.counts, found.sum, found.bounds) == (expected.counts, expected.sum, SECONDS)
