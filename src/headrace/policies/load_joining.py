"""Whose time is it? What callers measured and what the service recorded of the same requests, joined by their ids.

The parts of a request add up to its total time from the intended send, exactly: each lies between two moments of one clock, or is
what one clock's duration leaves of another's. Docs: docs/reference/load-report.md.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from headrace.core.load_records import LoadRecord, Outcome

PARTS = ("generator", "way", "queue", "execution", "service")
SLOW_SHARE = 0.05
MISFIT_S = 0.001
"""A part that is shorter than this below zero is rounding; beyond it the two accounts contradict each other."""


class Inside(msgspec.Struct, frozen=True):
    """What the service recorded of a request.

    Attributes:
        total_s: From its arrival to its end.
        execution_s: Of all its attempts, from asking a replica to the end of that.
        charge_pico: In `currency`; "" where it has no price.
    """

    queue_wait_s: float
    execution_s: float
    total_s: float
    attempts: int = 1
    charge_pico: int = 0
    currency: str = ""


class Split(msgspec.Struct, frozen=True):
    """The parts of one request's time, in seconds; their sum is its total from the intended send.

    Attributes:
        generator_s: It was sent so much after it was due.
        way_s: What its caller waited and the service didn't see: upload, network, reading.
        queue_s: Until a replica had room for it.
        execution_s: On replicas.
        service_s: The rest of the service: checks before, delivery after.
    """

    generator_s: float
    way_s: float
    queue_s: float
    execution_s: float
    service_s: float

    @property
    def total_s(self) -> float:
        return math.fsum(self._parts())

    @property
    def is_misfit(self) -> bool:
        return min(self._parts()) < -MISFIT_S

    def _parts(self) -> tuple[float, ...]:
        return self.generator_s, self.way_s, self.queue_s, self.execution_s, self.service_s


class Joined(msgspec.Struct, frozen=True):
    """All of them.

    Attributes:
        nameless: Requests that were sent and whose answer had no id.
        unmatched: Ids that the service has no record of: what was refused before any work has none.
        misfits: Whole answers of which the two accounts contradict each other; they are in no mean.
        whole: Whole answers that were joined, which the means are of.
        mean, slow: Mean of each part, of all and of the slowest twentieth; None of nothing.
        charges: Pico-units by currency, of everything that was joined, whatever became of it.
        retried: Joined requests with more than one attempt.
    """

    nameless: int
    unmatched: dict[str, int]
    matched: int
    misfits: int
    whole: int
    mean: Split | None
    slow: Split | None
    charges: dict[str, int]
    retried: int


def split(record: LoadRecord, inside: Inside) -> Split | None:
    """None for what was never sent."""
    if record.sent_s is None:
        return None
    outside_s = record.ended_s - record.sent_s
    return Split(
        record.sent_s - record.due_s,
        outside_s - inside.total_s,
        inside.queue_wait_s,
        inside.execution_s,
        inside.total_s - inside.queue_wait_s - inside.execution_s,
    )


def join(records: Iterable[LoadRecord], recorded: Mapping[str, Inside]) -> Joined:
    """Each record with what the service has of its id."""
    nameless = matched = misfits = retried = 0
    unmatched: dict[str, int] = {}
    charges: dict[str, int] = {}
    splits: list[Split] = []
    for record in records:
        if record.sent_s is None:
            continue
        if not record.request_id:
            nameless += 1
            continue
        inside = recorded.get(record.request_id)
        if inside is None:
            unmatched[str(record.outcome)] = unmatched.get(str(record.outcome), 0) + 1
            continue
        matched += 1
        retried += inside.attempts > 1
        if inside.currency:
            charges[inside.currency] = charges.get(inside.currency, 0) + inside.charge_pico
        found = split(record, inside)
        if record.outcome is Outcome.OK and found is not None:
            misfits += found.is_misfit
            splits += [] if found.is_misfit else [found]
    slowest = sorted(splits, key=_total_s)[-max(1, round(len(splits) * SLOW_SHARE)) :]
    return Joined(
        nameless,
        unmatched,
        matched,
        misfits,
        len(splits),
        _mean(splits),
        _mean(slowest),
        charges,
        retried,
    )


def _total_s(split: Split) -> float:
    return split.total_s


def _mean(splits: Sequence[Split]) -> Split | None:
    """Means add up as their parts do, which percentiles don't."""
    if not splits:
        return None
    return Split(*(fmean(getattr(each, f"{part}_s") for each in splits) for part in PARTS))
