"""What does a run of a set of cases say? Its report, as `headrace eval --json` prints it and a rollout reads it."""

import msgspec

from headrace.core.verdicts import Interval, Judgement, Verdict
from headrace.policies.quality import Mark, SetKind, Tally

PASSED, FAILED, OPERATOR_MUST_ACT, NOT_ENOUGH_EVIDENCE, NOT_MADE = 0, 1, 2, 3, 4
"""Exit statuses of `headrace eval`."""

STATUS = {
    Verdict.PASS: PASSED,
    Verdict.FAIL: FAILED,
    Verdict.INCONCLUSIVE: NOT_ENOUGH_EVIDENCE,
    Verdict.ERROR: NOT_MADE,
}


class SetUsed(msgspec.Struct, frozen=True):
    """Which cases these were."""

    name: str
    kind: SetKind
    version: int
    digest: str
    cases: int


class ModelFound(msgspec.Struct, frozen=True):
    """What one model did.

    Attributes:
        revisions: What its server said it ran, each once; more than one means that it was changed under the run.
        share: Right ones of the answered, with Clopper and Pearson's bounds.
        misses: Why answers were wrong, by the check that they failed first.
        errors: Why there was no answer.
        cut: Answers that ended at their limit of tokens, right or wrong.
    """

    model: str
    revisions: tuple[str, ...]
    tally: Tally
    share: Interval
    misses: dict[str, int] = {}
    errors: dict[str, int] = {}
    cut: int = 0


class Stratum(msgspec.Struct, frozen=True):
    """The same by language or by category."""

    by: str
    name: str
    candidate: Tally
    accepted: Tally | None = None


class CaseFound(msgspec.Struct, frozen=True):
    """One case; never part of a report on a sealed set."""

    id: str
    category: str
    candidate: Mark
    candidate_miss: str = ""
    candidate_text: str = ""
    accepted: Mark | None = None
    accepted_miss: str = ""
    accepted_text: str = ""


class QualityReport(msgspec.Struct, frozen=True):
    """The whole of it.

    Attributes:
        verdict: None where nothing was asked but to measure.
        detail: The verdict in a sentence.
        comparison: With the accepted model, on the same cases; `p` is McNemar's exact one, one-sided.
        floor: Against a fixed share.
        judge: The judge model and its revision, "" where none was asked.
        purpose: What it was run for, as whoever ran it says.
        began_s: Unix seconds.
        cases: Only of a tuning set, or of an acceptance set that was unsealed.
    """

    verdict: Verdict | None
    detail: str
    set: SetUsed
    candidate: ModelFound
    accepted: ModelFound | None = None
    comparison: Judgement | None = None
    p: float | None = None
    floor: Judgement | None = None
    strata: tuple[Stratum, ...] = ()
    judge: str = ""
    purpose: str = ""
    began_s: float = 0.0
    took_s: float = 0.0
    cases: tuple[CaseFound, ...] = ()
