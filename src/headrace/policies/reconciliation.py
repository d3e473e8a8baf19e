"""Do the books agree with each other? One request's record beside its attempts, its price and the rules: every difference."""

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from headrace.core.outcome import AttemptOutcome, Outcome
from headrace.core.request import Endpoint
from headrace.core.usage import ExecutionRecord, UsageRecord, UsageSource
from headrace.policies import charging
from headrace.policies.prices import PriceBook


class Cause(StrEnum):
    """Why two books differ; the value is its name in reports, metrics and alerts.

    `is_fault` tells what must not be from what is known, stated and not billed: the first is an alert, the second a list.
    """

    ATTEMPT_MISSING = "attempt_missing"
    ATTEMPT_ALONE = "attempt_alone"
    DELIVERED_MORE = "delivered_more"
    CHARGE_DIFFERS = "charge_differs"
    PRICE_UNKNOWN = "price_unknown"
    PRICE_DIFFERS = "price_differs"
    ENDING_UNKNOWN = "ending_unknown"
    REJECTED = "record_rejected"
    ENGINE_LESS = "engine_counted_less"
    ENGINE_MORE = "engine_counted_more"
    CALLER_DIFFERS = "caller_saw_other_usage"
    CALLER_ALONE = "caller_saw_unrecorded_end"
    USAGE_UNKNOWN = "usage_unknown"
    USAGE_ESTIMATED = "usage_estimated"
    ORPHAN = "orphan"

    @property
    def is_fault(self) -> bool:
        return self not in _STATED

    @property
    def meaning(self) -> str:
        """For people, in reports and docs/operate/reconciliation.md."""
        return _MEANINGS[self]


_STATED = frozenset({Cause.USAGE_UNKNOWN, Cause.USAGE_ESTIMATED, Cause.ORPHAN})

_MEANINGS = {
    Cause.ATTEMPT_MISSING: "the record counts attempts that left no record of their own",
    Cause.ATTEMPT_ALONE: "an attempt was recorded and the end of its request was not",
    Cause.DELIVERED_MORE: "more was delivered than the attempt that made the answer generated",
    Cause.CHARGE_DIFFERS: "the charge is not what the rule of its ending and its price make of its counts",
    Cause.PRICE_UNKNOWN: "the record names a price version that is not in the book",
    Cause.PRICE_DIFFERS: "the record names another version of the price than the one that held when the request arrived",
    Cause.ENDING_UNKNOWN: "the record ended in a way that has no rule",
    Cause.REJECTED: "a record broke a rule of its table and was set aside",
    Cause.ENGINE_LESS: "the engine counted fewer tokens than its attempts are recorded with",
    Cause.ENGINE_MORE: "the engine counted more tokens than its attempts can account for: someone else uses it, or work was not recorded",
    Cause.CALLER_DIFFERS: "the caller was told other usage than was recorded",
    Cause.CALLER_ALONE: "the caller saw the end of an answer that has no record",
    Cause.USAGE_UNKNOWN: "nobody reported what was used; not billed",
    Cause.USAGE_ESTIMATED: "the counts are our estimate from the text; billed as counts are",
    Cause.ORPHAN: "a process of ours ended while a replica worked on it; not billed",
}


class Difference(msgspec.Struct, frozen=True, gc=False):
    """One difference.

    Attributes:
        subject: The request id; for an engine's counters the replica.
        recorded, found: The two sides, in `unit`: what the record says, and what the other book says.
    """

    cause: Cause
    subject: str
    recorded: int = 0
    found: int = 0
    unit: str = ""


