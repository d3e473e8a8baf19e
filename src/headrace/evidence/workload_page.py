"""How does a workload read? What it says in words, and what it comes to in tables and plots."""

from collections.abc import Iterator, Sequence

from headrace.core.workload import ArrivalKind, Arrivals, LengthKind, Lengths, Workload
from headrace.evidence.numbers import number, share
from headrace.evidence.page import Section, Table
from headrace.evidence.plots import Axis, Kind, Lines, Series, Shape
from headrace.policies import lengths
from headrace.policies.length_fit import LengthFit
from headrace.policies.workload_fit import WorkloadFit
from headrace.policies.workload_summary import Spread, WorkloadSummary


def sections(workload: Workload, summary: WorkloadSummary) -> list[Section]:
    """What the file means, in order: when, how long, what is shared, what it comes to."""
    return [
        Section(
            "Arrivals",
            [arrivals(workload.arrivals), *_ends(workload)],
            [_rates(summary)],
            _over_time(summary),
        ),
        Section(
            "Lengths",
            ["Of the requests that are planned, in tokens."],
            [_spreads(summary)],
            _distributions(summary),
        ),
        Section("In common", list(_common(workload)), [_totals(summary)]),
    ]


def arrivals(of: Arrivals) -> str:
    """One sentence."""
    says = _kind(of)
    if of.modulation:
        says += f"; the rate itself varies by {share(of.modulation)}, anew every {number(of.modulation_s)} s"
    if of.busy_s and of.idle_s:
        says += f"; {number(of.busy_s)} s busy, then {number(of.idle_s)} s at {share(of.idle_share)} of that"
    return f"{says}."


def _kind(of: Arrivals) -> str:
    rate = f"{number(of.rate_per_s)} per second"
    match of.kind:
        case ArrivalKind.POISSON:
            return f"{rate}, independent of each other"
        case ArrivalKind.GAMMA:
            return f"{rate} in bursts: gaps vary by {number(of.burstiness)} times their mean"
        case ArrivalKind.CONSTANT:
            return f"{rate}, at equal distances"
        case ArrivalKind.DIURNAL:
            return f"{rate} over {number(of.period_s)} s, {share(of.swing)} fewer at the start and more in the middle"
        case ArrivalKind.RAMP:
            return f"{rate}, rising to {number(of.rate_end_per_s)} within {number(of.ramp_s)} s"
        case ArrivalKind.TRACE:
            return f"As `{of.file}` says" + (f", at {rate}" if of.rate_per_s is not None else "")
        case ArrivalKind.CLOSED:
            return (
                f"{of.concurrency} callers, each of whom asks again {number(of.think_s)} s after the answer"
            )


def length(of: Lengths) -> str:
    """One phrase."""
    bounds = f", from {number(of.minimum)} to {number(of.maximum)}"
    match of.kind:
        case LengthKind.CONSTANT:
            return f"always {number(of.value)}"
        case LengthKind.UNIFORM:
            return f"uniform{bounds}"
        case LengthKind.LOGNORMAL:
            return f"lognormal, median {number(of.median)}, sigma {number(of.sigma or 0.0)}{bounds}"
        case LengthKind.EMPIRICAL:
            return f"by {len(of.quantiles)} quantiles, median {number(lengths.quantile(of, 0.5))}"


def _ends(workload: Workload) -> Iterator[str]:
    limits = [f"{number(workload.duration_s)} s"] if workload.duration_s else []
    limits += [f"{number(workload.requests_max)} requests"] if workload.requests_max else []
    if limits:
        yield f"It ends after {' or '.join(limits)}."
    if workload.deadline_s:
        yield f"An answer is of no use after {number(workload.deadline_s)} s."


def _common(workload: Workload) -> Iterator[str]:
    prefixes, turns, cancel = workload.prefixes, workload.turns, workload.cancel
    if prefixes.system_tokens:
        yield f"All prompts begin with the same {number(prefixes.system_tokens)} tokens."
    if prefixes.tokens is not None:
        skew = f", the n-th in proportion to n ** -{number(prefixes.skew)}" if prefixes.skew else ""
        yield (
            f"{share(prefixes.share)} of the conversations are about one of {number(prefixes.groups)} shared texts{skew};"
            f" their lengths are {length(prefixes.tokens)}."
        )
    if lengths.mean(turns.count) > 1:
        yield (
            f"Conversations have {number(lengths.mean(turns.count))} turns on average, {number(turns.gap_s)} s apart;"
            f" what is added with each is {length(turns.tokens)}."
        )
    if cancel.after_tokens is not None:
        yield f"{share(cancel.share)} of the callers leave, after {number(cancel.after_tokens)} tokens on average."
    elif cancel.after_s is not None:
        yield f"{share(cancel.share)} of the callers leave, after {number(cancel.after_s)} s on average."


