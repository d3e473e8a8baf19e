"""What did a replica do under one load? A level of a capacity record, made of the records of a run."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.core.capacity import Level, Quantiles
from headrace.core.load import EDGES_S
from headrace.core.load import Histogram as Counts
from headrace.core.load_records import LoadRecord, LoadRun, Outcome
from headrace.core.verdicts import Interval
from headrace.policies.quantiles import Histogram, Ordered, Samples, interval, nearest_rank

ALPHA = 0.05
BLOCKS = 20
_T_95 = 1.729  # Student's t of BLOCKS - 1 = 19 degrees of freedom, one-sided 5 %
_QUANTILES = (0.5, 0.95, 0.99)


def level(run: LoadRun, *, shape: str, memory_bytes: int = 0, is_held_out: bool = False) -> Level:
    """That run's window as a level."""
    due = [record for record in run.records if run.window.holds(record)]
    done = [record for record in due if record.outcome is Outcome.OK]
    window_s = max(run.window.to_s - run.window.from_s, 1e-9)
    inputs = sum(record.input_tokens or 0 for record in done)
    outputs = [record.output_tokens or 0 for record in done]
    rates = throughput(run.records, from_s=run.window.from_s, to_s=run.window.to_s)
    per_result = sum(outputs) / len(done) if done else 0.0
    return Level(
        shape=shape,
        concurrency=run.concurrency or 0,
        rate_per_s=run.rate_per_s,
        is_held_out=is_held_out,
        window_s=window_s,
        input_tokens=inputs / len(done) if done else 0.0,
        output_tokens=per_result,
        cached_share=sum(record.cached_tokens or 0 for record in done) / inputs if inputs else 0.0,
        in_flight=sum(_overlap(record, run.window.from_s, run.window.to_s) for record in run.records) / window_s,
        outcomes=dict(Counter(str(record.outcome) for record in due)),
        throughput=rates,
        output_tokens_per_s=(rates.estimate or 0.0) * per_result,
        ttft=_quantiles(Samples([record.first_s - record.due_s for record in done if record.first_s is not None])),
        itl=_quantiles(_gaps(done)),
        tpot=_quantiles(Samples(list(paces(done)))),
        total=_quantiles(Samples([record.ended_s - record.due_s for record in done])),
        memory_bytes=memory_bytes,
    )  # fmt: skip


def throughput(records: Iterable[LoadRecord], *, from_s: float, to_s: float) -> Interval:
    """Results per second, of which each counts by the share of its service that lies between.

    Counting those that end in the window would be wrong by as many as there are callers, since they come in waves, and their
    whole time in it by what they waited, which the last callers of a start wait longest. The bounds are those of the mean of
    BLOCKS equal parts of the window: neighbouring requests depend on each other, parts hardly.
    """
    width_s = (to_s - from_s) / BLOCKS
    if width_s <= 0:
        return Interval(None, None, None)
    done = [record for record in records if record.outcome is Outcome.OK]
    service_s = _service_s(done)
    work = [0.0] * BLOCKS
    for record in done:
        begun_s = record.ended_s - service_s
        if record.ended_s <= from_s or begun_s >= to_s:
            continue
        first = max(0, int((begun_s - from_s) / width_s))
        last = min(BLOCKS - 1, int((record.ended_s - from_s) / width_s))
        for block in range(first, last + 1):
            begin_s = from_s + block * width_s
            inside_s = min(record.ended_s, begin_s + width_s) - max(begun_s, begin_s)
            work[block] += max(0.0, inside_s) / service_s if service_s > 0 else 1.0
    mean = sum(work) / BLOCKS
    spread = math.sqrt(sum((each - mean) ** 2 for each in work) / (BLOCKS - 1) / BLOCKS)
    return Interval(
        *(value / width_s for value in (mean, max(0.0, mean - _T_95 * spread), mean + _T_95 * spread))
    )


def _service_s(done: Sequence[LoadRecord]) -> float:
    """How long a request is worked on, its wait left out: the quickest first token, and what usually comes after it."""
    begun = [record for record in done if record.first_s is not None]
    after = [record.ended_s - (record.first_s or 0.0) for record in begun]
    if not begun:
        return min((record.ended_s - record.due_s for record in done), default=0.0)
    return min((record.first_s or 0.0) - record.due_s for record in begun) + nearest_rank(after, 0.5)


def backlog(records: Iterable[LoadRecord], at_s: float) -> int:
    """Requests that were due before that moment, and ended after it."""
    return sum(record.due_s < at_s < record.ended_s for record in records)


def keeps_up(run: LoadRun, *, callers: int) -> bool:
    """Whether an open loop's requests were answered as fast as they came, and next to all of them.

    What is left over grows by the difference of both rates; by a few, as many as are worked on at once, it goes up and down.
    """
    due = [record for record in run.records if run.window.holds(record)]
    done = sum(record.outcome is Outcome.OK for record in due)
    if done < (1 - _LOST_MAX) * len(due) or not due:
        return False
    grown = backlog(run.records, run.window.to_s) - backlog(run.records, run.window.from_s)
    return grown <= _LOST_MAX * len(due) + callers


_LOST_MAX = 0.05


def paces(records: Iterable[LoadRecord]) -> Iterable[float]:
    """Of each stream with more than one token, seconds per token after the first."""
    for record in records:
        tokens = record.output_tokens or 0
        if record.is_streamed and tokens > 1 and record.first_s is not None and record.last_s is not None:
            yield (record.last_s - record.first_s) / (tokens - 1)


def _overlap(record: LoadRecord, from_s: float, to_s: float) -> float:
    return max(0.0, min(record.ended_s, to_s) - max(record.due_s, from_s))


def _gaps(records: Iterable[LoadRecord]) -> Ordered:
    counted = Counts()
    for record in records:
        record.gaps.add_to(counted)
    return Histogram(EDGES_S, tuple(counted.counts or [0] * (len(EDGES_S) + 1)))


def _quantiles(values: Ordered) -> Quantiles:
    p50, p95, p99 = (interval(values, each, alpha=ALPHA) for each in _QUANTILES)
    return Quantiles(p50, p95, p99, values.size)
