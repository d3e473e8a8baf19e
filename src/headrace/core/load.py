"""What does a data plane say of its load? Counts and distributions that only grow, so that they add up and can be taken apart."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from headrace.core.ids import ReplicaId, TargetKey

# Forty steps to a decade, each about 6 % above the last: Renard's R40 series of preferred numbers (ISO 3), which holds the
# rounder numbers that the buckets of metrics have.
_R40 = (
    100, 106, 112, 118, 125, 132, 140, 150, 160, 170, 180, 190, 200, 212, 224, 236, 250, 265, 280, 300,
    315, 335, 355, 375, 400, 425, 450, 475, 500, 530, 560, 600, 630, 670, 710, 750, 800, 850, 900, 950,
)  # fmt: skip
EDGES_S: tuple[float, ...] = (
    *(float(f"{digits}e-6") for digits in _R40 if digits >= 500),
    *(float(f"{digits}e{exponent}") for exponent in range(-5, 1) for digits in _R40),
    1000.0,
)
"""Upper edges of a histogram's buckets, 0.5 ms to 1000 s; the last bucket is above them all."""


class Span(NamedTuple):
    """A value that is known to be above the one and at most the other."""

    low_s: float
    high_s: float


class Histogram(msgspec.Struct, gc=False, array_like=True):
    """Durations, counted by the buckets of EDGES_S.

    Attributes:
        counts: One for each edge, and one for what is above the last; empty while there is nothing.
    """

    counts: list[int] = []
    sum_s: float = 0.0

    def observe(self, value_s: float) -> None:
        if not self.counts:
            self.counts = [0] * (len(EDGES_S) + 1)
        self.counts[bisect_left(EDGES_S, value_s)] += 1
        self.sum_s += value_s

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        count = self.count
        return self.sum_s / count if count else None

    def percentile(self, share: float) -> Span | None:
        """Where the value lies that this share of the observed ones is at most; None if nothing was observed.

        Exact of what was observed, but for the width of a bucket; how well that speaks for what was not is not said here.
        """
        assert 0.0 < share <= 1.0
        count = self.count
        if not count:
            return None
        rank = math.ceil(share * count - 1e-9)  # a share such as 0.95 is a little off in binary
        index, below = 0, self.counts[0]
        while below < rank:
            index += 1
            below += self.counts[index]
        low_s = EDGES_S[index - 1] if index else 0.0
        return Span(low_s, EDGES_S[index] if index < len(EDGES_S) else math.inf)

    def above(self, limit_s: float) -> Span:
        """How many were longer than that: not fewer than the one number, not more than the other."""
        if not self.counts:
            return Span(0, 0)
        index = bisect_left(EDGES_S, limit_s)
        surely = sum(self.counts[index + 1 :])
        is_edge = index < len(EDGES_S) and EDGES_S[index] == limit_s
        return Span(surely, surely if is_edge else surely + self.counts[index])

    def plus(self, other: "Histogram") -> "Histogram":
        """Both together."""
        if not self.counts or not other.counts:
            return Histogram(list(self.counts or other.counts), self.sum_s + other.sum_s)
        return Histogram(
            [mine + its for mine, its in zip(self.counts, other.counts, strict=True)],
            self.sum_s + other.sum_s,
        )

    def minus(self, earlier: "Histogram") -> "Histogram":
        """What was added since `earlier`."""
        if not earlier.counts:
            return Histogram(list(self.counts), self.sum_s)
        return Histogram(
            [mine - its for mine, its in zip(self.counts, earlier.counts, strict=True)],
            max(0.0, self.sum_s - earlier.sum_s),
        )


