"""Where does a replica stand in its life, when has a stage taken too long, why did a life end, and when does the next begin?

    PENDING ──> FETCHING ──> STARTING ──> WARMING ──> READY ──> DRAINING ──> STOPPED
       ^            │            │           ^  │        │          │
       │            │            │           └──┼─ two ──┘          │
       └── delay ── FAILED <─────┴──────────────┘  bad probes       └──> PENDING (it hung, and is started again)

A life is one process. Whatever ends it, the next one begins after a delay that grows while lives are short. A stage is given
up when it makes no progress, or when all of its time is used; a long load that goes on is neither.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from headrace.core.chance import Chance
from headrace.core.fleet import ReplicaState

PENDING, FETCHING, STARTING = ReplicaState.PENDING, ReplicaState.FETCHING, ReplicaState.STARTING
WARMING, READY, DRAINING = ReplicaState.WARMING, ReplicaState.READY, ReplicaState.DRAINING
STOPPED, FAILED = ReplicaState.STOPPED, ReplicaState.FAILED


class Event(Enum):
    """What happens to a replica."""

    FETCH = "its files are asked for"
    LAUNCH = "its process is started"
    LISTEN = "its port answers; of what quality isn't known yet"
    ANSWER = "it gave the expected kind of answer"
    EJECT = "it answers probes no more, and lives"
    WITHDRAW = "it gets no more requests, because it has to end"
    END = "its process has ended"
    GIVE_UP = "its process has ended without ever having been of use, or too often"
    RETIRE = "no replica is wanted in this place any more"


TRANSITIONS: dict[ReplicaState, dict[Event, ReplicaState]] = {
    PENDING: {Event.FETCH: FETCHING, Event.LAUNCH: STARTING, Event.GIVE_UP: FAILED},
    FETCHING: {Event.LAUNCH: STARTING, Event.GIVE_UP: FAILED},
    STARTING: {
        Event.LISTEN: WARMING,
        Event.END: PENDING,
        Event.GIVE_UP: FAILED,
        Event.WITHDRAW: DRAINING,
    },
    WARMING: {
        Event.ANSWER: READY,
        Event.END: PENDING,
        Event.GIVE_UP: FAILED,
        Event.WITHDRAW: DRAINING,
    },
    READY: {Event.EJECT: WARMING, Event.END: PENDING, Event.GIVE_UP: FAILED, Event.WITHDRAW: DRAINING},
    DRAINING: {Event.END: PENDING, Event.GIVE_UP: FAILED},
    FAILED: {Event.FETCH: FETCHING, Event.LAUNCH: STARTING, Event.GIVE_UP: FAILED},
    STOPPED: {},
}
for _changes in TRANSITIONS.values():
    if _changes:
        _changes[Event.RETIRE] = STOPPED


def after(state: ReplicaState, event: Event) -> ReplicaState:
    """The state that follows; what isn't in the table can't happen."""
    assert event in TRANSITIONS[state], f"{event} of a replica that is {state}"
    return TRANSITIONS[state][event]


class Reason(StrEnum):
    """Why a life ended, or did not begin."""

    FETCH_FAILED = "fetch_failed"
    FETCH_STALLED = "fetch_stalled"
    FETCH_TIMEOUT = "fetch_timeout"
    CORRUPT_MODEL = "corrupt_model"
    UNSUITABLE = "unsuitable"
    LAUNCH_FAILED = "launch_failed"
    START_STALLED = "start_stalled"
    START_TIMEOUT = "start_timeout"
    LOAD_FAILED = "load_failed"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    CANARY_FAILED = "canary_failed"
    HUNG = "hung"


# Nothing that a second try a moment later would change.
_NOT_BY_CHANCE = frozenset({Reason.OUT_OF_MEMORY, Reason.CORRUPT_MODEL, Reason.UNSUITABLE})
_WILL_COME_AGAIN = _NOT_BY_CHANCE | {
    Reason.FETCH_STALLED,
    Reason.FETCH_TIMEOUT,
    Reason.START_STALLED,
    Reason.START_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a life ended: for programs, and for people."""

    reason: Reason
    text: str


# How long a stage may take


@dataclass(frozen=True, slots=True)
class Budget:
    """What one stage may take.

    Attributes:
        all_s: Altogether.
        stall_s: Without progress.
    """

    all_s: float
    stall_s: float


class StageWatch:
    """Judges one stage by its progress.

    What is measured are counters that grow while something happens: bytes fetched, bytes of log, memory filled. The highest
    value of each counts, so that one that goes up and down is no progress for ever. Owner: the replica, for one stage.

    Args:
        steps: For each counter the least growth that counts.
    """

    def __init__(self, budget: Budget, *, steps: Sequence[int], now_s: float) -> None:
        self._budget = budget
        self._steps = tuple(steps)
        self._highest = [0] * len(self._steps)
        self._begun_s = self._progressed_s = now_s

    def measured(self, counters: Sequence[int], *, now_s: float) -> None:
        """How far each of them is now."""
        for index, value in enumerate(counters):
            if value >= self._highest[index] + self._steps[index]:
                self._highest[index] = value
                self._progressed_s = now_s

    def stalled_for_s(self, *, now_s: float) -> float:
        """Time without progress."""
        return now_s - self._progressed_s

    def is_stalled(self, *, now_s: float) -> bool:
        return self.stalled_for_s(now_s=now_s) >= self._budget.stall_s

    def is_over(self, *, now_s: float) -> bool:
        """Whether all of its time is used."""
        return now_s - self._begun_s >= self._budget.all_s


