"""The laws of the dispatcher, under any order of arrivals, ends, retries, departures and changes of the fleet."""

from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.errors import DeadlineExceeded, ModelNotFound, NoReadyReplica, Saturated
from headrace.core.fleet import Replica
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.outcome import AttemptOutcome, Reason
from headrace.core.tenant import Priority
from headrace.policies import balancing
from headrace.policies.dispatch import Dispatcher
from headrace.policies.tickets import Action, Expire, ReplicaKey, Shed, Start, Ticket
from tests.policies.dispatch_rig import (
    MODELS,
    QUEUE_MAX,
    RULES,
    SHARES,
    bounds,
    come,
    dispatcher,
    fleet,
    replica,
    ticket,
)


class Machine(RuleBasedStateMachine):
    """A driver that does all that a driver may do, with a picture of its own of who runs and who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.dispatcher = Dispatcher(bounds=bounds(bytes_max=1000), health=RULES, chance=Random(7))
        self.offered: dict[str, set[ReplicaKey]] = {}
        self.generations: Counter[str] = Counter()
        self.running: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.sizes: dict[str, int] = {}
        self.slot_owners: dict[tuple[ReplicaKey, int], str] = {}
        self.leases: dict[ReplicaKey, int | None] = {}

    def slots(self, key: ReplicaKey) -> int:
        slots, lease = self.sizes[key[0]], self.leases.get(key)
        return slots if lease is None else min(slots, lease)

    def needed_s(self, model: str) -> float:
        """Less time than the last answers took is none; here all are of one size."""
        if model not in self.offered:
            return 0.0
        return self.dispatcher.queue(model, now_s=self.now_s).service_s or 0.0

    # What the dispatcher says must be done.

    def started(self, ticket: Ticket) -> None:
        assert ticket.deadline_s > self.now_s, "started after its deadline"
        assert ticket.load is not None
        assert ticket.load.key not in ticket.tried, "a replica that failed this ticket is used again"
        assert ticket.load.key in self.offered[ticket.model], "started on a replica that is not offered"
        others = sum(other.load.key == ticket.load.key for other in self.running if other.load)
        assert others < self.slots(ticket.load.key), "more than a replica's slots, over all of its models"
        if ticket.grant is not None:
            slot = (ticket.load.key, ticket.grant.index)
            if ticket.grant.may_reuse:
                assert self.slot_owners[slot] == ticket.tenant, "another tenant's cache was reused"
            self.slot_owners[slot] = ticket.tenant
        self.running.append(ticket)

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            self.waiting.remove(action.ticket)
            match action:
                case Start(ticket):
                    self.started(ticket)
                case Expire(ticket, is_withdrawn):
                    assert ticket.load is None
                    assert is_withdrawn == (ticket.model not in self.offered)
                    assert is_withdrawn or ticket.deadline_s <= self.now_s + self.needed_s(ticket.model)
                case Shed(ticket, retry_after_s):
                    assert ticket.load is None
                    assert retry_after_s >= 1.0
        # Whoever still waits could not have run in the place of those who start.
        for action in actions:
            if isinstance(action, Start) and (load := action.ticket.load) is not None:
                for other in self.waiting:
                    if load.key not in self.offered[other.model] or load.key in other.tried or other.tried:
                        continue
                    is_same = (other.model, other.tenant, other.priority) == (
                        action.ticket.model,
                        action.ticket.tenant,
                        action.ticket.priority,
                    )
                    assert not is_same or other.deadline_s >= action.ticket.deadline_s, (
                        "a later deadline of the same tenant went first"
                    )
                    assert action.ticket.tenant == other.tenant or not self.is_owed(other), (
                        "a slot went to another while its owner waited for it"
                    )

    def is_owed(self, ticket: Ticket, *, counts_waiting: bool = False) -> bool:
        """Whether its tenant uses less than its reserved slots of that model."""
        used = [*self.running, *(self.waiting if counts_waiting else [])]
        mine = sum((other.model, other.tenant) == (ticket.model, ticket.tenant) for other in used)
        return mine < ticket.share.reserved_slots

    def place(self, ticket: Ticket, *, is_new: bool) -> None:
        is_owed = self.is_owed(ticket, counts_waiting=True)
        actions: list[Action] = []
        try:
            if is_new:
                starts = self.dispatcher.arrive(ticket, now_s=self.now_s)
                if not starts:
                    actions = self.dispatcher.wait(ticket, now_s=self.now_s)
            else:
                starts = self.dispatcher.retry(ticket, now_s=self.now_s)
        except (DeadlineExceeded, NoReadyReplica):
            assert ticket.load is None
            return
        except Saturated as refused:
            is_resting = refused.reason == Reason.RESTING
            assert is_resting or not is_owed, "refused a slot of its own for what others sent"
            return
        if starts:
            self.started(ticket)
        else:
            self.waiting.append(ticket)
        assert all(isinstance(action, Shed) for action in actions)
        self.perform(actions)

    # What a driver does.

    @rule(
        model=st.sampled_from(MODELS),
        tenant=st.sampled_from(sorted(SHARES)),
        time_left_s=st.sampled_from([0.0, 1.0, 2.0, 5.0, 20.0, 50.0]),
        priority=st.sampled_from(Priority),
        body_bytes=st.sampled_from([1, 100, 900]),
    )
    def arrive(
        self, model: str, tenant: str, time_left_s: float, priority: Priority, body_bytes: int
    ) -> None:
        if model in self.offered:
            new = Ticket(
                model=model,
                tenant=TenantId(tenant),
                deadline_s=self.now_s + time_left_s,
                share=SHARES[tenant],
                priority=priority,
                body_bytes=body_bytes,
            )
            self.place(new, is_new=True)
            assert self.dispatcher.queue_length(model) <= QUEUE_MAX + len(self.running) + len(self.waiting)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(AttemptOutcome), retries=st.booleans())
    def end(self, data: st.DataObject, outcome: AttemptOutcome, retries: bool) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        self.running.remove(ticket)
        _, actions = self.dispatcher.give_back(ticket, outcome, now_s=self.now_s)
        assert ticket.load is None
        self.perform(actions)
        if retries and (outcome.is_replica_fault or outcome is AttemptOutcome.BUSY):
            self.place(ticket, is_new=False)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        self.dispatcher.leave(ticket, now_s=self.now_s)
        self.dispatcher.leave(ticket, now_s=self.now_s)  # once more changes nothing

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0, 8.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.perform(self.dispatcher.wake(now_s=self.now_s))

    @rule(
        model=st.sampled_from(MODELS),
        names=st.sets(st.sampled_from(["a", "b", "c"])),
        restarted=st.sets(st.sampled_from(["a", "b", "c"])),
        slots=st.integers(1, 3),
        is_offered=st.sampled_from([True, True, True, False]),
    )
    def publish(self, model: str, names: set[str], restarted: set[str], slots: int, is_offered: bool) -> None:
        self.generations.update(restarted & names)
        self.offered.pop(model, None)
        if is_offered:
            self.sizes.update(dict.fromkeys(names, slots))
            self.offered[model] = {(ReplicaId(name), self.generations[name]) for name in names}
        self.publish_offered()

    @rule(
        name=st.just("c"),
        slots=st.sampled_from([None, None, 0, 1, 2, 9]),
    )
    def lease(self, name: str, slots: int | None) -> None:
        """Slots come and go at any time; what runs beyond them runs to its end. Partitioned ones are lent one by one."""
        key = (ReplicaId(name), self.generations[name])
        self.leases[key] = slots
        self.perform(self.dispatcher.set_slots(key, slots, now_s=self.now_s))

    @rule(model=st.sampled_from(MODELS), is_withdrawn=st.booleans())
    def flap(self, model: str, is_withdrawn: bool) -> None:
        """All replicas of a model, or the model itself, are gone for a moment."""
        before = self.offered.pop(model, None)
        if before is not None:
            if not is_withdrawn:
                self.offered[model] = set()
            self.publish_offered()
            self.offered[model] = before
            self.publish_offered()

    def publish_offered(self) -> None:
        snapshot = fleet(**{model: self.replicas(offered) for model, offered in self.offered.items()})
        self.perform(self.dispatcher.publish(snapshot, now_s=self.now_s))

    def replicas(self, keys: set[ReplicaKey]) -> list[Replica]:
        """The same for each model that is offered on it."""
        return [
            replica(name, slots=self.sizes[name], generation=generation, partitions_slots=name != "c")
            for name, generation in sorted(keys)
        ]

    # What holds after every step.

    @invariant()
    def a_load_counts_exactly_the_tickets_that_run_on_it(self) -> None:
        """T22: also when its replica was gone for a while and came back."""
        running = Counter((ticket.model, ticket.load.key) for ticket in self.running if ticket.load)
        shared = Counter(ticket.load.key for ticket in self.running if ticket.load)
        for model, load in self.dispatcher.loads():
            assert load.outstanding == running[model, load.key]
            assert load.shared.outstanding == shared[load.key]
        for key, count in shared.items():
            slots = self.dispatcher.slots(key)
            assert slots is not None
            assert slots.outstanding == count

    @invariant()
    def nobody_shares_a_slot(self) -> None:
        held = [(t.load.key, t.grant.index) for t in self.running if t.load and t.grant]
        assert len(held) == len(set(held))

    @invariant()
    def no_slot_is_idle_while_a_ticket_that_accepts_it_waits(self) -> None:
        loads = list(self.dispatcher.loads())
        for one in self.waiting:
            usable = [load for model, load in loads if model == one.model and load.key not in one.tried]
            healthy = balancing.eligible(usable, now_s=self.now_s)
            assert one.deadline_s <= self.now_s + self.needed_s(one.model) or all(
                load.shared.outstanding >= load.shared.slots for load in healthy
            )

    @invariant()
    def the_queue_holds_exactly_those_who_wait(self) -> None:
        for model in MODELS:
            waiting = sum(ticket.model == model for ticket in self.waiting)
            assert self.dispatcher.queue_length(model) == waiting

    def teardown(self) -> None:
        """Everything returns to zero."""
        for one in list(self.waiting):
            self.waiting.remove(one)
            self.dispatcher.leave(one, now_s=self.now_s)
        for one in list(self.running):
            _, actions = self.dispatcher.give_back(one, AttemptOutcome.COMPLETED, now_s=self.now_s)
            assert actions == []
        assert all(load.outstanding == 0 for _, load in self.dispatcher.loads())
        assert all(self.dispatcher.queue_length(model) == 0 for model in MODELS)


Machine.TestCase.settings = settings(max_examples=250, stateful_step_count=40)
TestAnyOrderOfEvents = pytest.mark.slow(Machine.TestCase)


def test_an_unknown_model_is_named_in_the_refusal() -> None:
    one = dispatcher()
    assert one.deployment("chat").name == "chat"
    with pytest.raises(ModelNotFound, match="`nothing`") as refused:
        one.deployment("nothing")
    assert refused.value.param == "model"


def test_a_model_that_was_withdrawn_while_its_request_was_read_is_not_ready() -> None:
    dispatch = dispatcher(replica("a"))
    dispatch.publish(fleet(), now_s=0.0)
    with pytest.raises(NoReadyReplica, match="no longer offered"):
        dispatch.arrive(ticket(), now_s=0.0)


def test_a_deployment_without_replicas_says_when_to_come_back() -> None:
    with pytest.raises(NoReadyReplica) as refused:
        come(dispatcher(), ticket(), now_s=0.0)
    assert refused.value.retry_after_s == 5.0
    assert [one.name for one in dispatcher().deployments()] == ["chat"]


@pytest.mark.parametrize("verb", ["arrive", "retry"])
def test_what_is_already_too_late_is_refused_and_takes_no_slot(verb: str) -> None:
    """T9: the deadline itself is too late, too."""
    one = dispatcher(replica("a"))
    with pytest.raises(DeadlineExceeded):
        getattr(one, verb)(ticket(deadline_s=5.0), now_s=5.0)
    assert [load.outstanding for _, load in one.loads()] == [0]


def test_a_full_queue_refuses_the_next_with_a_time_from_the_measured_service() -> None:
    one = dispatcher(replica("a"), queue_length_max=1)
    first, second = ticket(), ticket()
    assert come(one, first, now_s=0.0)
    one.give_back(first, AttemptOutcome.COMPLETED, now_s=8.0)
    assert come(one, second, now_s=8.0)
    assert not come(one, ticket(), now_s=8.0)
    with pytest.raises(Saturated) as refused:
        come(one, ticket(), now_s=8.0)
    assert refused.value.retry_after_s == 16.0  # one waits before it, eight seconds each


def test_a_wait_that_would_outlast_the_deadline_is_refused_at_once() -> None:
    """T7: whoever can't be served in time learns it now, not at the deadline."""
    one = dispatcher(replica("a"))
    first = ticket()
    come(one, first, now_s=0.0)
    one.give_back(first, AttemptOutcome.COMPLETED, now_s=8.0)
    come(one, ticket(), now_s=8.0)
    with pytest.raises(Saturated, match="longer than"):
        come(one, ticket(deadline_s=15.0), now_s=8.0)
    with pytest.raises(Saturated, match="longer than"):
        come(one, ticket(deadline_s=23.5), now_s=8.0)  # it would start in time, and not end
    assert not come(one, ticket(deadline_s=24.5), now_s=8.0)


