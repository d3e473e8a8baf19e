"""The laws of the fair queue: shares, bands, reservations, places; under any order of what can happen to it."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.ids import TenantId
from headrace.core.tenant import Priority, TenantShare
from headrace.policies.fairness import PASSED_OVER_MAX, FairQueue, TenantAccount

WEIGHTS = {"one": 1, "two": 2, "five": 5}
COST_MAX_S = 8.0
_numbers = count()


@dataclass(eq=False)
class Entry:
    tenant: TenantId
    share: TenantShare
    priority: Priority = Priority.NORMAL
    deadline_s: float = 100.0
    cost_s: float = 1.0
    body_bytes: int = 1
    account: TenantAccount | None = None
    number: int = field(default_factory=lambda: next(_numbers))


def entry(
    tenant: str = "one",
    *,
    weight: int = 1,
    reserved: int = 0,
    priority: Priority = Priority.NORMAL,
    deadline_s: float = 100.0,
    cost_s: float = 1.0,
    body_bytes: int = 1,
) -> Entry:
    share = TenantShare(Priority.HIGH, weight, reserved)
    return Entry(TenantId(tenant), share, priority, deadline_s, cost_s, body_bytes)


def queue(*entries: Entry, running: dict[str, int] | None = None) -> FairQueue[Entry]:
    made: FairQueue[Entry] = FairQueue({TenantId(name): number for name, number in (running or {}).items()})
    for each in entries:
        made.push(each)
    return made


def anyone(_: Entry) -> bool:
    return True


def pop(one: FairQueue[Entry]) -> Entry:
    found = one.pop(anyone)
    assert found is not None
    return found


def order(one: FairQueue[Entry]) -> list[str]:
    return [pop(one).tenant for _ in range(len(one))]


class Machine(RuleBasedStateMachine):
    """Three tenants of different weights in three bands; requests end as predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[Entry] = FairQueue({})
        self.waiting: list[Entry] = []
        self.started: list[Entry] = []
        # Since when two tenants of a band have waited without a break, and what each was given since, by its weight.
        self.given: dict[tuple[Priority, str, str], float] = {}
        self.passed_over: Counter[Priority] = Counter()

    def backlogged(self, priority: Priority) -> set[str]:
        return {one.tenant for one in self.waiting if one.priority == priority}

    def forget_those_who_do_not_wait(self) -> None:
        for priority, one, other in list(self.given):
            if not {one, other} <= self.backlogged(priority):
                del self.given[priority, one, other]
        for priority in Priority:
            names = sorted(self.backlogged(priority))
            for one in names:
                for other in names:
                    if one < other:
                        self.given.setdefault((priority, one, other), 0.0)
            if not names:
                self.passed_over[priority] = 0

    @rule(
        tenant=st.sampled_from(sorted(WEIGHTS)),
        priority=st.sampled_from(Priority),
        deadline_s=st.integers(0, 9),
        cost_s=st.floats(0.01, COST_MAX_S),
        body_bytes=st.integers(0, 9),
        copies=st.integers(1, 4),
    )
    def push(
        self,
        tenant: str,
        priority: Priority,
        deadline_s: int,
        cost_s: float,
        body_bytes: int,
        copies: int,
    ) -> None:
        for _ in range(copies):
            new = entry(
                tenant,
                weight=WEIGHTS[tenant],
                priority=priority,
                deadline_s=deadline_s,
                cost_s=cost_s,
                body_bytes=body_bytes,
            )
            self.queue.push(new)
            self.waiting.append(new)
        self.forget_those_who_do_not_wait()

    @precondition(lambda self: self.waiting)
    @rule()
    def start(self) -> None:
        found = pop(self.queue)
        mine = [one for one in self.waiting if (one.tenant, one.priority) == (found.tenant, found.priority)]
        assert found is min(mine, key=lambda one: (one.deadline_s, one.number)), "earliest deadline first"
        for key in self.given:
            priority, one, other = key
            if priority == found.priority and found.tenant in (one, other):
                sign = 1 if found.tenant == one else -1
                self.given[key] += sign * found.cost_s / WEIGHTS[found.tenant]
                bound_s = COST_MAX_S / WEIGHTS[one] + COST_MAX_S / WEIGHTS[other]
                assert abs(self.given[key]) <= bound_s * 1.0001, "more than its share and one request"
        for priority in Priority:
            if priority == found.priority:
                self.passed_over[priority] = 0
            elif self.backlogged(priority):
                self.passed_over[priority] += 1
                # One more for each other band that may have its own turn first.
                assert self.passed_over[priority] <= PASSED_OVER_MAX + 2 or priority > found.priority
        self.waiting.remove(found)
        self.started.append(found)
        self.forget_those_who_do_not_wait()

    @precondition(lambda self: self.started)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from(self.started))
        self.started.remove(ended)
        self.queue.settle(ended, ended.cost_s)
        self.queue.settle(ended, 1e9)  # once is enough
        assert ended.account is None

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from(self.waiting))
        assert self.queue.remove(leaver)
        assert not self.queue.remove(leaver)
        self.waiting.remove(leaver)
        self.forget_those_who_do_not_wait()

    @rule(now_s=st.integers(0, 4))
    def expire(self, now_s: int) -> None:
        while (late := self.queue.pop_late(now_s, lambda entry: 0.0)) is not None:
            assert late.deadline_s <= now_s
            assert late.account is None, "nobody pays for what never started"
            self.waiting.remove(late)
        assert all(one.deadline_s > now_s for one in self.waiting)
        self.forget_those_who_do_not_wait()

    @rule(priority=st.sampled_from(Priority), by_bytes=st.booleans(), tenant=st.sampled_from(sorted(WEIGHTS)))
    def make_room(self, priority: Priority, by_bytes: bool, tenant: str) -> None:
        new = entry(tenant, weight=WEIGHTS[tenant], priority=priority)
        victim = self.queue.displace_for(new, by_bytes=by_bytes)
        if victim is None:
            assert not any(one.priority < priority for one in self.waiting)
            return
        assert victim.priority <= priority
        assert victim.priority == min(one.priority for one in self.waiting)
        assert victim.priority < priority or victim.tenant != tenant
        self.waiting.remove(victim)
        self.forget_those_who_do_not_wait()

    @invariant()
    def it_holds_exactly_those_who_wait(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert {id(one) for one in self.queue} == {id(one) for one in self.waiting}
        assert self.queue.body_bytes == sum(one.body_bytes for one in self.waiting)
        assert self.queue.cost_s == pytest.approx(sum(one.cost_s for one in self.waiting), abs=1e-6)

    def teardown(self) -> None:
        while self.waiting:
            self.start()
        assert (len(self.queue), self.queue.body_bytes, self.queue.cost_s) == (0, 0, 0.0)
        assert self.queue.pop(anyone) is None


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=60)
TestTheLawsOfTheFairQueue = pytest.mark.slow(Machine.TestCase)