def examine(
    record: UsageRecord, executions: Sequence[ExecutionRecord], prices: PriceBook
) -> Iterator[Difference]:
    """What the books of one request don't agree in.

    Args:
        executions: Its attempts, in their order.
    """
    request_id = record.request_id
    if [execution.attempt for execution in executions] != list(range(1, record.attempts + 1)):
        yield Difference(Cause.ATTEMPT_MISSING, request_id, record.attempts, len(executions), "attempts")
    elif executions:
        yield from _delivery(record, executions[-1])
    if record.usage_source == UsageSource.UNKNOWN:
        yield Difference(Cause.USAGE_UNKNOWN, request_id)
    elif record.usage_source == UsageSource.ESTIMATED:
        yield Difference(
            Cause.USAGE_ESTIMATED, request_id, record.prompt_tokens + record.completion_tokens, 0, "tokens"
        )
    yield from _charge(record, prices)


def _delivery(record: UsageRecord, serving: ExecutionRecord) -> Iterator[Difference]:
    """Delivered <= executed, and an answer that was delivered was completed by the attempt that made it."""
    for name in ("prompt_tokens", "completion_tokens"):
        delivered, executed = getattr(record, name), getattr(serving, name)
        if delivered > executed:
            yield Difference(Cause.DELIVERED_MORE, record.request_id, delivered, executed, name)
    if record.outcome == Outcome.DELIVERED and serving.outcome != AttemptOutcome.COMPLETED:
        yield Difference(Cause.DELIVERED_MORE, record.request_id, 1, 0, "answers")


def _charge(record: UsageRecord, prices: PriceBook) -> Iterator[Difference]:
    try:
        rule = record.charge_rule
    except KeyError:
        yield Difference(Cause.ENDING_UNKNOWN, record.request_id)
        return
    held = prices.find(record.tenant, record.model, wall_s=record.started_s)
    if not record.price_version:
        if held is not None:
            yield Difference(Cause.PRICE_DIFFERS, record.request_id)
        if record.charge_pico:
            yield Difference(Cause.CHARGE_DIFFERS, record.request_id, record.charge_pico, 0, "pico")
        return
    price = prices.version(record.price_version)
    if price is None or price.rates is None:
        yield Difference(Cause.PRICE_UNKNOWN, record.request_id)
        return
    if held is not price:
        yield Difference(Cause.PRICE_DIFFERS, record.request_id)
    due = charging.charge(rule, record.usage, price.rates, unit=Endpoint(record.endpoint).unit)
    if due != record.charge_pico:
        yield Difference(Cause.CHARGE_DIFFERS, record.request_id, record.charge_pico, due, "pico")


class CallerSaw(msgspec.Struct, frozen=True, gc=False):
    """What a caller kept of one answer, for a comparison with our books.

    Attributes:
        id: Our request id, from `x-request-id`.
        has_ended: It saw the end of the answer: the whole body, or `[DONE]`.
        prompt_tokens, completion_tokens: From the answer's `usage`; None where it had none.
    """

    id: str
    has_ended: bool = True
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def compare(record: UsageRecord, saw: CallerSaw) -> Iterator[Difference]:
    """What a caller saw beside what was recorded."""
    if saw.has_ended and record.outcome not in (Outcome.DELIVERED, Outcome.CANCELLED):
        yield Difference(Cause.CALLER_DIFFERS, record.request_id, 0, 1, "answers")
    for name in ("prompt_tokens", "completion_tokens"):
        seen, recorded = getattr(saw, name), getattr(record, name)
        if seen is not None and seen != recorded:
            yield Difference(Cause.CALLER_DIFFERS, record.request_id, recorded, seen, name)


class Findings:
    """All differences, counted by cause, and the first of each by name; bounded, however many there are."""

    def __init__(self, *, listed_max: int) -> None:
        self._listed_max = listed_max
        self.counts: dict[Cause, int] = {}
        self.listed: dict[Cause, list[Difference]] = {}

    def add(self, difference: Difference) -> None:
        cause = difference.cause
        self.counts[cause] = self.counts.get(cause, 0) + 1
        listed = self.listed.setdefault(cause, [])
        if len(listed) < self._listed_max:
            listed.append(difference)

    @property
    def faults(self) -> int:
        """Differences that must not be."""
        return sum(count for cause, count in self.counts.items() if cause.is_fault)
