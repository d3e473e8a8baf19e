"""When a replica is taken out, for how long, what brings it back, and what its silence says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.outcome import AttemptOutcome
from headrace.policies.health import WEIGHT_MIN, Circuit, HealthRules, ReplicaHealth

RULES = HealthRules(
    failures_to_eject=3, ejection_s=5.0, ejection_max_s=120.0, slow_start_s=10.0, silence_limit_s=30.0
)


def end(
    health: ReplicaHealth,
    outcome: AttemptOutcome,
    now_s: float,
    *,
    started_s: float | None = None,
    is_idle: bool = True,
) -> Circuit | None:
    """One attempt that ends at that moment; it began just before unless told otherwise."""
    began_s = now_s - 1e-3 if started_s is None else started_s
    health.asked(now_s=began_s)
    return health.ended(outcome, started_s=began_s, is_idle=is_idle, now_s=now_s)


def fail(health: ReplicaHealth, now_s: float, *, started_s: float | None = None) -> Circuit | None:
    return end(health, AttemptOutcome.ERRED, now_s, started_s=started_s)


def succeed(health: ReplicaHealth, now_s: float) -> Circuit | None:
    return end(health, AttemptOutcome.COMPLETED, now_s)


def eject(health: ReplicaHealth, now_s: float) -> float:
    """Fails it until it is out; returns how long."""
    for _ in range(RULES.failures_to_eject):
        if fail(health, now_s) is Circuit.OPEN:
            return health.ejected_until_s - now_s
    raise AssertionError("it should be out by now")


def test_each_ejection_is_twice_as_long_up_to_the_maximum() -> None:
    health, now_s, times_out_s = ReplicaHealth(RULES), 1.0, []
    for _ in range(8):
        times_out_s.append(eject(health, now_s))
        now_s = health.ejected_until_s + 0.01
    assert times_out_s == pytest.approx([5, 10, 20, 40, 80, 120, 120, 120])


def test_a_replica_that_fails_for_weeks_is_only_ejected_again() -> None:
    """The doubling has no count that could overflow."""
    health, now_s = ReplicaHealth(RULES), 1.0
    for _ in range(5000):
        now_s += eject(health, now_s) + 0.01
    assert eject(health, now_s) == pytest.approx(RULES.ejection_max_s)


@pytest.mark.parametrize("failures", [1, 2])
def test_fewer_failures_in_a_row_than_the_rule_change_nothing(failures: int) -> None:
    health = ReplicaHealth(RULES)
    for _ in range(10):
        assert not any(fail(health, 1.0) for _ in range(failures))
        assert succeed(health, 1.0) is None
    assert health.circuit(1.0) is Circuit.CLOSED
    assert health.is_settled


@pytest.mark.parametrize(
    "outcome",
    [AttemptOutcome.REJECTED, AttemptOutcome.BUSY, AttemptOutcome.CANCELLED, AttemptOutcome.DEADLINE],
)
def test_what_is_not_the_replica_s_fault_never_ejects_it(outcome: AttemptOutcome) -> None:
    """T25."""
    health = ReplicaHealth(RULES)
    assert not any(end(health, outcome, 1.0 + n / 10) for n in range(100))


def test_its_circuit_goes_round() -> None:
    """Out for its time, then one failure is enough; a success lets its share grow until it has all of it."""
    health = ReplicaHealth(RULES)
    eject(health, 1.0)
    assert (health.circuit(5.9), health.is_ejected(5.9)) == (Circuit.OPEN, True)
    assert (health.circuit(6.0), health.is_ejected(6.0)) == (Circuit.HALF_OPEN, False)
    assert fail(health, 7.0) is Circuit.OPEN
    assert health.circuit(16.9) is Circuit.OPEN
    assert succeed(health, 20.0) is Circuit.SLOW_START
    assert [health.weight(now_s) for now_s in (20.0, 25.0, 29.0, 40.0)] == [WEIGHT_MIN, 0.5, 0.9, 1.0]
    assert health.look(has_work=False, now_s=29.0) is None
    assert (health.circuit(29.0), health.is_settled) == (Circuit.SLOW_START, False)
    assert health.look(has_work=False, now_s=30.0) is None
    assert (health.circuit(30.0), health.is_settled) == (Circuit.CLOSED, True)


def test_a_replica_that_flaps_stays_out_longer_each_time_until_it_has_been_well_for_a_while() -> None:
    """T22: a success alone doesn't bring back the short times out."""
    health = ReplicaHealth(RULES)
    assert eject(health, 1.0) == 5.0
    succeed(health, 7.0)
    assert eject(health, 8.0) == 10.0
    succeed(health, 20.0)
    health.look(has_work=False, now_s=31.0)
    assert eject(health, 32.0) == 5.0