def test_a_newcomer_takes_the_slot_that_those_who_wait_can_not_use() -> None:
    one = dispatcher(replica("a"), replica("b"))
    moved, holder = ticket(), ticket()
    assert come(one, moved, now_s=0.0)
    assert come(one, holder, now_s=0.0)
    one.give_back(moved, AttemptOutcome.ERRED, now_s=1.0)
    assert not one.retry(moved, now_s=1.0)  # waits for the replica that has not failed it
    assert one.wake(now_s=1.0) == []
    assert come(one, ticket(), now_s=1.0)


def test_a_newcomer_does_not_pass_those_whom_the_end_of_an_ejection_lets_in() -> None:
    one = dispatcher(replica("a"), replica("b"))
    failing, holder = ticket(), ticket()
    come(one, failing, now_s=0.0)
    come(one, holder, now_s=0.0)
    circuit = None
    while circuit is None:  # until the replica of `failing` is out, nobody else waiting
        failing.tried = ()
        circuit, _ = one.give_back(failing, AttemptOutcome.ERRED, now_s=0.0)
        if circuit is None:
            failing.tried = ()
            assert one.retry(failing, now_s=0.0)
    waiting, newcomer = ticket(), ticket()
    assert not come(one, waiting, now_s=1.0)
    assert not come(one, newcomer, now_s=RULES.ejection_s)
    assert one.wake(now_s=RULES.ejection_s) == [Start(waiting)]
    assert waiting.waited_s == RULES.ejection_s - 1.0


