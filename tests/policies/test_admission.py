"""The queue against a model of it that sorts a list, and the arithmetic of waiting."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.core.errors import Saturated
from headrace.policies.admission import (
    RETRY_AFTER_MAX_S,
    RETRY_AFTER_MIN_S,
    AdmissionQueue,
    DrainRate,
    check_admission,
)

LENGTH_MAX = 6


@dataclass(eq=False)
class Entry:
    deadline_s: float
    kind: int


class QueueMachine(RuleBasedStateMachine):
    """`waiting` is the queue as a plain list, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: AdmissionQueue[Entry] = AdmissionQueue(length_max=LENGTH_MAX)
        self.waiting: list[Entry] = []
        self.left: list[Entry] = []

    @rule(deadline_s=st.integers(0, 5), kind=st.integers(0, 2))
    def push(self, deadline_s: int, kind: int) -> None:
        entry = Entry(deadline_s, kind)
        self.queue.push(entry)
        self.waiting.append(entry)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.waiting:
            entry = data.draw(st.sampled_from(self.waiting))
            assert self.queue.remove(entry)
            self.waiting.remove(entry)
            self.left.append(entry)

    @rule()
    def remove_all(self) -> None:
        assert all(self.queue.remove(entry) for entry in self.waiting)
        self.left += self.waiting
        self.waiting.clear()

    @rule(data=st.data())
    def who_left_is_not_there_and_may_come_back(self, data: st.DataObject) -> None:
        if self.left:
            entry = data.draw(st.sampled_from(self.left))
            assert not self.queue.remove(entry)
            self.queue.push(entry)
            self.left.remove(entry)
            self.waiting.append(entry)

    @rule(kinds=st.sets(st.integers(0, 2)))
    def pop(self, kinds: set[int]) -> None:
        accepted = [entry for entry in self.waiting if entry.kind in kinds]
        expected = min(accepted, key=lambda entry: entry.deadline_s, default=None)
        found = self.queue.pop(lambda entry: entry.kind in kinds)
        assert found is expected, "earliest deadline first, and of equals the one that came first"
        if found is not None:
            self.waiting.remove(found)
            self.left.append(found)

    @invariant()
    def it_holds_exactly_those_who_wait(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert {id(entry) for entry in self.queue} == {id(entry) for entry in self.waiting}
        assert self.queue.is_full == (len(self.waiting) >= LENGTH_MAX)


QueueMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60)
TestTheQueueAgainstASortedList = pytest.mark.slow(QueueMachine.TestCase)


def test_those_who_left_are_let_go_of() -> None:
    """Ten thousand callers who gave up must not be held until the last deadline."""
    queue: AdmissionQueue[Entry] = AdmissionQueue(length_max=1)
    stays = Entry(0.0, 0)
    queue.push(stays)
    for deadline_s in range(10_000):
        gone = Entry(1.0 + deadline_s, 0)
        queue.push(gone)
        queue.remove(gone)
    seen: list[Entry] = []

    def looks(entry: Entry) -> bool:
        seen.append(entry)
        return False

    assert queue.pop(looks) is None
    assert seen == [stays]


@given(
    services_s=st.lists(st.floats(0.001, 1000.0), min_size=1),
    ahead=st.integers(0, 100),
    slots=st.integers(1, 64),
)
def test_the_expected_wait_lies_between_the_quickest_and_the_slowest_seen(
    services_s: list[float], ahead: int, slots: int
) -> None:
    drain = DrainRate()
    for service_s in services_s:
        drain.observe(service_s)
    wait_s = drain.wait_s(ahead=ahead, slots=slots)
    turns = (ahead + 1) / slots
    assert min(services_s) * turns * 0.999 <= wait_s <= max(services_s) * turns * 1.001


def test_nothing_is_expected_before_something_was_measured_or_without_slots() -> None:
    drain = DrainRate()
    assert drain.wait_s(ahead=10, slots=1) == 0.0
    drain.observe(5.0)
    assert drain.wait_s(ahead=10, slots=0) == 0.0


@given(
    queued=st.integers(0, 100),
    is_full=st.booleans(),
    expected_wait_s=st.floats(0.0, 1e6),
    time_left_s=st.floats(0.001, 3600.0),
)
def test_who_could_be_served_in_time_is_admitted_and_all_others_learn_when_to_return(
    queued: int, is_full: bool, expected_wait_s: float, time_left_s: float
) -> None:
    """T7, T9."""

    def check() -> None:
        check_admission(
            queued=queued, is_full=is_full, expected_wait_s=expected_wait_s, time_left_s=time_left_s
        )

    if not is_full and expected_wait_s <= time_left_s:
        check()
        return
    with pytest.raises(Saturated) as refused:
        check()
    assert RETRY_AFTER_MIN_S <= (refused.value.retry_after_s or 0.0) <= RETRY_AFTER_MAX_S
