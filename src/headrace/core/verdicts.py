"""What did a check find? One of four results, with the figures that it was judged by."""

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """Each has a budget of its own, and none stands for another.

    PASS: what was asked is so. FAIL: it is not. ERROR: the check could not be made, which says nothing of what it checks.
    INCONCLUSIVE: it was made, and there is not enough evidence either way.
    """

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    INCONCLUSIVE = "inconclusive"


class Reason(StrEnum):
    """Why a verdict is what it is."""

    SHOWN_WORSE = "shown_worse"
    SHOWN_NOT_WORSE = "shown_not_worse"
    NOT_SHOWN_WORSE = "not_shown_worse"
    TOO_FEW_SAMPLES = "too_few_samples"
    UNDECIDED = "undecided"
    INSENSITIVE = "insensitive"
    NOT_MADE = "not_made"


class Interval(msgspec.Struct, frozen=True):
    """An estimate between two bounds, each of which is wrong with at most the stated chance.

    None where the data can't bear a figure: it is not 0, and not endless either.
    """

    estimate: float | None
    low: float | None
    high: float | None


class Judgement(msgspec.Struct, frozen=True):
    """A verdict and what it rests on; plain values, which a decision log can hold.

    Attributes:
        measure: The difference or ratio that was judged, candidate against accepted.
        limit: What it was held against.
        alpha: Chance, one-sided, of a wrong verdict that was allowed.
        candidate_samples, control_samples: How many observations were behind it.
        samples_needed: About how many of the candidate's would have been enough to pass; 0 where that isn't the question.
    """

    verdict: Verdict
    reason: Reason
    measure: Interval
    limit: float
    alpha: float
    candidate_samples: int
    control_samples: int
    samples_needed: int = 0