def test_a_replica_that_flaps_keeps_its_count_and_its_ejection() -> None:
    """T22: a probe that fails once must not hand out slots twice, nor forgive."""
    one = dispatcher(replica("a", slots=2, partitions_slots=True))
    held = [ticket(), ticket()]
    assert all(come(one, each, now_s=0.0) for each in held)
    one.publish(fleet(), now_s=1.0)
    one.publish(fleet(chat=[replica("a", slots=2, partitions_slots=True)]), now_s=2.0)
    assert not come(one, ticket(), now_s=2.0)
    assert [load.outstanding for _, load in one.loads()] == [2]
    _, actions = one.give_back(held[0], AttemptOutcome.COMPLETED, now_s=3.0)
    assert len(actions) == 1


def test_a_restarted_replica_shares_nothing_with_its_former_self() -> None:
    one = dispatcher(replica("a"))
    before = ticket()
    come(one, before, now_s=0.0)
    one.publish(fleet(chat=[replica("a", generation=1)]), now_s=1.0)
    assert come(one, ticket(), now_s=1.0)
    one.give_back(before, AttemptOutcome.LOST, now_s=2.0)
    assert [load.outstanding for _, load in one.loads()] == [1]
    assert one.retry(ticket(), now_s=2.0) is False


def test_a_retry_without_another_replica_is_refused() -> None:
    one = dispatcher(replica("a"))
    only = ticket()
    come(one, only, now_s=0.0)
    one.give_back(only, AttemptOutcome.BUSY, now_s=0.0)
    with pytest.raises(NoReadyReplica):
        one.retry(only, now_s=0.0)


