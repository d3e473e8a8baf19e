"""Arrivals of requests as they come: steadily, in bursts, by the hour of the day, up a ramp, in a step. Seeds make them again."""

import math
from collections.abc import Callable
from random import Random

from tests.support.fleet_model import Work


def arrivals(
    rate: Callable[[float], float],
    *,
    rate_max: float,
    seconds: float,
    seed: int = 1,
    prompt_tokens: int = 800,
    output_tokens: int = 100,
) -> list[Work]:
    """A Poisson process of that rate, by thinning one of `rate_max`; sizes are exponential around the means."""
    chance = Random(seed)
    works, at_s = [], 0.0
    while (at_s := at_s + chance.expovariate(rate_max)) < seconds:
        if chance.random() * rate_max < rate(at_s):
            prompt = 1 + int(chance.expovariate(1 / prompt_tokens))
            works.append(Work(at_s, prompt, 1 + int(chance.expovariate(1 / output_tokens))))
    return works


def constant(rate: float) -> Callable[[float], float]:
    return lambda _: rate


def step(low: float, high: float, *, at_s: float, until_s: float = math.inf) -> Callable[[float], float]:
    return lambda now_s: high if at_s <= now_s < until_s else low


def ramp(low: float, high: float, *, from_s: float, to_s: float) -> Callable[[float], float]:
    def rate(now_s: float) -> float:
        share = min(1.0, max(0.0, (now_s - from_s) / (to_s - from_s)))
        return low + share * (high - low)

    return rate


def diurnal(low: float, high: float, *, day_s: float) -> Callable[[float], float]:
    """Lowest at midnight, highest at noon."""
    return lambda now_s: low + (high - low) * 0.5 * (1.0 - math.cos(2.0 * math.pi * now_s / day_s))


def bursts(low: float, high: float, *, every_s: float, for_s: float) -> Callable[[float], float]:
    return lambda now_s: high if now_s % every_s < for_s else low
