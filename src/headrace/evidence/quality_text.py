"""How does the report of a set of cases read? As sections, for a terminal, a page or Markdown."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headrace.core.verdicts import Interval
from headrace.evidence import numbers
from headrace.evidence.page import Section, Table
from headrace.evidence.plot_axes import Axis, Kind, Limit
from headrace.evidence.plot_rows import Intervals
from headrace.policies.quality import Tally
from headrace.policies.quality_report import JudgeFound, ModelFound, QualityReport

_SHOWN_CHARACTERS = 100
_SHARE = Axis("share of answers", Kind.SHARE, low=0.0, high=1.0)
_DIFFERENCE = Axis("difference of shares", Kind.SHARE, low=-1.0, high=1.0)
_SHOWN = (("right", ("language", "category")), ("that pass a kind of check", ("check",)))


def sections(report: QualityReport, *, is_listed: bool) -> list[Section]:
    """The whole report, the verdict last.

    Args:
        is_listed: With every case and its answer, as far as the report has them.
    """
    found = [each for each in (report.candidate, report.accepted) if each is not None]
    shown = [_answers(report, found), _strata(report, found)]
    if report.judged is not None:
        shown.append(_judge(report, report.judged))
    if is_listed and report.cases:
        shown.append(_cases(report, found))
    if report.verdict is None:
        return [*shown, Section("Result", [f"measured: {report.detail}"])]
    return [*shown, Section("Result", _p(report), verdict=report.verdict, says=report.detail)]


def _answers(report: QualityReport, found: Sequence[ModelFound]) -> Section:
    used = report.set
    prose = [
        f"{used.kind} set {used.name}, version {used.version}, {used.cases} cases, in {report.took_s:.1f} s from {_begun(report)}",
        f"`{used.digest}`",
    ]
    if report.purpose:
        prose.append(f"for: {report.purpose}")
    if report.look is not None:
        look = report.look
        prose.append(
            f"look {look.number} at this set for this decision; {look.earlier} earlier uses on models of this family"
        )
    rows = [
        (
            each.label,
            *map(str, (each.tally.right, each.tally.wrong, each.tally.errors)),
            *map(numbers.share, (each.share.estimate, each.share.low, each.share.high)),
            str(each.cut),
            ", ".join(each.revisions) or "-",
        )
        for each in found
    ]
    columns = ("model", "right", "wrong", "errors", "share", "at least", "at most", "cut", "revision")
    for each in found:
        for what, counts in (("wrong", each.misses), ("errors", each.errors)):
            if counts:
                listed = ", ".join(f"{name} {count}" for name, count in counts.items())
                prose.append(f"{each.label}, {what}: {listed}")
    return Section("Answers", prose, [Table(columns, rows)])


def _strata(report: QualityReport, found: Sequence[ModelFound]) -> Section:
    columns = ["by", "", *(column for each in found for column in (each.label, "between"))]
    rows = [
        (
            each.by,
            each.name,
            *_cells(each.candidate, each.share),
            *(_cells(each.accepted, each.accepted_share) if each.accepted is not None else ()),
            *([_difference(each.difference)] if each.accepted is not None else []),
        )
        for each in report.strata
    ]
    if len(found) > 1:
        columns.append("difference")
    return Section(
        "By language, category and kind of check",
        ["by check: the answers that pass the checks of a kind, whatever else is wrong with them"],
        [Table(columns, rows, left=2)],
        list(_plots(report, found)),
    )


def _plots(report: QualityReport, found: Sequence[ModelFound]) -> Iterator[Intervals]:
    """Of one model its shares, of two what lies between them: that two bounds overlap says nothing of pairs."""
    for which, kinds in _SHOWN:
        strata = [each for each in report.strata if each.by in kinds]
        if len(found) == 1:
            shares = [(each.name, each.share) for each in strata]
            yield Intervals(f"Answers of {found[0].label} {which}", _SHARE, _known(shares))
            continue
        limits = [Limit(0.0, "no difference")]
        if report.comparison is not None:
            limits.append(Limit(report.comparison.limit, "margin"))
        differences = [(each.name, each.difference) for each in strata]
        title = f"Answers {which}: {found[0].label} less {found[1].label}"
        yield Intervals(title, _DIFFERENCE, _known(differences), limits)


def _known(rows: Sequence[tuple[str, Interval | None]]) -> list[tuple[str, Interval]]:
    return [(name, each) for name, each in rows if each is not None and each.estimate is not None]


def _cells(tally: Tally, share: Interval | None) -> tuple[str, str]:
    errors = f", {tally.errors} not answered" if tally.errors else ""
    between = "-"
    if share is not None and share.estimate is not None:
        between = f"{numbers.share(share.low)} to {numbers.share(share.high)}"
    return f"{tally.right} of {tally.right + tally.wrong}{errors}", between


def _difference(found: Interval | None) -> str:
    if found is None or found.estimate is None:
        return "-"
    return f"{found.estimate:+.1%} ({found.low:+.1%} to {found.high:+.1%})".replace("%", " %")


def _judge(report: QualityReport, judged: JudgeFound) -> Section:
    prose = [
        f"{judged.name}, prompt `{judged.prompt}`",
        f"asked about {judged.asked} answers, each twice in two orders: differed with itself on {judged.disagreed},"
        f" said nothing that counts on {judged.unclear}",
    ]
    if (beside := judged.calibration) is not None:
        total = beside.both_right + beside.judge_only + beside.rules_only + beside.both_wrong
        share = beside.agreement
        prose.append(
            f"beside the rules, on {total} answers: agreement {numbers.share(share.estimate)}"
            f" ({numbers.share(share.low)} to {numbers.share(share.high)}), kappa {numbers.number(beside.kappa)};"
            f" it passed {beside.judge_only} that the rules found wrong, and failed {beside.rules_only} that they found right"
        )
    if (said := report.preferred) is not None:
        prose.append(
            f"of two answers it preferred the candidate's {said.candidate} times, the accepted model's {said.accepted} times,"
            f" neither {said.ties} times; {said.swayed} times it preferred a place, {said.errors} times it said nothing that counts"
        )
    return Section("Judge", prose)


def _cases(report: QualityReport, found: Sequence[ModelFound]) -> Section:
    rows = []
    for case in report.cases:
        rows.append((case.id, case.category, case.candidate, _said(case.candidate_text, case.candidate_miss)))
        if case.accepted is not None:
            rows.append(("", found[1].label, case.accepted, _said(case.accepted_text, case.accepted_miss)))
    return Section("Cases", (), [Table(("case", "category", "", "answer"), rows, left=4)])


def _said(text: str, miss: str) -> str:
    """One line of it, without what a terminal would obey."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    line = line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 3] + "..."
    return f"{line} ({miss})" if miss else line


def _begun(report: QualityReport) -> str:
    return f"{datetime.fromtimestamp(report.began_s, UTC):%Y-%m-%d %H:%M} UTC"


def _p(report: QualityReport) -> list[str]:
    return [f"McNemar's exact test, one-sided: p = {report.p:.4f}"] if report.p is not None else []
