"""The laws of the dispatcher, under any order of arrivals, ends, retries, departures and changes of the fleet."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.errors import DeadlineExceeded, ModelNotFound, NoReadyReplica, Saturated
from headrace.core.fleet import Deployment, EngineTraits, FleetSnapshot, Replica
from headrace.core.ids import ReplicaId
from headrace.core.outcome import AttemptOutcome
from headrace.policies.dispatch import DOUBT_S, Action, Dispatcher, Expire, ReplicaKey, Start, Ticket
from headrace.policies.health import Circuit, HealthRules

RULES = HealthRules(failures_to_eject=2, ejection_s=4.0, ejection_max_s=16.0)
QUEUE_MAX = 4
MODELS = ("chat", "embeddings")
TENANTS = ("acme", "beta", "corp")
PARTITIONED = EngineTraits(partitions_slots=True)
OURS = EngineTraits(is_ours=True)


def replica(name: str, *, slots: int = 1, generation: int = 0, partitions_slots: bool = False) -> Replica:
    traits = PARTITIONED if partitions_slots else EngineTraits()
    return Replica(ReplicaId(name), "127.0.0.1", 1, slots, traits, generation=generation)


def fleet(**replicas: list[Replica]) -> FleetSnapshot:
    return FleetSnapshot(
        deployments={
            model: Deployment(model, model, frozenset(), "unpinned", tuple(running))
            for model, running in replicas.items()
        }
    )


def dispatcher(*replicas: Replica, queue_length_max: int = QUEUE_MAX) -> Dispatcher:
    made = Dispatcher(queue_length_max=queue_length_max, health=RULES, chance=Random(1))
    made.publish(fleet(chat=list(replicas)), now_s=0.0)
    return made


def ticket(*, deadline_s: float = 100.0, partition: str = "acme") -> Ticket:
    return Ticket(model="chat", partition=partition, deadline_s=deadline_s)


class Machine(RuleBasedStateMachine):
    """A driver that does all that a driver may do, with a picture of its own of who runs and who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.dispatcher = Dispatcher(queue_length_max=QUEUE_MAX, health=RULES, chance=Random(7))
        self.offered: dict[str, dict[ReplicaKey, Replica]] = {}
        self.generations: Counter[str] = Counter()
        self.running: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.slot_owners: dict[tuple[str, ReplicaKey, int], str] = {}

    # What the dispatcher says must be done.

    def started(self, ticket: Ticket) -> None:
        assert ticket.deadline_s > self.now_s, "started after its deadline"
        assert ticket.load is not None
        assert ticket.load.key not in ticket.tried, "a replica that failed this ticket is used again"
        assert ticket.load.key in self.offered[ticket.model], "started on a replica that is not offered"
        place = (ticket.model, ticket.load.key)
        others = sum((other.model, other.load.key) == place for other in self.running if other.load)
        assert others < self.offered[ticket.model][ticket.load.key].slots, "more than a replica's slots"
        if ticket.grant is not None:
            slot = (ticket.model, ticket.load.key, ticket.grant.index)
            if ticket.grant.may_reuse:
                assert self.slot_owners[slot] == ticket.partition, "another tenant's cache was reused"
            self.slot_owners[slot] = ticket.partition
        self.running.append(ticket)

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            self.waiting.remove(action.ticket)
            match action:
                case Start(ticket):
                    self.started(ticket)
                case Expire(ticket):
                    assert ticket.load is None
                    assert ticket.deadline_s <= self.now_s or ticket.model not in self.offered
        # Earliest deadline first: whoever still waits could not have run in the place of a later one.
        for action in actions:
            if isinstance(action, Start) and (load := action.ticket.load) is not None:
                for other in self.waiting:
                    assert (
                        other.model != action.ticket.model
                        or other.deadline_s >= action.ticket.deadline_s
                        or load.key in other.tried
                        or other.tried != action.ticket.tried
                    ), "a later deadline went first"

    def place(self, ticket: Ticket, verb: Callable[..., bool]) -> None:
        try:
            starts = verb(ticket, now_s=self.now_s)
        except (DeadlineExceeded, NoReadyReplica, Saturated):
            assert ticket.load is None
            return
        if starts:
            self.started(ticket)
        else:
            self.waiting.append(ticket)

    # What a driver does.

    @rule(
        model=st.sampled_from(MODELS),
        partition=st.sampled_from(TENANTS),
        time_left_s=st.sampled_from([0.0, 1.0, 2.0, 5.0, 20.0, 50.0]),
    )
    def arrive(self, model: str, partition: str, time_left_s: float) -> None:
        if model in self.offered:
            new = Ticket(model=model, partition=partition, deadline_s=self.now_s + time_left_s)
            self.place(new, self.dispatcher.arrive)
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
            self.place(ticket, self.dispatcher.retry)

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
            running = [
                replica(name, slots=slots, generation=self.generations[name], partitions_slots=name != "c")
                for name in sorted(names)
            ]
            self.offered[model] = {(one.id, one.generation): one for one in running}
        self.publish_offered()

    @rule(model=st.sampled_from(MODELS), is_withdrawn=st.booleans())
    def flap(self, model: str, is_withdrawn: bool) -> None:
        """All replicas of a model, or the model itself, are gone for a moment."""
        before = self.offered.pop(model, None)
        if before is not None:
            if not is_withdrawn:
                self.offered[model] = {}
            self.publish_offered()
            self.offered[model] = before
            self.publish_offered()

    def publish_offered(self) -> None:
        snapshot = fleet(**{name: list(offered.values()) for name, offered in self.offered.items()})
        self.perform(self.dispatcher.publish(snapshot, now_s=self.now_s))

    # What holds after every step.

    @invariant()
    def a_load_counts_exactly_the_tickets_that_run_on_it(self) -> None:
        """T22: also when its replica was gone for a while and came back."""
        running = Counter((ticket.model, ticket.load.key) for ticket in self.running if ticket.load)
        for model, load in self.dispatcher.loads():
            assert load.outstanding == running[model, load.key]

    @invariant()
    def nobody_shares_a_slot(self) -> None:
        held = [(t.model, t.load.key, t.grant.index) for t in self.running if t.load and t.grant]
        assert len(held) == len(set(held))

    @invariant()
    def no_slot_is_idle_while_a_ticket_that_accepts_it_waits(self) -> None:
        loads = list(self.dispatcher.loads())
        for ticket in self.waiting:
            usable = [load for model, load in loads if model == ticket.model and load.key not in ticket.tried]
            healthy = [load for load in usable if not load.health.is_ejected(self.now_s)] or usable
            assert ticket.deadline_s <= self.now_s or all(load.outstanding >= load.slots for load in healthy)

    @invariant()
    def the_queue_holds_exactly_those_who_wait(self) -> None:
        for model in MODELS:
            waiting = sum(ticket.model == model for ticket in self.waiting)
            assert self.dispatcher.queue_length(model) == waiting

    def teardown(self) -> None:
        """Everything returns to zero."""
        for ticket in list(self.waiting):
            self.waiting.remove(ticket)
            self.dispatcher.leave(ticket, now_s=self.now_s)
        for ticket in list(self.running):
            _, actions = self.dispatcher.give_back(ticket, AttemptOutcome.COMPLETED, now_s=self.now_s)
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


