"""May a failed attempt be repeated elsewhere, and when? Within a budget, after a pause, and never what must not run twice."""

from headrace.core.chance import Chance
from headrace.core.endings import Ending
from headrace.core.outcome import AttemptOutcome, Outcome
from headrace.core.request import Endpoint

WINDOW_S = 10.0

REPEATABLE: dict[Endpoint, bool] = {
    Endpoint.CHAT_COMPLETIONS: True,
    Endpoint.COMPLETIONS: True,
    Endpoint.EMBEDDINGS: True,
}
"""Whether work may run twice: generation costs time and leaves nothing behind. What has effects, or is paid for by the
piece, is not; an endpoint without a row is not either."""

# A replica that ended an attempt so has done no work for it.
_UNWORKED = frozenset({AttemptOutcome.BUSY, AttemptOutcome.REJECTED})


def may_repeat(outcome: AttemptOutcome, *, endpoint: Endpoint, was_sent: bool, has_key: bool) -> bool:
    """Whether doing it again is safe, whatever the budget says.

    Args:
        was_sent: Any of the request went out: the replica may have worked on it, although no answer came.
        has_key: The caller gave an Idempotency-Key: it wants the work done once, and says that a repeat is the same work.
    """
    return REPEATABLE.get(endpoint, False) or has_key or not was_sent or outcome in _UNWORKED


def may_fall_back(ending: Ending) -> bool:
    """Whether the accepted revision should try what another has ended so. It may find right what the other found wrong."""
    return ending.may_retry or (
        ending.attempt is AttemptOutcome.REJECTED and ending.outcome is Outcome.FAILED
    )


def pause_s(retries: int, *, first_s: float, max_s: float, chance: Chance) -> float:
    """How long to wait before that retry (counted from 1): between half and all of a time that doubles up to a maximum,
    so that those who failed together don't come back together."""
    assert retries >= 1
    backoff_s = first_s
    for _ in range(retries - 1):
        backoff_s = min(max_s, 2.0 * backoff_s)
    return min(max_s, backoff_s) * (0.5 + 0.5 * chance.random())


class RetryBudget:
    """A purse of retries, one for each model: each request pays in `ratio`, each retry takes out 1, and `floor_per_s` drips
    in besides.

    So over any long time retries <= ratio * requests + floor_per_s * seconds; the purse holds at most what
    WINDOW_S of the floor and 100 requests would put in, which bounds a burst after a quiet time.
    Source: the retry budget of Finagle and linkerd (20 % of requests plus a floor over a 10 s window).
    """

    def __init__(self, *, ratio: float, floor_per_s: float, now_s: float) -> None:
        self.set_terms(ratio=ratio, floor_per_s=floor_per_s)
        self._balance = min(self._balance_max, floor_per_s * WINDOW_S)
        self._counted_s = now_s

    def set_terms(self, *, ratio: float, floor_per_s: float) -> None:
        """From now on; with the next request or retry the purse holds no more than it may then."""
        self._ratio = ratio
        self._floor_per_s = floor_per_s
        self._balance_max = floor_per_s * WINDOW_S + ratio * 100.0

    def request(self) -> None:
        """A request arrived."""
        balance = self._balance + self._ratio
        self._balance = balance if balance < self._balance_max else self._balance_max

    def take(self, *, now_s: float) -> bool:
        """Takes one retry out; False if the purse is empty."""
        drip = max(0.0, now_s - self._counted_s) * self._floor_per_s
        self._balance = min(self._balance_max, self._balance + drip)
        self._counted_s = max(now_s, self._counted_s)
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True

    def put_back(self) -> None:
        """A retry that was taken out did not take place."""
        self._balance = min(self._balance_max, self._balance + 1.0)
