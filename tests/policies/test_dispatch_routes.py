"""Several revisions of one model: who waits for one that goes waits for another, and nobody is told no because of it."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headrace.core.errors import Forbidden, NoReadyReplica
from headrace.core.fleet import PPM, Arm, Deployment, FleetSnapshot, Replica, Route
from headrace.core.outcome import AttemptOutcome
from headrace.core.tenant import Priority
from headrace.policies.dispatch import Dispatcher
from headrace.policies.tickets import Expire, Shed, Start, Ticket
from tests.policies import dispatch_rig
from tests.policies.dispatch_rig import RULES, bounds, come, replica

V1, V2 = "chat@v1", "chat@v2"
ROUTE = {"chat": Route((Arm(V1, PPM // 2), Arm(V2, PPM // 2)))}
ACCEPTED_ALONE = {"chat": Route((Arm(V1, PPM),))}


def target(version: int, *replicas: Replica, **fields: Any) -> Deployment:
    return replace(
        Deployment("chat", "chat", frozenset(), f"sha256:{version}", replicas, version=version), **fields
    )


def snapshot(*targets: Deployment, routes: dict[str, Route] | None = None) -> FleetSnapshot:
    return FleetSnapshot(1, {each.key: each for each in targets}, ROUTE if routes is None else routes)


def dispatcher(
    *targets: Deployment, routes: dict[str, Route] | None = None, length_max: int = 4
) -> Dispatcher:
    made = Dispatcher(bounds=bounds(length_max=length_max), health=RULES, chance=Random(1))
    made.publish(snapshot(*targets, routes=routes), now_s=0.0)
    return made


def ticket(key: str = V2, *, is_pinned: bool = False, **fields: Any) -> Ticket:
    made = dispatch_rig.ticket(**fields)
    made.target, made.is_pinned = key, is_pinned
    return made


def waiting_on(one: Dispatcher, key: str, **fields: Any) -> Ticket:
    """One that waits behind a full replica of that target."""
    made = ticket(key, **fields)
    assert not come(one, made, now_s=0.0)
    return made


@pytest.fixture
def one() -> Dispatcher:
    """Both targets have a replica with one slot, and both are busy."""
    made = dispatcher(target(1, replica("a")), target(2, replica("b")))
    for key in (V1, V2):
        assert come(made, ticket(key), now_s=0.0)
    return made


@pytest.mark.parametrize(
    "after",
    [
        lambda: snapshot(target(1, replica("a", slots=2)), routes=ACCEPTED_ALONE),
        lambda: snapshot(target(1, replica("a", slots=2)), target(2, replica("b")), routes=ACCEPTED_ALONE),
        lambda: snapshot(target(1, replica("a", slots=2)), target(2)),
    ],
    ids=["withdrawn", "gets nothing any more", "has no replica any more"],
)
def test_who_waits_for_a_canary_that_goes_starts_on_the_accepted_target(
    one: Dispatcher, after: Callable[[], FleetSnapshot]
) -> None:
    """T56: a rollback refuses nobody."""
    waits = waiting_on(one, V2)
    actions = one.publish(after(), now_s=2.0)
    assert actions == [Start(waits)]
    assert waits.load is not None
    assert (waits.load.replica.id, waits.target, waits.waited_s) == ("a", V1, 2.0)
    assert waits.moved_to is not None
    assert waits.moved_to.revision == "sha256:1"


def test_more_of_them_than_the_queue_has_places_for_wait_all_the_same(one: Dispatcher) -> None:
    """Their places were paid for."""
    handed_over = [waiting_on(one, V2) for _ in range(4)]
    for _ in range(4):
        waiting_on(one, V1)
    assert one.publish(snapshot(target(1, replica("a")), routes=ACCEPTED_ALONE), now_s=1.0) == []
    assert one.queue_length(V1) == 8
    assert {each.target for each in handed_over} == {V1}


def test_what_runs_on_a_withdrawn_target_runs_on_and_its_slot_is_counted_to_the_end() -> None:
    made = dispatcher(target(1, replica("a")), target(2, replica("b")))
    running = ticket(V2)
    assert come(made, running, now_s=0.0)
    made.publish(snapshot(target(1, replica("a")), routes=ACCEPTED_ALONE), now_s=1.0)
    assert {key: slots.outstanding for key, slots in made.all_slots()} == {("a", 0): 0, ("b", 0): 1}
    assert made.in_flight() == {V1: 0, V2: 1}
    made.give_back(running, AttemptOutcome.COMPLETED, now_s=2.0)
    assert {key: slots.outstanding for key, slots in made.all_slots()} == {("a", 0): 0}


def test_a_promotion_hands_the_old_revisions_queue_to_the_new_one(one: Dispatcher) -> None:
    waits = waiting_on(one, V1)
    routes = {"chat": Route((Arm(V2, PPM),))}
    actions = one.publish(
        snapshot(target(1, replica("a")), target(2, replica("b", slots=2)), routes=routes), now_s=1.0
    )
    assert actions == [Start(waits)]
    assert waits.target == V2


def test_who_asked_for_that_target_and_no_other_waits_for_it_while_it_is_there(one: Dispatcher) -> None:
    pinned = waiting_on(one, V2, is_pinned=True)
    assert one.publish(snapshot(target(1, replica("a")), target(2), routes=ACCEPTED_ALONE), now_s=1.0) == []
    assert pinned.target == V2
    actions = one.publish(snapshot(target(1, replica("a")), routes=ACCEPTED_ALONE), now_s=2.0)
    assert actions == [Expire(pinned, is_withdrawn=True)]


def test_who_may_not_go_where_the_accepted_target_runs_is_not_sent_there(one: Dispatcher) -> None:
    here, there = target(1, replica("a"), locations=("eu",)), target(2, replica("b"), locations=("us",))
    one.publish(snapshot(here, there), now_s=0.0)
    waits = ticket(V2)
    assert not come(one, waits, now_s=0.0)
    waits.locations = ("us",)
    assert one.publish(snapshot(here, routes=ACCEPTED_ALONE), now_s=1.0) == [Expire(waits, is_withdrawn=True)]


def test_who_arrives_for_a_target_that_has_just_gone_is_served_by_the_accepted_one() -> None:
    """Between the choice and the arrival the fleet may change."""
    made = dispatcher(target(1, replica("a")), routes=ACCEPTED_ALONE)
    late = ticket(V2)
    assert made.arrive(late, now_s=0.0)
    assert late.target == V1
    with pytest.raises(NoReadyReplica):
        made.arrive(ticket(V2, is_pinned=True), now_s=0.0)


def test_only_who_may_be_served_by_the_accepted_target_is_taken_over_by_it(one: Dispatcher) -> None:
    mine = ticket(V2)
    assert one.take_over(mine)
    assert mine.target == V1
    assert mine.moved_to is not None
    assert not any(one.take_over(each) for each in (ticket(V1), ticket(V2, is_pinned=True)))


def test_what_a_canary_has_failed_is_tried_on_the_accepted_target(one: Dispatcher) -> None:
    one.publish(snapshot(target(1, replica("a", slots=2)), target(2, replica("b", slots=2))), now_s=0.0)
    failed, second = ticket(V2), ticket(V2)
    assert come(one, failed, now_s=0.0)
    one.give_back(failed, AttemptOutcome.ERRED, now_s=1.0)
    assert one.can_fall_back(failed)
    assert one.fall_back(failed, now_s=1.0)
    assert failed.target == V1
    assert not one.can_fall_back(failed), "it is with the accepted one now"
    assert come(one, second, now_s=1.0)
    one.give_back(second, AttemptOutcome.ERRED, now_s=2.0)
    assert not one.fall_back(second, now_s=2.0), "the accepted one is full"
    _, actions = one.give_back(failed, AttemptOutcome.COMPLETED, now_s=3.0)
    assert actions == [Start(second)]


def test_nothing_falls_back_to_what_is_not_there(one: Dispatcher) -> None:
    asked = ticket(V2)
    assert not one.can_fall_back(ticket(V1))
    assert not one.can_fall_back(ticket(V2, is_pinned=True))
    assert one.can_fall_back(asked)
    asked.locations = ("us",)
    assert not one.can_fall_back(asked)
    one.publish(snapshot(target(1), target(2, replica("b"))), now_s=0.0)
    assert not one.can_fall_back(ticket(V2))
    one.publish(snapshot(target(2, replica("b")), routes={}), now_s=0.0)
    assert not one.can_fall_back(ticket(V2))


# A deployment that was scaled to zero.


def asleep(*replicas: Replica, room: int = 2, expected_s: float | None = 30.0) -> FleetSnapshot:
    return snapshot(
        target(0, *replicas, waiting_room_max=room, ready_expected_s=expected_s, retry_after_s=40.0),
        routes={},
    )


def sleeping(**options: object) -> Dispatcher:
    made = Dispatcher(bounds=bounds(), health=RULES, chance=Random(1))
    made.publish(asleep(**options), now_s=0.0)  # type: ignore[arg-type]
    return made


def test_so_many_as_have_room_wait_for_the_first_replica_and_only_as_many_as_it_has_slots_start() -> None:
    """T58, REPORTS 81: no herd."""
    made = sleeping(room=3)
    first, second, third = (ticket("chat") for _ in range(3))
    for each in (first, second, third):
        assert not come(made, each, now_s=0.0)
    with pytest.raises(NoReadyReplica) as refused:
        come(made, ticket("chat"), now_s=10.0)
    assert refused.value.retry_after_s == 20.0, "what is left of the cold start"
    assert made.publish(asleep(replica("a", slots=2)), now_s=31.0) == [Start(first), Start(second)]
    _, actions = made.give_back(first, AttemptOutcome.COMPLETED, now_s=32.0)
    assert actions == [Start(third)]


def test_who_could_not_wait_so_long_is_told_at_once_when_to_come_back() -> None:
    made = sleeping()
    with pytest.raises(NoReadyReplica) as refused:
        come(made, ticket("chat", deadline_s=29.0), now_s=0.0)
    assert refused.value.retry_after_s == 30.0
    assert not come(made, ticket("chat", deadline_s=31.0), now_s=0.0)


def test_before_it_is_known_when_it_will_be_ready_a_measured_cold_start_is_expected() -> None:
    made = sleeping(expected_s=None)
    assert made.wakes_s("chat", now_s=7.0) == 40.0
    assert made.expected_wait_s("chat", now_s=7.0) == 40.0
    with pytest.raises(NoReadyReplica):
        come(made, ticket("chat", deadline_s=40.0), now_s=0.0)


def test_a_start_that_takes_longer_than_expected_is_awaited_from_moment_to_moment() -> None:
    made = sleeping()
    assert made.wakes_s("chat", now_s=50.0) == 0.0
    assert not come(made, ticket("chat", deadline_s=51.0), now_s=50.0)


def test_only_what_has_a_waiting_room_and_no_replica_wakes() -> None:
    made = sleeping()
    assert made.wakes_s("other", now_s=0.0) is None
    made.publish(asleep(replica("a")), now_s=0.0)
    assert made.wakes_s("chat", now_s=0.0) is None
    made.publish(asleep(room=0), now_s=0.0)
    assert made.wakes_s("chat", now_s=0.0) is None
    with pytest.raises(NoReadyReplica):
        come(made, ticket("chat"), now_s=0.0)


def test_places_in_the_waiting_room_are_shared_as_those_in_a_queue() -> None:
    """Who loses its place is told when the model is expected."""
    made = sleeping(room=1)
    low = ticket("chat", tenant="beta", priority=Priority.LOW)
    assert not come(made, low, now_s=0.0)
    high = ticket("chat", tenant="beta", priority=Priority.HIGH)
    assert not made.arrive(high, now_s=0.0)
    assert made.wait(high, now_s=0.0) == [Shed(low, 30.0)]


def test_nobody_waits_where_it_may_not_run() -> None:
    made = sleeping()
    with pytest.raises(Forbidden):
        made.arrive(ticket("chat", locations=("eu",)), now_s=0.0)


def test_what_nobody_waits_for_leaves_callers_half_of_the_slots_of_what_they_come_to() -> None:
    """And all of a target's that no caller comes to are for it."""
    made = dispatcher(
        target(1, replica("a", slots=4)), target(2, replica("b", slots=4)), routes=ACCEPTED_ALONE
    )
    room = {V1: 0, V2: 0}
    for key in room:
        while made.has_room_to_spare(key):
            room[key] += 1
            assert come(made, ticket(key), now_s=0.0)
    assert room == {V1: 2, V2: 4}
    assert not made.has_room_to_spare("gone")


def test_nothing_goes_before_those_who_wait() -> None:
    made = dispatcher(target(1, replica("a", slots=2)), routes=ACCEPTED_ALONE)
    running = [ticket(V1), ticket(V1)]
    for each in running:
        assert come(made, each, now_s=0.0)
    late = ticket(V1)
    late.locations = ("eu",)
    made.publish(
        snapshot(
            target(1, replace(replica("a", slots=9), location="us"), locations=("eu", "us")),
            routes=ACCEPTED_ALONE,
        ),
        now_s=0.0,
    )
    assert made.has_room_to_spare(V1)
    made.publish(
        snapshot(
            target(1, replace(replica("a", slots=2), location="eu"), replace(replica("c", slots=9), location="us"), locations=("eu", "us")),
            routes=ACCEPTED_ALONE,
        ),
        now_s=0.0,
    )  # fmt: skip
    assert not come(made, late, now_s=0.0)
    assert not made.has_room_to_spare(V1)
