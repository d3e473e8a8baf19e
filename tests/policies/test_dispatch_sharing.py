"""A server that offers several models has its slots once: they share them, and take turns."""

from itertools import groupby
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Saturated
from headrace.core.fleet import Replica
from headrace.core.ids import ReplicaId
from headrace.core.outcome import AttemptOutcome
from headrace.policies.concurrency import WINDOW_MIN
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import Circuit
from headrace.policies.tickets import Start, Ticket
from tests.policies.dispatch_rig import RULES, bounds, come, fleet, replica, ticket

CHAT, EMBEDDINGS = "chat", "embeddings"
KEY = (ReplicaId("a"), 0)


def sharing(*servers: Replica, is_adaptive: bool = False) -> Dispatcher:
    """Both models on each server."""
    one = Dispatcher(bounds=bounds(length_max=100), health=RULES, chance=Random(1), is_adaptive=is_adaptive)
    one.publish(fleet(chat=list(servers), embeddings=list(servers)), now_s=0.0)
    return one


def end(one: Dispatcher, ended: Ticket, *, now_s: float) -> list[Ticket]:
    """Who starts in its place."""
    _, actions = one.give_back(ended, AttemptOutcome.COMPLETED, now_s=now_s)
    assert all(isinstance(action, Start) for action in actions)
    return [action.ticket for action in actions]


def test_two_models_of_one_server_never_use_its_slots_twice() -> None:
    one = sharing(replica("a", slots=2))
    assert come(one, ticket(CHAT), now_s=0.0)
    assert come(one, ticket(EMBEDDINGS), now_s=0.0)
    assert not come(one, ticket(CHAT), now_s=0.0)
    assert not come(one, ticket(EMBEDDINGS), now_s=0.0)
    assert [(model, load.outstanding, load.shared.outstanding) for model, load in one.loads()] == [
        (CHAT, 1, 2),
        (EMBEDDINGS, 1, 2),
    ]


def test_the_end_of_one_model_s_work_starts_who_waits_for_the_other() -> None:
    one = sharing(replica("a"))
    running, waiting = ticket(CHAT), ticket(EMBEDDINGS)
    come(one, running, now_s=0.0)
    come(one, waiting, now_s=1.0)
    assert end(one, running, now_s=3.0) == [waiting]
    assert waiting.waited_s == 2.0


def test_so_does_the_end_of_work_for_a_model_that_is_no_longer_offered() -> None:
    server = replica("a")
    one = sharing(server)
    running, waiting = ticket(CHAT), ticket(EMBEDDINGS)
    come(one, running, now_s=0.0)
    one.publish(fleet(embeddings=[server]), now_s=1.0)
    assert not come(one, waiting, now_s=1.0), "its slot is still in use"
    assert end(one, running, now_s=2.0) == [waiting]


def test_slots_of_a_server_that_is_gone_are_forgotten_with_its_last_work() -> None:
    one = sharing(replica("a", slots=2))
    running = [ticket(CHAT), ticket(EMBEDDINGS)]
    for each in running:
        come(one, each, now_s=0.0)
    one.publish(fleet(), now_s=1.0)
    for each in running:
        assert one.slots(KEY) is not None
        assert end(one, each, now_s=2.0) == []
    assert one.slots(KEY) is None


def test_models_that_wait_for_one_server_take_turns_however_long_their_queues_are() -> None:
    one = sharing(replica("a"))
    running = ticket(CHAT)
    come(one, running, now_s=0.0)
    for model, count in ((CHAT, 20), (EMBEDDINGS, 4)):
        for _ in range(count):
            assert not come(one, ticket(model), now_s=0.0)
    order = []
    while started := end(one, running, now_s=1.0):
        (running,) = started
        order.append(running.model)
    assert [len(list(same)) for _, same in groupby(order[:8])] == [1] * 8
    assert order[8:] == [CHAT] * 16


def test_who_waits_for_a_slot_of_its_own_goes_before_the_other_model_s_turn() -> None:
    """What is reserved for a tenant comes back with the next slot that is free."""
    one = sharing(replica("a"))
    running, owner = ticket(CHAT), ticket(EMBEDDINGS, tenant="corp")
    come(one, running, now_s=0.0)
    others = [ticket(model) for model in (EMBEDDINGS, CHAT, CHAT)]
    for each in (*others, owner):
        come(one, each, now_s=0.0)
    assert end(one, running, now_s=1.0) == [owner]


