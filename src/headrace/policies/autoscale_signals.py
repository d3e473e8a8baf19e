"""What did a deployment do lately? Looks at its load, put together over a window; what nobody measured stays unknown.

Unknown is not zero. No requests is a load, of zero, and no latency at all; a replica that tells nothing of its cache is
left out of the mean; and a look that brought nothing makes the window shorter, not emptier.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from headrace.policies.cold_start import Figures

# A picture older than this is no picture.
STALE_S = 15.0
# Fewer latencies than this have no tail.
LATENCIES_MIN = 10

Counts = tuple[tuple[float, int], ...]
"""Upper edges in seconds, and how many were below each and not below the one before."""


class LoadSample(msgspec.Struct, frozen=True, gc=False):
    """What one target did between two looks at it, at all gateways together.

    Attributes:
        start_s, end_s: On the controller's clock.
        arrived: Requests that were for it to do: taken, or turned away because there was no room. What a caller's own limit
            refused is no load.
        ended: Of those taken, whichever way.
        service_s: What those that ended took of a slot, together.
        in_flight, queued: At the end.
        prompt_tokens, cached_tokens: Of those that ended.
        ttft, queue_wait, itl: What callers waited for the first token, in the queue, and for each further token.
        kv, gpu: Shares in use, of the replicas that say.
    """

    start_s: float
    end_s: float
    arrived: int = 0
    ended: int = 0
    service_s: float = 0.0
    in_flight: int = 0
    queued: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft: Counts = ()
    queue_wait: Counts = ()
    itl: Counts = ()
    kv: tuple[float, ...] = ()
    gpu: tuple[float, ...] = ()

    @property
    def is_idle(self) -> bool:
        return not (self.arrived or self.ended or self.in_flight or self.queued)


class ReplicaView(msgspec.Struct, frozen=True, gc=False):
    """One replica, as far as its number is concerned.

    Attributes:
        launched_s: When it was decided on.
        ready_s: Since when it answers; None while it doesn't.
        is_draining: It gets no more requests: no capacity, and not to be counted.
        is_stuck: It makes no progress towards being ready, or can't be placed at all.
    """

    id: str
    launched_s: float
    ready_s: float | None = None
    in_flight: int = 0
    sessions: int = 0
    is_draining: bool = False
    is_stuck: bool = False


class FleetView(msgspec.Struct, frozen=True):
    """What there is of one target.

    Attributes:
        slots: Requests that one replica runs at once.
        cold_start: What its starts took; None where it was never started.
    """

    replicas: tuple[ReplicaView, ...] = ()
    slots: int = 1
    cold_start: Figures | None = None

    @property
    def wanted(self) -> tuple[ReplicaView, ...]:
        """All that is not on its way out."""
        return tuple(replica for replica in self.replicas if not replica.is_draining)

    @property
    def ready(self) -> tuple[ReplicaView, ...]:
        return tuple(replica for replica in self.wanted if replica.ready_s is not None)

    @property
    def starting(self) -> tuple[ReplicaView, ...]:
        """Those that will be capacity: what is stuck is not, and must hold up nothing."""
        return tuple(replica for replica in self.wanted if replica.ready_s is None and not replica.is_stuck)

    @property
    def capacity(self) -> int:
        """Replicas that are there or on their way. What is on its way counts, or every look would order it again."""
        return len(self.ready) + len(self.starting)


class Window(NamedTuple):
    """What the looks of one stretch of time say together.

    Attributes:
        seconds: That were looked at.
        arrivals_per_s: Of requests.
        in_flight, queued: Means over the time.
        kv, gpu: Means over replicas and looks; None where no replica says.
    """

    seconds: float
    arrivals_per_s: float
    in_flight: float
    queued: float
    kv: float | None
    gpu: float | None


def window(samples: Iterable[LoadSample], *, since_s: float) -> Window | None:
    """Of the looks that ended after that moment; None without any."""
    seen = [sample for sample in samples if sample.end_s > since_s]
    if not seen:
        return None
    seconds = sum(sample.end_s - sample.start_s for sample in seen)
    return Window(
        seconds=seconds,
        arrivals_per_s=sum(sample.arrived for sample in seen) / seconds,
        in_flight=_over_time(seen, [sample.in_flight for sample in seen], seconds),
        queued=_over_time(seen, [sample.queued for sample in seen], seconds),
        kv=_mean([use for sample in seen for use in sample.kv]),
        gpu=_mean([use for sample in seen for use in sample.gpu]),
    )


def tail_s(counts: Iterable[Counts], share: float) -> float | None:
    """The edge that this share of the latencies is below; None where there are too few to have a tail."""
    merged: dict[float, int] = {}
    for each in counts:
        for edge_s, count in each:
            merged[edge_s] = merged.get(edge_s, 0) + count
    total = sum(merged.values())
    if total < LATENCIES_MIN:
        return None
    edges_s = sorted(merged)
    below = accumulate(merged[edge_s] for edge_s in edges_s)
    return next(edge_s for edge_s, count in zip(edges_s, below, strict=True) if count >= share * total)


def _over_time(seen: Sequence[LoadSample], values: Sequence[int], seconds: float) -> float:
    return (
        sum(value * (sample.end_s - sample.start_s) for value, sample in zip(values, seen, strict=True))
        / seconds
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