# In and out


class Hysteresis:
    """Whether a replica that lives is of use, by probes: so many bad ones in a row take it out, so many good ones bring it
    back, and one of either kind changes nothing."""

    def __init__(self, *, bad_to_leave: int = 2, good_to_return: int = 2) -> None:
        self.is_in = True
        self._bad_to_leave = bad_to_leave
        self._good_to_return = good_to_return
        self._opposed = 0  # probes in a row that speak against where it is

    def probed(self, *, is_good: bool) -> bool:
        """One more probe; returns whether it changed where the replica is."""
        self._opposed = 0 if is_good == self.is_in else self._opposed + 1
        if self._opposed < (self._bad_to_leave if self.is_in else self._good_to_return):
            return False
        self.is_in, self._opposed = not self.is_in, 0
        return True


# From one life to the next


@dataclass(frozen=True, slots=True)
class Restarts:
    """How long an engine that ended waits for its next life.

    Attributes:
        quick_s: After the first short life: most of what kills an engine once doesn't do so twice.
        first_s: After the second; doubles with each further one.
        ceiling_s: Longest delay.
        steady_s: A life that was ready for this long ended for a new reason: the count begins again.
    """

    quick_s: float = 0.5
    first_s: float = 10.0
    ceiling_s: float = 300.0
    steady_s: float = 60.0

    def short_lives(self, before: int, *, ready_for_s: float) -> int:
        """Short lives in a row, counting the one that just ended."""
        return 1 if ready_for_s >= self.steady_s else before + 1

    def is_crash_loop(self, short_lives: int, *, most: int) -> bool:
        """Whether so many short lives in a row, of `most`, say that the next one will be no longer."""
        return short_lives >= most

    def is_stuck(self, short_lives: int, ending: Ending | None, *, most: int) -> bool:
        """Whether waiting for it is in vain: a crash loop, or a life that ended for what the next one will meet as well."""
        return ending is not None and (
            self.is_crash_loop(short_lives, most=most) or ending.reason in _WILL_COME_AGAIN
        )

    def delay_s(self, short_lives: int, reason: Reason, chance: Chance) -> float:
        """Between half and all of the backoff, so that engines that ended together don't start together."""
        assert short_lives >= 1
        if short_lives == 1 and reason not in _NOT_BY_CHANCE:
            backoff_s = self.quick_s
        else:
            # Bounded before it is raised: lives may be counted for weeks.
            doublings = min(max(0, short_lives - 2), 60)
            backoff_s = min(self.ceiling_s, self.first_s * 2.0**doublings)
        return backoff_s * (0.5 + 0.5 * chance.random())


# Why a process ended

# What engines say when there is no memory: llama.cpp and ggml, PyTorch and CUDA, vLLM, SGLang, C++, Python, the kernel.
_NO_MEMORY = re.compile(
    r"out of memory|out_of_memory|OutOfMemoryError|cudaErrorMemoryAllocation|ErrorOutOfDeviceMemory"
    r"|std::bad_alloc|\bMemoryError\b|[Cc]annot allocate memory|failed to allocate|unable to allocate"
    r"|No available memory for the cache blocks|Not enough memory|is larger than the available KV cache memory",
    re.IGNORECASE,
)
SIGKILL = 9


def why_ended(
    status: int | None,
    *,
    said: str = "",
    failed_to_load: str = "",
    was_told: bool = False,
    oom_kills: int = 0,
) -> Ending:
    """What an exit status and the last words mean.

    Args:
        status: 128 + N after signal N; None when nobody could tell.
        said: The first error in its log, or its last line.
        failed_to_load: What it reported in place of its port.
        was_told: We told it to end.
        oom_kills: How often the kernel has killed for want of memory while it lived.
    """
    how = f"failed to load: {failed_to_load}" if failed_to_load else _how(status)
    text = "; ".join(filter(None, (how, said)))
    if _NO_MEMORY.search(text):
        return Ending(Reason.OUT_OF_MEMORY, text)
    if status == 128 + SIGKILL and oom_kills and not was_told:
        return Ending(
            Reason.OUT_OF_MEMORY, f"{text}; the kernel has killed for want of memory in its lifetime"
        )
    return Ending(Reason.LOAD_FAILED if failed_to_load else Reason.CRASHED, text)


# By number, as Linux has them: a pure module asks no operating system.
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}


def _how(status: int | None) -> str:
    if status is None:
        return "its lifeline was killed"
    name = _SIGNALS.get(status - 128)
    return f"killed by {name}" if name else f"ended with status {status}"
