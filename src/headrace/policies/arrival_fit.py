"""Which arrivals have gaps and busy minutes like these? Gamma gaps, at a rate that changes slowly.

Gaps alone don't make the minutes of a real service as different from each other as they are.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from headrace.core.workload import SPAN_MIN_S, ArrivalKind, Arrivals

_LEVEL_S = 60.0
_WINDOWS_MIN = 20
_MODULATION_LEAST = 0.05


class ArrivalFit(msgspec.Struct, frozen=True):
    """What describes arrivals.

    Attributes:
        gap_cv: Standard deviation of the gaps over their mean; the chosen burstiness is what is left of it when the slow changes
            of the rate are taken out.
        dispersion: Variance of the requests in a window over their mean, by the window's length; 1 at any length is Poisson.
        peak: Most requests in a window over their mean.
        together: Share that came in the same moment as the one before.
    """

    requests: int
    rate_per_s: float
    gap_cv: float
    dispersion: Mapping[str, float]
    peak: Mapping[str, float]
    together: float
    chosen: Arrivals


def fit(times_s: Sequence[float]) -> ArrivalFit:
    """Gaps of one burstiness, at a rate that changes from one level to the next. Raises ValueError for fewer than three moments.

    With levels of a coefficient of variation m that hold long, the mean of 1 / rate over arrivals is (1 + m^2) / mean rate, so
    1 + cv^2 of all gaps = (1 + burstiness^2) (1 + m^2). The requests of a window as long as a level vary by m^2 and, as those of
    any renewal process, by burstiness^2 / mean of their number (D. R. Cox, Renewal Theory, section 3.3). Two equations for two
    unknowns.
    """
    span_s = times_s[-1] - times_s[0] if times_s else 0.0
    if len(times_s) < 3 or span_s <= 0.0:
        raise ValueError("arrivals need at least three requests, and not all at once")
    gaps = [after - before for before, after in pairwise(times_s)]
    rate = len(gaps) / span_s
    gap_cv = math.sqrt(math.fsum((gap - 1.0 / rate) ** 2 for gap in gaps) / len(gaps)) * rate
    level_s = min(_LEVEL_S, span_s / _WINDOWS_MIN)
    counts = _counts(times_s, level_s)
    # In a trace of a moment nothing changes slowly.
    burstiness, modulation = _apart(gap_cv, counts) if level_s >= SPAN_MIN_S else (gap_cv, 0.0)
    dispersion, peak = {}, {}
    for window_s in (1.0, 10.0, 60.0):
        windows = _counts(times_s, window_s)
        if len(windows) >= _WINDOWS_MIN:
            mean, variance = _moments(windows)
            dispersion[f"{window_s:g}"] = variance / mean
            peak[f"{window_s:g}"] = max(windows) / mean
    return ArrivalFit(
        len(times_s),
        rate,
        gap_cv,
        dispersion,
        peak,
        sum(gap == 0.0 for gap in gaps) / len(gaps),
        _chosen(rate, burstiness, modulation, level_s),
    )


def _chosen(rate: float, burstiness: float, modulation: float, level_s: float) -> Arrivals:
    rate = float(f"{rate:.4g}")
    kind = ArrivalKind.GAMMA
    if burstiness < 0.05:
        kind = ArrivalKind.CONSTANT
    elif abs(burstiness - 1.0) < 0.05:
        kind = ArrivalKind.POISSON
    return Arrivals(
        kind,
        rate_per_s=rate,
        burstiness=round(min(100.0, max(0.1, burstiness)), 2) if kind is ArrivalKind.GAMMA else 1.0,
        modulation=round(modulation, 2),
        modulation_s=float(f"{level_s:.3g}") if modulation else _LEVEL_S,
    )


def _counts(times_s: Sequence[float], window_s: float) -> list[int]:
    """Requests of each whole window."""
    begin_s = times_s[0]
    windows = int((times_s[-1] - begin_s) / window_s)
    counted = Counter(int((at_s - begin_s) / window_s) for at_s in times_s)
    return [counted[window] for window in range(windows)]


def _moments(counts: Sequence[int]) -> tuple[float, float]:
    mean = sum(counts) / len(counts)
    return mean, math.fsum((count - mean) ** 2 for count in counts) / len(counts)


def _apart(gap_cv: float, counts: Sequence[int]) -> tuple[float, float]:
    """What of the gaps' variation is burstiness, and what is the rate's."""
    mean, variance = _moments(counts)
    spread = variance / (mean * mean)
    # Whether the windows differ by more than such gaps alone would make them, and by more than so few windows show of it.
    by_gaps = gap_cv**2 / mean
    if spread <= by_gaps * (1.0 + 2.0 * math.sqrt(2.0 / len(counts))):
        return gap_cv, 0.0
    low, high = 0.0, spread
    for _ in range(60):
        slow = (low + high) / 2.0
        fast = max(0.0, (1.0 + gap_cv**2) / (1.0 + slow) - 1.0)
        low, high = (slow, high) if slow + fast / mean < spread else (low, slow)
    fast = max(0.0, (1.0 + gap_cv**2) / (1.0 + low) - 1.0)
    return (math.sqrt(fast), math.sqrt(low)) if low > _MODULATION_LEAST**2 else (gap_cv, 0.0)
