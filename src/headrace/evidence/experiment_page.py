"""How does an experiment read? Its verdict, each level beside the baseline, and every repetition."""

from collections.abc import Iterator

from headrace.core.experiments import BASELINE, Measured
from headrace.core.verdicts import Interval, Verdict
from headrace.evidence import numbers
from headrace.evidence.page import WORDS, Section, Table, page
from headrace.evidence.plots import Axis, Intervals, Kind, Limit, Lines, Series
from headrace.policies.experiments import ArmVerdict, Contrast, ExperimentReport, Finding

NAMES = {
    Measured.TTFT_P50: "time to the first token, median",
    Measured.TTFT_P95: "time to the first token, 95th percentile",
    Measured.TPOT_P50: "time per output token, median",
    Measured.TPOT_P95: "time per output token, 95th percentile",
    Measured.TOTAL_P50: "total time, median",
    Measured.TOTAL_P95: "total time, 95th percentile",
    Measured.REQUESTS_PER_S: "whole answers a second",
    Measured.OUTPUT_TOKENS_PER_S: "output tokens a second",
}
_VERDICTS = {
    Finding.BETTER: Verdict.PASS,
    Finding.SAME: Verdict.PASS,
    Finding.WORSE: Verdict.FAIL,
    Finding.OPEN: Verdict.INCONCLUSIVE,
}


def html(report: ExperimentReport, *, command: str = "") -> str:
    """The whole page."""
    facts = [
        ("Primary", NAMES[report.metric]),
        ("Margin", numbers.share(report.margin)),
        ("Alpha", f"{numbers.share(report.alpha)} over {report.comparisons}"),
        ("Repetitions", numbers.number(len(report.repetitions))),
        ("Chosen", report.chosen),
    ]
    machine = "; ".join(f"{name} {value}" for name, value in report.environment.items())
    foot = [f"Experiment `{report.digest}`.", *([machine] if machine else [])]
    foot += [f"Made by `{command}`."] if command else []
    lead = [report.question] if report.question else []
    return page(f"Experiment: {report.name}", sections(report), lead=lead, facts=facts, foot=foot)


def sections(report: ExperimentReport) -> list[Section]:
    """In the order in which one would ask."""
    return [_verdict(report), *(_arm(report, each) for each in report.arms), _repetitions(report)]


def _verdict(report: ExperimentReport) -> Section:
    prose = [
        f"Decided by the {NAMES[report.metric]}, with {numbers.share(report.margin)} as the smallest change that matters, stated"
        f" before; {report.comparisons} comparison{'s' if report.comparisons != 1 else ''} share a chance of"
        f" {numbers.share(report.alpha)} of any wrong verdict.",
        f"To go by: `{report.chosen}`.",
    ]
    prose += [f"Left out: {each}." for each in report.void]
    rows = [
        (each.arm, each.finding, each.why, _change(each.primary), f"{each.primary.blocks}")
        for each in report.arms
    ]
    table = Table(("level", "finding", "why", f"change of the {report.metric}", "blocks"), rows, left=3)
    margin = report.margin
    limits = [Limit(0.0, "no difference"), Limit(margin, "margin"), Limit(1 / (1 + margin) - 1, "margin")]
    plot = Intervals(
        f"Change of the {NAMES[report.metric]}, against the baseline, with the margin",
        Axis("change", Kind.SHARE),
        [(each.arm, _less_one(each.primary.ratio)) for each in report.arms],
        limits,
    )
    return Section("What is found?", prose, [table], [plot] if rows else [], report.verdict, report.says)


def _arm(report: ExperimentReport, found: ArmVerdict) -> Section:
    rows = [
        (
            NAMES[each.metric],
            _figure(report, BASELINE.name, each),
            _figure(report, found.arm, each),
            _change(each),
        )
        for each in (found.primary, *found.others)
    ]
    table = Table(
        ("what", "baseline", found.arm, "change"),
        rows,
        "The first decides. The others are for the reader, with the same bounds; figures are medians of the repetitions.",
        left=1,
    )
    failures = found.failures
    prose = [
        f"Without a whole answer: {numbers.share(failures.measure.estimate)} more of its requests than of the baseline's"
        f" (of {failures.candidate_samples:,} and {failures.control_samples:,})."
    ]
    if found.quality is not None:
        measure = found.quality.measure
        prose.append(
            f"Cases: {numbers.share(measure.estimate)} more right answers"
            f" ({numbers.share(measure.low)} to {numbers.share(measure.high)}), of {found.quality.candidate_samples:,} cases."
        )
    # The verdict in words begins so already.
    says = found.why.removeprefix(f"{WORDS[Verdict.INCONCLUSIVE]}: ")
    return Section(found.arm, prose, [table], (), _VERDICTS[found.finding], says)


def _repetitions(report: ExperimentReport) -> Section:
    rows = [
        (
            f"{each.block}",
            each.arm,
            _value(report.metric, each.figures.get(report.metric)),
            f"{each.intended:,}",
            f"{each.unsuccessful:,}",
            "void" if each.void else "",
        )
        for each in report.repetitions
    ]
    columns = ("block", "level", str(report.metric), "intended", "without an answer", "")
    plots = []
    if rows:
        arms = list(dict.fromkeys(each.arm for each in report.repetitions))
        series = [Series(arm, list(_points(report, arm))) for arm in arms]
        kind = Kind.SECONDS if report.metric.is_better_lower else Kind.NUMBER
        plots.append(Lines("By block", Axis("block"), Axis(NAMES[report.metric], kind), series))
    return Section("Every repetition", (), [Table(columns, rows)] if rows else [], plots)


def _points(report: ExperimentReport, arm: str) -> Iterator[tuple[float, float | None]]:
    for each in report.repetitions:
        if each.arm == arm:
            yield each.block, None if each.void else each.figures.get(report.metric)


def _figure(report: ExperimentReport, arm: str, contrast: Contrast) -> str:
    values = sorted(
        value
        for each in report.repetitions
        if each.arm == arm and not each.void and (value := each.figures.get(contrast.metric)) is not None
    )
    return _value(contrast.metric, values[(len(values) - 1) // 2] if values else None)


def _value(metric: Measured, value: float | None) -> str:
    return numbers.seconds(value) if metric.is_better_lower else numbers.number(value)


def _change(contrast: Contrast) -> str:
    ratio = _less_one(contrast.ratio)
    if ratio.estimate is None:
        return "-"
    low, high = ("open" if bound is None else _signed(bound) for bound in (ratio.low, ratio.high))
    return f"{_signed(ratio.estimate)} ({low} to {high})"


def _signed(value: float) -> str:
    return f"{value * 100:+.1f} %"


def _less_one(ratio: Interval) -> Interval:
    return Interval(*(None if each is None else each - 1 for each in (ratio.estimate, ratio.low, ratio.high)))
