"""Should this replica get requests, and how many, judging by how its last ones went? A circuit for each replica.

    CLOSED --failures in a row, or silence--> OPEN --its time is over, or a probe found it again--> HALF_OPEN
    HALF_OPEN --a failure--> OPEN, for twice as long        HALF_OPEN --a success--> SLOW_START --time--> CLOSED

Apart from the circuit a replica may ask for a rest (429 or 503 with Retry-After), and one that says nothing although it has
work is used only where no other has a free slot, long before its silence is a failure.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.outcome import AttemptOutcome

WEIGHT_MIN = 0.1  # of a replica that has just come back


class Circuit(StrEnum):
    """What a replica gets: its share; nothing; one request at a time; a share that grows."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    SLOW_START = "slow_start"


@dataclass(frozen=True, slots=True)
class HealthRules:
    """See config.HealthConfig; the last two follow from the limits on an answer.

    Attributes:
        silence_limit_s: An attempt that ends without an answer after this much silence of the whole replica speaks for a
            replica that hangs.
        silence_max_s: So does that much silence while all attempts still wait.
    """

    failures_to_eject: int
    ejection_s: float
    ejection_max_s: float
    slow_start_s: float = 10.0
    rest_s: float = 1.0
    quiet_s: float = 1.0
    silence_limit_s: float = 30.0
    silence_max_s: float = 300.0


# What an attempt can end with although nothing has come from the replica.
_UNHEARD = frozenset(
    {
        AttemptOutcome.CANCELLED,
        AttemptOutcome.DEADLINE,
        AttemptOutcome.STALLED,
        AttemptOutcome.UNREACHABLE,
    }
)
_WAITED_FOR_IT = frozenset({AttemptOutcome.DEADLINE, AttemptOutcome.STALLED})