def test_a_deployment_without_replicas_says_when_to_come_back() -> None:
    with pytest.raises(NoReadyReplica) as refused:
        dispatcher().arrive(ticket(), now_s=0.0)
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
    assert one.arrive(first, now_s=0.0)
    one.give_back(first, AttemptOutcome.COMPLETED, now_s=8.0)
    assert one.arrive(second, now_s=8.0)
    assert not one.arrive(ticket(), now_s=8.0)
    with pytest.raises(Saturated) as refused:
        one.arrive(ticket(), now_s=8.0)
    assert refused.value.retry_after_s == 16.0  # one waits before it, eight seconds each


def test_a_wait_that_would_outlast_the_deadline_is_refused_at_once() -> None:
    """T7: whoever can't be served in time learns it now, not at the deadline."""
    one = dispatcher(replica("a"))
    first = ticket()
    one.arrive(first, now_s=0.0)
    one.give_back(first, AttemptOutcome.COMPLETED, now_s=8.0)
    one.arrive(ticket(), now_s=8.0)
    with pytest.raises(Saturated, match="longer than"):
        one.arrive(ticket(deadline_s=15.0), now_s=8.0)
    assert not one.arrive(ticket(deadline_s=16.5), now_s=8.0)


def test_a_newcomer_takes_the_slot_that_those_who_wait_can_not_use() -> None:
    one = dispatcher(replica("a"), replica("b"))
    moved, holder = ticket(), ticket()
    assert one.arrive(moved, now_s=0.0)
    assert one.arrive(holder, now_s=0.0)
    one.give_back(moved, AttemptOutcome.ERRED, now_s=1.0)
    assert not one.retry(moved, now_s=1.0)  # waits for the replica that has not failed it
    assert one.wake(now_s=1.0) == []
    assert one.arrive(ticket(), now_s=1.0)


