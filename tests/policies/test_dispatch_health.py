"""Which replicas the dispatcher trusts: engines that may have ended, those that rest, fall silent, or join others."""

import pytest

from headrace.core.errors import NoReadyReplica, Saturated
from headrace.core.fleet import Replica
from headrace.core.ids import ReplicaId
from headrace.core.outcome import AttemptOutcome
from headrace.policies.dispatch import DOUBT_S
from headrace.policies.health import Circuit
from headrace.policies.tickets import Start
from tests.policies.dispatch_rig import OURS, RULES, come, dispatcher, fleet, replica, ticket


def engine(*, generation: int = 0) -> Replica:
    """An engine that we started and start again when it ends."""
    return Replica(ReplicaId("engine"), "127.0.0.1", 1, 1, OURS, generation=generation)


@pytest.mark.parametrize("outcome", [AttemptOutcome.LOST, AttemptOutcome.UNREACHABLE])
def test_nobody_is_sent_to_an_engine_that_has_just_lost_its_connections(outcome: AttemptOutcome) -> None:
    """T1: who waits, who lost it and who arrives all wait for the word of control, and run on the next generation."""
    one = dispatcher(engine())
    loser, waiting = ticket(), ticket(deadline_s=50.0)
    come(one, loser, now_s=0.0)
    come(one, waiting, now_s=0.0)
    _, actions = one.give_back(loser, outcome, now_s=1.0)
    assert actions == []
    assert not one.retry(loser, now_s=1.0)
    newcomer = ticket(deadline_s=20.0)
    assert not come(one, newcomer, now_s=1.0)
    assert one.publish(fleet(chat=[]), now_s=1.1) == []
    assert one.publish(fleet(chat=[engine(generation=1)]), now_s=3.0) == [Start(newcomer)]
    _, actions = one.give_back(newcomer, AttemptOutcome.COMPLETED, now_s=4.0)
    assert actions == [Start(waiting)]
    _, actions = one.give_back(waiting, AttemptOutcome.COMPLETED, now_s=5.0)
    assert actions == [Start(loser)]


def test_who_lost_its_engine_waits_for_the_next_even_after_control_has_withdrawn_it() -> None:
    one = dispatcher(engine())
    loser = ticket()
    come(one, loser, now_s=0.0)
    one.publish(fleet(chat=[]), now_s=1.0)
    one.give_back(loser, AttemptOutcome.LOST, now_s=1.0)
    assert not one.retry(loser, now_s=1.0)
    assert one.publish(fleet(chat=[engine(generation=1)]), now_s=2.0) == [Start(loser)]


def test_a_lost_connection_that_was_no_end_delays_work_by_the_doubt_alone() -> None:
    """The same generation gets requests again, the one that lost it too."""
    one = dispatcher(engine())
    loser = ticket()
    come(one, loser, now_s=0.0)
    one.give_back(loser, AttemptOutcome.LOST, now_s=1.0)
    assert not one.retry(loser, now_s=1.0)
    assert one.wake(now_s=1.0 + DOUBT_S / 2) == []
    assert one.wake(now_s=1.0 + DOUBT_S) == [Start(loser)]


def test_a_fault_inside_the_protocol_casts_no_doubt_on_an_engine_that_lives() -> None:
    one = dispatcher(engine())
    failed, waiting = ticket(), ticket()
    come(one, failed, now_s=0.0)
    come(one, waiting, now_s=0.0)
    _, actions = one.give_back(failed, AttemptOutcome.GARBAGE, now_s=1.0)
    assert actions == [Start(waiting)]
    with pytest.raises(NoReadyReplica):
        one.retry(failed, now_s=1.0)


