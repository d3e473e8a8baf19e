"""What does each target have to do, and how does it fare? Counted here as requests come and end; reported and shown in metrics."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from headrace.core.fleet import Deployment, FleetSnapshot
from headrace.core.ids import TargetKey
from headrace.core.load import EDGES_S, Histogram, PlaneLoad, ReplicaUse, TargetLoad
from headrace.policies.deployment import QueueView
from headrace.policies.tickets import ReplicaKey, ReplicaSlots
from headrace.telemetry.families import Distribution
from headrace.telemetry.families import Histogram as HistogramFamily
from headrace.telemetry.metrics import Metrics

GONE_MAX = 16  # targets that are no longer offered, and whose counts are still reported


class Running(Protocol):
    """Who knows what waits and runs at this moment: gateway.dispatch.Dispatch."""

    @property
    def version(self) -> int: ...
    def in_flight(self) -> Mapping[TargetKey, int]: ...
    def queue(self, target: TargetKey) -> QueueView: ...
    def all_slots(self) -> Iterable[tuple[ReplicaKey, ReplicaSlots]]: ...


class Loads:
    """Owner of every TargetLoad of this process.

    State: `_offered`, the targets of the snapshot; `_gone`, those of before, the newest last; `_past`, by name, what
    metrics show of targets that were dropped.
    """

    def __init__(self) -> None:
        self._loads: dict[TargetKey, TargetLoad] = {}
        self._offered: set[TargetKey] = set()
        self._gone: OrderedDict[TargetKey, None] = OrderedDict()
        self._past: dict[str, TargetLoad] = {}

    def arrived(self, deployment: Deployment, target: TargetKey) -> TargetLoad:
        """A request has come to that target."""
        load = self._loads.get(target)
        if load is None:
            load = self._open(deployment)
        load.arrived += 1
        return load

    def of(self, deployment: Deployment, target: TargetKey) -> TargetLoad:
        """What is counted of that target."""
        return self._loads.get(target) or self._open(deployment)

    def counts(self) -> Iterator[TargetLoad]:
        """What was counted, and nothing of this moment; to be looked at and not kept."""
        yield from self._loads.values()

    def publish(self, snapshot: FleetSnapshot) -> None:
        """What is offered is reported from now on, and of the rest what was there last."""
        for key in self._offered - snapshot.deployments.keys():
            self._gone[key] = None
        self._offered = set(snapshot.deployments)
        for key, deployment in snapshot.deployments.items():
            self._gone.pop(key, None)
            load = self._loads.get(key)
            if load is None:
                self._open(deployment)
            else:
                load.revision = deployment.revision
        for key in list(self._gone)[: max(0, len(self._gone) - GONE_MAX)]:
            self._drop(key)

    def report(self, running: Running, *, also: Iterable[TargetLoad] = ()) -> PlaneLoad:
        """All of it at this moment, and no view of what goes on changing; `also` was counted elsewhere of the same targets."""
        more = {load.target: load for load in also}
        in_flight = running.in_flight()
        for key, load in self._loads.items():
            queue = running.queue(key) if key in self._offered else None
            load.queued = 0 if queue is None else queue.length
            load.wait_s = 0.0 if queue is None else queue.wait_s
            load.in_flight = in_flight.get(key, 0)
        return PlaneLoad(
            running.version,
            [
                load.copy() if load.target not in more else load.plus(more[load.target])
                for load in self._loads.values()
            ],
            [
                ReplicaUse(replica, generation, slots.outstanding)
                for (replica, generation), slots in running.all_slots()
            ],
        )

    def fill(self, metrics: Metrics) -> None:
        """The histograms that are by name and no finer than ours."""
        loads = [*self._past.values(), *self._loads.values()]
        _fill(metrics.ttft_seconds, ((load.name, load.ttft) for load in loads))
        _fill(metrics.itl_seconds, ((load.name, load.itl) for load in loads))
        _fill(metrics.queue_wait_seconds, ((load.name, load.queue_wait) for load in loads))

    def _open(self, deployment: Deployment) -> TargetLoad:
        load = self._loads[deployment.key] = TargetLoad(
            target=deployment.key, name=deployment.name, revision=deployment.revision
        )
        if deployment.key not in self._offered:
            self._gone[deployment.key] = None
        return load

    def _drop(self, key: TargetKey) -> None:
        """A target that has been gone for long; what still runs on it counts for nobody."""
        del self._gone[key]
        load = self._loads.pop(key)
        past = self._past.setdefault(load.name, TargetLoad(target=load.name, name=load.name, revision=""))
        past.ttft = past.ttft.plus(load.ttft)
        past.itl = past.itl.plus(load.itl)
        past.queue_wait = past.queue_wait.plus(load.queue_wait)


def _fill(family: HistogramFamily, histograms: Iterable[tuple[str, Histogram]]) -> None:
    totals: dict[int, tuple[Distribution, Histogram]] = {}
    for name, histogram in histograms:
        series = family.labels(name)  # of names beyond the family's bound the same one
        _, total = totals.get(id(series), (series, Histogram()))
        totals[id(series)] = (series, total.plus(histogram))
    for series, total in totals.values():
        series.counts = _counts(total, series.bounds)
        series.sum = total.sum_s


def _counts(histogram: Histogram, bounds: tuple[float, ...]) -> list[int]:
    """The same in wider buckets, each of which ends at an edge of ours."""
    counts = [0] * (len(bounds) + 1)
    index = 0
    for edge_s, count in zip((*EDGES_S, float("inf")), histogram.counts, strict=False):
        while index < len(bounds) and edge_s > bounds[index]:
            index += 1
        counts[index] += count
    return counts
