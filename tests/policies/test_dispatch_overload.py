"""T7: far too much is asked for, with times of answers as answers have them; what is begun is ended in time."""

import heapq
import math
from itertools import count
from random import Random

import pytest

from headrace.core.errors import Saturated
from headrace.core.outcome import AttemptOutcome
from headrace.policies.tickets import Action, Start, Ticket
from tests.policies.dispatch_rig import dispatcher, replica, ticket

SLOTS, MEAN_S, RUN_S = 4, 1.0, 150.0


class Service:
    """A replica whose answers take times of that spread, asked at a steady rate; its clock is that of the events.

    State: `in_time_s` and `too_late_s` are slot-seconds of work, by what became of it; `refused` counts.
    """

    def __init__(self, *, spread: float, seed: int) -> None:
        self.in_time_s = self.too_late_s = 0.0
        self.refused = 0
        self._chance = Random(seed)
        self._sigma = math.sqrt(math.log(1.0 + spread * spread))
        self._dispatcher = dispatcher(replica("a", slots=SLOTS), queue_length_max=1000)
        self._events: list[tuple[float, int, Ticket | None]] = []
        self._order = count()
        self._takes_s: dict[Ticket, float] = {}

    def play(self, *, times_capacity: float, deadline_s: float) -> None:
        due_s = 0.0
        while due_s < RUN_S:
            self._at(due_s, None)
            due_s += self._chance.expovariate(times_capacity * SLOTS / MEAN_S)
        while self._events:
            now_s, _, ended = heapq.heappop(self._events)
            if ended is None:
                self._arrive(ticket(deadline_s=now_s + deadline_s), now_s)
            else:
                self._end(ended, now_s)

    def _arrive(self, one: Ticket, now_s: float) -> None:
        self._takes_s[one] = MEAN_S * self._chance.lognormvariate(-(self._sigma**2) / 2, self._sigma)
        try:
            if self._dispatcher.arrive(one, now_s=now_s):
                self._begin(one, now_s)
            else:
                self._perform(self._dispatcher.wait(one, now_s=now_s), now_s)
        except Saturated:
            self.refused += 1

    def _begin(self, one: Ticket, now_s: float) -> None:
        self._at(min(now_s + self._takes_s[one], one.deadline_s), one)

    def _end(self, one: Ticket, now_s: float) -> None:
        held_s = now_s - one.started_s
        is_whole = held_s >= self._takes_s[one] - 1e-9
        if is_whole:
            self.in_time_s += held_s
        else:
            self.too_late_s += held_s
        outcome = AttemptOutcome.COMPLETED if is_whole else AttemptOutcome.DEADLINE
        _, actions = self._dispatcher.give_back(one, outcome, now_s=now_s)
        self._perform(actions, now_s)

    def _perform(self, actions: list[Action], now_s: float) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._begin(action.ticket, now_s)

    def _at(self, at_s: float, ended: Ticket | None) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), ended))


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("deadline_s", [6.0, 12.0])
def test_too_much_work_of_unlike_length_leaves_the_slots_to_what_ends_in_time(
    spread: float, deadline_s: float
) -> None:
    """Who is let in just in time by what is expected is too late every other time, and has held a slot for nothing."""
    service = Service(spread=spread, seed=1)
    service.play(times_capacity=5.0, deadline_s=deadline_s)
    done = service.in_time_s + service.too_late_s
    assert done == pytest.approx(SLOTS * RUN_S, rel=0.1), "slots were left empty"
    assert service.in_time_s / done > 0.8
    assert service.refused > 0


def test_below_what_it_can_do_hardly_anybody_is_refused_for_the_doubt() -> None:
    service = Service(spread=0.6, seed=2)
    service.play(times_capacity=0.7, deadline_s=6.0)
    assert service.refused < 0.02 * 0.7 * SLOTS * RUN_S / MEAN_S
