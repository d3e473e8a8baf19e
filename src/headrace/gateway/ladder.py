"""How hard is this process pressed, and who is told? Reads the resources at each tick and says when the level changes."""

from headrace.core.errors import Saturated
from headrace.core.outcome import Reason
from headrace.policies.pressure import Level, Memory, Pressure, Reading, Verdict, share_descriptors
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.resources import Resources, release_free_memory

RETRY_AFTER_S = 5.0


class Ladder:
    """The level of pressure on this process. Owner: the gateway's tick.

    Args:
        descriptors_max: The limit in force.

    Attributes:
        connections_max, work_max: What the descriptors allow that were free at the start; see policies.pressure.Shares.
    """

    def __init__(
        self,
        pressure: Pressure,
        resources: Resources,
        *,
        descriptors_max: int,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._pressure = pressure
        self._resources = resources
        self._descriptors_max = descriptors_max
        self._metrics = metrics
        self._log = log
        shares = share_descriptors(descriptors_max, in_use=resources.descriptors())
        self.connections_max, self.work_max = shares.connections_max, shares.work_max
        self._show_left(resources.memories())  # before the first tick: nothing left is what 0 would say

    def go_by(self, *, lag_s_max: float, hold_s: float, memory_bytes_max: int) -> None:
        """From the next reading on; see config.PressureConfig."""
        self._pressure.set_limits(lag_s_max=lag_s_max, hold_s=hold_s)
        self._resources.memory_bytes_max = memory_bytes_max

    @property
    def verdict(self) -> Verdict:
        return self._pressure.verdict

    def step(self, *, lag_s: float, keeps_waiting: bool, now_s: float) -> bool:
        """Takes a reading; returns whether the level has changed. See policies.pressure.Reading."""
        before = self.verdict
        if before.reason == "memory":  # bodies that were let go may still be in the allocator's hands
            release_free_memory()
        reading = Reading(
            lag_s=lag_s,
            memories=self._resources.memories(),
            descriptors=self._resources.descriptors(),
            descriptors_max=self._descriptors_max,
            keeps_waiting=keeps_waiting,
        )
        verdict = self._pressure.judge(reading, now_s=now_s)
        left_bytes = self._show_left(reading.memories)
        if verdict.level is before.level:
            return False
        self._metrics.pressure_level.labels().set(verdict.level)
        self._log.event(
            "pressure.eased" if verdict.level < before.level else "pressure.rose",
            pressure=verdict.level.name.lower(),
            reason=verdict.reason or before.reason,
            lag_s=lag_s,
            left_bytes=left_bytes,
            descriptors=reading.descriptors,
            descriptors_max=reading.descriptors_max,
        )
        return True

    def _show_left(self, memories: tuple[Memory, ...]) -> int:
        left_bytes = min((memory.left_bytes for memory in memories), default=0)
        self._metrics.memory_left_bytes.labels().set(left_bytes)
        return left_bytes

    @property
    def is_calm(self) -> bool:
        return self.verdict.level is Level.CALM

    @property
    def is_refusing(self) -> bool:
        return self.verdict.level is Level.REFUSE

    def refusal(self) -> Saturated:
        """What those hear who are turned away while `is_refusing`."""
        return Saturated(
            f"this server is short of {self.verdict.reason}",
            retry_after_s=RETRY_AFTER_S,
            reason=Reason.PRESSED,
        )
