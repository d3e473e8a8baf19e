"""What is a request to a promise, by what was noted of it? From a load test's records, and from those of the ledger.

Whose fault an ending is, its status says: what the service answers below 500 is the caller's to change (a wrong request, a limit
that was agreed with it), and what it answers from 500 on is its own. So it is with other servers, but for one: a 429 is a limit
of the caller's where it has the reason of one; from a server that gives no reasons it means that the server is full.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum

from headrace.core import load_records
from headrace.core.endings import ENDINGS, Ending
from headrace.core.load_records import LoadRecord, LoadRun
from headrace.core.outcome import Outcome, Reason
from headrace.core.slo import LoadLimits
from headrace.core.usage import UsageRecord
from headrace.core.verdicts import Verdict
from headrace.policies.slo import Fate, Seen

_CALLERS_FROM, _OURS_FROM = 400, 500
_TOO_MANY = 429


def _ours(ending: Ending) -> bool:
    return (
        ending.outcome not in (Outcome.DELIVERED, Outcome.CANCELLED)
        and ending.error is not None
        and ending.error.status >= _OURS_FROM
    )


OUR_REASONS = tuple(sorted({str(ending.reason) for ending in ENDINGS.values() if _ours(ending)}))
"""Why requests are refused, fail or break by our fault."""
_CALLERS_REASONS = frozenset(
    str(ending.reason)
    for ending in ENDINGS.values()
    if ending.error is not None and _CALLERS_FROM <= ending.error.status < _OURS_FROM
)

_FATES = {
    load_records.Outcome.OK: Fate.WHOLE,
    load_records.Outcome.LATE: Fate.LATE,
    load_records.Outcome.REFUSED: Fate.REFUSED,
    load_records.Outcome.FAILED: Fate.FAILED,
    load_records.Outcome.BROKEN: Fate.BROKEN,
    load_records.Outcome.CANCELLED: Fate.LEFT,
    load_records.Outcome.UNSENT: Fate.UNSENT,
}
_USED = {
    Outcome.DELIVERED: Fate.WHOLE,
    Outcome.REFUSED: Fate.REFUSED,
    Outcome.FAILED: Fate.FAILED,
    Outcome.BROKEN: Fate.BROKEN,
    Outcome.CANCELLED: Fate.LEFT,
}


class Reach(StrEnum):
    """How the load was, beside the one up to which a promise holds."""

    BELOW = "below"
    THERE = "there"
    ABOVE = "above"


def reach(limits: LoadLimits, run: LoadRun) -> Reach:
    """Whether a run asked for what is promised: a promise kept at less isn't proven, and one missed at more isn't broken.

    A rate is compared with three standard deviations of the promised rate's Poisson count, and at least 5 %, to spare. As many callers
    at once as are promised are the promised load too, whatever rate they come to. What is excused as its caller's is no load.
    """
    most_per_s, most_at_once = limits.requests_per_s_max, limits.concurrency_max
    if most_per_s is None and most_at_once is None:
        return Reach.THERE
    due = [record for record in run.records if run.window.holds(record) and not _is_callers(record)]
    window_s = run.window.to_s - run.window.from_s
    at_once = sum(record.ended_s - record.due_s for record in due) / window_s if window_s > 0 else 0.0
    is_full = most_at_once is not None and (run.concurrency or at_once) >= _NEARLY * most_at_once
    if most_per_s is not None:
        rate_per_s = len(due) / window_s if window_s > 0 else 0.0
        expected = most_per_s * window_s
        spare = max(1 - _NEARLY, 3 / math.sqrt(expected)) if expected > 0 else 0.0
        if rate_per_s > most_per_s * (1 + spare):
            return Reach.ABOVE
        return Reach.THERE if is_full or rate_per_s >= most_per_s * (1 - spare) else Reach.BELOW
    # More at once than promised, in an open loop, may be so because the service is slow, which is no excuse.
    assert most_at_once is not None, "one of them is given"
    if run.concurrency is not None and run.concurrency > most_at_once:
        return Reach.ABOVE
    return Reach.THERE if is_full else Reach.BELOW


_NEARLY = 0.95


def at_reach(verdict: Verdict, reached: Reach) -> Verdict:
    """What a run says of a promise, with the load that it had."""
    is_beside = {Verdict.PASS: reached is Reach.BELOW, Verdict.FAIL: reached is Reach.ABOVE}
    return Verdict.INCONCLUSIVE if is_beside.get(verdict, False) else verdict


def of_run(run: LoadRun) -> Iterator[Seen]:
    """Every request that was due in the run's window."""
    return (of_record(record) for record in run.records if run.window.holds(record))


def of_record(record: LoadRecord) -> Seen:
    """As its caller saw it, from the moment it was due."""
    return Seen(
        Fate.CALLERS if _is_callers(record) else _FATES[record.outcome],
        record.ended_s - record.due_s,
        None if record.first_s is None else record.first_s - record.due_s,
        record.gaps.max_s if record.gaps.count else None,
        _pace(record.first_s, record.last_s, record.output_tokens) if record.is_streamed else None,
        record.input_tokens or record.planned_input_tokens or None,
        record.output_tokens,
    )


def _is_callers(record: LoadRecord) -> bool:
    if record.outcome not in (load_records.Outcome.REFUSED, load_records.Outcome.FAILED):
        return False
    if record.status == _TOO_MANY:
        return record.reason in _CALLERS_REASONS
    return _CALLERS_FROM <= record.status < _OURS_FROM


def of_usage(record: UsageRecord) -> Seen:
    """As the gateway saw it, from its arrival. It knows no pauses of single streams."""
    outcome = Outcome(record.outcome)
    fate = _USED[outcome]
    if outcome in (Outcome.FAILED, Outcome.BROKEN) and record.status < _OURS_FROM:
        fate = Fate.CALLERS
    elif record.reason == Reason.DEADLINE:
        fate = Fate.LATE
    is_known = record.prompt_tokens > 0
    return Seen(
        fate,
        record.total_s,
        record.ttft_s,
        None,
        _pace(record.ttft_s, record.total_s, record.completion_tokens) if record.is_streaming else None,
        record.prompt_tokens if is_known else None,
        record.completion_tokens if is_known else None,
    )


def of_refusals(causes: Mapping[str, int]) -> Counter[Seen]:
    """How many were turned away before any work, by what they are, where only the reasons were counted."""
    counted: Counter[Seen] = Counter()
    for reason, count in causes.items():
        counted[Seen(Fate.CALLERS if reason in _CALLERS_REASONS else Fate.REFUSED)] += count
    return counted


def _pace(first_s: float | None, last_s: float | None, tokens: int | None) -> float | None:
    """Seconds for each token but the first; None where there is no second one."""
    if first_s is None or last_s is None or tokens is None or tokens < 2:
        return None
    return (last_s - first_s) / (tokens - 1)
