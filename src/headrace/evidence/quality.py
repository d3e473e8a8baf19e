"""How good is a model on a set of cases, and is it as good as another? Asks, grades, and sums up.

Both models of a comparison are asked each case close together, in turns first and second: what changes with time changes for both.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.core.clock import Clock
from headrace.evidence import cases as case_files
from headrace.evidence import quality_found
from headrace.evidence.asking import Asker, Reply
from headrace.evidence.cases import Case, CaseSet
from headrace.evidence.judging import Choice, Judge
from headrace.evidence.prompting import PLAIN, Prompting
from headrace.evidence.quality_found import Answers, Graded, Terms
from headrace.policies import grading
from headrace.policies.grading import Check, Miss
from headrace.policies.quality import Mark
from headrace.policies.quality_report import Preferred, QualityReport

__all__ = ["CONCURRENCY_MAX", "TIME_LIMIT", "Terms", "run"]

TIME_LIMIT = "time_limit"
CONCURRENCY_MAX = 256
_UNANSWERED = Graded(Reply(error=TIME_LIMIT), Mark.ERROR)


@dataclass(slots=True)
class _Run:
    """One run in progress; `found` has an entry for each model, in the order of the cases."""

    cases: CaseSet
    models: Sequence[Asker]
    prompting: Sequence[Prompting]
    judge: Judge | None
    is_calibrated: bool
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
            shown = await self.prompting[model].prompt(case, self.cases.header)
            reply = Reply(error=shown.error)
            if not shown.error:
                reply = await self.models[model].ask(shown.messages, output_tokens_max=case.output_tokens_max)
            graded = await _graded(case, reply, self.judge)
            if self.is_calibrated and self.judge is not None and not case_files.needs_judge([case]):
                await self._calibrate(self.judge, case, graded)
            self.found[model][number] = graded
            self.done += 1
            self.progress(self.done, len(self.cases.cases) * len(self.models))

    async def _calibrate(self, judge: Judge, case: Case, graded: Graded) -> None:
        if graded.mark is not Mark.ERROR:
            await judge.compare_with_rules(case, graded.reply.text, is_right=graded.mark is Mark.RIGHT)

    async def compare_answers(self, judge: Judge) -> Preferred:
        """Which model's answers the judge finds better, case by case."""
        counts: Counter[Choice] = Counter()
        for case, mine, its in zip(self.cases.cases, *self.found, strict=True):
            if Mark.ERROR not in (mine.mark, its.mark):
                counts[await judge.preference(case, mine.reply.text, its.reply.text)] += 1
        return Preferred(*(counts[choice] for choice in Choice))


async def run(
    cases: CaseSet,
    *,
    candidate: Asker,
    accepted: Asker | None,
    terms: Terms,
    clock: Clock,
    judge: Judge | None = None,
    prompting: Prompting = PLAIN,
    is_calibrated: bool = False,
    asks_preference: bool = False,
    is_open: bool = False,
    purpose: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> QualityReport:
    """Asks every case of one model, or of two, and reports.

    Args:
        prompting: How the candidate is shown a case; the accepted one is shown it as it is.
        is_calibrated: Have the judge grade what rules have graded too, and report how far they agree.
        asks_preference: Have the judge say which of two answers is better, in both orders.
        is_open: Put every case with its answer into the report: a tuning set, or one that was unsealed.
    """
    models = [candidate] if accepted is None else [candidate, accepted]
    going = _Run(cases, models, (prompting, PLAIN), judge, is_calibrated, progress)
    preferred = None
    began_s, began_wall_s = clock.now_s(), clock.wall_s()
    try:
        async with asyncio.timeout(terms.limit_s):
            await going.go_through(min(terms.concurrency, CONCURRENCY_MAX))
            if asks_preference and judge is not None and accepted is not None:
                preferred = await going.compare_answers(judge)
    except TimeoutError:
        pass  # what has no answer yet stays an error
    found = [
        Answers(model.model, prompts.label, graded)
        for model, prompts, graded in zip(models, going.prompting, going.found, strict=False)
    ]
    judged = judge.found() if judge is not None else None
    report = quality_found.report(cases, found, terms=terms, judge=judged, is_open=is_open)
    return msgspec.structs.replace(
        report,
        preferred=preferred,
        purpose=purpose,
        began_s=began_wall_s,
        took_s=round(clock.now_s() - began_s, 3),
    )


async def _graded(case: Case, reply: Reply, judge: Judge | None) -> Graded:
    if reply.error:
        return Graded(reply, Mark.ERROR)
    misses: list[str] = []
    checks: dict[str, Mark] = {}

    def count(check: Check, miss: Miss | None) -> None:
        kind = grading.kind_of(check)
        if miss is not None:
            misses.append(miss.value)
            checks[kind] = Mark.WRONG
        checks.setdefault(kind, Mark.RIGHT)

    for check in case.checks:
        if not isinstance(check, grading.Judged):
            count(check, grading.grade(check, reply.text, case.given))
    for check in case.checks:
        # Whoever runs cases that need a judge has one; a wrong answer needs no opinion on top.
        if isinstance(check, grading.Judged) and not misses and judge is not None:
            opinion = await judge.opinion(case, reply.text, rubric=check.rubric)
            if opinion.error:
                return Graded(msgspec.structs.replace(reply, error=f"judge {opinion.error}"), Mark.ERROR)
            count(check, None if opinion.is_right else Miss.JUDGED_WRONG)
    return Graded(reply, Mark.WRONG if misses else Mark.RIGHT, tuple(misses), checks)
