"""Should this replica get requests, judging by how its last ones went? Ejection for a growing time, then another chance."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthRules:
    """See config.HealthConfig."""

    failures_to_eject: int
    ejection_s: float
    ejection_max_s: float


class ReplicaHealth:
    """One replica's record: failures in a row, ejections in a row, and until when it is out.

    After an ejection one more failure is enough for the next, twice as long; one success forgets everything.
    """

    __slots__ = ("_ejections", "_failures", "_next_out_s", "_rules", "ejected_until_s")

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._failures = 0
        self._ejections = 0
        self._next_out_s = rules.ejection_s
        self.ejected_until_s = 0.0

    def is_ejected(self, now_s: float) -> bool:
        return now_s < self.ejected_until_s

    def succeeded(self) -> bool:
        """Returns whether this ended a series of ejections."""
        returned = self._ejections > 0
        self._failures = self._ejections = 0
        self._next_out_s = self._rules.ejection_s
        self.ejected_until_s = 0.0
        return returned

    def failed(self, *, now_s: float) -> bool:
        """Returns whether this failure ejected the replica."""
        self._failures += 1
        if self.is_ejected(now_s) or self._failures < self._rules.failures_to_eject:
            return False
        out_s = min(self._rules.ejection_max_s, self._next_out_s)
        # Doubled from the bounded time: a power of the number of ejections would overflow after a day and a half.
        self._next_out_s = 2.0 * out_s
        self.ejected_until_s = now_s + out_s
        self._ejections += 1
        self._failures = self._rules.failures_to_eject - 1
        return True
