"""Who has waited too long? One look four times a second at every attempt: at the replica's silence, the caller's, the deadline.

A limit that falls between two looks gets a timer of its own, so it is met to the millisecond; a timer for every attempt
would cost more than all else that an attempt does.
"""

import asyncio
import math

from headrace.core.clock import Clock
from headrace.core.outcome import AttemptOutcome
from headrace.gateway.attempt import Attempt
from headrace.gateway.rules import EXACT_BELOW_S

LONG_S = 2.0  # a deadline that far away when the request arrived is left to the looks


class Watch:
    """Watches every attempt in progress. Owner of `_timers`: an entry for each attempt, with its timer if it has one."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._timers: dict[Attempt, asyncio.TimerHandle | None] = {}

    def begin(self, attempt: Attempt) -> None:
        self._timers[attempt] = None

    def end(self, attempt: Attempt) -> None:
        timer = self._timers.pop(attempt)
        if timer is not None:
            timer.cancel()

    def sent(self, attempt: Attempt) -> None:
        """It has begun to wait for the replica; most limits are too far away to look at now."""
        request = attempt.request
        if attempt.call.rules.is_exact or request.deadline_s - request.arrived_s < LONG_S:
            self._look(attempt, self._clock.now_s())

    def tick(self, now_s: float) -> None:
        for attempt in list(self._timers):
            received = attempt.reception
            if received.first_event_s is not None:
                # Nothing is read for a caller who takes nothing, so nothing is known of the replica then.
                attempt.health.heard(heard_s=now_s if attempt.call.is_paused else received.heard_s)
            self._look(attempt, now_s)

    def _look(self, attempt: Attempt, now_s: float) -> None:
        if attempt.is_waiting and self._timers[attempt] is None:
            left_s = self._due_s(attempt) - now_s
            if left_s < EXACT_BELOW_S:
                loop = asyncio.get_running_loop()
                self._timers[attempt] = loop.call_later(max(0.0, left_s) + 0.001, self._is_due, attempt)

    def _is_due(self, attempt: Attempt) -> None:
        self._timers[attempt] = None
        now_s = self._clock.now_s()
        if now_s < self._due_s(attempt):
            self._look(attempt, now_s)  # there was a sign of life meanwhile
        elif now_s >= attempt.request.deadline_s:
            attempt.reception.end(AttemptOutcome.DEADLINE)
        elif attempt.call.is_paused:
            attempt.reception.cut_reader()
        else:
            attempt.reception.end(AttemptOutcome.STALLED)

    def _due_s(self, attempt: Attempt) -> float:
        """When it will have waited too long: for the whole answer, for its caller, or for the replica."""
        call = attempt.call
        if call.is_paused:
            limit_s = call.paused_since_s + call.rules.limits.write_stall_limit_s
        else:
            limit_s = _silence_ends_s(attempt)
        return min(limit_s, attempt.request.deadline_s)


def _silence_ends_s(attempt: Attempt) -> float:
    """A whole answer may take until the deadline to begin: it is only sent when all of it is there."""
    reception, limits = attempt.reception, attempt.call.rules.limits
    if reception.first_event_s is not None:
        return reception.heard_s + limits.stall_limit_s
    return reception.heard_s + limits.first_event_limit_s if reception.is_streamed else math.inf