@given(weights=st.lists(st.integers(1, 20), min_size=2, max_size=4), starts=st.integers(20, 100))
def test_while_all_wait_each_gets_its_weight_of_the_time(weights: list[int], starts: int) -> None:
    """T10."""
    one = queue()
    given_s: Counter[str] = Counter()
    for index, weight in enumerate(weights):
        for _ in range(starts):
            one.push(entry(str(index), weight=weight, cost_s=1.0))
    for _ in range(starts):
        found = pop(one)
        given_s[found.tenant] += 1
    shares_s = [given_s[str(index)] / weight for index, weight in enumerate(weights)]
    assert max(shares_s) - min(shares_s) <= 2.0


def test_a_newcomer_is_next_however_much_another_has_waiting() -> None:
    """T10: fifty against one."""
    one = queue(*(entry("noisy") for _ in range(50)))
    for _ in range(10):
        pop(one)
    one.push(entry("quiet"))
    assert order(one)[0] == "quiet"


def test_time_that_was_not_used_is_not_saved_up() -> None:
    """Who comes back starts level: one turn at once, and then turn by turn."""
    one = queue(*(entry("busy") for _ in range(30)), entry("sleeper"))
    for _ in range(11):
        pop(one)
    for _ in range(10):
        one.push(entry("sleeper"))
    found = [pop(one).tenant for _ in range(8)]
    assert found.count(TenantId("sleeper")) in (4, 5)


def test_what_a_request_took_beyond_its_prediction_is_paid_for() -> None:
    one = queue(*(entry("liar") for _ in range(9)), *(entry("honest") for _ in range(9)))
    first = pop(one)
    assert first.tenant == "liar"
    one.settle(first, 5.0)  # five times what was predicted
    assert order(one)[:6] == ["honest"] * 5 + ["liar"]


def test_what_a_request_did_not_need_is_given_back() -> None:
    one = queue(
        *(entry("careful", cost_s=10.0) for _ in range(2)), *(entry("other", cost_s=1.0) for _ in range(9))
    )
    first = pop(one)
    assert first.tenant == "careful"
    one.settle(first, 0.5)
    assert order(one)[:2] == ["other", "careful"]


def test_a_higher_band_goes_first_and_a_lower_one_is_not_passed_over_for_ever() -> None:
    highs = [entry("big", priority=Priority.HIGH) for _ in range(3 * PASSED_OVER_MAX)]
    one = queue(entry("small", priority=Priority.LOW), entry("small", priority=Priority.LOW), *highs)
    found = [pop(one).priority for _ in range(2 * PASSED_OVER_MAX + 2)]
    turn = [Priority.HIGH] * PASSED_OVER_MAX + [Priority.LOW]
    assert found == turn + turn


