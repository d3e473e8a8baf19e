"""Looks are put together without inventing anything: what nobody measured stays unknown."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.autoscale_memory import BUCKET_S, HISTORY_MAX, History, Peaks, Requests
from headrace.policies.autoscale_removal import removal_order
from headrace.policies.autoscale_signals import (
    LATENCIES_MIN,
    FleetView,
    LoadSample,
    ReplicaView,
    tail_s,
    window,
)
from tests.policies.scaling import ready, starting


def test_without_looks_there_is_no_window() -> None:
    assert window([], since_s=0.0) is None
    assert window([LoadSample(0.0, 2.0)], since_s=2.0) is None


def test_means_are_over_the_time_that_was_looked_at() -> None:
    """A missing look makes the window shorter, not emptier."""
    seen = window(
        [LoadSample(0.0, 2.0, arrived=4, in_flight=2), LoadSample(4.0, 10.0, arrived=4, in_flight=6)],
        since_s=0.0,
    )
    assert seen is not None
    assert seen.seconds == 8.0
    assert seen.arrivals_per_s == 1.0
    assert seen.in_flight == pytest.approx(5.0)


def test_a_replica_that_tells_nothing_is_not_one_at_zero() -> None:
    seen = window([LoadSample(0.0, 2.0, kv=(0.5, 0.7)), LoadSample(2.0, 4.0)], since_s=0.0)
    assert seen is not None
    assert seen.kv == pytest.approx(0.6)
    assert seen.gpu is None


def test_too_few_latencies_have_no_tail() -> None:
    assert tail_s([((1.0, LATENCIES_MIN - 1),)], 0.95) is None
    assert tail_s([((1.0, LATENCIES_MIN - 1),), ((2.0, 1),)], 0.95) == 2.0


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.001, 100.0), st.integers(1, 30)), max_size=5).map(tuple), max_size=5
    )
)
def test_a_tail_is_the_edge_that_so_many_are_below(counts: list[tuple[tuple[float, int], ...]]) -> None:
    every = [edge_s for each in counts for edge_s, count in each for _ in range(count)]
    found = tail_s(counts, 0.95)
    if len(every) < LATENCIES_MIN:
        assert found is None
    else:
        assert found in every
        assert sum(edge_s <= found for edge_s in every) >= 0.95 * len(every)


def test_what_starts_is_capacity_and_what_drains_or_is_stuck_is_not() -> None:
    there = FleetView(
        (
            *ready(2),
            *starting(1),
            *starting(1, first=200, is_stuck=True),
            ReplicaView("m-9", 0.0, 1.0, is_draining=True),
        )
    )
    assert there.capacity == 3
    assert len(there.wanted) == 4


def test_old_requests_count_less_than_new_ones() -> None:
    requests = Requests()
    for _ in range(20):
        requests = requests.after(LoadSample(0.0, 2.0, ended=100, service_s=100.0))
    assert requests.mean_service_s == pytest.approx(1.0)
    for _ in range(30):
        requests = requests.after(LoadSample(0.0, 2.0, ended=100, service_s=300.0))
    assert requests.mean_service_s == pytest.approx(3.0, rel=0.01)


def test_history_is_even_also_where_nobody_looked() -> None:
    history = History()
    for second in range(0, 46, 5):
        history = history.after(2.0, now_s=float(second))
    assert history.loads == (2.0, 2.0, 2.0)
    history = history.after(8.0, now_s=45.0 + 3 * BUCKET_S)
    assert history.loads == (2.0,) * 6
    history = history.after(8.0, now_s=45.0 + 4 * BUCKET_S)
    assert history.loads == (*(2.0,) * 6, 8.0)
    assert len(history.after(1.0, now_s=1e6).loads) == HISTORY_MAX


@given(
    st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.0, 100.0)), min_size=1, max_size=60),
    st.floats(1.0, 30.0),
)
def test_the_peak_is_the_highest_of_the_time_that_is_kept(
    looks: list[tuple[float, float]], keep_s: float
) -> None:
    peaks, now_s, seen = Peaks(), 0.0, []
    assert peaks.highest == 0.0
    for step_s, load in looks:
        now_s += step_s
        seen.append((now_s, load))
        peaks = peaks.after(load, now_s=now_s, keep_s=keep_s)
        assert peaks.highest == max(each for at_s, each in seen if at_s > now_s - keep_s)


@given(
    st.lists(
        st.builds(
            ReplicaView,
            id=st.uuids().map(str),
            launched_s=st.floats(0.0, 100.0),
            ready_s=st.none() | st.floats(0.0, 100.0),
            in_flight=st.integers(0, 5),
            sessions=st.integers(0, 3),
            is_stuck=st.booleans(),
        ),
        unique_by=lambda replica: replica.id,
    )
)
def test_who_serves_goes_after_who_does_not_and_who_serves_less_before_who_serves_more(
    replicas: list[ReplicaView],
) -> None:
    by_name = {replica.id: replica for replica in replicas}
    order = [by_name[name] for name in removal_order(replicas)]
    assert len(order) == len(replicas)
    for first, second in pairwise(order):
        assert (first.ready_s is not None) <= (second.ready_s is not None)
        if first.ready_s is not None:
            assert (first.sessions > 0, first.in_flight) <= (second.sessions > 0, second.in_flight)
        elif second.ready_s is None:
            assert first.is_stuck >= second.is_stuck
