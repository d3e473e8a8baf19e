"""How far do two graders agree, beyond what chance alone would make of it?"""

from headrace.policies import proportions
from headrace.policies.proportions import Share
from headrace.policies.quality_report import Calibration


def kappa(both_yes: int, only_first: int, only_second: int, both_no: int) -> float | None:
    """Cohen's kappa: the agreement above what their own shares of yes would give by chance, of what there could be.

    1 is full agreement, 0 what chance gives. None where both always say the same one thing: chance alone would do that too.

    Source: J. Cohen, Educational and Psychological Measurement 20 (1960) 37.
    """
    total = both_yes + only_first + only_second + both_no
    if not total:
        return None
    first, second = (both_yes + only_first) / total, (both_yes + only_second) / total
    expected = first * second + (1 - first) * (1 - second)
    found = (both_yes + both_no) / total
    return (found - expected) / (1 - expected) if expected < 1 else None


def calibration(
    both_right: int, judge_only: int, rules_only: int, both_wrong: int, *, alpha: float = 0.05
) -> Calibration:
    """The table, the share of agreement with its bounds, and kappa."""
    total = both_right + judge_only + rules_only + both_wrong
    share = proportions.exact(Share(both_right + both_wrong, total), alpha=alpha)
    return Calibration(
        both_right,
        judge_only,
        rules_only,
        both_wrong,
        share,
        kappa(both_right, judge_only, rules_only, both_wrong),
    )
