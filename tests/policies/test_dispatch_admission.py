"""Who gets a place and who gets a slot, as the dispatcher decides it: bounds, shares, reservations, leases."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Saturated
from headrace.core.fleet import EngineTraits, Replica
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.outcome import AttemptOutcome
from headrace.core.tenant import Priority, TenantShare
from headrace.policies.dispatch import Dispatcher
from headrace.policies.tickets import Expire, Shed, Start, Ticket
from tests.policies.dispatch_rig import OURS, RULES, bounds, come, dispatcher, fleet, replica, ticket


def test_before_anything_was_measured_the_oldest_request_says_when_to_come_back() -> None:
    """It has run for ten seconds, so ten more; and two wait before the one that comes, twenty for each."""
    one = dispatcher(replica("a"), queue_length_max=2)
    come(one, ticket(), now_s=0.0)
    for _ in range(2):
        come(one, ticket(), now_s=0.0)
    with pytest.raises(Saturated) as refused:
        come(one, ticket(), now_s=10.0)
    assert refused.value.retry_after_s == 50.0


def test_only_what_still_runs_says_how_long_requests_run() -> None:
    one = dispatcher(replica("a"), queue_length_max=0)
    failed = ticket()
    come(one, failed, now_s=0.0)
    one.give_back(failed, AttemptOutcome.ERRED, now_s=50.0)
    come(one, ticket(), now_s=50.0)
    with pytest.raises(Saturated) as refused:
        come(one, ticket(), now_s=52.0)
    assert refused.value.retry_after_s == 2.0


def measured(*, slots: int, service_s: float) -> Dispatcher:
    """A deployment whose requests take that long."""
    one = dispatcher(replica("a", slots=slots), queue_length_max=100)
    first = ticket(deadline_s=1e9)
    come(one, first, now_s=0.0)
    one.give_back(first, AttemptOutcome.COMPLETED, now_s=service_s)
    return one


def test_slots_that_were_taken_together_are_free_together() -> None:
    """T7: the wait goes by rounds, and none that was let in for its share of a round comes too late."""
    one = measured(slots=4, service_s=8.0)
    for _ in range(4):
        assert come(one, ticket(deadline_s=1e9), now_s=100.0)
    for waiting in range(4):
        assert one.expected_wait_s("chat", now_s=102.0) == pytest.approx(6.0), waiting
        with pytest.raises(Saturated):
            come(one, ticket(deadline_s=102.0 + 6.0 + 7.9), now_s=102.0)
        assert not come(one, ticket(deadline_s=102.0 + 6.0 + 8.1), now_s=102.0)
    assert one.expected_wait_s("chat", now_s=102.0) == pytest.approx(14.0)


def test_slots_that_are_taken_away_are_not_waited_for() -> None:
    one = measured(slots=2, service_s=8.0)
    for now_s in (100.0, 104.0):
        assert come(one, ticket(deadline_s=1e9), now_s=now_s)
    assert one.expected_wait_s("chat", now_s=105.0) == pytest.approx(3.0)
    one.set_slots((ReplicaId("a"), 0), 1, now_s=105.0)
    assert one.expected_wait_s("chat", now_s=105.0) == pytest.approx(7.0)


def test_work_with_less_time_left_than_any_answer_takes_is_not_begun() -> None:
    """T7, T9: it would hold a slot, and nobody would see its end."""
    one = measured(slots=1, service_s=8.0)
    running = ticket(deadline_s=1e9)
    come(one, running, now_s=100.0)
    hopeless, hopeful = ticket(deadline_s=116.5), ticket(deadline_s=140.0)
    come(one, hopeless, now_s=100.0)
    come(one, hopeful, now_s=100.0)
    _, actions = one.give_back(running, AttemptOutcome.COMPLETED, now_s=109.0)
    assert actions == [Expire(hopeless), Start(hopeful)]


def test_answers_that_take_no_time_at_all_are_waited_for_no_time() -> None:
    one = measured(slots=1, service_s=0.0)
    come(one, ticket(), now_s=1.0)
    assert one.expected_wait_s("chat", now_s=1.0) == 0.0
    assert not come(one, ticket(), now_s=1.0)


def test_an_answer_that_was_cut_counts_only_where_it_was_long() -> None:
    """A caller that leaves after a moment says nothing of how long answers are; one that leaves after a minute does."""
    one = dispatcher(replica("a"))
    for held_s, expected_s in ((8.0, 8.0), (1.0, 8.0), (16.0, 12.0)):
        outcome = AttemptOutcome.COMPLETED if held_s == 8.0 else AttemptOutcome.CANCELLED
        cut = ticket()
        come(one, cut, now_s=0.0)
        one.give_back(cut, outcome, now_s=held_s)
        assert one.queue("chat", now_s=held_s).service_s == expected_s


def test_the_flood_of_one_tenant_gives_its_places_to_others() -> None:
    """T10: the newcomer is let in, and whoever holds most of the queue loses its last place."""
    one = dispatcher(replica("a"), queue_length_max=3)
    come(one, ticket(), now_s=0.0)
    flood = [ticket(deadline_s=50.0 + number) for number in range(3)]
    for each in flood:
        come(one, each, now_s=1.0)
    quiet = ticket(tenant="quiet")
    assert not one.arrive(quiet, now_s=3.0)
    (shed,) = one.wait(quiet, now_s=3.0)
    assert isinstance(shed, Shed)
    assert shed.ticket is flood[2]
    assert shed.ticket.waited_s == 2.0
    assert shed.retry_after_s >= 1.0
    with pytest.raises(Saturated, match="full"):
        come(one, ticket(), now_s=3.0)
    assert one.queue_length("chat") == 3


def test_the_queue_is_bounded_in_bytes_too_and_who_can_not_get_in_drives_nobody_out() -> None:
    one = Dispatcher(bounds=bounds(bytes_max=1000), health=RULES, chance=Random(1))
    one.publish(fleet(chat=[replica("a")]), now_s=0.0)
    come(one, ticket(), now_s=0.0)
    assert not come(one, ticket(body_bytes=5000), now_s=0.0), "alone even the largest may wait"
    with pytest.raises(Saturated, match="full"):
        come(one, ticket(body_bytes=1), now_s=0.0)
    other = Dispatcher(bounds=bounds(bytes_max=1000), health=RULES, chance=Random(1))
    other.publish(fleet(chat=[replica("a")]), now_s=0.0)
    come(other, ticket(), now_s=0.0)
    come(other, ticket(tenant="small", body_bytes=300), now_s=0.0)
    come(other, ticket(tenant="large", body_bytes=700), now_s=0.0)
    middle = ticket(tenant="middle", body_bytes=950)
    with pytest.raises(Saturated, match="2 waiting"):
        come(other, middle, now_s=0.0)
    assert other.queue("chat", now_s=0.0).body_bytes == 1000
    heavy = Ticket(
        model="chat",
        tenant=TenantId("heavy"),
        deadline_s=100.0,
        share=TenantShare(weight=2),
        body_bytes=950,
    )
    assert not other.arrive(heavy, now_s=0.0)
    with pytest.raises(Saturated, match="2 waiting"):
        other.wait(heavy, now_s=0.0)  # it could drive out `large`, and that would not be enough
    assert other.queue("chat", now_s=0.0).body_bytes == 1000


def test_the_owner_of_a_slot_is_admitted_to_a_full_queue_and_gets_the_next_slot_that_frees() -> None:
    """What is lent is returned at once, before higher bands and earlier deadlines."""
    one = dispatcher(replica("a", slots=2), queue_length_max=2)
    running = [ticket(), ticket(tenant="beta", priority=Priority.HIGH)]
    for each in running:
        come(one, each, now_s=0.0)
    for _ in range(2):
        come(one, ticket(tenant="beta", priority=Priority.HIGH, deadline_s=20.0), now_s=0.0)
    owner, second = ticket(tenant="corp", deadline_s=90.0), ticket(tenant="corp")
    assert not come(one, owner, now_s=1.0)
    with pytest.raises(Saturated):
        come(one, second, now_s=1.0)  # one slot is its own, and it waits for that already
    _, actions = one.give_back(running[0], AttemptOutcome.COMPLETED, now_s=2.0)
    assert actions == [Start(owner)]
    with pytest.raises(Saturated):
        come(one, second, now_s=3.0)
    _, actions = one.give_back(owner, AttemptOutcome.COMPLETED, now_s=4.0)
    assert [action.ticket.tenant for action in actions] == ["beta"]
    assert not come(one, second, now_s=5.0)


def test_reserved_slots_in_use_are_counted_although_the_model_was_withdrawn_for_a_moment() -> None:
    one = dispatcher(replica("a", slots=2), queue_length_max=0)
    owner = ticket(tenant="corp")
    come(one, owner, now_s=0.0)
    one.publish(fleet(), now_s=1.0)
    one.publish(fleet(chat=[replica("a", slots=2)]), now_s=2.0)
    come(one, ticket(), now_s=2.0)
    with pytest.raises(Saturated):
        come(one, ticket(tenant="corp"), now_s=3.0)
    one.give_back(owner, AttemptOutcome.COMPLETED, now_s=4.0)
    assert come(one, ticket(tenant="corp"), now_s=5.0)


def test_a_priority_above_the_tenants_class_is_lowered_to_it() -> None:
    assert ticket(priority=Priority.HIGH).priority is Priority.NORMAL
    assert ticket(tenant="beta", priority=Priority.HIGH).priority is Priority.HIGH
    assert ticket(tenant="beta", priority=Priority.LOW).priority is Priority.LOW


def test_slots_that_are_leased_come_and_go_while_work_runs() -> None:
    one = dispatcher(replica("a", slots=2))
    key = (ReplicaId("a"), 0)
    assert one.set_slots((ReplicaId("b"), 0), 1, now_s=0.0) == []
    assert one.set_slots(key, 0, now_s=0.0) == []
    waiting = [ticket(), ticket()]
    assert not any(come(one, each, now_s=0.0) for each in waiting)
    assert one.set_slots(key, 1, now_s=1.0) == [Start(waiting[0])]
    one.publish(fleet(chat=[replica("a", slots=2)]), now_s=2.0)
    assert [(load.shared.slots, load.shared.slots_max) for _, load in one.loads()] == [(1, 1)]
    assert one.set_slots(key, None, now_s=3.0) == [Start(waiting[1])]
    one.set_slots(key, 1, now_s=4.0)
    one.give_back(waiting[0], AttemptOutcome.COMPLETED, now_s=5.0)
    assert not come(one, ticket(), now_s=5.0), "the one slot that is left is in use"


def test_the_places_of_the_queue_can_change_at_any_time() -> None:
    one = dispatcher(replica("a"), queue_length_max=0)
    come(one, ticket(), now_s=0.0)
    with pytest.raises(Saturated):
        come(one, ticket(), now_s=0.0)
    one.set_rules(bounds(length_max=1), RULES, is_adaptive=True)
    assert not come(one, ticket(), now_s=0.0)
    assert one.queue("chat", now_s=0.0).length == 1


@pytest.mark.parametrize(("is_ours", "is_adaptive"), [(False, True), (True, True), (False, False)])
def test_first_tokens_that_come_late_lower_the_slots_of_a_server_that_is_not_ours(
    is_ours: bool, is_adaptive: bool
) -> None:
    one = Dispatcher(bounds=bounds(), health=RULES, chance=Random(1), is_adaptive=is_adaptive)
    server = Replica(ReplicaId("a"), "127.0.0.1", 1, 16, OURS if is_ours else EngineTraits())
    one.publish(fleet(chat=[server]), now_s=0.0)
    now_s = 0.0
    for ttft_s in (0.01, *[5.0] * 40):
        now_s += 10.0
        sent = ticket(deadline_s=1e9)
        come(one, sent, now_s=now_s)
        one.give_back(sent, AttemptOutcome.COMPLETED, now_s=now_s + 9.0, ttft_s=ttft_s, output_tokens=3)
    ((_, load),) = one.loads()
    assert load.shared.slots_max == 16
    assert (load.shared.slots < 16) == (is_adaptive and not is_ours)
    one.publish(fleet(chat=[server]), now_s=now_s)
    assert (load.shared.slots < 16) == (is_adaptive and not is_ours), "what was found outlasts a publication"


@given(
    queues=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    ends=st.lists(st.integers(0, 100), max_size=60),
)
def test_no_replica_is_idle_while_work_waits_that_it_could_do(queues: list[int], ends: list[int]) -> None:
    """T23: a waiting request belongs to no replica; whichever has a slot first gets it."""
    replicas = [replica(str(number), slots=1 + slots) for number, slots in enumerate(queues)]
    one = dispatcher(*replicas, queue_length_max=100)
    running: list[Ticket] = []
    for number in range(40):
        new = ticket(tenant=str(number % 3), deadline_s=1e9)
        if come(one, new, now_s=0.0):
            running.append(new)
    for now_s, pick in enumerate(ends):
        if running:
            ended = running.pop(pick % len(running))
            _, actions = one.give_back(ended, AttemptOutcome.COMPLETED, now_s=float(now_s))
            running += [action.ticket for action in actions]
        idle = [load.key for _, load in one.loads() if load.outstanding < load.shared.slots]
        assert not idle or not one.queue_length("chat")


def test_the_places_of_one_queue_and_the_load_of_one_replica_are_found_by_name() -> None:
    one = dispatcher(replica("a"), queue_length_max=0)
    key = (ReplicaId("a"), 0)
    running = ticket()
    come(one, running, now_s=0.0)
    one.set_queue_length_max("chat", 1)
    one.set_queue_length_max("nothing", 1)
    assert not come(one, ticket(), now_s=0.0)
    assert running.load is not None
    shared = running.load.shared
    assert one.slots(key) is shared
    assert one.slots((ReplicaId("b"), 0)) is None
    one.publish(fleet(), now_s=1.0)
    assert one.slots(key) is shared, "it has left the fleet, and still works"


def test_a_worker_with_few_leases_counts_with_its_even_share_of_the_slots() -> None:
    """It gets them as soon as it has work for them, so what they can finish in time is no reason to refuse."""
    one = Dispatcher(bounds=bounds(), health=RULES, chance=Random(1), workers=2, is_lent=True)
    one.publish(fleet(chat=[replica("a", slots=8)]), now_s=0.0)
    one.set_queue_length_max("chat", 10)
    key = (ReplicaId("a"), 0)
    one.set_slots(key, 1, now_s=0.0)
    first = ticket()
    assert one.arrive(first, now_s=0.0)
    one.give_back(first, AttemptOutcome.COMPLETED, now_s=10.0)
    assert one.arrive(ticket(), now_s=10.0)
    for _ in range(3):
        waiting = ticket(deadline_s=31.0)
        assert not one.arrive(waiting, now_s=10.0)
        one.wait(waiting, now_s=10.0)
