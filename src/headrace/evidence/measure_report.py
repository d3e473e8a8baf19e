"""How does a measurement read? A capacity record as sections: what it can do, level by level, its pace, memory and quality."""

from collections.abc import Iterator, Sequence

from headrace.core.capacity import (
    Bound,
    CapacityRecord,
    Level,
    MemoryUse,
    Pace,
    QualityUnderLoad,
    Quantiles,
    Saturation,
)
from headrace.core.verdicts import Interval, Verdict
from headrace.evidence.numbers import number, seconds, share
from headrace.evidence.page import Section, Table
from headrace.evidence.plots import Axis, Kind, Limit, Lines, Series
from headrace.policies import proportions
from headrace.policies.proportions import Share

_MIB = 1 << 20
_HOUR_S = 3600
_BOUNDS = {
    Bound.THROUGHPUT: "more callers brought no more results",
    Bound.LATENCY: "more callers would break the promise",
    Bound.FAILURES: "more callers were refused, or failed",
    Bound.NONE: "no end was shown: it can do at least this",
}


def sections(record: CapacityRecord) -> list[Section]:
    """The whole of it."""
    return [
        _capacity(record),
        *(_levels(record, found.shape) for found in record.saturation),
        *([_pace(record.pace)] if record.pace is not None else []),
        _memory(record.memory),
        *([_quality(record.quality)] if record.quality is not None else []),
    ]


def facts(record: CapacityRecord) -> list[tuple[str, str]]:
    """What the record holds for."""
    hardware = record.hardware
    known = [
        ("model", record.model),
        ("revision", record.digest),
        ("runtime", record.runtime),
        ("hardware", f"{hardware.cpu}, {hardware.cores} cores, {hardware.memory_bytes / _MIB:,.0f} MiB"),
        ("GPUs", ", ".join(hardware.gpus)),
        ("slots", str(record.slots)),
        ("engine", ", ".join(f"{name} {value}" for name, value in record.flags.items())),
        ("took", seconds(record.took_s)),
    ]
    return [(name, value) for name, value in known if value]


def _capacity(record: CapacityRecord) -> Section:
    proven = bool(record.saturation) and all(found.is_proven for found in record.saturation)
    if not record.saturation:
        return Section(
            "Capacity", verdict=Verdict.ERROR, says="nothing was measured before the time was over"
        )
    first = record.saturation[0]
    return Section(
        "Capacity",
        tuple(_confirmed(record)),
        (
            Table(
                ("lengths", "callers", "requests/s", "tokens/s", "one request", "because"),
                [_row(found) for found in record.saturation],
                caption="With the fewest callers that get about all there is; bounds are wrong with a chance of at most 5 % each.",
            ),
        ),
        verdict=Verdict.PASS if proven else Verdict.INCONCLUSIVE,
        says=f"{_between(first.requests_per_s)} requests per second of {first.shape}, with {first.concurrency} at once",
    )


def _row(found: Saturation) -> tuple[str, ...]:
    return (
        found.shape,
        str(found.concurrency),
        _between(found.requests_per_s),
        _between(found.output_tokens_per_s),
        seconds(found.service_s),
        _BOUNDS[found.bound],
    )


def _between(found: Interval) -> str:
    if found.low is None or found.high is None:
        return number(found.estimate)
    return f"{number(found.estimate)} ({number(found.low)} to {number(found.high)})"


def _confirmed(record: CapacityRecord) -> Iterator[str]:
    for found in record.saturation:
        if found.confirmed_rate_per_s is not None:
            yield (
                f"Of {found.shape}, {number(found.confirmed_rate_per_s)} requests per second were kept up with that came"
                " whenever they liked, without waiting for each other."
            )
        elif any(level.rate_per_s for level in record.levels if level.shape == found.shape):
            yield f"Of {found.shape}, no rate that was tried was kept up with by callers who don't wait for each other."


def _levels(record: CapacityRecord, shape: str) -> Section:
    levels = [level for level in record.levels if level.shape == shape]
    closed = sorted(
        (level for level in levels if level.concurrency and not level.quality_asked),
        key=lambda level: level.concurrency,
    )
    knee = next(found for found in record.saturation if found.shape == shape)
    rate = Lines(
        f"Results per second, {shape}",
        Axis("callers", is_log=True),
        Axis("requests/s"),
        [
            Series(
                "requests/s",
                [(level.concurrency, level.requests_per_s) for level in closed],
                [_band(level.throughput) for level in closed],
            )
        ],
        limits=[Limit(knee.requests_per_s.estimate or 0.0, "capacity")],
    )
    times = Lines(
        f"How long a request takes, {shape}",
        Axis("callers", is_log=True),
        Axis("time", Kind.SECONDS),
        [
            Series("first token, 95 %", [(level.concurrency, level.ttft.p95.estimate) for level in closed]),
            Series("whole answer, 95 %", [(level.concurrency, level.total.p95.estimate) for level in closed]),
        ],
    )
    return Section(
        f"Level by level: {shape}",
        tables=(
            Table(
                (
                    "load",
                    "requests/s",
                    "tokens/s",
                    "done",
                    "not done",
                    "first token",
                    "per token",
                    "whole",
                    "memory",
                ),
                [_level_row(level) for level in levels],
                caption="Times are those that half and 95 of 100 requests don't exceed; - is what so few can't show.",
                left=1,
            ),
        ),
        plots=(rate, times),
    )


def _band(found: Interval) -> tuple[float, float] | None:
    return None if found.low is None or found.high is None else (found.low, found.high)


