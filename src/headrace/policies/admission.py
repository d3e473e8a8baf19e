"""In what order does waiting work start, and when is more of it refused? A bounded queue, earliest deadline first."""

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from headrace.core.errors import Saturated
from headrace.core.outcome import Reason

RETRY_AFTER_MIN_S = 1.0
RETRY_AFTER_MAX_S = 60.0


class Waiting(Protocol):
    """What the queue must know of an entry."""

    @property
    def deadline_s(self) -> float: ...


T = TypeVar("T", bound=Waiting)


class AdmissionQueue(Generic[T]):
    """A priority queue with a bound. Removal is lazy: `_live` holds the truth, the heap may hold entries that have left."""

    def __init__(self, *, length_max: int) -> None:
        self._length_max = length_max
        self._heap: list[tuple[float, int, T]] = []
        self._live: dict[int, int] = {}  # id(entry) -> its sequence number
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[T]:
        """Those who wait, in no particular order."""
        return (item[2] for item in self._heap if self._is_live(item))

    @property
    def is_full(self) -> bool:
        return len(self._live) >= self._length_max

    def push(self, entry: T) -> None:
        """Adds an entry; the caller has checked `is_full` (a retry may pass the bound: its place was paid for)."""
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

    def _is_live(self, item: tuple[float, int, T]) -> bool:
        return self._live.get(id(item[2])) == item[1]


class DrainRate:
    """How fast a deployment finishes work: an average of service time that remembers about the last 20 requests.

    With `slots` busy, one slot frees every service_s / slots seconds (the output rate of a saturated station).
    """

    WEIGHT = 0.1

    def __init__(self) -> None:
        self.service_s: float | None = None

    def observe(self, service_s: float) -> None:
        if self.service_s is None:
            self.service_s = service_s
        else:
            self.service_s += self.WEIGHT * (service_s - self.service_s)

    def wait_s(self, *, ahead: int, slots: int) -> float:
        """Expected wait of a request with `ahead` others waiting before it; 0.0 until something was measured."""
        if self.service_s is None or slots < 1:
            return 0.0
        return (ahead + 1) * self.service_s / slots


def check_admission(*, queued: int, is_full: bool, expected_wait_s: float, time_left_s: float) -> None:
    """Raises Saturated when the queue is full, or when the wait alone would outlast the request's deadline."""
    retry_after_s = min(RETRY_AFTER_MAX_S, max(RETRY_AFTER_MIN_S, expected_wait_s))
    if is_full:
        raise Saturated(
            f"the queue is full ({queued} waiting)", retry_after_s=retry_after_s, reason=Reason.QUEUE_FULL
        )
    if expected_wait_s > time_left_s:
        raise Saturated(
            f"the expected wait of {expected_wait_s:.1f} s is longer than the {time_left_s:.1f} s left",
            retry_after_s=retry_after_s,
            reason=Reason.WAIT_TOO_LONG,
        )