def test_failures_of_work_that_was_under_way_do_not_prolong_an_ejection() -> None:
    """T1: thirty streams that break at once are one event; nor do those that break when it may be well again."""
    health = ReplicaHealth(RULES)
    eject(health, 1.0)
    assert not any(fail(health, 1.1) for _ in range(30))
    assert health.ejected_until_s == 6.0
    assert fail(health, 7.0, started_s=0.5) is None
    assert health.circuit(7.0) is Circuit.HALF_OPEN


def test_a_probe_that_finds_it_again_ends_its_time_out_and_no_more() -> None:
    """REPORTS 88."""
    health = ReplicaHealth(RULES)
    eject(health, 1.0)
    health.found(now_s=2.0)
    assert health.circuit(2.0) is Circuit.HALF_OPEN
    healthy = ReplicaHealth(RULES)
    healthy.found(now_s=2.0)
    assert healthy.circuit(2.0) is Circuit.CLOSED


def test_of_several_rests_the_longest_holds() -> None:
    """T26, REPORTS 52: a later, shorter one doesn't shorten it."""
    health = ReplicaHealth(RULES)
    health.rest(until_s=8.0)
    health.rest(until_s=2.0)
    assert health.rest_until_s == 8.0
    health.look(has_work=False, now_s=7.9)
    assert not health.is_settled
    health.look(has_work=False, now_s=8.0)
    assert health.is_settled


# Silence.


def test_a_replica_that_says_nothing_to_callers_in_a_hurry_is_found_out() -> None:
    """T20: each deadline alone proves nothing; thirty seconds of them without any sign of life do."""
    health, now_s = ReplicaHealth(RULES), 100.0
    ejected: list[float] = []
    while not ejected:
        if end(health, AttemptOutcome.DEADLINE, now_s + 2.0, started_s=now_s) is Circuit.OPEN:
            ejected.append(now_s + 2.0 - 100.0)
        now_s += 60.0  # idle times in between don't count
    assert ejected == [14 * 60.0 + 2.0], "fifteen times two seconds"


def test_a_sign_of_life_forgives_all_silence_before_it() -> None:
    health = ReplicaHealth(RULES)
    for n in range(100):
        now_s = 10.0 * n + 1.0
        assert end(health, AttemptOutcome.DEADLINE, now_s + 9.0, started_s=now_s) is None
        if n % 2:
            assert end(health, AttemptOutcome.COMPLETED, now_s + 9.0) is None


def test_what_was_said_before_the_last_sign_of_life_is_no_newer_one() -> None:
    """The watch tells of every stream; of several the last counts, in whatever order they are told."""
    health = ReplicaHealth(RULES)
    health.asked(now_s=1.0)
    health.heard(heard_s=9.0)
    health.heard(heard_s=4.0)
    assert health.silence_s(10.0) == 1.0


