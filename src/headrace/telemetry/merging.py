"""What do several processes count together? Metrics as plain values, and the sum of many of them."""

from collections.abc import Collection, Iterable

import msgspec

from headrace.telemetry.families import Distribution, Kind, Merge, Value
from headrace.telemetry.metrics import Metrics


class Series(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One series: its value, or for a histogram the sum and the count of each bucket."""

    labels: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


MetricsState = dict[str, list[Series]]
"""Every series that holds anything, by family."""


def state_of(metrics: Metrics, *, names: Collection[str] | None = None) -> MetricsState:
    """A copy of everything, or of the families of these names, as values."""
    return {
        family.spec.name: [_series(labels, child) for labels, child in family.series()]
        for family in metrics.families()
        if names is None or family.spec.name in names
    }


def add(total: Metrics, state: MetricsState, *, with_gauges: bool) -> None:
    """Adds the state to the total: counters and histograms sum up, gauges as their row of the table says.

    Args:
        with_gauges: False for a process that is gone: what it counted stays true, what it showed doesn't.
    """
    for family in total.families():
        spec = family.spec
        if spec.kind is Kind.GAUGE and not with_gauges:
            continue
        for series in state.get(spec.name, ()):
            child = family.labels(*series.labels)
            if isinstance(child, Distribution):
                child.sum += series.value
                child.counts = [a + b for a, b in zip(child.counts, series.counts, strict=True)]
            elif spec.merge is Merge.SUM:
                child.value += series.value
            else:
                child.value = max(child.value, series.value)


def merged(states: Iterable[MetricsState]) -> Metrics:
    """One table for all of them."""
    total = Metrics()
    for state in states:
        add(total, state, with_gauges=True)
    return total


def _series(labels: tuple[str, ...], child: Value | Distribution) -> Series:
    if isinstance(child, Distribution):
        return Series(labels, float(child.sum), tuple(child.counts))
    return Series(labels, float(child.value))  # some are set to a truth value