def test_those_who_wait_for_a_withdrawn_model_are_told_and_their_wait_is_counted() -> None:
    one = dispatcher(replica("a"))
    come(one, ticket(), now_s=0.0)
    waiting = ticket()
    come(one, waiting, now_s=1.0)
    assert one.publish(fleet(), now_s=3.0) == [Expire(waiting, is_withdrawn=True)]
    assert waiting.waited_s == 2.0
    assert one.queue_length("chat") == 0
    one.leave(waiting, now_s=4.0)
    with pytest.raises(NoReadyReplica):
        one.retry(waiting, now_s=4.0)


def test_who_leaves_the_queue_takes_its_wait_along_and_frees_its_place() -> None:
    """T6."""
    one = dispatcher(replica("a"), queue_length_max=1)
    come(one, ticket(), now_s=0.0)
    leaver = ticket()
    assert not come(one, leaver, now_s=1.0)
    one.leave(leaver, now_s=3.5)
    assert leaver.waited_s == 2.5
    assert not come(one, ticket(), now_s=4.0)


def test_a_slot_that_frees_too_late_goes_to_the_next_who_can_still_use_it() -> None:
    """T9: work that nobody can use any more is not begun."""
    one = dispatcher(replica("a"))
    running, late, next_one = ticket(), ticket(deadline_s=5.0), ticket()
    come(one, running, now_s=0.0)
    come(one, late, now_s=1.0)
    come(one, next_one, now_s=2.0)
    _, actions = one.give_back(running, AttemptOutcome.COMPLETED, now_s=5.0)
    assert actions == [Expire(late), Start(next_one)]
    assert (late.waited_s, late.load) == (4.0, None)


def test_the_expected_wait_grows_with_the_queue_and_is_none_for_what_is_not_offered() -> None:
    one = dispatcher(replica("a"))
    measured = ticket()
    come(one, measured, now_s=0.0)
    one.give_back(measured, AttemptOutcome.COMPLETED, now_s=8.0)
    come(one, ticket(), now_s=8.0)
    assert one.expected_wait_s("nothing", now_s=8.0) == 0.0
    before_s = one.expected_wait_s("chat", now_s=8.0)
    come(one, ticket(), now_s=8.0)
    assert one.expected_wait_s("chat", now_s=8.0) == before_s + 8.0
