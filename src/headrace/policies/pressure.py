"""How near is this process to what it may use, and what does it give up first? A ladder: keep-alive, then new work.

Memory and descriptors count as they stand; a late event loop counts only when it is late again and again: one long pause is
over by the time that it is seen.
"""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum

DESCRIPTORS_BRIEF = 0.8
DESCRIPTORS_REFUSE = 0.95
# Of a large limit these shares would leave much unused, so what is left counts up to a fixed size.
MEMORY_LEFT_BRIEF, MEMORY_LEFT_BRIEF_BYTES_MAX = 0.10, 512 * 1024 * 1024
MEMORY_LEFT_REFUSE, MEMORY_LEFT_REFUSE_BYTES_MAX = 0.05, 256 * 1024 * 1024
LAGS_IN_A_ROW = 3
# To leave a level, a reading must be this much better than what led to it.
EASE = 0.9
# Descriptors that belong to no connection of a caller or a replica: database, log, probes, the admin port.
DESCRIPTORS_RESERVED = 64


class Level(IntEnum):
    """What is given up. Each level includes those below it."""

    CALM = 0
    BRIEF = 1  # connections end after their answer, and idle ones soon
    REFUSE = 2  # no new work


@dataclass(frozen=True, slots=True)
class Memory:
    """A limit on memory and how much of it is used by whoever shares it."""

    used_bytes: int
    limit_bytes: int

    @property
    def left_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured at one moment.

    Attributes:
        lag_s: How late the event loop ran its last periodic task.
        memories: Every limit on memory that holds for this process.
        descriptors, descriptors_max: Open ones and how many there may be.
        keeps_waiting: Whether callers wait in the kernel because there are no descriptors for them: then those who are in
            and idle must go, however many descriptors are kept back for work.
    """

    lag_s: float
    memories: tuple[Memory, ...]
    descriptors: int
    descriptors_max: int
    keeps_waiting: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The level and the resource that it is owed to: `lag`, `memory`, `descriptors`, or "" when calm."""

    level: Level = Level.CALM
    reason: str = ""


class Pressure:
    """Judges one reading after another. Up at once; down a level only after `hold_s` without a reading that asks for it.

    Args:
        lag_s_max: Event loop lag at which new work is refused; at half of it connections become brief.
    """

    def __init__(self, *, lag_s_max: float, hold_s: float) -> None:
        self.set_limits(lag_s_max=lag_s_max, hold_s=hold_s)
        self._lags_s: deque[float] = deque(maxlen=LAGS_IN_A_ROW)
        self._needed_s = 0.0  # when a reading last asked for the present level
        self.verdict = Verdict()

    def set_limits(self, *, lag_s_max: float, hold_s: float) -> None:
        """For the readings from now on."""
        self._lag_s_max = lag_s_max
        self._hold_s = hold_s

    def judge(self, reading: Reading, *, now_s: float) -> Verdict:
        """The level from now on."""
        self._lags_s.append(reading.lag_s)
        asked = self._asked(reading, ease=1.0)
        if asked.level > self.verdict.level:
            self.verdict, self._needed_s = asked, now_s
        elif self._asked(reading, ease=EASE).level >= self.verdict.level:
            self._needed_s = now_s
        elif now_s - self._needed_s >= self._hold_s:
            # One step at a time: it is the step before that made things better, perhaps.
            level = Level(self.verdict.level - 1)
            self.verdict = Verdict(level, self.verdict.reason if level else "")
            self._needed_s = now_s
        return self.verdict

    def _asked(self, reading: Reading, *, ease: float) -> Verdict:
        """The highest level that a resource asks for; `ease` below 1 makes every limit that much tighter."""
        levels = {
            "memory": max((_memory_level(each, ease=ease) for each in reading.memories), default=Level.CALM),
            "descriptors": _descriptor_level(reading, ease=ease),
            "lag": self._lag_level(ease=ease),
        }
        reason = max(levels, key=levels.__getitem__)
        return Verdict(levels[reason], reason if levels[reason] else "")

    def _lag_level(self, *, ease: float) -> Level:
        if len(self._lags_s) < LAGS_IN_A_ROW:
            return Level.CALM
        refuse_s = self._lag_s_max * ease
        return _level(min(self._lags_s), brief=refuse_s / 2, refuse=refuse_s)


def _memory_level(memory: Memory, *, ease: float) -> Level:
    brief_bytes = min(memory.limit_bytes * MEMORY_LEFT_BRIEF, MEMORY_LEFT_BRIEF_BYTES_MAX) / ease
    refuse_bytes = min(memory.limit_bytes * MEMORY_LEFT_REFUSE, MEMORY_LEFT_REFUSE_BYTES_MAX) / ease
    return _level(-memory.left_bytes, brief=-brief_bytes, refuse=-refuse_bytes)


def _descriptor_level(reading: Reading, *, ease: float) -> Level:
    used = reading.descriptors / reading.descriptors_max
    level = _level(used, brief=DESCRIPTORS_BRIEF * ease, refuse=DESCRIPTORS_REFUSE * ease)
    return max(level, Level.BRIEF) if reading.keeps_waiting else level


def _level(value: float, *, brief: float, refuse: float) -> Level:
    if value >= refuse:
        return Level.REFUSE
    return Level.BRIEF if value >= brief else Level.CALM


@dataclass(frozen=True, slots=True)
class Shares:
    """How descriptors are shared out.

    Attributes:
        connections_max: Callers' connections; the next one waits in the kernel.
        work_max: Requests in progress, each of which needs a connection to a replica as well.
    """

    connections_max: int
    work_max: int


def share_descriptors(descriptors_max: int, *, in_use: int) -> Shares:
    """Shares out what is free: a little more for callers than for work, so that there is a way in for who asks whether we
    live, or hears quickly that there is no room."""
    free = max(4, descriptors_max - in_use - DESCRIPTORS_RESERVED)
    work = free * 7 // 16
    return Shares(connections_max=free - work, work_max=work)
