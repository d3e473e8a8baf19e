"""The queue of one tenant against a model of it that sorts a list."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.policies.deadlines import DeadlineQueue


@dataclass(eq=False)
class Entry:
    deadline_s: float
    kind: int


class QueueMachine(RuleBasedStateMachine):
    """`waiting` is the queue as a plain list, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: DeadlineQueue[Entry] = DeadlineQueue()
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


QueueMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60)
TestTheQueueAgainstASortedList = pytest.mark.slow(QueueMachine.TestCase)


def test_those_who_left_are_let_go_of() -> None:
    """Ten thousand callers who gave up must not be held until the last deadline."""
    queue: DeadlineQueue[Entry] = DeadlineQueue()
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


def test_what_is_too_late_comes_out_by_its_deadline_and_the_last_is_known() -> None:
    """T9."""
    queue: DeadlineQueue[Entry] = DeadlineQueue()
    entries = [Entry(float(deadline_s), 0) for deadline_s in (3, 1, 2, 5)]
    for entry in entries:
        queue.push(entry)
    queue.remove(entries[1])
    assert queue.last() is entries[3]
    assert [queue.pop_late(3.0, no_time), queue.pop_late(3.0, no_time)] == [entries[2], entries[0]]
    assert queue.pop_late(3.0, no_time) is None
    assert queue.pop_late(3.0, lambda entry: 1.9) is None
    assert queue.pop_late(3.0, lambda entry: 2.0) is entries[3]
    queue.push(entries[3])
    assert list(queue) == [entries[3]]
    queue.remove(entries[3])
    assert queue.pop_late(9.0, no_time) is None


def no_time(entry: Entry) -> float:
    return 0.0
