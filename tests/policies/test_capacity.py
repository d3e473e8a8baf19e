"""Little's law, and what chance, a loss and the tail do to it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies import capacity, staffing


def test_a_thousand_a_second_for_two_seconds_are_two_thousand_in_progress_ten_replicas_and_thirteen_with_a_spare() -> (
    None
):
    sizing = capacity.size(rate_per_s=1000, time_s=2.0, per_replica=200, spare_share=0.3)
    assert (sizing.in_progress, sizing.carrying, sizing.replicas) == (2000, 10, 13)
    assert sizing.utilisation == pytest.approx(0.769, abs=0.001)


def test_no_work_needs_no_replica() -> None:
    sizing = capacity.size(rate_per_s=0.0, time_s=2.0, per_replica=200, spare_share=0.3)
    assert (sizing.replicas, sizing.utilisation) == (0, 0.0)


@given(
    rate=st.floats(0.0, 1e6),
    time_s=st.floats(0.0, 1e4),
    per_replica=st.integers(1, 1000),
    spare=st.floats(0.0, 10.0),
)
def test_the_fleet_carries_the_load_with_its_spare_and_one_fewer_does_not(
    rate: float, time_s: float, per_replica: int, spare: float
) -> None:
    sizing = capacity.size(rate_per_s=rate, time_s=time_s, per_replica=per_replica, spare_share=spare)
    wanted = rate * time_s * (1 + spare)
    assert sizing.replicas * per_replica >= wanted * (1 - 1e-8) - 1e-6 * per_replica
    assert (sizing.replicas - 1) * per_replica < wanted or not sizing.replicas
    assert sizing.carrying <= sizing.replicas
    assert sizing.utilisation <= 1 / (1 + spare) + 1e-6


@given(whole=st.integers(1, 10_000), per_replica=st.integers(1, 500), rate=st.floats(0.1, 5000))
def test_a_load_of_so_many_full_replicas_needs_no_one_more(whole: int, per_replica: int, rate: float) -> None:
    time_s = whole * per_replica / rate
    assert capacity.size(rate_per_s=rate, time_s=time_s, per_replica=per_replica).carrying == whole


@pytest.mark.parametrize(
    ("cv", "mean_s", "in_progress", "carrying"), [(0.5, 0.745, 745, 4), (1.0, 0.408, 408, 3)]
)
def test_the_law_wants_the_mean_and_two_seconds_as_a_tail_are_far_above_it(
    cv: float, mean_s: float, in_progress: float, carrying: int
) -> None:
    views = capacity.both(
        rate_per_s=1000, tail_s=2.0, tail_share=0.99, per_replica=200, spare_share=0.3, cv=cv
    )
    assert (views.by_tail.carrying, views.by_tail.replicas) == (10, 13)
    assert views.by_mean.time_s == pytest.approx(mean_s, abs=0.0005)
    assert views.by_mean.in_progress == pytest.approx(in_progress, abs=0.5)
    assert views.by_mean.carrying == carrying
    assert views.spread is not None
    assert views.spread.quantile_s(0.99) == pytest.approx(2.0)


def test_a_measured_mean_is_taken_as_it_is_and_nothing_is_assumed() -> None:
    views = capacity.both(
        rate_per_s=1000, tail_s=2.0, tail_share=0.99, per_replica=200, spare_share=0.0, cv=0.5, mean_s=1.0
    )
    assert (views.by_mean.in_progress, views.by_mean.replicas, views.spread) == (1000, 5, None)


@pytest.mark.parametrize(
    ("replicas", "utilisation", "full", "after_loss"),
    [
        (10, 1.00, 0.51, 1.11),
        (11, 0.91, 0.096, 1.00),
        (12, 0.83, 0.0066, 0.91),
        (13, 0.77, 0.0002, 0.83),
        (14, 0.71, 0.000004, 0.77),
    ],
)
def test_what_the_spare_of_the_founding_example_pays_for(
    replicas: int, utilisation: float, full: float, after_loss: float
) -> None:
    """How full a replica is by chance, and what is left when one is lost."""
    seen = capacity.occupancy(lambda _: 2000.0, per_replica=200, replicas=replicas)
    assert seen.utilisation == pytest.approx(utilisation, abs=0.005)
    assert seen.full_share == pytest.approx(full, rel=0.15)
    assert seen.utilisation_after_loss == pytest.approx(after_loss, abs=0.005)
    assert seen.is_stable is (replicas > 10)
    assert seen.survives_loss is (replicas > 11)


def test_one_common_queue_needs_eleven_so_the_spare_is_not_for_chance() -> None:
    seen = capacity.occupancy(lambda _: 2000.0, per_replica=200, replicas=11)
    assert seen.waiting_share == pytest.approx(6e-6, rel=0.2)
    assert capacity.whole(staffing.slots_by_square_root(2000, waiting_share=0.01) / 200) == 11


@given(
    rate=st.floats(0.01, 500.0),
    alone_s=st.floats(0.01, 20.0),
    each_s=st.floats(0.0, 0.5),
    per_replica=st.integers(1, 256),
    replicas=st.integers(1, 64),
)
def test_what_is_in_progress_is_the_rate_times_the_time_that_it_takes_with_so_many(
    rate: float, alone_s: float, each_s: float, per_replica: int, replicas: int
) -> None:
    """Little's law holds with the time that the load itself brings about, until a replica runs no more at once."""

    def load(number: int) -> float:
        return capacity.in_progress(
            rate_per_s=rate, alone_s=alone_s, each_s=each_s, per_replica=per_replica, replicas=number
        )

    found = load(replicas)
    at_once = min(per_replica, found / replicas)
    assert found == pytest.approx(rate * (alone_s + each_s * at_once))
    assert load(replicas + 1) <= found * (1 + 1e-9), "on more replicas each request is quicker"


