"""Arrivals of requests: made, steadily, in bursts, by the hour of the day, up a ramp, in a step; or read from a trace's file.

What is made comes from a seed, and is the same again from the same one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from headrace.core.workload import BLOCK_TOKENS, Arrived
from headrace.evidence import traces
from headrace.evidence.simulate_work import Work


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


def like(
    works: Sequence[Work], rate: Callable[[float], float], *, rate_max: float, seconds: float, seed: int = 1
) -> list[Work]:
    """Requests of that rate with the sizes of those, in their order, again from the start where they end."""
    made = arrivals(rate, rate_max=rate_max, seconds=seconds, seed=seed)
    return [works[index % len(works)]._replace(arrival_s=work.arrival_s) for index, work in enumerate(made)]


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


def read(path: Path) -> list[Work]:
    """A trace of arrivals, in any format that `headrace workload` reads.

    Blocks of a prompt that an earlier one had are taken as cached, and so are tokens of which the trace says so.
    """
    return list(_works(traces.read(path)))


def _works(rows: Iterator[Arrived]) -> Iterator[Work]:
    known: set[int] = set()
    for row in rows:
        assert row.input_tokens is not None, "a trace that says how long prompts are"
        assert row.output_tokens is not None, "and answers"
        found = next((index for index, block in enumerate(row.blocks) if block not in known), len(row.blocks))
        known.update(row.blocks)
        cached = row.cached_tokens or found * BLOCK_TOKENS
        yield Work(row.at_s, row.input_tokens, row.output_tokens, max(0, min(row.input_tokens - 1, cached)))
