"""May this deployment be offered? Its acceptance path, step by step, each with figures against bounds stated before."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, leaves
from headrace.core.slo import Slo
from headrace.core.verdicts import Verdict
from headrace.core.workload import Workload
from headrace.evidence.certify_subject import Owned, Subject
from headrace.policies import certification
from headrace.policies.certification import Bounds, Figure, StepReport


class NotMade(HeadraceError):
    """The step doesn't fit what is certified; that says nothing against it."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked. More takes longer and shows more.

    Attributes:
        trials: Of what is tried again and again: cancellations, repeated prompts.
        pairs: Prompts of a probe of times, primed and unseen.
        samples: Requests that a share or a quantile is judged by, at least.
        load_s: Of normal load, at least; its best and an overload are measured for a third of it, at least.
        blocks, block_requests: Between two looks at the memory.
        is_short: Said on the card.
    """

    trials: int
    pairs: int
    samples: int
    load_s: float
    blocks: int
    block_requests: int
    is_short: bool = False


# 160 requests show that 95 % are in time though three of them aren't.
FULL = Size(trials=6, pairs=6, samples=160, load_s=45.0, blocks=11, block_requests=100)
QUICK = Size(trials=3, pairs=6, samples=150, load_s=4.0, blocks=10, block_requests=40, is_short=True)


@dataclass(frozen=True, slots=True)
class Terms:
    """How a certification is made.

    Attributes:
        slo: What is promised of it under normal load.
        completes_slo: What that leaves out is promised by what the service does with all slots busy.
        workload: What is asked under every load; its own arrivals only say how they come, not how many.
        rate_per_s: Of normal load; 0 takes `load_share` of what the service does at its best.
        cases: The acceptance set; a file or a name that `evidence.cases.find` knows.
        data: Where uses of that set are recorded.
        step_limit_s, limit_s: For one step, and for all; what isn't made by then could not be made.
    """

    slo: Slo
    workload: Workload
    completes_slo: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    size: Size = FULL
    rate_per_s: float = 0.0
    load_share: float = 0.5
    cases: str = "document-assistant"
    data: Path | None = None
    actor: str = ""
    seed: int = 1
    step_limit_s: float = 400.0
    limit_s: float = 900.0


@dataclass
class Stage:
    """One step under way.

    State: `figures` and `notes`, what it has found so far.

    Attributes:
        known: What earlier steps have measured, by name, such as the best pace.
    """

    subject: Subject
    terms: Terms
    known: dict[str, float]
    progress: Callable[[str], None]
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def bounds(self) -> Bounds:
        return self.terms.bounds

    @property
    def size(self) -> Size:
        return self.terms.size

    @property
    def clock(self) -> Clock:
        return self.subject.clock

    @property
    def here(self) -> Owned:
        return self.subject.here

    def add(self, *figures: Figure) -> None:
        self.figures.extend(figures)


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: As `--only` takes it.
        question: In one line.
        bounds: Names of the bounds that it is judged by.
        make: Adds its figures to the stage.
        is_from_outside: It can be made on any OpenAI-compatible service; else it takes one of its own.
    """

    name: str
    question: str
    make: Callable[[Stage], Awaitable[None]]
    bounds: tuple[str, ...] = ()
    is_from_outside: bool = False


async def run(
    subject: Subject,
    steps: Sequence[Step],
    terms: Terms,
    *,
    known: dict[str, float],
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[StepReport, ...]:
    """Makes the steps one after the other; none of them ends the others.

    Args:
        known: Gets what steps have measured that others, and the card, go by.
    """
    until_s = subject.clock.now_s() + terms.limit_s
    reports = []
    for step in steps:
        progress(f"{step.name}: {step.question}")
        left_s = until_s - subject.clock.now_s()
        began_s = subject.clock.now_s()
        report = await _made(step, Stage(subject, terms, known, progress), left_s=left_s)
        report = msgspec.structs.replace(report, took_s=round(subject.clock.now_s() - began_s, 2))
        reports.append(report)
        verdict = report.verdict.value if report.verdict is not None else "not made"
        progress(f"{step.name}: {verdict}{': ' if report.detail else ''}{report.detail}")
    return tuple(reports)


async def _made(step: Step, stage: Stage, *, left_s: float) -> StepReport:
    report = StepReport(step.name, step.question, None)
    if stage.subject.running is None and not step.is_from_outside:
        return msgspec.structs.replace(report, detail="it takes a service of its own, not a URL")
    if stage.subject.spoilt:
        return msgspec.structs.replace(report, verdict=Verdict.ERROR, detail=stage.subject.spoilt)
    limit_s = min(stage.terms.step_limit_s, max(0.0, left_s))
    try:
        async with asyncio.timeout(limit_s):
            await step.make(stage)
    except NotMade as reason:
        return msgspec.structs.replace(report, detail=reason.message)
    except TimeoutError:
        stage.subject.is_cut = True
        return _unmade(report, stage, f"not over within {limit_s:.0f} s")
    except (HeadraceError, OSError, BaseExceptionGroup) as error:
        first = leaves(error)[0]
        if not isinstance(first, HeadraceError | OSError):
            raise
        return _unmade(report, stage, str(first))
    verdict, detail = certification.verdict(stage.figures)
    return msgspec.structs.replace(
        report, verdict=verdict, detail=detail, figures=tuple(stage.figures), notes=tuple(stage.notes)
    )


def _unmade(report: StepReport, stage: Stage, why: str) -> StepReport:
    """What it had found until then may have failed already; else nothing is known."""
    verdict, detail = certification.verdict(stage.figures)
    if verdict is not Verdict.FAIL:
        verdict, detail = Verdict.ERROR, why
    return msgspec.structs.replace(
        report, verdict=verdict, detail=detail, figures=tuple(stage.figures), notes=(*stage.notes, why)
    )
