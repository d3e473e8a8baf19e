"""How much load will there be when a replica that is started now is ready? Two predictors, chosen by how they would have done.

The constant says that it stays as it is. The Kalman filter follows a level and a trend. Neither is right for every
deployment, so each is replayed over the deployment's own history, at the horizon that is asked about, and the one with the
smaller loss speaks. The loss is the mean absolute error of log(1 + load): an error of a factor counts the same at small and
at large loads, and silence is no special case.
"""

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from headrace.policies.quantiles import nearest_rank

# Fewer values than this say nothing about a trend.
POINTS_MIN = 5
# The trend must win by more than chance: it is the one that can start replicas for nothing.
GAIN_MIN = 0.05
# No prediction goes beyond this multiple of what was ever seen.
BEYOND = 2.0
# How far the next value may lie from the level, and how fast level and trend may change; only their ratios mean anything.
_NOISE = 10.0
_LEVEL_DRIFT = 1.0
_TREND_DRIFT = 0.1


class Predictor(StrEnum):
    """Who speaks."""

    CONSTANT = "constant"
    KALMAN = "kalman"


class Forecast(NamedTuple):
    """What is expected at the horizon.

    Attributes:
        load: In the unit of the history; never negative.
        short_by: The load has exceeded what this predictor said by no more than this in the share of replayed moments that
            was asked for; 0.0 where nothing could be replayed.
        loss: Of the predictor that speaks, over the replay; None where nothing could be replayed.
    """

    load: float
    short_by: float
    predictor: Predictor
    loss: float | None


def forecast(
    history: Sequence[float],
    *,
    steps: int,
    predictors: Sequence[Predictor] = tuple(Predictor),
    covered: float = 0.9,
) -> Forecast:
    """What to expect `steps` after the last value.

    A history that is everywhere the same gives that value, whichever predictor speaks.

    Args:
        history: Evenly spaced loads, oldest first, none negative. Zeros before the first load are skipped: a deployment
            that waited for its first caller has no downward trend.
        steps: At least 1.
        predictors: Those that may speak; of equals the first.
        covered: Share of the replayed moments that `short_by` covers.
    """
    assert steps >= 1
    assert predictors
    known = _from_first_load(history)
    if not known:
        return Forecast(0.0, 0.0, predictors[0], None)
    replays = [
        _replay(known, _PREDICTIONS[predictor](known, steps), predictor, steps) for predictor in predictors
    ]
    best = replays[0]
    for other in replays[1:]:
        if other.loss is not None and best.loss is not None and other.loss < best.loss * (1.0 - GAIN_MIN):
            best = other
    shortfall = nearest_rank(best.shortfalls, covered) if best.shortfalls else 0.0
    return Forecast(best.load, shortfall, best.predictor, best.loss)


class _Replay(NamedTuple):
    load: float
    predictor: Predictor
    loss: float | None
    shortfalls: list[float]


def _replay(
    known: Sequence[float], predictions: Iterator[float], predictor: Predictor, steps: int
) -> _Replay:
    """Every prediction that could have been made, beside what came; the last one is still open."""
    said = list(predictions)
    came = [(said[index], known[index + steps]) for index in range(POINTS_MIN - 1, len(known) - steps)]
    loss = None
    if came:
        loss = sum(abs(math.log1p(guess) - math.log1p(load)) for guess, load in came) / len(came)
    return _Replay(said[-1], predictor, loss, [max(0.0, load - guess) for guess, load in came])


def _from_first_load(history: Sequence[float]) -> Sequence[float]:
    first = next((index for index, load in enumerate(history) if load > 0.0), len(history))
    return history[first:]


def _constant(known: Sequence[float], _steps: int) -> Iterator[float]:
    """After each value: it stays."""
    return iter(known)


def _kalman(known: Sequence[float], steps: int) -> Iterator[float]:
    """After each value: where level and trend lead, by a Kalman filter of a local linear trend.

    x = (level, trend); level' = level + trend; value = level + noise. Source: Durbin and Koopman, Time Series Analysis by
    State Space Methods, chapter 3.
    """
    level, trend = known[0], 0.0
    p_level, p_both, p_trend = _NOISE, 0.0, _TREND_DRIFT
    highest = known[0]
    for index, value in enumerate(known):
        if index:
            level += trend
            p_level += 2.0 * p_both + p_trend + _LEVEL_DRIFT
            p_both += p_trend
            p_trend += _TREND_DRIFT
        surprise = value - level
        trust = p_level + _NOISE
        gain_level, gain_trend = p_level / trust, p_both / trust
        level += gain_level * surprise
        trend += gain_trend * surprise
        p_trend -= gain_trend * p_both
        p_both *= 1.0 - gain_level
        p_level *= 1.0 - gain_level
        highest = max(highest, value)
        is_founded = index >= POINTS_MIN - 1
        yield min(max(0.0, level + steps * trend), BEYOND * highest) if is_founded else value


_PREDICTIONS = {Predictor.CONSTANT: _constant, Predictor.KALMAN: _kalman}