def test_a_billion_slots_for_little_work_are_counted_at_once() -> None:
    assert staffing.waiting_share(0.0, 1) == 0.0
    assert staffing.waiting_share(3.0, 10**9) == 0.0


def test_who_loses_the_only_replica_has_none() -> None:
    seen = capacity.occupancy(lambda _: 10.0, per_replica=200, replicas=1)
    assert (seen.utilisation_after_loss, seen.full_share_after_loss) == (math.inf, 1.0)
    assert not seen.survives_loss


def test_a_fleet_that_cannot_keep_up_makes_everybody_wait() -> None:
    assert staffing.waiting_share(200.0, 200) == 1.0


@given(load=st.floats(1.0, 400.0), share=st.sampled_from([0.5, 0.1, 0.01]))
def test_the_share_that_waits_is_what_the_slots_were_chosen_for(load: float, share: float) -> None:
    slots = staffing.slots_for(load, waiting_share=share)
    assert staffing.waiting_share(load, slots) <= share * (1 + 1e-9)
    if slots - 1 > load:
        assert staffing.waiting_share(load, slots - 1) > share * (1 - 1e-9)


@given(load=st.floats(100.0, 2000.0), share=st.sampled_from([0.2, 0.05, 0.01]))
def test_the_rule_of_thumb_is_near_erlang_s_answer_for_large_fleets(load: float, share: float) -> None:
    assert staffing.slots_by_square_root(load, waiting_share=share) == pytest.approx(
        staffing.slots_for(load, waiting_share=share), rel=0.02
    )


@pytest.mark.parametrize(("mean", "least", "tail"), [(0.0, 0, 1.0), (0.0, 1, 0.0), (3.0, 0, 1.0)])
def test_the_tail_begins_and_ends_where_it_must(mean: float, least: int, tail: float) -> None:
    assert capacity.poisson_tail(mean, least) == tail


@given(mean=st.floats(0.01, 500.0), least=st.integers(1, 500))
def test_each_further_one_is_less_likely(mean: float, least: int) -> None:
    here, further = capacity.poisson_tail(mean, least), capacity.poisson_tail(mean, least + 1)
    assert -1e-9 <= further <= here + 1e-9 <= 1.0 + 1e-8
