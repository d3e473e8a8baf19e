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


class Look(msgspec.Struct, frozen=True):
    """Which use of an acceptance set it is.

    Attributes:
        number: Of the same set for the same decision, 1 the first: what it may be wrong with depends on it.
        earlier: Uses of the same set on this family of models before this one, for whatever decision.
    """

    number: int
    earlier: int


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
        prompting: How it was shown the cases, where that isn't as they are.
    """

    model: str
    revisions: tuple[str, ...]
    tally: Tally
    share: Interval
    misses: dict[str, int] = {}
    errors: dict[str, int] = {}
    cut: int = 0
    prompting: str = ""

    @property
    def label(self) -> str:
        """Its name, and how it was asked: a model may be compared with itself, asked otherwise."""
        return f"{self.model} ({self.prompting})" if self.prompting else self.model


class Stratum(msgspec.Struct, frozen=True):
    """The same by language, by category or by kind of check; shares with Clopper and Pearson's bounds.

    Attributes:
        by: `check` counts the answers that pass the checks of a kind, whatever else is wrong with them.
        name: Of a sealed set, what has too few cases to be shown apart is `others`.
        difference: The candidate's share less the accepted one's, by Tango's interval. No part of the verdict: of many
            of them one is far off by chance.
    """

    by: str
    name: str
    candidate: Tally
    accepted: Tally | None = None
    share: Interval | None = None
    accepted_share: Interval | None = None
    difference: Interval | None = None


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


class Calibration(msgspec.Struct, frozen=True):
    """A judge beside rules that can't be mistaken: answers that both have graded, by who found them right."""

    both_right: int
    judge_only: int
    rules_only: int
    both_wrong: int
    agreement: Interval
    kappa: float | None


class JudgeFound(msgspec.Struct, frozen=True):
    """What a judge was, and how far it can be believed.

    Attributes:
        name: The model and its revision.
        prompt: Digest of all that it is asked with: another prompt is another judge.
        problem: Why its opinions can't count, or "".
        asked: Answers that it was asked about, each twice, in two orders of the parts of the prompt.
        disagreed: Of them, those where its two words differ; unclear: where one was neither of the words it may say.
    """

    name: str
    prompt: str
    problem: str = ""
    asked: int = 0
    disagreed: int = 0
    unclear: int = 0
    calibration: Calibration | None = None


class Preferred(msgspec.Struct, frozen=True):
    """Which of two answers the judge finds better, each pair shown in both orders.

    Attributes:
        ties: It says so; swayed: it preferred a place and not an answer, which says nothing.
    """

    candidate: int = 0
    accepted: int = 0
    ties: int = 0
    swayed: int = 0
    errors: int = 0


class QualityReport(msgspec.Struct, frozen=True):
    """The whole of it.

    Attributes:
        verdict: None where nothing was asked but to measure.
        detail: The verdict in a sentence.
        comparison: With the accepted model, on the same cases; `p` is McNemar's exact one, one-sided.
        floor: Against a fixed share.
        judge: The judge model and its revision, "" where none was asked; `judged`: how far it can be believed.
        preferred: Which answers it finds better, where that was asked. No part of the verdict.
        purpose: What it was run for, as whoever ran it says.
        began_s: Unix seconds.
        cases: Only of a tuning set, or of an acceptance set that was unsealed.
        look: Which use of an acceptance set it is; None of a tuning set.
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
    look: Look | None = None
    judged: JudgeFound | None = None
    preferred: Preferred | None = None
