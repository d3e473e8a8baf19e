"""Are the answers good enough? The sealed set of cases, put to the service as `headrace eval` does it."""

from headrace.core.verdicts import Verdict
from headrace.evidence import cases as case_files
from headrace.evidence import quality
from headrace.evidence.asking import Asker
from headrace.evidence.certify import NotMade, Stage
from headrace.evidence.uses import UseLog
from headrace.policies.certification import ALPHA, Figure, Sense, told
from headrace.policies.quality import SetKind

DEADLINE_S = 60.0
# Cases that nobody had time for are told as that, instead of ending the step amid its requests.
_TIME_SHARE = 0.9
# What the card tells of it; `share` is what was answered rightly.
QUALITY = ("share", "at_least", "at_most", "cases", "floor")


async def reach_floor(stage: Stage) -> None:
    """The acceptance set, whose cases are never shown; its use is recorded before the first question."""
    terms = stage.terms
    if terms.data is None:
        raise NotMade("there is no data directory in which the use of an acceptance set could be recorded")
    cases = case_files.load(
        case_files.find(terms.cases, SetKind.ACCEPTANCE, data=terms.data), expected=SetKind.ACCEPTANCE
    )
    if case_files.needs_judge(cases.cases):
        raise NotMade(f"{cases.label} has cases that take a judge")
    floor = stage.bounds.quality_floor
    log = UseLog(terms.data, actor=terms.actor, clock=stage.clock)
    log.begin(cases, models=[stage.subject.model], purpose="certify", is_unsealed=False)
    asked = stage.subject.judge or stage.subject.owner
    report = await quality.run(
        cases,
        candidate=Asker(
            asked.url,
            asked.model,
            key=asked.key,
            deadline_s=DEADLINE_S,
            clock=stage.clock,
            ca_file=stage.subject.ca_file,
        ),
        accepted=None,
        terms=quality.Terms(floor=floor or None, alpha=ALPHA, limit_s=_TIME_SHARE * terms.step_limit_s),
        clock=stage.clock,
        purpose="certify",
    )
    log.end(cases, report)
    found, share = report.candidate, report.candidate.share
    answered = found.tally.right + found.tally.wrong
    stage.subject.judged += report.set.cases
    stage.subject.answered += answered
    told_of = (share.estimate, share.low, share.high, report.set.cases, floor)
    stage.known.update(
        {name: value for name, value in zip(QUALITY, told_of, strict=True) if value is not None}
    )
    stage.add(
        told("cases", report.set.cases),
        told("not answered", found.tally.errors),
        Figure(
            "answered rightly",
            share.estimate,
            "",
            Sense.AT_LEAST,
            floor or None,
            (report.verdict or Verdict.ERROR) if floor else None,
            share.low,
            share.high,
            answered,
        ),
    )
    stage.notes.append(f"{cases.label}, {report.set.digest}")
    stage.notes.append(report.detail)
    if not floor:
        stage.notes.append("no floor was stated: the share is told and not judged")
