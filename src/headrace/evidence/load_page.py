"""How does a load test read? Its report as sections with tables and plots, and its records as rows."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headrace.core.load_records import LoadRecord, LoadRun, Outcome
from headrace.evidence import numbers, tables
from headrace.evidence.page import Section, Table, page
from headrace.evidence.plots import Axis, Histogram, Kind, Lines, Plot, Series, Shape
from headrace.policies.load_figures import QUANTILES, Distribution, Figure, Measure, Since, taken_s
from headrace.policies.load_report import LoadReport, Stratum

TIMELINE_BINS = 60
_NAMES = {
    Measure.TTFT: "time to the first token",
    Measure.ITL: "gap between two events",
    Measure.PAUSE: "longest gap of an answer",
    Measure.TPOT: "time per output token",
    Measure.TOTAL: "total time",
}
_SINCE = {Since.INTENDED: ", from the intended send", Since.SENT: ", from the actual send", None: ""}
_SINCE_START = Axis("since the start of the run", Kind.SECONDS)
_NOT_COLUMNS = ("gaps",)


def html(report: LoadReport, run: LoadRun, *, more: Sequence[Section] = (), command: str = "") -> str:
    """The whole page; `more` are sections of others, such as an SLO's."""
    began = datetime.fromtimestamp(run.began_at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts = [
        ("Model", report.model),
        ("Workload", f"{report.workload}, seed {report.seed}"),
        ("Intended", numbers.number(report.intended)),
        ("Whole, in time", numbers.share(report.goodput.share.estimate)),
        ("Goodput", f"{numbers.number(report.goodput.per_s)} /s"),
    ]
    foot = [*([f"Made by `{command}`."] if command else []), *_environment(run)]
    return page(
        f"Load report: {report.model}",
        [*sections(report, run), *more],
        lead=[f"{asked(run)} Measured from outside, on {began}."],
        facts=facts,
        foot=foot,
    )


def _environment(run: LoadRun) -> Iterator[str]:
    yield f"Workload `{run.digest}`."
    if run.environment:
        yield "; ".join(f"{name} {value}" for name, value in run.environment.items()) + "."


def asked(run: LoadRun) -> str:
    """Who was asked, what, and how often, in a sentence."""
    if run.is_closed:
        pace = f"{run.concurrency or 0:,} callers"
    elif run.rate_per_s is not None:
        pace = f"{numbers.number(run.rate_per_s)} requests a second"
    else:
        pace = "at the moments of its trace"
    return f"`{run.model}` at `{run.url}` was asked as the workload `{run.workload}` says, {pace}, for {numbers.seconds(run.duration_s)}."


def sections(report: LoadReport, run: LoadRun) -> list[Section]:
    """All that the report says, in the order in which one would ask."""
    records = sorted((record for record in run.records if run.window.holds(record)), key=_due_s)
    return [
        _generator(report, run),
        _requests(report, run),
        _times(report, records),
        *_by_stratum(report),
    ]


def _generator(report: LoadReport, run: LoadRun) -> Section:
    found, limits = report.generator, report.generator.limits
    late = found.lateness
    busiest = f"the busiest of {found.processes} processes" if found.processes > 1 else "its process"
    says = "; ".join(found.void) or "the generator kept up with what was intended"
    prose = [
        f"Requests were sent {numbers.seconds(late.p50_s)} late in the middle, {numbers.seconds(late.p99_s)} at the 99th"
        f" percentile (at most {numbers.seconds(limits.late_p99_s)}), {numbers.seconds(late.max_s)} at most; {busiest}"
        f" used {numbers.share(found.cpu_share)} of its core"
        f" (at most {numbers.share(limits.cpu_share)}).",
        f"Window: what was due from {numbers.seconds(report.window.from_s)} to {numbers.seconds(report.window.to_s)} of the"
        f" run. Left out: {report.before:,} requests before it and {report.after:,} after it.",
    ]
    if found.void:
        prose.insert(0, "The run is void: its figures say nothing of the service.")
    if run.is_stopped:
        prose.append("It was stopped before its end.")
    if len(report.revisions) > 1:
        prose.append(f"More than one revision answered: {', '.join(report.revisions)}.")
    return Section("Is the run sound?", prose, verdict=found.verdict, says=says)


# Requests


def _requests(report: LoadReport, run: LoadRun) -> Section:
    rates, share = report.rates, report.goodput.share
    prose = [
        f"{report.intended:,} requests were intended: {report.sent:,} sent and {report.unsent:,} unsent."
        f" {numbers.share(share.estimate)} got a whole answer in time ({_reach(share.low, share.high, numbers.share)}),"
        f" {numbers.number(report.goodput.per_s)} a second.",
        f"By second: {numbers.number(rates.intended_per_s)} requests intended, {numbers.number(rates.sent_per_s)} sent;"
        f" {numbers.number(rates.input_tokens_per_s)} input tokens ({numbers.number(rates.cached_tokens_per_s)} of them cached)"
        f" and {numbers.number(rates.output_tokens_per_s)} output tokens of whole answers.",
    ]
    if rates.uncounted:
        prose.append(
            f"Of {rates.uncounted:,} whole answers the service didn't say how many tokens they have."
        )
    rows = [
        (
            each.outcome,
            each.reason or "-",
            "yes" if each.has_retry_after else "no",
            f"{each.count:,}",
            numbers.share(each.count / report.intended),
            *(_figure(each.came.at(quantile), is_short=True) for quantile in (0.5, 0.95)),
        )
        for each in report.ended
    ]
    columns = ("outcome", "reason", "retry-after", "requests", "share", "came after, p50", "p95")
    table = Table(columns, rows, "How requests ended, from the actual send; each outcome by itself", left=3)
    return Section("What became of the requests?", prose, [table], [*_over_time(run)])


def _over_time(run: LoadRun) -> Iterator[Plot]:
    """Of the whole run: a reader sees what the window leaves out."""
    records = run.records
    end_s = max((record.ended_s for record in records), default=0.0)
    if not end_s > 0.0:
        return
    width_s = end_s / TIMELINE_BINS
    edges = [width_s * index for index in range(TIMELINE_BINS + 1)]
    rates = [
        Series(name, _rate(moments, width_s))
        for name, moments in (
            ("intended", [record.due_s for record in records]),
            ("sent", [record.sent_s for record in records if record.sent_s is not None]),
            ("completed", [record.ended_s for record in records if record.outcome is Outcome.OK]),
        )
    ]
    yield Lines("Requests by second", _SINCE_START, Axis("requests a second"), rates, Shape.STEPS)
    layers = []
    for outcome in Outcome:
        counts = _counts([record.due_s for record in records if record.outcome is outcome], width_s)
        if any(counts):
            layers.append((str(outcome), counts))
    yield Histogram("Outcomes, by when they were due", _SINCE_START, Axis("requests"), edges, layers)


def _counts(moments: Sequence[float], width_s: float) -> list[float]:
    counted = Counter(min(TIMELINE_BINS - 1, int(moment / width_s)) for moment in moments)
    return [counted[index] for index in range(TIMELINE_BINS)]


def _rate(moments: Sequence[float], width_s: float) -> list[tuple[float, float | None]]:
    counts = _counts(moments, width_s)
    steps = [(width_s * index, count / width_s) for index, count in enumerate(counts)]
    return [*steps, (width_s * TIMELINE_BINS, steps[-1][1])]


# Times


def _times(report: LoadReport, records: Sequence[LoadRecord]) -> Section:
    confidence = numbers.share(1 - 2 * report.alpha)
    prose = [
        "Of whole answers in time only; what was refused, failed, broke off, was cancelled or came late has its own row above."
        f" Nearest ranks, with {confidence} intervals that take neighbours in the queue as dependent;"
        " `too few (N of M)`: not enough samples, so many of those that this percentile needs.",
    ]
    answers = Table(
        ("what", "samples", "mean", *_names(), "longest"),
        [_row(_NAMES[each.measure] + _SINCE[each.since], each) for each in report.times if each.samples],
        "Whole answers in time",
        left=1,
    )
    everyone = Table(
        ("what", "samples", *_names(), "without an answer"),
        [
            (
                _NAMES[each.measure],
                f"{each.samples:,}",
                *map(_figure, each.figures),
                f"{each.endless:,}",
            )
            for each in report.everyone
            if each.samples
        ],
        "All that were intended but the cancelled ones, from the intended send: who got no whole answer in time waits for ever",
        left=1,
    )
    return Section(
        "How long did answers take?",
        prose,
        [table for table in (answers, everyone) if table.rows],
        [*_time_plots(records)],
    )


def _time_plots(records: Sequence[LoadRecord]) -> Iterator[Plot]:
    answers = [record for record in records if record.outcome is Outcome.OK]
    for measure in (Measure.TTFT, Measure.TOTAL):
        curves = [
            Series(
                f"from the {since} send", _cumulative([taken_s(record, measure, since) for record in answers])
            )
            for since in (Since.INTENDED, Since.SENT)
        ]
        if any(curve.points for curve in curves):
            axis = Axis(_NAMES[measure], Kind.SECONDS, is_log=True)
            share = Axis("share of the answers", Kind.SHARE, high=1.0)
            yield Lines(
                f"{_NAMES[measure].capitalize()}: how many had it by then", axis, share, curves, Shape.STEPS
            )
    spots = [
        Series(
            name,
            [
                (record.due_s, value)
                for record in answers
                if record.is_cold is is_cold
                and (value := taken_s(record, Measure.TTFT, Since.INTENDED)) is not None
            ],
        )
        for name, is_cold in (("first of its prefix, or none shared", True), ("prefix asked before", False))
    ]
    if any(spot.points for spot in spots):
        shown = [spot for spot in spots if spot.points]
        yield Lines(
            "Time to the first token over the run, from the intended send",
            Axis("when it was due", Kind.SECONDS),
            Axis("time to the first token", Kind.SECONDS),
            shown,
            Shape.DOTS,
        )


def _cumulative(values: Sequence[float | None]) -> list[tuple[float, float | None]]:
    known = sorted(value for value in values if value is not None and value > 0)
    return [(value, (index + 1) / len(known)) for index, value in enumerate(known)]


def _by_stratum(report: LoadReport) -> Iterator[Section]:
    """What has only one stratum is what the tables above have."""
    found = []
    for by in dict.fromkeys(stratum.by for stratum in report.strata):
        strata = [stratum for stratum in report.strata if stratum.by == by]
        if len(strata) > 1:
            found.append(
                Table(
                    (
                        by,
                        "intended",
                        "whole, in time",
                        "ttft p50",
                        "ttft p95",
                        "tpot p50",
                        "total p50",
                        "total p95",
                    ),
                    [_stratum(stratum) for stratum in strata],
                    left=1,
                )
            )
    if found:
        prose = [
            "From the intended send; lengths are those that were asked for, of the input as the service counted it."
        ]
        yield Section("What makes a difference?", prose, found)


def _stratum(stratum: Stratum) -> tuple[str, ...]:
    ttft, tpot, total = stratum.times
    pairs = ((ttft, 0.5), (ttft, 0.95), (tpot, 0.5), (total, 0.5), (total, 0.95))
    good = stratum.outcomes.get(Outcome.OK, 0) / stratum.intended
    figures = (_figure(times.at(quantile), is_short=True) for times, quantile in pairs)
    return (stratum.name, f"{stratum.intended:,}", numbers.share(good), *figures)


def _names() -> Iterator[str]:
    for quantile in QUANTILES:
        yield f"p{quantile * 100:g}"


def _row(name: str, times: Distribution) -> tuple[str, ...]:
    return (
        name,
        f"{times.samples:,}",
        numbers.seconds(times.mean_s),
        *map(_figure, times.figures),
        numbers.seconds(times.max_s),
    )


def _figure(figure: Figure, *, is_short: bool = False) -> str:
    """With its bounds, or why there is none."""
    if figure.is_endless:
        return "never"
    if figure.value is None:
        if not figure.worth:
            return "-"
        return "too few" if is_short else _together(f"too few ({figure.worth:,} of {figure.needed:,})")
    if is_short:
        return numbers.seconds(figure.value)
    bounds = f"({_reach(figure.low, figure.high, numbers.seconds)})"
    return f"{_together(numbers.seconds(figure.value))} {_together(bounds)}"


def _together(text: str) -> str:
    """What a cell doesn't break."""
    return text.replace(" ", "\u00a0")


def _reach(low: float | None, high: float | None, written: numbers.Writer) -> str:
    ends = ("open" if bound is None or math.isinf(bound) else written(bound) for bound in (low, high))
    return " to ".join(ends)


def _due_s(record: LoadRecord) -> float:
    return record.due_s


# Records


def records_csv(run: LoadRun) -> str:
    """One row for each record of the whole run, by the names of its fields."""
    columns = [name for name in LoadRecord.__struct_fields__ if name not in _NOT_COLUMNS]
    heading = [*columns, "gap_count", "gap_sum_s", "gap_max_s", "is_in_window"]
    return tables.csv_text(
        heading,
        (
            [
                *(getattr(record, name) for name in columns),
                *(getattr(record.gaps, name) for name in ("count", "sum_s", "max_s")),
                run.window.holds(record),
            ]
            for record in run.records
        ),
    )
