"""Is a model good enough, and not worse than another? What the answers to a set of cases show, errors included.

A case that couldn't be asked is neither right nor wrong. Left out it would flatter a model that fails on what is hard, counted
as wrong it would blame it for somebody's network: so the verdict is worked out for both ways that the missing answers could have
been, and holds only where they agree. Otherwise the check was not made: an error.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from headrace.core.verdicts import Interval, Judgement, Reason, Verdict
from headrace.policies import pairs, proportions
from headrace.policies.pairs import Pairs
from headrace.policies.proportions import Share


class SetKind(StrEnum):
    """Tuning: for whoever improves prompts and models, to be looked at. Acceptance: for the decision alone."""

    TUNING = "tuning"
    ACCEPTANCE = "acceptance"


class Mark(StrEnum):
    """What became of a case."""

    RIGHT = "right"
    WRONG = "wrong"
    ERROR = "error"


class Tally(msgspec.Struct, frozen=True):
    """Cases by their marks."""

    right: int = 0
    wrong: int = 0
    errors: int = 0

    @property
    def share(self) -> float | None:
        """Right ones of those that were answered."""
        answered = self.right + self.wrong
        return self.right / answered if answered else None


def tally(marks: Iterable[Mark]) -> Tally:
    """Counts them."""
    listed = list(marks)
    return Tally(*(listed.count(mark) for mark in Mark))


def judge_pairs(
    candidate: Sequence[Mark], accepted: Sequence[Mark], *, margin: float, alpha: float
) -> Judgement:
    """Is the candidate not worse than the accepted model on the same cases? See pairs.judge.

    Args:
        candidate, accepted: Marks in the same order of cases.
        margin: How much smaller its share of right answers may be; stated before the answers are seen.
    """
    both = list(zip(candidate, accepted, strict=True))
    answered = paired(candidate, accepted)
    found = pairs.judge(answered, margin=margin, alpha=alpha)
    if answered.cases == len(both):
        return found
    worst = _pairs((_if(mine, Mark.WRONG), _if(its, Mark.RIGHT)) for mine, its in both)
    best = _pairs((_if(mine, Mark.RIGHT), _if(its, Mark.WRONG)) for mine, its in both)
    return _settled(found, *(pairs.judge(each, margin=margin, alpha=alpha) for each in (worst, best)))


def paired(candidate: Sequence[Mark], accepted: Sequence[Mark]) -> Pairs:
    """Cases that both have answered, by who got them right."""
    both = zip(candidate, accepted, strict=True)
    return _pairs(pair for pair in both if Mark.ERROR not in pair)


def judge_floor(marks: Sequence[Mark], *, floor: float, alpha: float) -> Judgement:
    """Is the share of right answers at least `floor`, as far as so many cases can show it?"""
    counted = tally(marks)
    found = _above(Share(counted.wrong, counted.right + counted.wrong), floor, alpha)
    if not counted.errors:
        return found
    worst = _above(Share(counted.wrong + counted.errors, len(marks)), floor, alpha)
    best = _above(Share(counted.wrong, len(marks)), floor, alpha)
    return _settled(found, worst, best)


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several conditions that must all hold: what is refuted is, whatever else couldn't be told."""
    order = (Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.PASS)
    return min(verdicts, key=order.index, default=Verdict.PASS)


def _settled(found: Judgement, worst: Judgement, best: Judgement) -> Judgement:
    if worst.verdict is best.verdict:
        return msgspec.structs.replace(found, verdict=worst.verdict, reason=worst.reason)
    return msgspec.structs.replace(found, verdict=Verdict.ERROR, reason=Reason.NOT_MADE)


def _if(mark: Mark, missing: Mark) -> Mark:
    return missing if mark is Mark.ERROR else mark


def _pairs(marks: Iterable[tuple[Mark, Mark]]) -> Pairs:
    listed = list(marks)
    return Pairs(
        both=listed.count((Mark.RIGHT, Mark.RIGHT)),
        candidate_only=listed.count((Mark.RIGHT, Mark.WRONG)),
        accepted_only=listed.count((Mark.WRONG, Mark.RIGHT)),
        neither=listed.count((Mark.WRONG, Mark.WRONG)),
    )


def _above(wrong: Share, floor: float, alpha: float) -> Judgement:
    found = proportions.judge_against_limit(wrong, limit=1.0 - floor, alpha=alpha, needs_proof=True)
    measure = found.measure
    right = Interval(
        *(None if each is None else 1.0 - each for each in (measure.estimate, measure.high, measure.low))
    )
    return msgspec.structs.replace(found, measure=right, limit=floor)
