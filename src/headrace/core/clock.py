"""What time is it? The only place that reads a clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Time as a dependency, so that tests and simulations own it."""

    def now_s(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall_s(self) -> float:
        """Unix seconds, for records that people read; never for durations."""
        ...


class SystemClock:
    """The machine's clocks."""

    now_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)


class ManualClock:
    """A clock that moves only when told; wall time starts at 1 700 000 000."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s
        self._wall_offset_s = 1_700_000_000.0 - start_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s + self._wall_offset_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time does not run backwards"
        self._now_s += seconds
