"""How good is a model on a set of cases, and is it as good as another? Asks, grades, and sums up.

Both models of a comparison are asked each case close together, in turns first and second: what changes with time changes for both.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.core.clock import Clock
from headrace.core.verdicts import Judgement, Reason, Verdict
from headrace.evidence import cases as case_files
from headrace.evidence.asking import Asker, Reply
from headrace.evidence.cases import Case, CaseSet
from headrace.evidence.judging import Judge
from headrace.policies import grading, pairs, proportions, quality
from headrace.policies.proportions import Share
from headrace.policies.quality import Mark, SetKind, Tally
from headrace.policies.quality_report import CaseFound, ModelFound, QualityReport, SetUsed, Stratum

TIME_LIMIT = "time_limit"
CONCURRENCY_MAX = 256


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
    """One answer, and what it is worth. `misses` has every check that it failed."""

    reply: Reply
    mark: Mark
    misses: tuple[str, ...] = ()


_UNANSWERED = Graded(Reply(error=TIME_LIMIT), Mark.ERROR)


@dataclass(slots=True)
class _Run:
    """One run in progress; `found` has an entry for each model, in the order of the cases."""

    cases: CaseSet
    models: Sequence[Asker]
    judge: Judge | None
    progress: Callable[[int, int], None]
    found: list[list[Graded]] = field(default_factory=list)
    done: int = 0

    def __post_init__(self) -> None:
        self.found = [[_UNANSWERED] * len(self.cases.cases) for _ in self.models]

    async def go_through(self, concurrency: int) -> None:
        work = iter(self._work())
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._work_off(work))

    def _work(self) -> Iterator[tuple[int, int]]:
        """Every case with every model; who is asked first changes from case to case."""
        order = list(range(len(self.models)))
        for number in range(len(self.cases.cases)):
            yield from ((number, model) for model in order)
            order.reverse()

    async def _work_off(self, work: Iterator[tuple[int, int]]) -> None:
        for number, model in work:
            case = self.cases.cases[number]
            reply = await self.models[model].ask(
                case_files.messages(case, self.cases.header), output_tokens_max=case.output_tokens_max
            )
            self.found[model][number] = await _graded(case, reply, self.judge)
            self.done += 1
            self.progress(self.done, len(self.cases.cases) * len(self.models))


async def run(
    cases: CaseSet,
    *,
    candidate: Asker,
    accepted: Asker | None,
    terms: Terms,
    clock: Clock,
    judge: Judge | None = None,
    is_open: bool = False,
    purpose: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> QualityReport:
    """Asks every case of one model, or of two, and reports.

    Args:
        is_open: Put every case with its answer into the report: a tuning set, or one that was unsealed.
    """
    going = _Run(cases, [candidate] if accepted is None else [candidate, accepted], judge, progress)
    began_s, began_wall_s = clock.now_s(), clock.wall_s()
    try:
        async with asyncio.timeout(terms.limit_s):
            await going.go_through(min(terms.concurrency, CONCURRENCY_MAX))
    except TimeoutError:
        pass  # what has no answer yet stays an error
    report = _report(cases, going.models, going.found, terms=terms, judge=judge, is_open=is_open)
    return msgspec.structs.replace(
        report, purpose=purpose, began_s=began_wall_s, took_s=round(clock.now_s() - began_s, 3)
    )


async def _graded(case: Case, reply: Reply, judge: Judge | None) -> Graded:
    if reply.error:
        return Graded(reply, Mark.ERROR)
    misses = [
        miss.value
        for check in case.checks
        if (miss := grading.grade(check, reply.text, case.given)) is not None
    ]
    for check in case.checks:
        # Whoever runs cases that need a judge has one; a wrong answer needs no opinion on top.
        if isinstance(check, grading.Judged) and not misses and judge is not None:
            opinion = await judge.opinion(case, reply.text, rubric=check.rubric)
            if opinion.error:
                return Graded(msgspec.structs.replace(reply, error=f"judge {opinion.error}"), Mark.ERROR)
            misses += [] if opinion.is_right else [grading.Miss.JUDGED_WRONG.value]
    return Graded(reply, Mark.WRONG if misses else Mark.RIGHT, tuple(misses))


def _report(
    cases: CaseSet,
    models: Sequence[Asker],
    found: list[list[Graded]],
    *,
    terms: Terms,
    judge: Judge | None,
    is_open: bool,
) -> QualityReport:
    marks = [[graded.mark for graded in each] for each in found]
    described = [_described(model, each, terms.alpha) for model, each in zip(models, found, strict=True)]
    comparison = floor = None
    if len(marks) == 2 and terms.margin is not None:
        comparison = quality.judge_pairs(*marks, margin=terms.margin, alpha=terms.alpha)
    if terms.floor is not None:
        floor = quality.judge_floor(marks[0], floor=terms.floor, alpha=terms.alpha)
    verdict, detail = _verdict(described, comparison, floor, judge)
    header = cases.header
    return QualityReport(
        verdict=verdict,
        detail=detail,
        set=SetUsed(header.name, header.set, header.version, header.digest, len(cases.cases)),
        candidate=described[0],
        accepted=described[1] if len(described) == 2 else None,
        comparison=comparison,
        p=round(_p(marks), 6) if comparison is not None else None,
        floor=floor,
        strata=tuple(_strata(cases.cases, marks)),
        judge=judge.name if judge is not None else "",
        cases=tuple(_open(cases.cases, found)) if is_open or header.set is SetKind.TUNING else (),
    )


def _described(model: Asker, found: list[Graded], alpha: float) -> ModelFound:
    counted = quality.tally(graded.mark for graded in found)
    answered = counted.right + counted.wrong
    return ModelFound(
        model=model.model,
        revisions=tuple(sorted({graded.reply.revision for graded in found if graded.reply.revision})),
        tally=counted,
        share=proportions.exact(Share(counted.right, answered), alpha=alpha),
        misses=dict(Counter(graded.misses[0] for graded in found if graded.misses)),
        errors=dict(Counter(graded.reply.error for graded in found if graded.mark is Mark.ERROR)),
        cut=sum(graded.reply.is_cut for graded in found),
    )


def _p(marks: list[list[Mark]]) -> float:
    both = [pair for pair in zip(*marks, strict=True) if Mark.ERROR not in pair]
    return pairs.worse_p(
        pairs.Pairs(0, both.count((Mark.RIGHT, Mark.WRONG)), both.count((Mark.WRONG, Mark.RIGHT)), 0)
    )


def _verdict(
    described: list[ModelFound], comparison: Judgement | None, floor: Judgement | None, judge: Judge | None
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
    return f"{found.model} {counted.right} of {answered} right{errors}"


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


def _strata(cases: Sequence[Case], marks: list[list[Mark]]) -> Iterator[Stratum]:
    for by, name_of in (("language", _language_of), ("category", _category_of)):
        for name in sorted({name_of(case) for case in cases}):
            tallies = [_tally_of(each, [name_of(case) == name for case in cases]) for each in marks]
            yield Stratum(by, name, *tallies)


def _language_of(case: Case) -> str:
    return case.language


def _category_of(case: Case) -> str:
    return case.category


def _tally_of(marks: Iterable[Mark], belongs: Iterable[bool]) -> Tally:
    return quality.tally(mark for mark, is_in in zip(marks, belongs, strict=True) if is_in)


def _open(cases: Sequence[Case], found: list[list[Graded]]) -> Iterator[CaseFound]:
    for case, *graded in zip(cases, *found, strict=True):
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