class TargetLoad(msgspec.Struct, gc=False, kw_only=True):
    """All that came to one target and what became of it, since the start of who counts.

    What was handed over is counted by both targets: as `arrived` by the second one again, which then has its end. So
    arrived = refused + delivered + rejected + failed + broken + cancelled + failed_over + handed_over, and what is in progress.

    Attributes:
        name: The name that callers use.
        refused: Turned away before any work: by limits, by the queue, for want of a replica; `causes` says by which.
        rejected: Found wrong by the replica: the caller's failure, as is `cancelled`.
        failed, broken: The target's failures, before and after the first byte; timeouts among them.
        failed_over: It failed them before the first byte, and the accepted target took them on: no caller noticed.
        handed_over: They had only waited for it when it was withdrawn, and another target took them on.
        causes: Of all that was not delivered, and not handed over: how many by reason (core/outcome.py).
        ttft: From arrival to the first byte, of every answer that began; total: to the end, of what was delivered.
        itl: Between two events of a stream.
        queue_wait: Of what was not refused.
        prompt_tokens, cached_tokens, output_tokens: Of the attempts that ran on it.
        charge_pico: What its answers are billed at; only meaningful where prices have one currency.
        in_flight, queued: At this moment.
        wait_s: How long its queue takes as it stands; the longest of several planes.
        mirrored, mirror_dropped: Copies of requests for others that ran on it, and those that had no room.
        verdicts: What comparing their answers said, by verdict.
    """

    target: TargetKey
    name: str
    revision: str
    arrived: int = 0
    refused: int = 0
    delivered: int = 0
    rejected: int = 0
    failed: int = 0
    broken: int = 0
    cancelled: int = 0
    failed_over: int = 0
    handed_over: int = 0
    causes: dict[str, int] = {}
    ttft: Histogram = msgspec.field(default_factory=Histogram)
    itl: Histogram = msgspec.field(default_factory=Histogram)
    total: Histogram = msgspec.field(default_factory=Histogram)
    queue_wait: Histogram = msgspec.field(default_factory=Histogram)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    charge_pico: int = 0
    in_flight: int = 0
    queued: int = 0
    wait_s: float = 0.0
    mirrored: int = 0
    mirror_dropped: int = 0
    verdicts: dict[str, int] = {}

    @property
    def ended(self) -> int:
        """All that is no longer this target's."""
        return sum(getattr(self, name) for name in _ENDS)

    @property
    def faults(self) -> int:
        """What the target itself did wrong, whether or not a caller noticed."""
        return self.failed + self.broken + self.failed_over

    @property
    def judged(self) -> int:
        """All that says something about the target: what it answered, and its faults."""
        return self.delivered + self.faults

    def copy(self) -> "TargetLoad":
        """One that doesn't change any more."""
        return self.plus(TargetLoad(target=self.target, name=self.name, revision=self.revision))

    def plus(self, other: "TargetLoad") -> "TargetLoad":
        """Both together; they are of one target."""
        assert self.target == other.target
        return TargetLoad(
            target=self.target,
            name=self.name,
            revision=self.revision,
            causes=_sum(self.causes, other.causes),
            verdicts=_sum(self.verdicts, other.verdicts),
            wait_s=max(self.wait_s, other.wait_s),
            in_flight=self.in_flight + other.in_flight,
            queued=self.queued + other.queued,
            **{name: getattr(self, name) + getattr(other, name) for name in _COUNTS},
            **{name: getattr(self, name).plus(getattr(other, name)) for name in _HISTOGRAMS},
        )

    def since(self, earlier: "TargetLoad | None") -> "TargetLoad":
        """What came after `earlier`; what is of this moment stays.

        Where a count is lower than it was, everything has begun anew, and all of it came after.
        """
        if earlier is None or any(getattr(self, name) < getattr(earlier, name) for name in _COUNTS):
            return self
        return TargetLoad(
            target=self.target,
            name=self.name,
            revision=self.revision,
            causes=_difference(self.causes, earlier.causes),
            verdicts=_difference(self.verdicts, earlier.verdicts),
            wait_s=self.wait_s,
            in_flight=self.in_flight,
            queued=self.queued,
            **{name: getattr(self, name) - getattr(earlier, name) for name in _COUNTS},
            **{name: getattr(self, name).minus(getattr(earlier, name)) for name in _HISTOGRAMS},
        )


_ENDS = (
    "refused", "delivered", "rejected", "failed", "broken", "cancelled", "failed_over", "handed_over",
)  # fmt: skip
_COUNTS = (
    "arrived", *_ENDS, "prompt_tokens", "cached_tokens", "output_tokens", "charge_pico", "mirrored", "mirror_dropped",
)  # fmt: skip
_HISTOGRAMS = ("ttft", "itl", "total", "queue_wait")


class ReplicaUse(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """So many requests run on a replica; also on one that is no longer offered, until the last of them has ended."""

    replica: ReplicaId
    generation: int
    in_flight: int


class PlaneLoad(msgspec.Struct, frozen=True, gc=False):
    """One data plane's load, or that of several together.

    Attributes:
        snapshot_version: The snapshot that is served from; of several planes the oldest.
    """

    snapshot_version: int
    targets: list[TargetLoad]
    replicas: list[ReplicaUse]

    def in_flight(self, replica: ReplicaId, generation: int) -> int:
        return sum(
            use.in_flight for use in self.replicas if (use.replica, use.generation) == (replica, generation)
        )


NO_LOAD = PlaneLoad(0, [], [])


def merge(planes: Iterable[PlaneLoad]) -> PlaneLoad:
    """All planes as one."""
    targets: dict[TargetKey, TargetLoad] = {}
    replicas: dict[tuple[ReplicaId, int], int] = {}
    versions: list[int] = []
    for plane in planes:
        versions.append(plane.snapshot_version)
        for load in plane.targets:
            known = targets.get(load.target)
            targets[load.target] = load if known is None else known.plus(load)
        for use in plane.replicas:
            key = (use.replica, use.generation)
            replicas[key] = replicas.get(key, 0) + use.in_flight
    return PlaneLoad(
        min(versions, default=0),
        list(targets.values()),
        [ReplicaUse(*key, in_flight) for key, in_flight in replicas.items()],
    )


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in [*first, *(second.keys() - first.keys())]}


def _difference(later: Mapping[str, int], earlier: Mapping[str, int]) -> dict[str, int]:
    changed = ((key, count - earlier.get(key, 0)) for key, count in later.items())
    return {key: count for key, count in changed if count}
