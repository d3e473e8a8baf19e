"""What stands between what is asked for and what is done? Each guard is one rule that knows one way in which autoscalers fail.

A guard takes a number of replicas and gives back the number that it lets pass; where that is another one, it is named in the
decision. They are applied in the order of this module.
"""

import math
from enum import StrEnum

from headrace.core.deployment_terms import BudgetTerms, ScaleTerms
from headrace.policies.autoscale_memory import Panic, ScaleState
from headrace.policies.replica_spend import Allowance

# Below this a need is no need: sums of fractions are not exact.
NEAR = 1e-6


class Guard(StrEnum):
    """Which rule changed the number."""

    NO_DATA = "no_data"
    PANIC = "panic"
    UP_DELAY = "up_delay"
    UP_FACTOR = "up_factor"
    PANIC_HOLD = "panic_hold"
    DOWN_DELAY = "down_delay"
    DOWN_PACE = "down_pace"
    DOWN_STEP = "down_step"
    CONSOLIDATION = "consolidation"
    IDLE_CLOCK = "idle_clock"
    FIRST_REQUEST = "first_request"
    MIN = "min"
    MAX = "max"
    BUDGET = "budget"
    BUDGET_SHRINK = "budget_shrink"
    BUDGET_STOP = "budget_stop"
    RENEWAL = "renewal"
    ADVISORY = "advisory"


Passed = tuple[int, Guard | None]


def replicas_for(need: float, *, capacity: int, tolerance: float) -> int:
    """Whole replicas for a need; what is close to what there is, is what there is."""
    if capacity and need > 0.0 and abs(need - capacity) <= tolerance * capacity:
        return capacity
    return math.ceil(need - NEAR)


def panic(
    before: Panic | None, *, need: float, capacity: int, ratio: float, hold_s: float, now_s: float
) -> Panic | None:
    """Whether a burst is being answered, and with what.

    It begins when the short window needs `ratio` times what is there *or on its way*, and ends only when it has needed less
    during all of `hold_s`, which covers the cold start: leaving before the replicas are there would undo the plan. The need
    counts with its fraction: one replica that has a little too much to do doesn't need two.
    """
    asked = math.ceil(need - NEAR)
    if need >= ratio * max(1, capacity):
        return Panic(now_s + hold_s, max(asked, before.replicas if before is not None else 0))
    if before is None or now_s >= before.until_s:
        return None
    return Panic(before.until_s, max(asked, before.replicas))


def grow(asked: int, state: ScaleState, scale: ScaleTerms, *, capacity: int, now_s: float) -> Passed:
    """Up: after a delay, which a burst doesn't wait for, and not by more than a factor at once. From zero neither holds:
    somebody is waiting, and any factor of nothing is nothing."""
    if capacity == 0:
        return asked, None
    if state.panic is None and now_s - state.direction_since_s < scale.up.delay_s:
        return capacity, Guard.UP_DELAY
    most = math.ceil(capacity * scale.up.max_factor)
    return (most, Guard.UP_FACTOR) if asked > most else (asked, None)


def shrink(asked: int, state: ScaleState, scale: ScaleTerms, *, capacity: int, now_s: float) -> Passed:
    """Down: after a delay, in steps, and only to where the highest load of that delay would still be served with room.

    The last rule is what keeps two replicas from becoming one and two again: what counts is not how idle N are, but how
    busy N - 1 will be.
    """
    if state.panic is not None:
        return capacity, Guard.PANIC_HOLD
    if now_s - state.direction_since_s < scale.down.delay_s:
        return capacity, Guard.DOWN_DELAY
    if state.stepped_s is not None and now_s - state.stepped_s < scale.window_s:
        # Those of the last step may still be on their way out; they are not asked back.
        return min(capacity, state.stepped_to), Guard.DOWN_PACE
    least = max(asked, capacity - scale.down.max_step)
    safe = math.ceil(state.peaks.highest / scale.down.margin - NEAR)
    if safe > least:
        return min(safe, capacity), Guard.CONSOLIDATION
    return least, Guard.DOWN_STEP if least > asked else None


def keep_last(
    state: ScaleState,
    scale: ScaleTerms,
    *,
    first_wait_s: float,
    first_wait_max_s: float | None,
    now_s: float,
) -> Passed:
    """The last replica, which nothing asks for, goes only by agreement, after a time without work, and where the next first
    request could wait for its successor.

    Args:
        first_wait_s: What that request would wait.
        first_wait_max_s: What it may wait; None where nobody set a bound.
    """
    idle_s = 0.0 if state.active_s is None else now_s - state.active_s
    if not scale.idle_to_zero_s or idle_s < scale.idle_to_zero_s:
        return 1, Guard.IDLE_CLOCK
    if first_wait_max_s is not None and first_wait_s > first_wait_max_s:
        return 1, Guard.FIRST_REQUEST
    return 0, None


def bound(asked: int, scale: ScaleTerms) -> Passed:
    """Between the least and the most that was agreed."""
    if asked < scale.min:
        return scale.min, Guard.MIN
    if asked > scale.max:
        return scale.max, Guard.MAX
    return asked, None


def pay(asked: int, allowance: Allowance, budget: BudgetTerms, *, replicas_min: int, capacity: int) -> Passed:
    """What can be paid for. Growth ends where the rest of the day couldn't be paid; what then, the budget says."""
    if allowance.is_spent and budget.on_exceed == "stop":
        return 0, Guard.BUDGET_STOP
    if allowance.is_short and budget.on_exceed == "shrink_to_min" and asked > replicas_min:
        return replicas_min, Guard.BUDGET_SHRINK
    payable = max(capacity, allowance.replicas_max)
    return (payable, Guard.BUDGET) if asked > payable else (asked, None)