class ReplicaHealth:
    """One replica's record. Owner of all below: the Dispatcher.

    Attributes:
        is_settled: Nothing is to be said: its circuit is closed, it asked for no rest, and it is not quiet. Read for every
            request, so it may lag behind by one `look`.
        is_quiet: It has work and has said nothing for `quiet_s`.
        rest_until_s: Nothing is started on it before: it asked for it, or control is about to say whether it has ended.
        ejected_until_s: The end of its time out.
        trials: Requests in progress on it that were started since it was ejected. Those from before say nothing new: a long
            answer that goes on through it all must not keep it from its trial.
    """

    __slots__ = (
        "_ejected_s",
        "_failures",
        "_is_out",
        "_next_out_s",
        "_owes_since_s",
        "_rules",
        "_slow_over_s",
        "_slow_since_s",
        "_unheard_s",
        "ejected_until_s",
        "is_quiet",
        "is_settled",
        "rest_until_s",
        "trials",
    )

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._failures = 0
        self._next_out_s = rules.ejection_s
        self._is_out = False  # ejected, and without a success since
        self._ejected_s = 0.0
        self._slow_since_s: float | None = None
        self._slow_over_s = rules.slow_start_s
        self._owes_since_s: float | None = None  # since when it has work and has said nothing
        self._unheard_s = 0.0  # such time from before it fell idle
        self.ejected_until_s = 0.0
        self.rest_until_s = 0.0
        self.is_quiet = False
        self.is_settled = True
        self.trials = 0

    def go_by(self, rules: HealthRules) -> None:
        """Other rules from now on. Who is out, or on the way back, is so for as long as was said."""
        if self._slow_since_s is None:
            self._slow_over_s = rules.slow_start_s
        if self._next_out_s == self._rules.ejection_s:  # no ejection that is remembered
            self._next_out_s = rules.ejection_s
        self._rules = rules

    def circuit(self, now_s: float) -> Circuit:
        if self._is_out:
            return Circuit.OPEN if now_s < self.ejected_until_s else Circuit.HALF_OPEN
        return Circuit.CLOSED if self._slow_since_s is None else Circuit.SLOW_START

    def is_ejected(self, now_s: float) -> bool:
        return self._is_out and now_s < self.ejected_until_s

    def weight(self, now_s: float) -> float:
        """Its share of what it would get: 1.0, or on its way there."""
        if self._slow_since_s is None:
            return 1.0
        elapsed_s = now_s - self._slow_since_s
        return 1.0 if elapsed_s >= self._slow_over_s else max(WEIGHT_MIN, elapsed_s / self._slow_over_s)

    def silence_s(self, now_s: float) -> float:
        """How long it has had work and said nothing; times without work don't count."""
        return self._unheard_s if self._owes_since_s is None else now_s - self._owes_since_s

    # What happens to it.

    def asked(self, *, now_s: float) -> None:
        """A request was started on it."""
        self.trials += self._is_out
        if self._owes_since_s is None:
            self._owes_since_s = now_s - self._unheard_s

    def heard(self, *, heard_s: float) -> None:
        """It said something at that moment, and has more to say."""
        if self._owes_since_s is None or heard_s > self._owes_since_s:
            self._owes_since_s = heard_s
            self._unheard_s = 0.0

    def rest(self, *, until_s: float) -> None:
        """Nothing is started on it before that; of several such moments the last holds."""
        if until_s > self.rest_until_s:
            self.rest_until_s = until_s
            self.is_settled = False

    def start_slowly(self, *, now_s: float, over_s: float | None = None) -> None:
        """It is new among others: its caches are empty.

        Args:
            over_s: How long it takes to its full share; None for as long as the rules say.
        """
        self._slow_over_s = self._rules.slow_start_s if over_s is None else over_s
        if self._slow_over_s:
            self._slow_since_s = now_s
            self.is_settled = False

    def found(self, *, now_s: float) -> None:
        """A probe found it after it had not answered one: what remains of its time out is no use any more."""
        self.ejected_until_s = min(self.ejected_until_s, now_s)

    def ended(
        self, outcome: AttemptOutcome, *, started_s: float, is_idle: bool, now_s: float
    ) -> Circuit | None:
        """An attempt on it, begun at `started_s`, has ended; `is_idle` says that it was the last one in progress.

        Returns OPEN if this ejected the replica, SLOW_START if it brought it back, else None.
        """
        if self.trials and started_s >= self._ejected_s:
            self.trials -= 1
        is_hung = False
        if outcome in _UNHEARD:
            silence_s = self.silence_s(now_s)
            is_hung = outcome in _WAITED_FOR_IT and silence_s >= self._rules.silence_limit_s
            if is_idle:
                self._unheard_s, self._owes_since_s = silence_s, None
        else:
            self._unheard_s, self._owes_since_s = 0.0, None if is_idle else now_s
        if outcome is AttemptOutcome.COMPLETED:
            return self._succeeded(now_s)
        if not (is_hung or outcome.is_replica_fault):
            return None
        self._failures += 1
        # Work that was under way when it was ejected fails with it: one event, not many.
        if self._is_out and (now_s < self.ejected_until_s or started_s <= self._ejected_s):
            return None
        if is_hung or self._is_out or self._failures >= self._rules.failures_to_eject:
            return self._eject(now_s)
        return None

    def look(self, *, has_work: bool, now_s: float) -> Circuit | None:
        """Called a few times a second. Returns OPEN if its silence ejected it."""
        ejected = None
        silence_s = self.silence_s(now_s) if has_work else 0.0
        self.is_quiet = silence_s >= self._rules.quiet_s
        if silence_s >= self._rules.silence_max_s and not self._is_out:
            ejected = self._eject(now_s)
        if self._slow_since_s is not None and self.weight(now_s) >= 1.0:
            self._slow_since_s = None
            self._next_out_s = self._rules.ejection_s
        self.is_settled = not (
            self._is_out or self._slow_since_s is not None or self.is_quiet or now_s < self.rest_until_s
        )
        return ejected

    def _succeeded(self, now_s: float) -> Circuit | None:
        self._failures = 0
        if not self._is_out:
            return None
        self._is_out = False
        self.trials = 0
        self.ejected_until_s = 0.0
        # How long the next time out is stays remembered until it has run undisturbed for a while.
        self._slow_since_s, self._slow_over_s = now_s, self._rules.slow_start_s
        return Circuit.SLOW_START

    def _eject(self, now_s: float) -> Circuit:
        out_s = min(self._rules.ejection_max_s, self._next_out_s)
        # Doubled from the bounded time: a power of the number of ejections would overflow after a day and a half.
        self._next_out_s = 2.0 * out_s
        self._is_out = True
        self.trials = 0
        self._ejected_s = now_s
        self.ejected_until_s = now_s + out_s
        self._slow_since_s = None
        self._failures = 0
        self.is_settled = False
        # It owes an answer to what comes, not to what it was ejected for.
        self._unheard_s, self._owes_since_s = 0.0, None
        return Circuit.OPEN
