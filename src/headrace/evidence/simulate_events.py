"""What happens next in a simulation? A heap of moments; what is not wanted any more stays in it and is passed over."""

import heapq
from collections.abc import Callable
from typing import Any, Protocol


class Subject(Protocol):
    """Whom an event is about.

    Attributes:
        epoch: Raised by whoever makes the events void that were planned before.
    """

    epoch: int


class Events:
    """Events in the order of their moments; of equal ones, in the order in which they were planned."""

    __slots__ = ("_heap", "_order", "now_s")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[Any, float], None], Any, int]] = []
        self._order = 0
        self.now_s = 0.0

    def plan(self, moment_s: float, act: Callable[[Any, float], None], subject: Subject) -> None:
        """`act(subject, moment)` comes at that moment, unless the subject has another epoch then."""
        self._order += 1
        heapq.heappush(self._heap, (moment_s, self._order, act, subject, subject.epoch))

    @property
    def next_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """The next one takes place; there must be one."""
        moment_s, _, act, subject, epoch = heapq.heappop(self._heap)
        self.now_s = moment_s
        if subject.epoch == epoch:
            act(subject, moment_s)