def test_a_newcomer_does_not_pass_those_whom_the_end_of_an_ejection_lets_in() -> None:
    one = dispatcher(replica("a"), replica("b"))
    failing, holder = ticket(), ticket()
    one.arrive(failing, now_s=0.0)
    one.arrive(holder, now_s=0.0)
    ejected = False
    while not ejected:  # until the replica of `failing` is out, nobody else waiting
        failing.tried = ()
        ejected, _ = one.give_back(failing, AttemptOutcome.ERRED, now_s=0.0)
        if not ejected:
            failing.tried = ()
            assert one.retry(failing, now_s=0.0)
    waiting, newcomer = ticket(), ticket()
    assert not one.arrive(waiting, now_s=1.0)
    assert not one.arrive(newcomer, now_s=RULES.ejection_s)
    assert one.wake(now_s=RULES.ejection_s) == [Start(waiting)]
    assert waiting.waited_s == RULES.ejection_s - 1.0


def test_a_replica_that_flaps_keeps_its_count_and_its_ejection() -> None:
    """T22: a probe that fails once must not hand out slots twice, nor forgive."""
    one = dispatcher(replica("a", slots=2, partitions_slots=True))
    held = [ticket(), ticket()]
    assert all(one.arrive(each, now_s=0.0) for each in held)
    one.publish(fleet(), now_s=1.0)
    one.publish(fleet(chat=[replica("a", slots=2, partitions_slots=True)]), now_s=2.0)
    assert not one.arrive(ticket(), now_s=2.0)
    assert [load.outstanding for _, load in one.loads()] == [2]
    _, actions = one.give_back(held[0], AttemptOutcome.COMPLETED, now_s=3.0)
    assert len(actions) == 1


def test_a_restarted_replica_shares_nothing_with_its_former_self() -> None:
    one = dispatcher(replica("a"))
    before = ticket()
    one.arrive(before, now_s=0.0)
    one.publish(fleet(chat=[replica("a", generation=1)]), now_s=1.0)
    assert one.arrive(ticket(), now_s=1.0)
    one.give_back(before, AttemptOutcome.LOST, now_s=2.0)
    assert [load.outstanding for _, load in one.loads()] == [1]
    assert one.retry(ticket(), now_s=2.0) is False


def test_a_retry_without_another_replica_is_refused() -> None:
    one = dispatcher(replica("a"))
    only = ticket()
    one.arrive(only, now_s=0.0)
    one.give_back(only, AttemptOutcome.BUSY, now_s=0.0)
    with pytest.raises(NoReadyReplica):
        one.retry(only, now_s=0.0)


def test_those_who_wait_for_a_withdrawn_model_are_told_and_their_wait_is_counted() -> None:
    one = dispatcher(replica("a"))
    one.arrive(ticket(), now_s=0.0)
    waiting = ticket()
    one.arrive(waiting, now_s=1.0)
    assert one.publish(fleet(), now_s=3.0) == [Expire(waiting)]
    assert waiting.waited_s == 2.0
    assert one.queue_length("chat") == 0
    one.leave(waiting, now_s=4.0)
    with pytest.raises(NoReadyReplica):
        one.retry(waiting, now_s=4.0)


def test_who_leaves_the_queue_takes_its_wait_along_and_frees_its_place() -> None:
    """T6."""
    one = dispatcher(replica("a"), queue_length_max=1)
    one.arrive(ticket(), now_s=0.0)
    leaver = ticket()
    assert not one.arrive(leaver, now_s=1.0)
    one.leave(leaver, now_s=3.5)
    assert leaver.waited_s == 2.5
    assert not one.arrive(ticket(), now_s=4.0)