def _rates(summary: WorkloadSummary) -> Table:
    rows = [["requests", number(summary.requests)], ["conversations", number(summary.conversations)]]
    if summary.duration_s is not None:
        rows.append(["time", f"{number(summary.duration_s)} s"])
    if summary.rate_per_s is not None and summary.peak_per_s is not None:
        rows.append(["requests per second", number(summary.rate_per_s)])
        rows.append([f"in the busiest {number(summary.span_s)} s", number(summary.peak_per_s)])
    return Table(("planned", ""), rows, left=1)


def _over_time(summary: WorkloadSummary) -> list[Lines]:
    if summary.span_s is None:
        return []
    span_s = summary.span_s
    points = [(index * span_s, count / span_s) for index, count in enumerate(summary.spans)]
    points.append((len(points) * span_s, points[-1][1]))
    return [
        Lines(
            f"Requests over time, by {number(span_s)} s",
            Axis("from the start", Kind.SECONDS),
            Axis("requests per second"),
            [Series("rate", points)],
            Shape.STEPS,
        )
    ]


def _spreads(summary: WorkloadSummary) -> Table:
    named = (
        ("prompt", summary.input_tokens),
        ("of it, not shared", summary.own_tokens),
        ("answer", summary.output_tokens),
    )
    return Table(
        ("tokens", "mean", "p50", "p90", "p99", "least", "most"),
        [(name, *_cells(spread)) for name, spread in named],
        left=1,
    )


def _cells(spread: Spread) -> tuple[str, ...]:
    values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.least, spread.most)
    return tuple(map(number, values))


def _distributions(summary: WorkloadSummary) -> list[Lines]:
    named = (("prompt", summary.input_tokens), ("answer", summary.output_tokens))
    return [
        Lines(
            "How many are at most that long",
            Axis("tokens", is_log=True),
            Axis("share", Kind.SHARE, low=0.0, high=1.0),
            [
                Series(
                    name,
                    [(float(at), step / (len(of.quantiles) - 1)) for step, at in enumerate(of.quantiles)],
                )
                for name, of in named
            ],
            Shape.STEPS,
        )
    ]


def _totals(summary: WorkloadSummary) -> Table:
    rows = [
        ["prompt tokens", number(summary.input_total)],
        ["of them shared, or said before", share(summary.shared)],
        ["answer tokens", number(summary.output_total)],
    ]
    if summary.duration_s:
        rows.append(["prompt tokens per second", number(summary.input_total / summary.duration_s)])
        rows.append(["answer tokens per second", number(summary.output_total / summary.duration_s)])
    rows.append(["shared texts that are asked about", number(summary.groups)])
    rows.append(["answers that are streamed", share(summary.streamed)])
    rows.append(["callers who leave", share(summary.cancelled)])
    return Table(("in all", ""), rows, left=1)


# What was fitted


def fit_sections(found: WorkloadFit) -> list[Section]:
    """What was seen, and how well the workload describes it."""
    seen = found.arrivals
    windows = [
        (f"{window} s", number(seen.dispersion[window]), number(seen.peak[window]))
        for window in seen.dispersion
    ]
    shared = [] if found.reuse is None else [
        f"{share(found.reuse)} of the prompts' blocks were there before, in the same place."
    ]  # fmt: skip
    correlation = (
        "" if found.correlation is None else f" Their logarithms' correlation is {found.correlation:+.2f}."
    )
    return [
        Section(
            "Arrivals",
            [
                f"{number(seen.requests)} requests, {number(seen.rate_per_s)} per second; gaps vary by {number(seen.gap_cv)} times"
                f" their mean. As a workload: {arrivals(seen.chosen)}"
            ],
            [Table(("window", "variance / mean", "peak / mean"), windows, left=0)] if windows else [],
        ),
        Section(
            "Lengths",
            [f"KS is the greatest distance to the lognormal distribution.{correlation}"],
            [
                Table(
                    ("tokens", "requests", "mu", "sigma", "KS", "as a workload"),
                    [
                        _fit_row("prompt", found.input_tokens),
                        _fit_row("answer", found.output_tokens),
                    ],
                )
            ],
        ),
        Section("In common", [*shared, *_common(found.workload)] or ["Nothing that the trace tells."]),
        *([Section("To know", found.notes)] if found.notes else []),
    ]


def _fit_row(name: str, of: LengthFit) -> Sequence[str]:
    return (name, number(of.samples), f"{of.mu:.2f}", f"{of.sigma:.2f}", f"{of.ks:.3f}", length(of.chosen))
