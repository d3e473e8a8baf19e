"""What did a version do during a step? Counts and latencies, added up out of what the data plane reports."""

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from headrace.core.load import TargetLoad
from headrace.policies.comparison import Likeness

Counts = tuple[int, ...]


class Sample(msgspec.Struct, frozen=True):
    """What one version did in some time.

    Attributes:
        delivered: Answers that were whole.
        failed: By the version's fault, before or after their first byte, and also where another version answered instead.
        ttft, itl, total: Histograms over the edges of core/load.py, without the empty buckets at their end.
        busy_s: Time that its slots were in use for what it delivered.
    """

    delivered: int = 0
    failed: int = 0
    ttft: Counts = ()
    itl: Counts = ()
    total: Counts = ()
    busy_s: float = 0.0

    @property
    def ended(self) -> int:
        """Requests that say something of it; what callers did wrong or didn't wait for says nothing."""
        return self.delivered + self.failed

    def plus(self, other: "Sample") -> "Sample":
        """Both together."""
        if other == EMPTY:
            return self
        return Sample(
            self.delivered + other.delivered,
            self.failed + other.failed,
            _sum(self.ttft, other.ttft),
            _sum(self.itl, other.itl),
            _sum(self.total, other.total),
            self.busy_s + other.busy_s,
        )


EMPTY = Sample()


def sample_of(load: TargetLoad) -> Sample:
    """A target's load in some time, as far as a rollout is judged by it."""
    return Sample(
        delivered=load.delivered,
        failed=load.faults,
        ttft=_trimmed(load.ttft.counts),
        itl=_trimmed(load.itl.counts),
        total=_trimmed(load.total.counts),
        busy_s=max(0.0, load.total.sum_s - load.queue_wait.sum_s),
    )


WORSE = "worse"
"""What the data plane counts a mirrored answer as that has a fault which the accepted version's hasn't."""

_DIFFERING = (WORSE, Likeness.DIFFERENT.value)


class Pairs(msgspec.Struct, frozen=True):
    """Requests that both versions answered, and whose answers were compared.

    Attributes:
        differing: The candidate says something else, or has a fault that the accepted version hasn't.
    """

    compared: int = 0
    differing: int = 0

    def plus(self, other: "Pairs") -> "Pairs":
        """Both together."""
        return Pairs(self.compared + other.compared, self.differing + other.differing)


def pairs_of(load: TargetLoad) -> Pairs:
    """What comparing a target's answers to mirrored requests said."""
    return Pairs(sum(load.verdicts.values()), sum(load.verdicts.get(verdict, 0) for verdict in _DIFFERING))


def _trimmed(counts: Sequence[int]) -> Counts:
    length = len(counts)
    while length and not counts[length - 1]:
        length -= 1
    return tuple(counts[:length])


def _sum(some: Counts, others: Counts) -> Counts:
    return tuple(a + b for a, b in zip_longest(some, others, fillvalue=0))