def _level_row(level: Level) -> tuple[str, ...]:
    load = f"{level.concurrency} callers" if level.concurrency else f"{number(level.rate_per_s)} per s"
    if level.quality_asked:
        load += ", and cases"
    return (
        f"{load}, held out" if level.is_held_out else load,
        number(level.requests_per_s),
        number(level.output_tokens_per_s),
        str(level.completed),
        str(level.failed),
        _times(level.ttft),
        _times(level.tpot),
        _times(level.total),
        f"{level.memory_bytes / _MIB:,.0f} MiB" if level.memory_bytes else "-",
    )


def _times(found: Quantiles) -> str:
    """Half and 95 %; the latter only where an upper bound of it can be shown at all."""
    tail = found.p95.estimate if found.p95.high is not None else None
    return f"{seconds(found.p50.estimate)}, {seconds(tail)}"


def _pace(found: Pace) -> Section:
    prompt = "; what a longer prompt adds can't be told from these lengths"
    if found.prefill_tokens_per_s:
        prompt = f" and the prompt at {number(found.prefill_tokens_per_s)} tokens/s"
    rows = [
        (metric, share(found.errors.get(metric)), share(found.held_out_errors.get(metric)))
        for metric in ("ttft", "tpot", "total", "requests_per_s")
    ]
    return Section(
        "Pace, for simulations",
        (
            f"First token: {seconds(found.overhead_s)}{prompt}."
            f" Each further token: {seconds(found.step_s)}, and {seconds(found.step_per_active_s)} for each request at once.",
        ),
        (
            Table(
                ("metric", "error of the fit", "of the level held out"),
                rows,
                caption="The first is the root of the mean square; the second has its sign, positive where more is said than was measured.",
            ),
        ),
    )


def _memory(found: MemoryUse) -> Section:
    if not found.samples:
        return Section("Memory", ("The engine's processes could not be seen from here.",))
    slope, verdict = found.slope_bytes_per_s, Verdict.INCONCLUSIVE
    says = f"constant load was held for {seconds(found.held_s)}, too short to tell whether it grows"
    if slope.estimate is not None and slope.low is not None and slope.high is not None:
        per_hour = [value * _HOUR_S / _MIB for value in (slope.estimate, slope.low, slope.high)]
        says = (
            f"at constant load {per_hour[0]:+,.1f} MiB per hour ({per_hour[1]:+,.1f} to {per_hour[2]:+,.1f})"
        )
        allowed = max(_GROWTH_MAX * found.peak_bytes, _GROWTH_MAX_BYTES)
        verdict = Verdict.FAIL if slope.low * _HOUR_S > allowed else Verdict.PASS
    rows = [(name, f"{size / _MIB:,.0f}") for name, size in found.planned.items()]
    rows += [("planned in all", f"{found.planned_bytes / _MIB:,.0f}")] if rows else []
    rows += [("at rest", f"{found.idle_bytes / _MIB:,.0f}"), ("most", f"{found.peak_bytes / _MIB:,.0f}")]
    beside = ""
    if found.planned_bytes:
        beside = f"The most was {share(found.peak_bytes / found.planned_bytes)} of what was planned."
    return Section(
        "Memory", (beside,) if beside else (), (Table(("MiB", ""), rows),), verdict=verdict, says=says
    )


_GROWTH_MAX, _GROWTH_MAX_BYTES = 0.01, 16 * _MIB
"""What may surely be added in an hour before it is called growth, as a share of the most that was seen, and at least: caches fill,
and libraries keep pools."""


def _quality(found: QualityUnderLoad) -> Section:
    judged = found.judgement
    rows = [
        ("at rest", *_right(found.idle_right, found.cases - found.idle_errors), str(found.idle_errors)),
        (
            "beside the load",
            *_right(found.loaded_right, found.cases - found.loaded_errors),
            str(found.loaded_errors),
        ),
    ]
    change = judged.measure
    prose = (
        f"Of the {number(found.cases)} cases, {number(found.idle_only)} were right at rest alone and"
        f" {number(found.loaded_only)} beside the load alone: a difference of {_points(change.estimate)}"
        f" ({_points(change.low)} to {_points(change.high)}).",
    )
    return Section(
        "Quality, at rest and beside the load",
        prose,
        (
            Table(
                ("", "right", "bounds", "not answered"),
                rows,
                caption="The verdict goes by the cases that changed, and not by these two shares.",
                left=1,
            ),
        ),
        verdict=judged.verdict,
        says=f"{_CHANGES[judged.verdict]} {share(-judged.limit)}",
    )


_CHANGES = {
    Verdict.PASS: "beside the load it is not worse by more than",
    Verdict.FAIL: "beside the load it is worse, by more than",
    Verdict.INCONCLUSIVE: "so few cases don't show whether it is worse beside the load by more than",
    Verdict.ERROR: "too much was not answered to say whether it is worse by more than",
}


def _right(right: int, answered: int) -> tuple[str, str]:
    bounds = proportions.exact(Share(right, answered), alpha=0.05)
    return f"{number(right)} of {number(answered)}", f"{share(bounds.low)} to {share(bounds.high)}"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} points"


def listed(kept: Sequence[tuple[int, CapacityRecord]], when: Sequence[str]) -> Table:
    """One line for each record."""
    return Table(
        ("number", "model", "revision", "runtime", "slots", "requests/s", "lengths", "measured"),
        [_listed_row(number_, record, at) for (number_, record), at in zip(kept, when, strict=True)],
    )


def _listed_row(number_: int, record: CapacityRecord, when: str) -> tuple[str, ...]:
    first = record.saturation[0] if record.saturation else None
    return (
        str(number_),
        record.model,
        record.digest.removeprefix("sha256:")[:12] or "-",
        record.runtime or "-",
        str(record.slots),
        "-" if first is None else _between(first.requests_per_s),
        "-" if first is None else first.shape,
        when,
    )
