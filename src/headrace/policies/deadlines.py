"""In what order does the work of one tenant start? Earliest deadline first, and of equals the one that came first."""

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """What the queue must know of an entry."""

    @property
    def deadline_s(self) -> float: ...


T = TypeVar("T", bound=Timed)


class DeadlineQueue(Generic[T]):
    """A heap of deadlines. Removal is lazy: `_live` holds the truth, the heap may hold entries that have left."""

    __slots__ = ("_heap", "_live", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._live: dict[int, int] = {}  # id(entry) -> its sequence number
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[T]:
        """Those who wait, in no particular order."""
        return (item[2] for item in self._heap if self._is_live(item))

    def push(self, entry: T) -> None:
        assert id(entry) not in self._live, "an entry waits once"
        self._sequence += 1
        self._live[id(entry)] = self._sequence
        heapq.heappush(self._heap, (entry.deadline_s, self._sequence, entry))

    def remove(self, entry: T) -> bool:
        """Takes an entry out wherever it stands; False if it wasn't waiting."""
        removed = self._live.pop(id(entry), None) is not None
        if len(self._heap) > 2 * len(self._live) + 16:
            self._heap = [item for item in self._heap if self._is_live(item)]
            heapq.heapify(self._heap)
        return removed

    def pop(self, accepts: Callable[[T], bool]) -> T | None:
        """The entry with the earliest deadline that `accepts`, or None. O(log n) unless entries are passed over."""
        passed_over: list[tuple[float, int, T]] = []
        found: T | None = None
        while self._heap:
            item = heapq.heappop(self._heap)
            if not self._is_live(item):
                continue
            if accepts(item[2]):
                found = item[2]
                del self._live[id(found)]
                break
            passed_over.append(item)
        for item in passed_over:
            heapq.heappush(self._heap, item)
        return found

    def pop_late(self, now_s: float, needs_s: Callable[[T], float]) -> T | None:
        """The first entry, if it has no more time left than it needs, or None."""
        while self._heap:
            item = self._heap[0]
            is_live = self._is_live(item)
            if is_live and item[0] > now_s + needs_s(item[2]):
                return None
            heapq.heappop(self._heap)
            if is_live:
                del self._live[id(item[2])]
                return item[2]
        return None

    def last(self) -> T:
        """The entry that would start last; there must be one."""
        return max(item for item in self._heap if self._is_live(item))[2]

    def _is_live(self, item: tuple[float, int, T]) -> bool:
        return self._live.get(id(item[2])) == item[1]
