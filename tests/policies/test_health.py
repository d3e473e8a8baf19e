"""When a replica is taken out, for how long, and what brings it back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.health import HealthRules, ReplicaHealth

RULES = HealthRules(failures_to_eject=3, ejection_s=5.0, ejection_max_s=120.0)


def eject(health: ReplicaHealth, now_s: float) -> float:
    """Fails it until it is out; returns how long."""
    for _ in range(RULES.failures_to_eject):
        if health.failed(now_s=now_s):
            return health.ejected_until_s - now_s
    raise AssertionError("it should be out by now")


def test_each_ejection_is_twice_as_long_up_to_the_maximum() -> None:
    health, now_s, times_out_s = ReplicaHealth(RULES), 0.0, []
    for _ in range(8):
        times_out_s.append(eject(health, now_s))
        now_s = health.ejected_until_s
    assert times_out_s == [5, 10, 20, 40, 80, 120, 120, 120]


def test_a_replica_that_fails_for_weeks_is_only_ejected_again() -> None:
    """The doubling has no count that could overflow."""
    health, now_s = ReplicaHealth(RULES), 0.0
    for _ in range(5000):
        now_s += eject(health, now_s)
    assert eject(health, now_s) == RULES.ejection_max_s


@pytest.mark.parametrize("failures", [1, 2])
def test_fewer_failures_in_a_row_than_the_rule_change_nothing(failures: int) -> None:
    health = ReplicaHealth(RULES)
    for _ in range(10):
        assert not any(health.failed(now_s=1.0) for _ in range(failures))
        assert not health.succeeded()
    assert not health.is_ejected(1.0)


def test_after_an_ejection_one_more_failure_is_enough() -> None:
    health = ReplicaHealth(RULES)
    eject(health, 0.0)
    assert health.failed(now_s=5.0)
    assert health.is_ejected(14.9)
    assert not health.is_ejected(15.0)


def test_failures_of_work_that_was_under_way_do_not_prolong_an_ejection() -> None:
    """Thirty streams that break at once are one event."""
    health = ReplicaHealth(RULES)
    eject(health, 0.0)
    assert not any(health.failed(now_s=0.1) for _ in range(30))
    assert health.ejected_until_s == 5.0


def test_one_success_forgets_everything() -> None:
    health = ReplicaHealth(RULES)
    eject(health, 0.0)
    eject(health, 5.0)
    assert health.succeeded()
    assert not health.is_ejected(5.0)
    assert not health.failed(now_s=6.0)
    assert eject(health, 6.0) == 5.0


@given(events=st.lists(st.tuples(st.floats(0.0, 50.0), st.booleans()), max_size=80))
def test_it_is_out_only_after_enough_failures_in_a_row_and_never_longer_than_the_maximum(
    events: list[tuple[float, bool]],
) -> None:
    health, now_s, in_a_row = ReplicaHealth(RULES), 0.0, 0
    for pause_s, works in events:
        now_s += pause_s
        was_out = health.is_ejected(now_s)
        in_a_row = 0 if works else in_a_row + 1
        if works:
            health.succeeded()
        else:
            assert not (health.failed(now_s=now_s) and was_out), "an ejected replica is not ejected again"
        if health.is_ejected(now_s):
            assert in_a_row >= RULES.failures_to_eject
            assert health.ejected_until_s - now_s <= RULES.ejection_max_s
