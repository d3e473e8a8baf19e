"""What does a workload come to? How long its requests are, how many there are at which time, and how many tokens that is."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from headrace.policies.quantiles import nearest_rank
from headrace.policies.workload_plan import Planned

SPANS_MAX = 120
_SHARES = (0.5, 0.9, 0.99)
_STEPS = 100
_STEPS_S = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 86_400)


class Spread(msgspec.Struct, frozen=True):
    """How long requests are; all zero where there are none.

    Attributes:
        quantiles: At shares from 0 to 1 in equal steps.
    """

    mean: float
    p50: int
    p90: int
    p99: int
    least: int
    most: int
    quantiles: list[int]


class WorkloadSummary(msgspec.Struct, frozen=True):
    """Of so many requests.

    Attributes:
        duration_s: From the start to the last of them; None in a closed loop, which has no times.
        rate_per_s: Mean, and `peak_per_s` that of the busiest span.
        span_s: How long each span is; `spans` has their numbers of requests, one after the other.
        own_tokens: Prompts without what they share.
        shared: Share of all prompt tokens that others begin with too, or that earlier turns said.
        streamed, cancelled: Shares of the requests.
        groups: Shared texts that are asked about.
    """

    requests: int
    conversations: int
    duration_s: float | None
    rate_per_s: float | None
    peak_per_s: float | None
    span_s: float | None
    spans: list[int]
    input_tokens: Spread
    own_tokens: Spread
    output_tokens: Spread
    input_total: int
    output_total: int
    shared: float
    groups: int
    streamed: float
    cancelled: float


def summarise(planned: Iterable[Planned], *, duration_s: float | None = None) -> WorkloadSummary:
    """Of all of them; `duration_s` is how long they were planned for, where that is known."""
    inputs: list[int] = []
    own: list[int] = []
    outputs: list[int] = []
    due: list[float] = []
    conversations: set[int] = set()
    groups: set[int] = set()
    said: dict[int, int] = {}
    streamed = cancelled = 0
    for each in planned:
        shared = max(each.prefix_tokens, said.get(each.conversation, 0) if each.turn > 1 else 0)
        inputs.append(each.input_tokens)
        own.append(max(0, each.input_tokens - shared))
        outputs.append(each.output_tokens)
        if each.due_s is not None:
            due.append(each.due_s)
        conversations.add(each.conversation)
        if each.turn < each.turns or not each.turns:
            said[each.conversation] = each.input_tokens + each.output_tokens
        else:
            said.pop(each.conversation, None)
        if each.prefix_group is not None:
            groups.add(each.prefix_group)
        streamed += each.is_streamed
        cancelled += each.cancel_after_s is not None or each.cancel_after_tokens is not None
    count, whole = len(inputs), sum(inputs)
    lasts_s = duration_s or (due[-1] if due and due[-1] else None) if due else None
    span_s, spans = _spans(due, lasts_s)
    return WorkloadSummary(
        count,
        len(conversations),
        lasts_s,
        count / lasts_s if lasts_s else None,
        max(spans) / span_s if span_s else None,
        span_s,
        spans,
        _spread(inputs),
        _spread(own),
        _spread(outputs),
        whole,
        sum(outputs),
        1.0 - sum(own) / whole if whole else 0.0,
        len(groups),
        streamed / count if count else 0.0,
        cancelled / count if count else 0.0,
    )


def _spread(found: Sequence[int]) -> Spread:
    if not found:
        return Spread(0.0, 0, 0, 0, 0, 0, [0, 0])
    ordered = sorted(found)
    p50, p90, p99 = (int(nearest_rank(ordered, share)) for share in _SHARES)
    last = len(ordered) - 1
    quantiles = [ordered[round(step / _STEPS * last)] for step in range(_STEPS + 1)]
    return Spread(sum(ordered) / len(ordered), p50, p90, p99, ordered[0], ordered[-1], quantiles)


def _spans(due: Sequence[float], lasts_s: float | None) -> tuple[float | None, list[int]]:
    """Spans of a round number of seconds, and how many requests each of them has."""
    if lasts_s is None:
        return None, []
    fitting = (float(step) for step in _STEPS_S if lasts_s <= step * SPANS_MAX)
    span_s = next(fitting, _STEPS_S[-1] * math.ceil(lasts_s / (_STEPS_S[-1] * SPANS_MAX)))
    counted = Counter(int(at_s // span_s) for at_s in due)
    # What is due in the moment in which the last span ends belongs to it.
    last = max(0, math.ceil(lasts_s / span_s) - 1)
    return span_s, [counted[span] + (counted[last + 1] if span == last else 0) for span in range(last + 1)]
