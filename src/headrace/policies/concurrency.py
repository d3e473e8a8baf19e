"""How many requests at once does this replica serve well? Found by the delay of first tokens, below the slots it was given.

Whoever runs a server seldom knows how many requests it can really take. Given too many it puts them into a queue of its own,
where neither deadlines nor fair shares hold, and which shows as first tokens that come late. Then fewer are sent, and what
waits waits here. Total times say nothing of this: they depend on how much was asked for.
"""

import math

WINDOW_MIN = 16
LATE_FACTOR = 2.0
LATE_SLACK_S = 0.1
DECREASE = 0.8
FORGET = 1.02
_SIZES = 32


class ConcurrencyLimit:
    """Additive increase, multiplicative decrease between 1 and `slots_max`, judged once per window of first tokens.

    A first token is late when it took more than LATE_FACTOR times the best time seen for prompts of that size, and
    LATE_SLACK_S more, which is what a busy machine adds by itself. A window in which more than half were late lowers the
    limit; one with hardly any, in which the limit was reached, raises it. The best times grow slowly with each window, so that a
    server that has changed is not compared with its former self for ever. Models of one server have a limit together, and
    best times of their own.

    State: `value` in force since `_changed_s`; `_best_s` by model that was asked for, and by the binary order of the prompt's
    size; `_seen`, `_late` and `_was_reached` of the present window. Source: the delay-based limits of TCP Vegas and Netflix's concurrency-limits.
    """

    __slots__ = ("_best_s", "_changed_s", "_late", "_seen", "_slots_max", "_was_reached", "value")

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self.value = slots_max
        self._best_s: dict[str, list[float]] = {}
        self._changed_s = -math.inf
        self._seen = self._late = 0
        self._was_reached = False

    def resize(self, slots_max: int) -> None:
        """The replica has more or fewer slots: what was found still holds below them, and what was unlimited stays so."""
        was_unlimited = self.value >= self._slots_max
        self._slots_max = slots_max
        self.value = slots_max if was_unlimited else min(self.value, slots_max)

    def observe(
        self, ttft_s: float, *, model: str, prompt_bytes: int, in_flight: int, started_s: float, now_s: float
    ) -> bool:
        """A request has ended. Those that were sent under another limit say nothing of this one.

        Args:
            ttft_s: From sending the request to the first token of a streamed answer.
            in_flight: Requests on the replica with this one, for whichever model.

        Returns whether the limit has changed.
        """
        if started_s < self._changed_s:
            return False
        size = min(_SIZES - 1, prompt_bytes.bit_length())
        best = self._best_s.get(model)
        if best is None:
            best = self._best_s[model] = [math.inf] * _SIZES
        best_s = best[size]
        if ttft_s < best_s:
            best[size] = ttft_s
        elif ttft_s > LATE_FACTOR * best_s + LATE_SLACK_S:
            self._late += 1
        self._seen += 1
        if in_flight >= self.value:
            self._was_reached = True
        return self._seen >= WINDOW_MIN and self._seen >= self.value and self._judge(now_s)

    def _judge(self, now_s: float) -> bool:
        before = self.value
        if 2 * self._late > self._seen:
            self.value = max(1, int(before * DECREASE))
        elif 10 * self._late <= self._seen and self._was_reached:
            self.value = min(self._slots_max, before + math.isqrt(before))
        if self.value != before:
            self._changed_s = now_s
        for best in self._best_s.values():
            best[:] = [best_s * FORGET for best_s in best]
        self._seen = self._late = 0
        self._was_reached = False
        return self.value != before