def test_a_replica_that_joins_others_starts_slowly_and_those_found_at_the_start_do_not() -> None:
    """A new generation has empty caches: while the other has a slot, it gets a tenth of the other's load at first."""
    first, second = replica("first", slots=50), replica("second", slots=50)
    one = dispatcher(first)
    one.publish(fleet(chat=[first, second]), now_s=2.0)
    circuits = {load.replica.id: load.health.circuit(2.0) for _, load in one.loads()}
    assert set(circuits.values()) == {Circuit.CLOSED}
    again = replica("second", slots=50, generation=1)
    one.publish(fleet(chat=[first, again]), now_s=100.0)
    for _ in range(44):
        assert one.arrive(ticket(deadline_s=200.0), now_s=100.0)
    assert {load.replica.id: load.outstanding for _, load in one.loads()} == {"first": 40, "second": 4}


def test_a_probe_that_finds_a_replica_ends_its_time_out_wherever_it_is_used() -> None:
    """REPORTS 88."""
    one = dispatcher(replica("first"), replica("second"))
    for _ in range(RULES.failures_to_eject):
        failing = ticket()
        while not (one.arrive(failing, now_s=1.0) and failing.load and failing.load.replica.id == "first"):
            one.give_back(failing, AttemptOutcome.CANCELLED, now_s=1.0)
            failing = ticket()
        one.give_back(failing, AttemptOutcome.ERRED, now_s=1.0)
    (load,) = (load for _, load in one.loads() if load.health.is_ejected(1.5))
    one.found(ReplicaId("second"), now_s=1.5)
    assert load.health.is_ejected(1.5)
    one.found(ReplicaId("first"), now_s=1.5)
    assert load.health.circuit(1.5) is Circuit.HALF_OPEN


def test_a_long_answer_that_began_before_does_not_keep_a_replica_from_its_trial() -> None:
    """It says nothing of how new requests fare; else the replica's other slots would be idle until it has ended."""
    one = dispatcher(replica("first", slots=3), replica("second"))
    tickets = [ticket(deadline_s=900.0) for _ in range(4)]
    for each in tickets:
        assert one.arrive(each, now_s=0.0)
    long, failing, other = (each for each in tickets if each.load and each.load.replica.id == "first")
    one.give_back(failing, AttemptOutcome.ERRED, now_s=1.0)
    assert one.give_back(other, AttemptOutcome.ERRED, now_s=1.0)[0] is Circuit.OPEN
    trial, second = ticket(deadline_s=900.0), ticket(deadline_s=900.0)
    assert not come(one, trial, now_s=2.0)
    assert not come(one, second, now_s=2.0)
    assert one.wake(now_s=1.0 + RULES.ejection_s) == [Start(trial)]
    assert one.give_back(trial, AttemptOutcome.CANCELLED, now_s=6.0)[1] == [Start(second)]
    assert one.give_back(second, AttemptOutcome.COMPLETED, now_s=7.0)[0] is Circuit.SLOW_START
    one.give_back(long, AttemptOutcome.COMPLETED, now_s=8.0)


def test_a_replica_that_is_silent_too_long_is_ejected_although_nobody_gave_up() -> None:
    """T20: the timer judges it, since no attempt has ended."""
    one = dispatcher(replica("first"))
    assert one.arrive(ticket(deadline_s=900.0), now_s=1.0)
    assert one.look(now_s=2.0) == []
    assert [found.id for found in one.look(now_s=2.0 + RULES.silence_max_s)] == ["first"]


def test_when_every_replica_rests_a_newcomer_is_told_for_how_long() -> None:
    """T26: refused rather than queued, unless the rest is about to end."""
    one = dispatcher(replica("first"))
    busy = ticket()
    assert one.arrive(busy, now_s=1.0)
    one.give_back(busy, AttemptOutcome.BUSY, now_s=1.0, retry_after_s=7.0)
    with pytest.raises(Saturated) as refused:
        one.arrive(ticket(), now_s=2.0)
    assert refused.value.retry_after_s == 6.0
    assert not come(one, ticket(deadline_s=60.0), now_s=7.5)
    assert len(one.wake(now_s=8.0)) == 1
