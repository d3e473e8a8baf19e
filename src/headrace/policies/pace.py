"""How fast does a replica work, for whoever simulates it? Least squares over the levels of a measurement, and how wrong that is.

    time to the first token = overhead + uncached input tokens / prefill rate
    time per further token  = step + step per active request x (requests at once)

Both are fitted to relative errors, so that a level with long times doesn't outweigh all others. Errors are stated metric by metric,
with their sign, on levels that the fit has seen and on those that it hasn't: an error of the total time alone can hide a first
token that is far too early behind tokens that are far too slow.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from headrace.core.capacity import Level, Pace, Quantiles

_SEEN = 0.01
"""Of a time, what it must change by over all levels to be put down to what was changed."""
_METRICS = ("ttft", "tpot", "total", "requests_per_s")


def fit(levels: Sequence[Level], *, slots: int) -> Pace | None:
    """The pace that these levels show, of those that don't queue; None where too little was measured.

    Args:
        levels: Those that are held out are only used to say how well the pace holds for them.
    """
    within = [
        level for level in levels if 0 < level.concurrency <= slots and level.ttft.p50.estimate is not None
    ]
    seen = [level for level in within if not level.is_held_out]
    if not seen:
        return None
    fewest = min(level.concurrency for level in seen)
    alone = [level for level in seen if level.concurrency == fewest]
    overhead_s, per_token_s = _line([(_uncached(level), _p50(level, "ttft")) for level in alone])
    paced = [level for level in seen if level.tpot.p50.estimate is not None]
    step_s, per_active_s = _line([(level.in_flight, _p50(level, "tpot")) for level in paced])
    pace = Pace(
        overhead_s=overhead_s,
        # 0 stands for a prefill that takes no time that could be measured: JSON has no infinity.
        prefill_tokens_per_s=1 / per_token_s if per_token_s > 0 else 0.0,
        step_s=step_s,
        step_per_active_s=per_active_s,
    )
    held_out = [level for level in within if level.is_held_out]
    return msgspec.structs.replace(
        pace,
        errors=_errors(pace, seen, _root_mean_square),
        held_out_errors=_errors(pace, held_out, _mean),
    )


def predicted(pace: Pace, level: Level, *, active: float) -> dict[str, float]:
    """What the pace says of a load of those lengths with so many at once."""
    prefill_s = _uncached(level) / pace.prefill_tokens_per_s if pace.prefill_tokens_per_s else 0.0
    ttft_s = pace.overhead_s + prefill_s
    tpot_s = pace.step_s + pace.step_per_active_s * active
    total_s = ttft_s + tpot_s * max(0.0, level.output_tokens - 1)
    return {
        "ttft": ttft_s,
        "tpot": tpot_s,
        "total": total_s,
        "requests_per_s": active / total_s if total_s > 0 else 0.0,
    }


def _errors(
    pace: Pace, levels: Sequence[Level], average: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    found: dict[str, list[float]] = {metric: [] for metric in _METRICS}
    for level in levels:
        says = predicted(pace, level, active=level.in_flight)
        for metric in _METRICS:
            measured = level.requests_per_s if metric == "requests_per_s" else _p50(level, metric)
            if measured > 0:  # one token has no pace, and no error of one
                found[metric].append(says[metric] / measured - 1)
    return {metric: round(average(errors), 4) for metric, errors in found.items() if errors}


def _uncached(level: Level) -> float:
    return level.input_tokens * (1 - level.cached_share)


def _p50(level: Level, metric: str) -> float:
    quantiles: Quantiles = getattr(level, metric)
    return quantiles.p50.estimate or 0.0


def _line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Offset and slope, neither below zero, with the least sum of squared relative errors.

    Where one of them would be below zero it is zero, and the other fitted alone.
    """
    weighed = [(x, y, y**-2) for x, y in points if y > 0]
    if not weighed:
        return 0.0, 0.0
    total = sum(w for _, _, w in weighed)
    mean_x = sum(w * x for x, _, w in weighed) / total
    mean_y = sum(w * y for _, y, w in weighed) / total
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in weighed)
    if spread <= total * (0.01 * mean_x) ** 2:  # all about as long: nothing tells offset and slope apart
        return mean_y, 0.0
    slope = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in weighed) / spread
    offset = mean_y - slope * mean_x
    reach = max(x for x, _, _ in weighed) - min(x for x, _, _ in weighed)
    if slope * reach < _SEEN * mean_y:  # falling, or rising by less than can be told from noise
        return mean_y, 0.0
    if offset < 0:
        return 0.0, sum(w * x * y for x, y, w in weighed) / sum(w * x * x for x, _, w in weighed)
    return offset, slope


def _root_mean_square(errors: Sequence[float]) -> float:
    return math.sqrt(sum(error * error for error in errors) / len(errors))


def _mean(errors: Sequence[float]) -> float:
    return sum(errors) / len(errors)
