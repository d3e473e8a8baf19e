"""When is more work refused? Bounds of a queue in requests, bytes and time, and the deadline that a request could not keep."""

import math
from dataclasses import dataclass

from headrace.core.errors import Saturated
from headrace.core.outcome import Reason

RETRY_AFTER_MIN_S = 1.0
RETRY_AFTER_MAX_S = 60.0
# What a request is taken to need until one of its deployment has ended.
SERVICE_PRIOR_S = 1.0
# Of the standard deviation of what is expected, so much must fit into the time left as well. Too much is asked for without end by
# those who would just be in time: were they let in by what is expected alone, half of the work would be begun and not ended.
DOUBTS = 1.5


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The bounds of each deployment's queue; see config.AdmissionConfig."""

    length_max: int
    bytes_max: int
    wait_max_s: float


def retry_after_s(wait_s: float) -> float:
    """The wait as a caller is told it: neither at once, nor so late that it gives up."""
    return min(RETRY_AFTER_MAX_S, max(RETRY_AFTER_MIN_S, wait_s))


def doubt_s(*, wait_s: float, typical_s: float, spread_s: float) -> float:
    """What to allow for, beside what is expected: answers of unlike length, of those that it waits for one after the other, and its own."""
    rounds = wait_s / typical_s if typical_s > 0.0 else 0.0
    return DOUBTS * spread_s * math.sqrt(1.0 + rounds)


def refuse_infeasible(
    *, wait_s: float, service_s: float, time_left_s: float, wait_max_s: float, doubt_s: float = 0.0
) -> None:
    """Raises Saturated for work that would wait too long, or would hardly end before its deadline.

    The time to come back is when so much of the queue is done that the same request would be admitted.

    Args:
        wait_s: Expected time in the queue.
        service_s: Expected time on a replica, for a request of this size.
        doubt_s: By how much the two may well be longer.
    """
    if wait_s > wait_max_s:
        raise Saturated(
            f"the expected wait of {wait_s:.1f} s is longer than the {wait_max_s:.1f} s that a request may wait",
            retry_after_s=retry_after_s(wait_s - wait_max_s),
            reason=Reason.WAIT_TOO_LONG,
        )
    if wait_s + service_s + doubt_s > time_left_s:
        raise Saturated(
            f"the expected wait of {wait_s:.1f} s and {service_s:.1f} s of work, with {doubt_s:.1f} s to spare, are longer"
            f" than the {time_left_s:.1f} s left",
            retry_after_s=retry_after_s(wait_s + service_s + doubt_s - time_left_s),
            reason=Reason.WAIT_TOO_LONG,
        )


def full(*, queued: int, wait_s: float) -> Saturated:
    """The refusal of a request for which the queue has no place."""
    return Saturated(
        f"the queue is full ({queued} waiting)", retry_after_s=retry_after_s(wait_s), reason=Reason.QUEUE_FULL
    )


def refuse_rest(rest_s: float) -> None:
    """Raises Saturated where every replica rests for so long: the caller is told when that is over, unless it is about to be."""
    if rest_s > RETRY_AFTER_MIN_S:
        raise Saturated(
            "every replica of this model has asked to be left alone for a while",
            retry_after_s=rest_s,
            reason=Reason.RESTING,
        )
