"""How does one replica work through its requests? A model in virtual time: nothing is computed for a single token.

A replica computes prompts one after another, and answers beside each other, a token of each in every step. A step takes the
longer the more answers there are, so all of them get on at the same rate, which is what makes this cheap: a clock that counts
steps instead of seconds. An answer that joins when the clock shows V and has n tokens is over when it shows V + n, however the
others come and go. One heap of those moments for each replica, and one event for its next end.

What joins others waits for the beginning of a step, which is half a step in the mean. Not modelled: a cache that is full and sends
answers away again, and speculative decoding.
"""

import heapq
import math
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

# What two sums of many small parts may differ by, in steps.
_NEAR = 1e-6


@dataclass(frozen=True, slots=True)
class Pace:
    """How one replica works.

    Attributes:
        slots: Requests that it runs at once.
        overhead_s: Before anything of a request is computed; it delays nobody else.
        prefill_tokens_per_s: Of one prompt at a time; what its cache has of a prompt takes no time.
        step_s: One step without answers, so to speak; each answer in it adds `step_per_active_s`.
        interference: While a prompt is computed, answers get on by so much less: 0.0 for not at all, 1.0 for not.
        prefixes_max: So many beginnings of prompts stay in its cache, the last used; 0 for a cache that is not modelled.
        stages_s: Mean of each stage of a cold start.
        spread: Starts vary by this share around the mean.
        slow_start_s, slowness: For so long after it is ready it takes so many times as long.
    """

    slots: int = 16
    overhead_s: float = 0.0
    prefill_tokens_per_s: float = 8000.0
    step_s: float = 0.0194
    step_per_active_s: float = 0.0006
    interference: float = 0.0
    prefixes_max: int = 0
    stages_s: dict[str, float] = field(
        default_factory=lambda: {"starting": 5.0, "loading": 20.0, "warming": 5.0}
    )
    spread: float = 0.2
    slow_start_s: float = 0.0
    slowness: float = 2.0

    def step_of_s(self, answers: int) -> float:
        """What one step takes with so many answers in it."""
        return self.step_s + self.step_per_active_s * answers


class Answer(Protocol):
    """What the model must know of an answer in progress.

    Attributes:
        ends_at: The step by whose end it is over; set as it joins.
        is_gone: It ended before its time: nothing more is computed for it.
    """

    ends_at: float
    is_gone: bool


A = TypeVar("A", bound=Answer)


class ReplicaModel(Generic[A]):
    """One replica. Every call must be given a time that is no earlier than that of the call before.

    State: `_steps` is the clock as it stood at `_at_s`; `_heap` of (end, order, answer), of which those that are gone are
    dropped as they come up; prompts are computed until `_prompts_until_s`; `_prefixes` in the order of their last use.

    Attributes:
        answers: In progress, beyond their prompt.
    """

    __slots__ = (
        "_at_s",
        "_heap",
        "_order",
        "_pace",
        "_prefixes",
        "_prompts_until_s",
        "_slowness",
        "_steps",
        "answers",
    )

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._slowness = 1.0
        self._steps = self._at_s = self._prompts_until_s = 0.0
        self._heap: list[tuple[float, int, A]] = []
        self._order = 0
        self._prefixes: dict[object, int] = {}
        self.answers = 0

    @property
    def prompts_until_s(self) -> float:
        """When it will have computed all prompts that it was given."""
        return self._prompts_until_s

    @property
    def step_now_s(self) -> float:
        return self._slowness * self._pace.step_of_s(self.answers)

    def slow_down(self, slowness: float, now_s: float) -> None:
        """From now on everything takes so many times as long; prompts that it has already been given don't."""
        self._advance(now_s)
        self._slowness = slowness

    def take(self, tokens: int, now_s: float) -> float:
        """A prompt, after those that were given before. Returns when it will have been computed: `join` is due then."""
        self._advance(now_s)
        begin_s = max(now_s + self._pace.overhead_s, self._prompts_until_s)
        self._prompts_until_s = begin_s + self._slowness * tokens / self._pace.prefill_tokens_per_s
        return self._prompts_until_s

    def cached_tokens(self, prefix: object, tokens: int) -> int:
        """How much of a beginning is in the cache; from now on all of it is."""
        prefixes_max = self._pace.prefixes_max
        if not prefixes_max:
            return 0
        known = self._prefixes.pop(prefix, 0)
        self._prefixes[prefix] = max(known, tokens)
        if len(self._prefixes) > prefixes_max:
            del self._prefixes[next(iter(self._prefixes))]
        return min(known, tokens)

    def join(self, answer: A, tokens: int, now_s: float) -> float:
        """The prompt of an answer of so many tokens is computed. Returns when its first token is there."""
        self._advance(now_s)
        steps = 0.5 if self.answers else 0.0
        self.answers += 1
        answer.ends_at = self._steps + steps + max(0, tokens - 1)
        self._order += 1
        heapq.heappush(self._heap, (answer.ends_at, self._order, answer))
        return now_s + steps * self.step_now_s

    def leave(self, answer: A, now_s: float) -> None:
        """An answer that had joined ends before its time."""
        self._advance(now_s)
        answer.is_gone = True
        self.answers -= 1

    def next_end_s(self) -> float:
        """When the next answer is over, if nobody comes or leaves before; infinite while there is none."""
        heap = self._heap
        while heap and heap[0][2].is_gone:
            heapq.heappop(heap)
        if not heap:
            return math.inf
        step_s, steps = self.step_now_s, heap[0][0] - self._steps
        begin_s, interference = self._at_s, self._pace.interference
        if interference and self._prompts_until_s > begin_s:
            meanwhile = (1.0 - interference) * (self._prompts_until_s - begin_s) / step_s
            if meanwhile >= steps:
                return begin_s + steps * step_s / (1.0 - interference)
            begin_s, steps = self._prompts_until_s, steps - meanwhile
        return begin_s + max(0.0, steps) * step_s

    def ended(self, now_s: float) -> A | None:
        """An answer that is over by now, or None."""
        self._advance(now_s)
        heap = self._heap
        while heap and (heap[0][2].is_gone or heap[0][0] <= self._steps + _NEAR):
            answer = heapq.heappop(heap)[2]
            if not answer.is_gone:
                self.answers -= 1
                answer.is_gone = True
                return answer
        return None

    def _advance(self, now_s: float) -> None:
        """Brings the clock of steps up to the time."""
        if self.answers:
            seconds = now_s - self._at_s
            if self._pace.interference:
                busy_s = min(now_s, self._prompts_until_s) - self._at_s
                seconds -= self._pace.interference * max(0.0, busy_s)
            self._steps += seconds / self.step_now_s
        else:  # sums stay exact if they begin anew
            self._steps = 0.0
            self._heap.clear()
        self._at_s = now_s
