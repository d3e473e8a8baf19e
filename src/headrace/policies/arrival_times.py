"""When does the next request arrive? Gaps of one shape, stretched and squeezed by a rate that changes.

Gaps are drawn for a rate of one, and the time in which they pass runs as fast as the rate is at that moment: by the time-rescaling
theorem that is a process of the rate, and bursts keep their shape (D. R. Cox, P. A. W. Lewis, The Statistical Analysis of
Series of Events, 1966). The rate is constant in pieces, so nothing is integrated by numbers.
"""

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist

from headrace.core.chance import Chance
from headrace.core.workload import ArrivalKind, Arrivals

_DAY_PIECES = 288
_RAMP_PIECES = 200
_LEAST = 2.0**-54

Piece = tuple[float, float]
"""Until when, and the rate until then."""


def times(arrivals: Arrivals, *, chance: Chance, until_s: float = math.inf) -> Iterator[float]:
    """Seconds from the start, rising.

    Args:
        arrivals: An open loop that isn't read from a trace.
        until_s: What is later isn't asked for; some of it may come.
    """
    gap = _gaps(arrivals, chance)
    rates = pieces(arrivals, chance=chance)
    now_s = 0.0
    end_s, rate = next(rates)
    while True:
        need = gap()
        while (room := rate * (end_s - now_s)) < need:
            if end_s > until_s:
                return
            need -= room
            now_s = end_s
            end_s, rate = next(rates)
        if need:
            now_s += need / rate
        yield now_s


def pieces(arrivals: Arrivals, *, chance: Chance) -> Iterator[Piece]:
    """The rate over time: one piece after the other, without end."""
    shape, shape_s = _shape(arrivals)
    level_s = arrivals.modulation_s if arrivals.modulation else math.inf
    level = _level(arrivals.modulation, chance)
    busy_s, idle_s = arrivals.busy_s or math.inf, arrivals.idle_s or 0.0
    # How many pieces of each kind have ended: a sum of many steps would drift.
    shapes = levels = cycles = 0
    is_idle = False
    while True:
        shape_ends_s = (shapes + 1) * shape_s
        level_ends_s = (levels + 1) * level_s
        # An endless busy period is the first and the last; 0 times without end would be no number.
        cycle_began_s = cycles * (busy_s + idle_s) if cycles else 0.0
        cycle_ends_s = cycle_began_s + busy_s + (idle_s if is_idle else 0.0)
        end_s = min(shape_ends_s, level_ends_s, cycle_ends_s)
        yield end_s, shape(shapes) * level * (arrivals.idle_share if is_idle else 1.0)
        if shape_ends_s == end_s:
            shapes += 1
        if level_ends_s == end_s:
            levels, level = levels + 1, _level(arrivals.modulation, chance)
        if cycle_ends_s == end_s:
            cycles, is_idle = cycles + is_idle, not is_idle


def _shape(arrivals: Arrivals) -> tuple[Callable[[int], float], float]:
    """The rate of a numbered piece, and how long each of them is."""
    rate = arrivals.rate_per_s
    assert rate is not None, "checked with the file"
    if arrivals.kind is ArrivalKind.DIURNAL:
        swing, turn = rate * arrivals.swing, 2.0 * math.pi / _DAY_PIECES
        return lambda piece: rate - swing * math.cos(turn * (piece + 0.5)), arrivals.period_s / _DAY_PIECES
    if arrivals.kind is ArrivalKind.RAMP:
        assert arrivals.rate_end_per_s is not None, "checked with the file"
        assert arrivals.ramp_s is not None, "checked with the file"
        more = arrivals.rate_end_per_s - rate
        return (
            lambda piece: rate + more * min(1.0, (piece + 0.5) / _RAMP_PIECES),
            arrivals.ramp_s / _RAMP_PIECES,
        )
    return lambda piece: rate, math.inf


def _level(modulation: float, chance: Chance) -> float:
    """A factor of the rate: lognormal, with a mean of 1 and that standard deviation."""
    if not modulation:
        return 1.0
    variance = math.log1p(modulation * modulation)
    return math.exp(math.sqrt(variance) * _normal(chance) - variance / 2.0)


def _gaps(arrivals: Arrivals, chance: Chance) -> Callable[[], float]:
    """Draws gaps with a mean of 1."""
    if arrivals.kind is ArrivalKind.CONSTANT:
        return lambda: 1.0
    if arrivals.burstiness == 1.0:
        return lambda: -math.log(1.0 - chance.random())
    shape = arrivals.burstiness**-2
    return lambda: gamma(shape, chance) / shape


def gamma(shape: float, chance: Chance) -> float:
    """A draw of the gamma distribution with a scale of 1.

    Source: G. Marsaglia, W. W. Tsang, A simple method for generating gamma variables, ACM Transactions on Mathematical
    Software 26 (2000) 363; for shapes below 1 its section 6.
    """
    if shape < 1.0:
        return gamma(shape + 1.0, chance) * math.pow(1.0 - chance.random(), 1.0 / shape)
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = _normal(chance)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(1.0 - chance.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v


def _normal(chance: Chance) -> float:
    return _STANDARD.inv_cdf(chance.random() or _LEAST)


_STANDARD = NormalDist()
