"""What do several processes count together? Metrics as plain values, and the sum of many of them."""

from collections.abc import Callable, Collection, Sequence

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


def forget_minima(metrics: Metrics) -> None:
    """For who doesn't set the gauges of which the smallest is shown: what nobody sets must not be it."""
    for family in metrics.families():
        if family.spec.merge is Merge.MIN:
            family.remove()


def add(total: Metrics, state: MetricsState) -> None:
    """Adds what was counted, which stays true when its process is gone; gauges are left out: what they showed doesn't."""
    for family in total.families():
        if family.spec.kind is Kind.GAUGE:
            continue
        for series in state.get(family.spec.name, ()):
            child = family.labels(*series.labels)
            if isinstance(child, Distribution):
                child.sum += series.value
                child.counts = [a + b for a, b in zip(child.counts, series.counts, strict=True)]
            else:
                child.value += series.value


def merged(states: Sequence[MetricsState]) -> Metrics:
    """One table for all of them: counters and histograms sum up, gauges as their row of the table says."""
    total = Metrics()
    for state in states:
        add(total, state)
    for family in total.families():
        if family.spec.kind is Kind.GAUGE:
            for labels, values in _values(family.spec.name, states).items():
                child = family.labels(*labels)
                assert isinstance(child, Value), "a gauge is one value"
                child.set(_MERGED[family.spec.merge](values))
    return total


_MERGED: dict[Merge, Callable[[list[float]], float]] = {Merge.SUM: sum, Merge.MAX: max, Merge.MIN: min}


def _values(family: str, states: Sequence[MetricsState]) -> dict[tuple[str, ...], list[float]]:
    """What each of them shows, by label values."""
    found: dict[tuple[str, ...], list[float]] = {}
    for state in states:
        for series in state.get(family, ()):
            found.setdefault(series.labels, []).append(series.value)
    return found


def _series(labels: tuple[str, ...], child: Value | Distribution) -> Series:
    if isinstance(child, Distribution):
        return Series(labels, float(child.sum), tuple(child.counts))
    return Series(labels, float(child.value))  # some are set to a truth value