def test_a_server_that_fails_at_one_model_serves_the_other() -> None:
    one = sharing(replica("a", slots=4))
    for now_s in range(RULES.failures_to_eject):
        failing = ticket(CHAT)
        come(one, failing, now_s=float(now_s))
        one.give_back(failing, AttemptOutcome.ERRED, now_s=float(now_s))
    circuits = {model: load.health.circuit(2.0) for model, load in one.loads()}
    assert circuits == {CHAT: Circuit.OPEN, EMBEDDINGS: Circuit.CLOSED}


def test_leased_slots_are_for_all_models_together_and_outlast_the_models() -> None:
    server = replica("a", slots=4)
    one = sharing(server)
    assert one.set_slots(KEY, 1, now_s=0.0) == []
    running, waiting = ticket(CHAT), ticket(EMBEDDINGS)
    come(one, running, now_s=0.0)
    come(one, waiting, now_s=0.0)
    assert one.set_slots(KEY, 2, now_s=1.0) == [Start(waiting)]
    one.publish(fleet(), now_s=2.0)
    one.publish(fleet(embeddings=[server]), now_s=3.0)
    assert not come(one, ticket(EMBEDDINGS), now_s=3.0)


def test_slots_that_come_are_shared_out_in_turns() -> None:
    one = sharing(replica("a", slots=4))
    one.set_slots(KEY, 0, now_s=0.0)
    for model in (CHAT, EMBEDDINGS):
        for _ in range(4):
            come(one, ticket(model), now_s=0.0)
    started = [action.ticket.model for action in one.set_slots(KEY, 4, now_s=1.0)]
    assert sorted(started) == [CHAT, CHAT, EMBEDDINGS, EMBEDDINGS]


def test_a_slow_model_is_not_late_because_a_quick_one_is_quick() -> None:
    """Together they have one limit, and each is judged by its own best times."""
    one = sharing(replica("a", slots=8), is_adaptive=True)
    now_s = 0.0
    for _ in range(4 * WINDOW_MIN):
        for model, ttft_s in ((CHAT, 0.01), (EMBEDDINGS, 3.0)):
            sent = ticket(model, deadline_s=1e9)
            assert come(one, sent, now_s=now_s)
            now_s += 5.0
            one.give_back(sent, AttemptOutcome.COMPLETED, now_s=now_s, ttft_s=ttft_s)
    assert {load.shared.slots for _, load in one.loads()} == {8}


def measured(one: Dispatcher, model: str, *, service_s: float) -> None:
    sent = ticket(model)
    come(one, sent, now_s=0.0)
    one.give_back(sent, AttemptOutcome.COMPLETED, now_s=service_s)


def test_the_wait_for_a_server_that_the_other_model_fills_is_part_of_what_is_expected() -> None:
    """Of the other's work nothing is known but that one of so many ends next; then an even share of the slots is ours."""
    one = sharing(replica("a", slots=4))
    measured(one, CHAT, service_s=10.0)
    assert one.expected_wait_s(CHAT, now_s=10.0) == 0.0
    for _ in range(4):
        come(one, ticket(EMBEDDINGS), now_s=10.0)
    assert one.expected_wait_s(CHAT, now_s=10.0) == 2.0
    for _ in range(2):
        come(one, ticket(CHAT), now_s=10.0)
    assert one.expected_wait_s(CHAT, now_s=10.0) == 12.0
    with pytest.raises(Saturated):
        one.wait(ticket(CHAT, deadline_s=21.0), now_s=10.0)
    assert one.wait(ticket(CHAT, deadline_s=23.0), now_s=10.0) == []


@given(
    slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    events=st.lists(st.tuples(st.sampled_from((CHAT, EMBEDDINGS)), st.integers(0, 50)), max_size=80),
)
def test_no_slot_is_used_twice_or_idle_whichever_models_are_asked(
    slots: list[int], events: list[tuple[str, int]]
) -> None:
    """Arrivals and ends in any order; in the end everything has run."""
    one = sharing(*(replica(str(number), slots=count) for number, count in enumerate(slots)))
    running: list[Ticket] = []
    came = ended = 0
    for model, pick in events:
        if pick < 25:
            new = ticket(model, deadline_s=1e9)
            came += 1
            if come(one, new, now_s=0.0):
                running.append(new)
        elif running:
            running += end(one, running.pop(pick % len(running)), now_s=0.0)
            ended += 1
        assert len(running) == min(sum(slots), came - ended)
    while running:
        running += end(one, running.pop(), now_s=0.0)
        ended += 1
    assert came == ended
