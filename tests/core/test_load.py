"""Reports of load: what is added up over planes, or taken apart into intervals, loses nothing and says no more than it knows."""

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import ReplicaId
from headrace.core.load import (
    EDGES_S,
    NO_LOAD,
    Histogram,
    PlaneLoad,
    ReplicaUse,
    Span,
    TargetLoad,
    merge,
)
from headrace.telemetry import metrics

DURATIONS = st.floats(min_value=0.0, max_value=5000.0)
SAMPLES = st.lists(DURATIONS, max_size=30)


def histogram(values: list[float]) -> Histogram:
    made = Histogram()
    for value in values:
        made.observe(value)
    return made


def load(target: str = "chat@v2", **counts: object) -> TargetLoad:
    return TargetLoad(**{"target": target, "name": "chat", "revision": "sha256:a", **counts})  # type: ignore[arg-type]


def test_each_edge_is_some_six_percent_above_the_one_before() -> None:
    ratios = [high / low for low, high in itertools.pairwise(EDGES_S)]
    assert (EDGES_S[0], EDGES_S[-1]) == (0.0005, 1000.0)
    assert 1.04 < min(ratios) <= max(ratios) < 1.08


def test_every_bucket_of_the_metrics_ends_at_an_edge() -> None:
    """So they can be filled from a histogram, exactly."""
    assert {float(bound) for bound in (*metrics.SECONDS, *metrics.TOKEN_SECONDS)} <= set(EDGES_S)


@given(st.lists(DURATIONS, min_size=1, max_size=60), st.sampled_from((0.01, 0.5, 0.95, 0.99, 1.0)))
def test_a_percentile_lies_within_what_is_said_of_it(values: list[float], share: float) -> None:
    span = histogram(values).percentile(share)
    assert span is not None
    exact = sorted(values)[math.ceil(share * len(values) - 1e-9) - 1]
    assert span.low_s < exact <= span.high_s or exact == span.low_s == 0.0


@given(SAMPLES, DURATIONS | st.sampled_from(EDGES_S))
def test_how_many_were_longer_is_between_what_is_said(values: list[float], limit_s: float) -> None:
    low, high = histogram(values).above(limit_s)
    assert low <= sum(value > limit_s for value in values) <= high
    assert limit_s not in EDGES_S or low == high, "of an edge it is known exactly"


@given(SAMPLES, SAMPLES)
def test_two_histograms_together_are_that_of_all_values(mine: list[float], its: list[float]) -> None:
    together = histogram(mine).plus(histogram(its))
    whole = histogram(mine + its)
    assert together.counts == whole.counts
    assert together.sum_s == pytest.approx(whole.sum_s)


@given(SAMPLES, SAMPLES)
def test_what_was_added_since_is_the_difference(before: list[float], added: list[float]) -> None:
    interval = histogram(before + added).minus(histogram(before))
    assert interval.count == len(added)
    assert interval.sum_s == pytest.approx(sum(added), abs=1e-6)
    assert (interval.mean_s is None) == (not added)


def test_of_nothing_that_was_observed_nothing_is_said() -> None:
    empty = Histogram()
    assert (empty.count, empty.mean_s, empty.percentile(0.5), empty.above(1.0)) == (0, None, None, Span(0, 0))
    assert histogram([2.0, 4.0]).mean_s == 3.0


def test_loads_of_two_planes_are_added_up() -> None:
    one = load(arrived=3, delivered=1, failed=1, causes={"upstream_lost": 1}, in_flight=1, wait_s=2.0)
    other = load(arrived=2, failed=2, causes={"upstream_lost": 1, "upstream_error": 1}, queued=4, wait_s=1.0)
    both = one.plus(other)
    assert (both.arrived, both.delivered, both.failed) == (5, 1, 3)
    assert both.causes == {"upstream_lost": 2, "upstream_error": 1}
    assert (both.in_flight, both.queued, both.wait_s) == (1, 4, 2.0)


def test_an_interval_is_what_came_between_two_reports() -> None:
    earlier = load(arrived=3, delivered=3, causes={"client_gone": 1}, verdicts={"same": 2})
    later = load(
        arrived=7, delivered=5, causes={"client_gone": 1, "queue_full": 2}, verdicts={"same": 3}, queued=2
    )
    interval = later.since(earlier)
    assert (interval.arrived, interval.delivered, interval.queued) == (4, 2, 2)
    assert (interval.causes, interval.verdicts) == ({"queue_full": 2}, {"same": 1})
    assert later.since(None) is later


def test_who_counts_from_the_start_again_is_not_taken_for_a_fall() -> None:
    """A service that was started again reports less than before: all of it is new."""
    assert load(arrived=2).since(load(arrived=3)).arrived == 2


def test_the_callers_failures_are_not_the_targets() -> None:
    one = load(
        arrived=9,
        delivered=2,
        rejected=1,
        cancelled=1,
        refused=1,
        failed=1,
        broken=1,
        failed_over=1,
        handed_over=1,
    )
    assert (one.ended, one.faults, one.judged) == (9, 3, 5)


def test_several_planes_are_reported_as_one() -> None:
    """The oldest snapshot that any of them serves from is that of all."""
    a, b = ReplicaId("a"), ReplicaId("b")
    planes = [
        PlaneLoad(4, [load(arrived=1), load("chat", arrived=5)], [ReplicaUse(a, 0, 2)]),
        PlaneLoad(3, [load(arrived=2)], [ReplicaUse(a, 0, 1), ReplicaUse(a, 1, 7), ReplicaUse(b, 0, 1)]),
    ]
    both = merge(planes)
    assert both.snapshot_version == 3
    assert {each.target: each.arrived for each in both.targets} == {"chat@v2": 3, "chat": 5}
    assert [both.in_flight(a, 0), both.in_flight(a, 1), both.in_flight(b, 0), both.in_flight(b, 1)] == [
        3,
        7,
        1,
        0,
    ]
    assert merge([]) == NO_LOAD


def test_a_report_comes_through_a_link_as_it_was() -> None:
    sent = PlaneLoad(
        1, [load(ttft=histogram([0.1, 2.0]), causes={"ok": 1})], [ReplicaUse(ReplicaId("a"), 0, 1)]
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=PlaneLoad) == sent


def test_a_copy_does_not_change_with_what_is_counted_further() -> None:
    counted = load(arrived=1, causes={"queue_full": 1})
    counted.ttft.observe(1.0)
    kept = counted.copy()
    counted.arrived += 1
    counted.causes["queue_full"] += 1
    counted.ttft.observe(1.0)
    assert (kept.arrived, kept.causes, kept.ttft.count) == (1, {"queue_full": 1}, 1)