def test_the_owner_of_a_slot_goes_before_everybody_and_only_up_to_its_slots() -> None:
    running = {"owner": 1}
    made: FairQueue[Entry] = FairQueue(owned := {TenantId("owner"): 1})
    assert running == owned
    for _ in range(3):
        made.push(entry("owner", reserved=2, priority=Priority.LOW))
    made.push(entry("big", priority=Priority.HIGH))
    assert pop(made).tenant == "owner"
    owned[TenantId("owner")] = 2
    assert pop(made).tenant == "big"


def test_of_two_owners_the_one_that_has_less_of_its_own_goes_first() -> None:
    one = queue(entry("half", reserved=2), entry("none", reserved=1), running={"half": 1})
    assert order(one) == ["none", "half"]


def test_an_entry_that_accepts_no_free_replica_is_passed_over_and_not_charged() -> None:
    stuck, free = entry("one"), entry("two")
    one = queue(stuck, free)
    assert one.pop(lambda each: each is free) is free
    assert stuck.account is None
    assert one.pop(lambda each: each is not stuck) is None
    assert order(one) == ["one"]


def test_a_full_queue_takes_its_place_from_whoever_holds_most_of_it() -> None:
    """T10: the flood of one tenant closes the queue for nobody else."""
    flood = [entry("noisy", deadline_s=float(number)) for number in range(5)]
    one = queue(*flood, entry("quiet"))
    assert one.displace_for(entry("quiet"), by_bytes=False) is flood[4]
    assert one.displace_for(entry("noisy"), by_bytes=False) is None
    assert one.displace_for(entry("heavy", weight=9), by_bytes=False) is flood[3]


def test_a_place_is_not_taken_only_to_stand_in_it_oneself() -> None:
    one = queue(entry("a"), entry("b"))
    assert one.displace_for(entry("c"), by_bytes=False) is None


def test_bytes_are_taken_from_whoever_holds_most_bytes() -> None:
    large = entry("large", body_bytes=1000)
    one = queue(large, *(entry("many", body_bytes=10) for _ in range(9)))
    assert one.displace_for(entry("many", body_bytes=2000), by_bytes=True) is None
    assert one.displace_for(entry("other", body_bytes=10), by_bytes=True) is large


def test_a_higher_band_takes_its_place_from_the_lowest() -> None:
    low = entry("b", priority=Priority.LOW)
    one = queue(entry("a"), entry("a"), low)
    assert one.displace_for(entry("c", priority=Priority.HIGH), by_bytes=False) is low
    assert one.displace_for(entry("a", priority=Priority.LOW), by_bytes=False) is None


def test_who_waits_for_a_slot_of_its_own_is_not_displaced() -> None:
    one = queue(*(entry("owner", reserved=2, priority=Priority.LOW) for _ in range(2)))
    assert one.displace_for(entry("big", priority=Priority.HIGH), by_bytes=False) is None


def test_a_slot_of_its_own_is_owed_while_neither_used_nor_waited_for() -> None:
    one = queue(running={"owner": 1})
    assert not one.is_owed(entry("other"))
    assert one.is_owed(entry("owner", reserved=2))
    one.push(entry("owner", reserved=2))
    assert not one.is_owed(entry("owner", reserved=2, priority=Priority.HIGH))


def test_the_work_ahead_is_ones_own_and_no_more_of_others_than_their_share_until_then() -> None:
    one = queue(*(entry("noisy", cost_s=2.0) for _ in range(20)))
    pop(one)  # its account is charged from here on
    assert one.ahead_s(entry("quiet"), typical_s=2.0) == 0.0
    for _ in range(3):
        one.push(entry("quiet", cost_s=2.0, deadline_s=50.0))
    assert one.ahead_s(entry("quiet", deadline_s=60.0), typical_s=2.0) == 6.0 + 4.0
    assert one.ahead_s(entry("quiet", deadline_s=10.0), typical_s=2.0) == 0.0, "earliest deadline first"
    assert one.ahead_s(entry("noisy", deadline_s=200.0), typical_s=2.0) == 38.0 + 6.0


def test_of_higher_bands_no_more_is_ahead_than_may_pass() -> None:
    one = queue(*(entry("big", priority=Priority.HIGH) for _ in range(100)))
    assert one.ahead_s(entry("small", priority=Priority.LOW), typical_s=1.0) == PASSED_OVER_MAX
    assert one.ahead_s(entry("other", priority=Priority.HIGH), typical_s=1.0) == 0.0
