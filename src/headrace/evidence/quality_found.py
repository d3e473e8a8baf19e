"""What do the answers to a set of cases say? Sums them up into a report that tells no more of a sealed set than it may."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.core.verdicts import Interval, Judgement, Reason, Verdict
from headrace.evidence.asking import Reply
from headrace.evidence.cases import Case, CaseSet
from headrace.policies import grading, pairs, proportions, quality
from headrace.policies.proportions import Share
from headrace.policies.quality import Mark, SetKind, Tally
from headrace.policies.quality_report import (
    CaseFound,
    JudgeFound,
    ModelFound,
    QualityReport,
    SetUsed,
    Stratum,
)

SEALED_STRATUM_MIN = 3
"""Of a sealed set a stratum of one case would say whether that case was answered rightly, and two nearly so."""
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked of the answers.

    Attributes:
        margin: Against the accepted model; floor: at all. None where that isn't asked.
        limit_s: For the whole run; what isn't answered by then is an error.
    """

    margin: float | None = None
    floor: float | None = None
    alpha: float = 0.05
    concurrency: int = 4
    limit_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Graded:
    """One answer, and what it is worth.

    Attributes:
        misses: Why it is wrong, by every check that it failed.
        checks: What each kind of check of the case found, as far as it was made.
    """

    reply: Reply
    mark: Mark
    misses: tuple[str, ...] = ()
    checks: Mapping[str, Mark] = field(default_factory=dict)

    def found_by(self, kind: str) -> Mark | None:
        """What the checks of that kind found; None where they weren't made."""
        return Mark.ERROR if self.mark is Mark.ERROR else self.checks.get(kind)


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model answered, in the order of the cases."""

    model: str
    prompting: str
    graded: Sequence[Graded]

    @property
    def marks(self) -> list[Mark]:
        return [graded.mark for graded in self.graded]


def report(
    cases: CaseSet, found: Sequence[Answers], *, terms: Terms, judge: JudgeFound | None, is_open: bool
) -> QualityReport:
    """The whole of it.

    Args:
        found: Of the candidate, and of the accepted model if there is one.
        is_open: Put every case with its answer into it.
    """
    marks = [each.marks for each in found]
    described = [_described(each, terms.alpha) for each in found]
    comparison = floor = None
    if len(marks) == 2 and terms.margin is not None:
        comparison = quality.judge_pairs(*marks, margin=terms.margin, alpha=terms.alpha)
    if terms.floor is not None:
        floor = quality.judge_floor(marks[0], floor=terms.floor, alpha=terms.alpha)
    verdict, detail = _verdict(described, comparison, floor, judge)
    header = cases.header
    is_sealed = header.set is not SetKind.TUNING and not is_open
    return QualityReport(
        verdict=verdict,
        detail=detail,
        set=SetUsed(header.name, header.set, header.version, header.digest, len(cases.cases)),
        candidate=described[0],
        accepted=described[1] if len(described) == 2 else None,
        comparison=comparison,
        p=round(_p(marks), 6) if comparison is not None else None,
        floor=floor,
        strata=(
            *_strata(cases.cases, marks, alpha=terms.alpha, is_sealed=is_sealed),
            *_by_check(cases.cases, found, alpha=terms.alpha, is_sealed=is_sealed),
        ),
        judge=judge.name if judge is not None else "",
        judged=judge,
        cases=() if is_sealed else tuple(_open(cases.cases, found)),
    )


def _described(found: Answers, alpha: float) -> ModelFound:
    graded = found.graded
    counted = quality.tally(found.marks)
    return ModelFound(
        model=found.model,
        revisions=tuple(sorted({each.reply.revision for each in graded if each.reply.revision})),
        tally=counted,
        share=_share(counted, alpha),
        misses=dict(Counter(each.misses[0] for each in graded if each.misses)),
        errors=dict(Counter(each.reply.error for each in graded if each.mark is Mark.ERROR)),
        cut=sum(each.reply.is_cut for each in graded),
        prompting=found.prompting,
    )


def _share(counted: Tally, alpha: float) -> Interval:
    return proportions.exact(Share(counted.right, counted.right + counted.wrong), alpha=alpha)


def _p(marks: list[list[Mark]]) -> float:
    return pairs.worse_p(quality.paired(*marks))


def _verdict(
    described: list[ModelFound],
    comparison: Judgement | None,
    floor: Judgement | None,
    judge: JudgeFound | None,
) -> tuple[Verdict | None, str]:
    """The verdict over all that was asked, and in a sentence why."""
    for found in described:
        if len(found.revisions) > 1:
            return (
                Verdict.ERROR,
                f"{found.model} was changed while it was asked: {', '.join(found.revisions)}",
            )
    if judge is not None and judge.problem:
        return Verdict.ERROR, judge.problem
    judged = [each for each in (comparison, floor) if each is not None]
    sentences = [_counted(found) for found in described]
    if comparison is not None:
        sentences.append(_compared(comparison))
    if floor is not None:
        sentences.append(f"at least {floor.limit:.1%} right: {_words(floor)}")
    verdicts = [each.verdict for each in judged]
    if any(found.share.estimate is None for found in described):
        verdicts.append(Verdict.ERROR)  # nothing was answered at all, whatever was asked for
    return (quality.together(verdicts) if verdicts else None), "; ".join(sentences)


def _counted(found: ModelFound) -> str:
    counted = found.tally
    answered = counted.right + counted.wrong
    errors = f", {counted.errors} not answered" if counted.errors else ""
    return f"{found.label} {counted.right} of {answered} right{errors}"


def _compared(comparison: Judgement) -> str:
    words = _words(comparison)
    margin = -comparison.limit
    asked = f"not worse by more than {margin:.1%}" if margin >= 0 else f"better by {-margin:.1%}"
    if comparison.reason is Reason.INSENSITIVE:
        words += ", since a model that gets nothing right would pass too"
    elif (
        comparison.verdict is Verdict.INCONCLUSIVE
        and comparison.samples_needed > comparison.candidate_samples
    ):
        words += f", it takes about {comparison.samples_needed} cases"
    return f"{asked}: {words}"


_WORDS = {
    Verdict.PASS: "shown",
    Verdict.FAIL: "the contrary is shown",
    Verdict.INCONCLUSIVE: "not enough evidence",
    Verdict.ERROR: "it depends on cases that were not answered",
}


def _words(judged: Judgement) -> str:
    measure = judged.measure
    if measure.estimate is None or measure.low is None or measure.high is None:
        return _WORDS[judged.verdict]
    return f"{_WORDS[judged.verdict]} ({measure.estimate:.1%}, {measure.low:.1%} to {measure.high:.1%})"


def _strata(
    cases: Sequence[Case], marks: Sequence[list[Mark]], *, alpha: float, is_sealed: bool
) -> Iterator[Stratum]:
    for by, name_of in _BY.items():
        names = [name_of(case) for case in cases]
        sizes = Counter(names)
        if is_sealed:
            names = [name if sizes[name] >= SEALED_STRATUM_MIN else OTHERS for name in names]
            if 0 < names.count(OTHERS) < SEALED_STRATUM_MIN:
                continue  # what is left of all the others would tell it
        for name in sorted(set(names)):
            of_it = [[mark for mark, its in zip(each, names, strict=True) if its == name] for each in marks]
            yield _stratum(by, name, of_it, alpha)


def _by_check(
    cases: Sequence[Case], found: Sequence[Answers], *, alpha: float, is_sealed: bool
) -> Iterator[Stratum]:
    """What passes the checks of a kind, whatever else is wrong with it: of the cases that have such a check."""
    for kind in sorted({grading.kind_of(check) for case in cases for check in case.checks}):
        having = [kind in map(grading.kind_of, case.checks) for case in cases]
        rows = [
            marks
            for has_it, *graded in zip(having, *(each.graded for each in found), strict=True)
            if has_it and None not in (marks := [each.found_by(kind) for each in graded])
        ]
        if rows and not (is_sealed and len(rows) < SEALED_STRATUM_MIN):
            yield _stratum("check", kind, list(zip(*rows, strict=True)), alpha)


def _stratum(by: str, name: str, marks: Sequence[Sequence[Mark]], alpha: float) -> Stratum:
    """Of the marks of each model, case by case."""
    tallies = [quality.tally(each) for each in marks]
    shares = [_share(tally, alpha) for tally in tallies]
    if len(marks) == 1:
        return Stratum(by, name, tallies[0], share=shares[0])
    difference = pairs.difference(quality.paired(*marks), alpha=alpha)
    return Stratum(by, name, tallies[0], tallies[1], shares[0], shares[1], difference)


def _language_of(case: Case) -> str:
    return case.language


def _category_of(case: Case) -> str:
    return case.category


_BY: dict[str, Callable[[Case], str]] = {"language": _language_of, "category": _category_of}


def _open(cases: Sequence[Case], found: Sequence[Answers]) -> Iterator[CaseFound]:
    for case, *graded in zip(cases, *(each.graded for each in found), strict=True):
        shown = CaseFound(case.id, case.category, graded[0].mark, _miss(graded[0]), graded[0].reply.text)
        if len(graded) == 2:
            shown = msgspec.structs.replace(
                shown,
                accepted=graded[1].mark,
                accepted_miss=_miss(graded[1]),
                accepted_text=graded[1].reply.text,
            )
        yield shown


def _miss(graded: Graded) -> str:
    return graded.reply.error or ", ".join(graded.misses)
