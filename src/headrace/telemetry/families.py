"""How do we count without slowing down what is counted? Families of series, written by one thread and read by another.

Built for a hot path of tens of thousands of updates a second: plain attributes and lists, no locks, and children that
callers keep. The event loop is the only writer of a child (scrape callbacks own theirs); a scrape reads from another
thread. What it reads may be a few updates old and two numbers may be from neighbouring moments, which a rate over
seconds can't show; it never reads a torn value, and a histogram's count is the sum of the very buckets it shows.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

OTHER = "other"
LABEL_LENGTH_MAX = 200


class Kind(Enum):
    """The Prometheus type of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(Enum):
    """What a gauge of several processes shows: the sum of theirs, the largest, or the smallest."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Spec:
    """One row of the table.

    Attributes:
        series_max: Label sets that the family ever holds, the `other` one included; whatever comes after them, or
            carries a label that no sane name looks like, is counted under `other`.
        buckets: Upper bounds of a histogram, ascending, without +Inf.
        merge: How the gauges of several workers become one. Counters and histograms always sum up.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    series_max: int
    buckets: tuple[float, ...] = ()
    merge: Merge = Merge.SUM

    @property
    def samples_max(self) -> int:
        """Lines that the family can put into a scrape: a histogram has its buckets, +Inf, sum and count."""
        return self.series_max * (len(self.buckets) + 3 if self.kind is Kind.HISTOGRAM else 1)


class Value:
    """One series of a counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        """For gauges, and for totals that someone else counts."""
        self.value = value


class Distribution:
    """One series of a histogram; `counts` has one entry per bucket and one for everything above the last."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


C = TypeVar("C")


class Family(Generic[C]):
    """All series of one metric.

    A child that was removed or cleared still takes updates, which then go nowhere: whoever removes a series tells
    those who keep its child.
    """

    __slots__ = ("_children", "_make", "spec")

    def __init__(self, spec: Spec, make: Callable[[], C]) -> None:
        self.spec = spec
        self._make = make
        self._children: dict[tuple[str, ...], C] = {}
        if not spec.labels:
            self._children[()] = make()

    def labels(self, *values: str) -> C:
        """The series of these label values, in the order of the table."""
        try:
            return self._children[values]
        except KeyError:
            return self._admit(values)

    def remove(self, *values: str) -> None:
        """Forgets a series whose subject is gone, such as a replica's."""
        self._children.pop(values, None)

    def clear(self) -> None:
        """Forgets every series; for families that a scrape callback fills afresh."""
        self._children.clear()

    def series(self) -> list[tuple[tuple[str, ...], C]]:
        """A copy that no update disturbs. `dict.copy` is one step for the interpreter; iterating isn't."""
        return list(self._children.copy().items())

    def _admit(self, values: tuple[str, ...]) -> C:
        assert len(values) == len(self.spec.labels), f"{self.spec.name} takes {self.spec.labels}"
        # Control characters and lone surrogates (not printable) would break the scrape; length would eat memory.
        is_sane = all(len(value) <= LABEL_LENGTH_MAX and value.isprintable() for value in values)
        if not is_sane or len(self._children) >= self.spec.series_max - 1:
            values = (OTHER,) * len(values)
        return self._children.setdefault(values, self._make())


Counter = Family[Value]
Gauge = Family[Value]
Histogram = Family[Distribution]
