"""How long does an engine that ended wait before it is started again?"""

from dataclasses import dataclass

from headrace.core.chance import Chance


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential backoff with jitter, forgotten after a long enough life.

    Attributes:
        first_s: Delay after the first quick failure; doubles with each further one.
        ceiling_s: Longest delay.
        steady_s: An engine that was ready for this long ended for a new reason: the count starts again.
        quick_failures_max: More quick failures in a row than this go straight to the ceiling.
    """

    first_s: float = 0.5
    ceiling_s: float = 30.0
    steady_s: float = 60.0
    quick_failures_max: int = 5

    def quick_failures(self, before: int, *, ready_for_s: float) -> int:
        """Quick failures in a row, counting the one that just happened after `ready_for_s` of service."""
        return 1 if ready_for_s >= self.steady_s else before + 1

    def delay_s(self, quick_failures: int, chance: Chance) -> float:
        """Between half and all of the backoff, so that engines that died together don't start together."""
        assert quick_failures >= 1
        if quick_failures > self.quick_failures_max:
            backoff_s = self.ceiling_s
        else:
            backoff_s = min(self.ceiling_s, self.first_s * 2 ** (quick_failures - 1))
        return backoff_s * (0.5 + 0.5 * chance.random())
