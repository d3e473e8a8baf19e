"""How many replicas can still be paid for today, and what have they cost? What the day has left, and any time that is over."""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from headrace.core.deployment_terms import BudgetTerms
from headrace.core.quotas import Period, span_of

HOUR_S = 3600.0
_UNBOUNDED = 1_000_000_000


class Spend(msgspec.Struct, frozen=True):
    """What a deployment's replicas have cost today.

    Attributes:
        day_start_s: Unix seconds at which that day began, UTC. It doesn't move back, so that a clock that does can't spend
            a day's budget twice, unless by more than a day: that one had been wrong, and what was spent by it still counts.
        spent_pico: Since then.
        read_s: Monotonic seconds up to which it is counted; None before the first count.
    """

    day_start_s: float = 0.0
    spent_pico: int = 0
    read_s: float | None = None


class Allowance(NamedTuple):
    """What the budget says to the number of replicas.

    Attributes:
        replicas_max: More can't be paid for as long as a new replica stays at least.
        is_short: Nothing is left beyond what the least number needs until the day ends.
        is_spent: The day's budget is gone.
    """

    replicas_max: int
    is_short: bool
    is_spent: bool


def accrue(spend: Spend, *, replicas: int, price_pico: int, now_s: float, wall_s: float) -> Spend:
    """Counts the time since the last count, in which there were that many replicas.

    A replica costs from its launch to its end, whether it is ready or not. At midnight the part after it is the new day's.
    """
    elapsed_s = 0.0 if spend.read_s is None else max(0.0, now_s - spend.read_s)
    today_s, _ = span_of(Period.DAY, wall_s)
    if today_s <= spend.day_start_s:
        was_wrong = spend.day_start_s - today_s > 24 * HOUR_S
        day_start_s = today_s if was_wrong else spend.day_start_s
        return Spend(day_start_s, spend.spent_pico + _cost(replicas, elapsed_s, price_pico), now_s)
    of_today_s = min(elapsed_s, wall_s - today_s)
    return Spend(today_s, _cost(replicas, of_today_s, price_pico), now_s)


def allowance(
    spend: Spend, terms: BudgetTerms, *, replicas_min: int, stay_s: float, wall_s: float
) -> Allowance:
    """What can be paid for from now on.

    The least number of replicas is set aside until midnight, so that growth in the morning doesn't end the evening.

    Args:
        stay_s: How long a replica that is added stays at least: its cold start and the delay before it is removed.
    """
    if not terms.per_day_pico or not terms.replica_hour_pico:
        return Allowance(_UNBOUNDED, is_short=False, is_spent=False)
    day_end_s = spend.day_start_s + 24 * HOUR_S
    left_s = min(24 * HOUR_S, max(0.0, day_end_s - wall_s))
    left_pico = terms.per_day_pico - spend.spent_pico
    free_pico = left_pico - _cost(replicas_min, left_s, terms.replica_hour_pico)
    each_pico = max(1, _cost(1, min(stay_s, left_s), terms.replica_hour_pico))
    return Allowance(
        replicas_min + max(0, free_pico // each_pico), is_short=free_pico <= 0, is_spent=left_pico <= 0
    )


class Ordered(NamedTuple):
    """From this moment on there were to be so many replicas, at that price for an hour of each."""

    at_s: float
    replicas: int
    price_pico: int


def spent_between(orders: Iterable[Ordered], *, since_s: float, until_s: float) -> tuple[int, float]:
    """What was spent in that time, in pico-units, and from when on it is known: before the first order nobody knows.

    Args:
        orders: In their order. Those of several versions of a deployment are one series: while a rollout has two of them,
            the one that was decided on last counts, and the other's replicas don't.
    """
    known = list(orders)
    if not known:
        return 0, until_s
    ends = [*known, Ordered(until_s, 0, 0)]
    spent = sum(
        _cost(order.replicas, max(0.0, min(until_s, after.at_s) - max(since_s, order.at_s)), order.price_pico)
        for order, after in pairwise(ends)
    )
    return spent, max(since_s, min(until_s, known[0].at_s))


def _cost(replicas: int, seconds: float, price_pico: int) -> int:
    """In whole pico-units, rounded to the nearest: a millionth of a second is counted."""
    return (replicas * round(seconds * 1e6) * price_pico + 1_800_000_000) // 3_600_000_000