def test_one_stream_that_stalls_among_others_is_one_failure_and_alone_it_is_a_replica_that_hangs() -> None:
    """T2, T27: at the stall limit of the first stream, not of the third."""
    health = ReplicaHealth(RULES)
    health.asked(now_s=1.0)
    health.heard(heard_s=30.0)
    assert health.ended(AttemptOutcome.STALLED, started_s=1.0, is_idle=False, now_s=31.0) is None
    assert health.ended(AttemptOutcome.STALLED, started_s=1.0, is_idle=False, now_s=60.0) is Circuit.OPEN


def test_silence_while_everybody_still_waits_first_makes_it_a_last_resort_and_then_ejects_it() -> None:
    """T20, REPORTS 54: callers of whole answers see nothing before the end, whatever their deadline."""
    health = ReplicaHealth(RULES)
    health.asked(now_s=1.0)
    assert health.look(has_work=True, now_s=1.9) is None
    assert (health.is_quiet, health.is_settled) == (False, True)
    assert health.look(has_work=True, now_s=2.0) is None
    assert (health.is_quiet, health.is_settled) == (True, False)
    assert health.look(has_work=True, now_s=1.0 + RULES.silence_max_s) is Circuit.OPEN
    assert health.look(has_work=True, now_s=2.0 + RULES.silence_max_s) is None


def test_an_idle_replica_is_never_quiet() -> None:
    health = ReplicaHealth(RULES)
    end(health, AttemptOutcome.CANCELLED, 5.0, started_s=1.0)
    assert health.look(has_work=False, now_s=500.0) is None
    assert (health.is_quiet, health.is_settled) == (False, True)


def test_without_a_slow_start_a_replica_has_its_share_at_once() -> None:
    rules = HealthRules(failures_to_eject=1, ejection_s=5.0, ejection_max_s=120.0, slow_start_s=0.0)
    health = ReplicaHealth(rules)
    health.start_slowly(now_s=1.0)
    assert health.weight(1.0) == 1.0
    fail(health, 1.0)
    succeed(health, 7.0)
    assert health.weight(7.0) == 1.0
    health.look(has_work=False, now_s=7.0)
    assert health.is_settled


def test_a_newcomer_among_others_starts_slowly() -> None:
    health = ReplicaHealth(RULES)
    health.start_slowly(now_s=1.0)
    assert (health.circuit(1.0), health.weight(1.0)) == (Circuit.SLOW_START, WEIGHT_MIN)


def test_a_newcomer_takes_as_long_as_its_deployment_says_and_one_that_returns_as_long_as_the_rules() -> None:
    health = ReplicaHealth(RULES)
    health.start_slowly(now_s=0.0, over_s=200.0)
    assert health.weight(100.0) == 0.5
    for _ in range(RULES.failures_to_eject):
        fail(health, 100.0)
    succeed(health, 300.0)
    assert health.weight(300.0 + RULES.slow_start_s / 2) == 0.5
    at_once = ReplicaHealth(RULES)
    at_once.start_slowly(now_s=0.0, over_s=0.0)
    assert at_once.weight(0.0) == 1.0


@given(events=st.lists(st.tuples(st.floats(0.0, 50.0), st.booleans()), max_size=80))
def test_it_is_out_only_for_its_failures_and_never_longer_than_the_maximum(
    events: list[tuple[float, bool]],
) -> None:
    health, now_s = ReplicaHealth(RULES), 1.0
    failed = 0  # since the last success
    for pause_s, works in events:
        now_s += pause_s
        was_out = health.is_ejected(now_s)
        failed = 0 if works else failed + 1
        change = succeed(health, now_s) if works else fail(health, now_s)
        assert not (was_out and change is Circuit.OPEN), "an ejected replica is not ejected again"
        if health.is_ejected(now_s):
            assert failed >= RULES.failures_to_eject
            assert health.ejected_until_s - now_s <= RULES.ejection_max_s
        health.look(has_work=False, now_s=now_s)
        assert health.is_settled == (health.circuit(now_s) is Circuit.CLOSED)