def test_a_slot_that_frees_too_late_goes_to_the_next_who_can_still_use_it() -> None:
    """T9: work that nobody can use any more is not begun."""
    one = dispatcher(replica("a"))
    running, late, next_one = ticket(), ticket(deadline_s=5.0), ticket()
    one.arrive(running, now_s=0.0)
    one.arrive(late, now_s=1.0)
    one.arrive(next_one, now_s=2.0)
    _, actions = one.give_back(running, AttemptOutcome.COMPLETED, now_s=5.0)
    assert actions == [Expire(late), Start(next_one)]
    assert (late.waited_s, late.load) == (4.0, None)


def test_the_expected_wait_grows_with_the_queue_and_is_none_for_what_is_not_offered() -> None:
    one = dispatcher(replica("a"))
    measured = ticket()
    one.arrive(measured, now_s=0.0)
    one.give_back(measured, AttemptOutcome.COMPLETED, now_s=8.0)
    one.arrive(ticket(), now_s=8.0)
    assert one.expected_wait_s("nothing") == 0.0
    before_s = one.expected_wait_s("chat")
    one.arrive(ticket(), now_s=8.0)
    assert one.expected_wait_s("chat") == before_s + 8.0


def engine(*, generation: int = 0) -> Replica:
    """An engine that we started and start again when it ends."""
    return Replica(ReplicaId("engine"), "127.0.0.1", 1, 1, OURS, generation=generation)


@pytest.mark.parametrize("outcome", [AttemptOutcome.LOST, AttemptOutcome.UNREACHABLE])
def test_nobody_is_sent_to_an_engine_that_has_just_lost_its_connections(outcome: AttemptOutcome) -> None:
    """T1: who waits, who lost it and who arrives all wait for the word of control, and run on the next generation."""
    one = dispatcher(engine())
    loser, waiting = ticket(), ticket(deadline_s=50.0)
    one.arrive(loser, now_s=0.0)
    one.arrive(waiting, now_s=0.0)
    _, actions = one.give_back(loser, outcome, now_s=1.0)
    assert actions == []
    assert not one.retry(loser, now_s=1.0)
    newcomer = ticket(deadline_s=20.0)
    assert not one.arrive(newcomer, now_s=1.0)
    assert one.publish(fleet(chat=[]), now_s=1.1) == []
    assert one.publish(fleet(chat=[engine(generation=1)]), now_s=3.0) == [Start(newcomer)]
    _, actions = one.give_back(newcomer, AttemptOutcome.COMPLETED, now_s=4.0)
    assert actions == [Start(waiting)]
    _, actions = one.give_back(waiting, AttemptOutcome.COMPLETED, now_s=5.0)
    assert actions == [Start(loser)]


def test_who_lost_its_engine_waits_for_the_next_even_after_control_has_withdrawn_it() -> None:
    one = dispatcher(engine())
    loser = ticket()
    one.arrive(loser, now_s=0.0)
    one.publish(fleet(chat=[]), now_s=1.0)
    one.give_back(loser, AttemptOutcome.LOST, now_s=1.0)
    assert not one.retry(loser, now_s=1.0)
    assert one.publish(fleet(chat=[engine(generation=1)]), now_s=2.0) == [Start(loser)]


def test_a_lost_connection_that_was_no_end_delays_work_by_the_doubt_alone() -> None:
    """The same generation gets requests again, the one that lost it too."""
    one = dispatcher(engine())
    loser = ticket()
    one.arrive(loser, now_s=0.0)
    one.give_back(loser, AttemptOutcome.LOST, now_s=1.0)
    assert not one.retry(loser, now_s=1.0)
    assert one.wake(now_s=1.0 + DOUBT_S / 2) == []
    assert one.wake(now_s=1.0 + DOUBT_S) == [Start(loser)]


def test_a_fault_inside_the_protocol_casts_no_doubt_on_an_engine_that_lives() -> None:
    one = dispatcher(engine())
    failed, waiting = ticket(), ticket()
    one.arrive(failed, now_s=0.0)
    one.arrive(waiting, now_s=0.0)
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
    assert not one.arrive(ticket(deadline_s=60.0), now_s=7.5)
    assert len(one.wake(now_s=8.0)) == 1
