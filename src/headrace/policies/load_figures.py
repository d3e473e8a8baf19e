"""How long did answers take? Percentiles of the records of a load test, with the bounds that their number bears, or none.

A percentile is a nearest rank: one of the values that were seen. It is given only where both its bounds exist; they are order
statistics (policies.quantiles) of as many independent values as the run's are worth (policies.blocks).
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from headrace.core.load import EDGES_S
from headrace.core.load import Histogram as Gaps
from headrace.core.load_records import LoadRecord, Outcome
from headrace.policies import blocks, quantiles
from headrace.policies.proportions import Share
from headrace.policies.quantiles import Histogram, Ordered, Samples

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


class Measure(StrEnum):
    """What is measured of an answer.

    TTFT: to the first event with output, of streamed answers. ITL: every gap between two such events. PAUSE: the longest of them
    in an answer. TPOT: from the first to the last event, by each output token but the first, of streamed answers with more than
    one. TOTAL: to the end.
    """

    TTFT = "ttft"
    ITL = "itl"
    PAUSE = "pause"
    TPOT = "tpot"
    TOTAL = "total"


class Since(StrEnum):
    """When the clock of TTFT and TOTAL starts: when it was due (INTENDED), or when its bytes went out (SENT)."""

    INTENDED = "intended"
    SENT = "sent"


class Figure(msgspec.Struct, frozen=True):
    """One percentile.

    Attributes:
        value, low, high: None where there are not enough samples, or where it is endless.
        worth: How many independent samples there are.
        needed: How many of those it takes until both bounds exist.
        is_endless: So many got no answer at all.
    """

    quantile: float
    value: float | None
    low: float | None
    high: float | None
    worth: int
    needed: int
    is_endless: bool = False

    @property
    def is_supported(self) -> bool:
        return self.value is not None or self.is_endless


class Distribution(msgspec.Struct, frozen=True):
    """All percentiles of one measure; seconds.

    Attributes:
        mean_s, max_s: Of what was seen; None of nothing.
        endless: How many of the samples are of requests that got no answer, and stand for an endless time.
    """

    measure: Measure
    since: Since | None
    samples: int
    mean_s: float | None
    max_s: float | None
    figures: tuple[Figure, ...]
    endless: int = 0

    def at(self, quantile: float) -> Figure:
        return next(figure for figure in self.figures if figure.quantile == quantile)


def of_answers(
    records: Sequence[LoadRecord], measure: Measure, since: Since = Since.INTENDED, *, alpha: float
) -> Distribution:
    """Of whole answers in time, in the order in which they were due; no other outcome is among them."""
    answers = [record for record in records if record.outcome is Outcome.OK]
    if measure is Measure.ITL:
        return _of_gaps(answers, alpha=alpha)
    measured = [
        (record, value) for record in answers if (value := taken_s(record, measure, since)) is not None
    ]
    clock = since if measure in (Measure.TTFT, Measure.TOTAL) else None
    return _of_values(measure, clock, [value for _, value in measured], alpha=alpha)


def of_everyone(records: Sequence[LoadRecord], measure: Measure, *, alpha: float) -> Distribution:
    """Of every request that was intended but those that were cancelled as planned, from the intended send; without a whole answer
    in time it never ends. Only a stream has a first token to wait for, whether or not one came."""
    values = []
    for record in records:
        if measure is Measure.TTFT and not record.is_streamed:
            continue
        if record.outcome is Outcome.OK:
            value = taken_s(record, measure, Since.INTENDED)
            values += [value] if value is not None else []
        elif record.outcome is not Outcome.CANCELLED:
            values.append(math.inf)
    return _of_values(measure, Since.INTENDED, values, alpha=alpha)


def of_endings(records: Sequence[LoadRecord], *, alpha: float) -> Distribution:
    """From the actual send until it was known what became of them: how fast a refusal comes, say."""
    values = [record.ended_s - record.sent_s for record in records if record.sent_s is not None]
    return _of_values(Measure.TOTAL, Since.SENT, values, alpha=alpha)


def taken_s(record: LoadRecord, measure: Measure, since: Since) -> float | None:
    """One measure of one record; None where it has no such thing. Not of ITL, of which a record has many."""
    from_s = record.due_s if since is Since.INTENDED else record.sent_s
    if measure is Measure.TOTAL:
        return None if from_s is None else record.ended_s - from_s
    if not record.is_streamed or record.first_s is None or record.last_s is None:
        return None
    if measure is Measure.TTFT:
        return None if from_s is None else record.first_s - from_s
    if measure is Measure.PAUSE:
        return record.gaps.max_s if record.gaps.count else None
    assert measure is Measure.TPOT
    tokens = record.output_tokens
    return (record.last_s - record.first_s) / (tokens - 1) if tokens is not None and tokens > 1 else None


def _of_values(measure: Measure, since: Since | None, values: list[float], *, alpha: float) -> Distribution:
    parts = blocks.cut(values)

    def shares(limit: float) -> list[Share]:
        return [Share(sum(value <= limit for value in part), len(part)) for part in parts]

    known = [value for value in values if value < math.inf]
    return Distribution(
        measure,
        since,
        len(values),
        math.fsum(known) / len(known) if known else None,
        max(known, default=None),
        _figures(Samples(values), shares, alpha=alpha),
        len(values) - len(known),
    )


def _of_gaps(answers: Sequence[LoadRecord], *, alpha: float) -> Distribution:
    streamed = [record for record in answers if record.gaps.count]
    pooled = [_pooled(part) for part in blocks.cut(streamed)]
    together = Gaps()
    for part in pooled:
        together = together.plus(part)

    def shares(limit: float) -> list[Share]:
        return [Share(part.count - int(part.above(limit).high_s), part.count) for part in pooled]

    values = Histogram(EDGES_S, tuple(together.counts) or (0,) * (len(EDGES_S) + 1))
    return Distribution(
        Measure.ITL,
        None,
        together.count,
        together.mean_s,
        max((record.gaps.max_s for record in streamed), default=None),
        _figures(values, shares, alpha=alpha),
    )


def _pooled(records: Sequence[LoadRecord]) -> Gaps:
    histogram = Gaps()
    for record in records:
        record.gaps.add_to(histogram)
    return histogram


def _figures(values: Ordered, shares: Callable[[float], list[Share]], *, alpha: float) -> tuple[Figure, ...]:
    """Each with its own worth: the tail of a queue depends more on its past than its middle does."""
    return tuple(_figure(values, shares, quantile, alpha=alpha) for quantile in QUANTILES)


def _figure(
    values: Ordered, shares: Callable[[float], list[Share]], quantile: float, *, alpha: float
) -> Figure:
    needed = quantiles.samples_needed(quantile, alpha=alpha)
    middle = values.at(math.ceil(quantile * values.size - 1e-9)) if values.size else None
    if middle is None:
        return Figure(quantile, None, None, None, 0, needed)
    worth = blocks.worth(shares(middle))
    bounds = quantiles.interval(values, quantile, alpha=alpha, worth=worth)
    if bounds.low is None or bounds.high is None:
        return Figure(quantile, None, None, None, worth, needed)
    value, low, high = (each if each < math.inf else None for each in (middle, bounds.low, bounds.high))
    return Figure(quantile, value, low, high, worth, needed, is_endless=middle == math.inf)
