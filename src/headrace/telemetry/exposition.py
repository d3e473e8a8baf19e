"""How does Prometheus read our metrics? Families to the text format, through prometheus_client."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import assert_never

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from headrace.telemetry.families import Distribution, Family, Kind, Value
from headrace.telemetry.merging import MetricsState, merged, state_of
from headrace.telemetry.metrics import Metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Exposition:
    """The scrape of one Metrics object, plus `process_*` (memory, CPU time, open files) of this process.

    Args:
        elsewhere: What other processes of the service have counted, asked at every scrape and added.
    """

    def __init__(self, metrics: Metrics, *, elsewhere: Callable[[], Sequence[MetricsState]] = tuple) -> None:
        self._metrics = metrics
        self._elsewhere = elsewhere
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(self._whole))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """The text of one scrape. Never twice at once: scrape callbacks write series of their own."""
        self._metrics.fill()
        return generate_latest(self._registry)

    def _whole(self) -> Metrics:
        others = self._elsewhere()
        return merged([state_of(self._metrics), *others]) if others else self._metrics


class _Collector:
    def __init__(self, metrics: Callable[[], Metrics]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for family in self._metrics().families():
            yield _exposed(family)


def _exposed(family: Family[Value] | Family[Distribution]) -> Metric:
    spec = family.spec
    exposed: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    match spec.kind:
        case Kind.COUNTER:
            exposed = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
        case Kind.GAUGE:
            exposed = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
        case Kind.HISTOGRAM:
            exposed = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        case _:
            assert_never(spec.kind)
    for labels, child in family.series():
        if isinstance(child, Distribution):
            assert isinstance(exposed, HistogramMetricFamily)
            exposed.add_metric(labels, _cumulative(child), sum_value=child.sum)
        else:
            assert not isinstance(exposed, HistogramMetricFamily)
            exposed.add_metric(labels, child.value)
    return exposed


def _cumulative(child: Distribution) -> list[tuple[str, float]]:
    # One copy of the counts, so that +Inf, which becomes the count, is exactly their sum.
    bounds = [*(str(float(bound)) for bound in child.bounds), "+Inf"]
    return list(zip(bounds, accumulate(child.counts.copy()), strict=True))
