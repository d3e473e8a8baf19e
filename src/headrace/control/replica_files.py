"""What stands on disk about a replica? What it shall be, what became of it, and whether somebody holds it.

    run/replicas/<replica>/want.json     written by who launches, before the launch
                           state.json    written by the lifeline that holds the engine, whenever something happens to it
                           lock          held (flock) by that lifeline as long as it lives
                           lifeline.log  what the lifeline itself had to complain about

Both JSON files are replaced, never changed, and only their owner can read them: the first one holds the engine's key. The
lock is the only proof of life: the kernel frees it, whatever the holder died of.
"""

import fcntl
import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

# In the environment of every process of an engine: what a killed lifeline left behind is found by it.
MARK = "HEADRACE_REPLICA"


class Want(msgspec.Struct, frozen=True):
    """What shall run as this replica.

    Attributes:
        token: Of this launch. Whoever holds another one is late and must not run anything.
        command: Empty when nothing shall run.
        settings: One line that the engine reads from its standard input; holds secrets.
        environment: Added to what the engine inherits; holds secrets.
        speaks_reports: Its standard output carries reports (engines/child.py), and only standard error is its log.
        port: Where it was told to listen; 0 when it reports that.
        authorization: What it expects in the header of that name.
        log: File that gets what it writes.
        log_bytes_max: Longer ones go on in a new file; one previous file is kept.
        grace_s: Between SIGTERM and SIGKILL.
    """

    replica: str
    token: str
    deployment: str = ""
    revision: str = ""
    generation: int = 0
    command: tuple[str, ...] = ()
    settings: str = ""
    environment: dict[str, str] = {}
    speaks_reports: bool = True
    port: int = 0
    authorization: str = ""
    log: str = ""
    log_bytes_max: int = 8 * 1024 * 1024
    grace_s: float = 5.0

    def __repr__(self) -> str:
        return f"Want({self.replica!r}, {self.token!r}, generation={self.generation}, revision={self.revision!r})"


class ProcessKey(msgspec.Struct, frozen=True):
    """One process and no other that gets its number later.

    Attributes:
        started_ticks: Field 22 of /proc/PID/stat: when it began, since the boot.
    """

    pid: int
    started_ticks: int


class EngineState(msgspec.Struct, frozen=True):
    """What became of a launch, as its lifeline saw it. Times are the machine's monotonic clock, the same for all processes.

    Attributes:
        token: Of the launch.
        engine: None before it was started.
        stage: `starting` until it says more; an engine without reports never says more.
        exit_status: None while it runs; 128 + N after signal N, as shells do.
        was_told: The lifeline had been told to end it before it ended.
        grace_s: Between SIGTERM and SIGKILL, when it is told to end.
        oom_kills: How often the kernel killed for want of memory, around this engine, while it lived.
    """

    token: str
    lifeline: ProcessKey
    engine: ProcessKey | None = None
    stage: Literal["starting", "loading", "listening", "failed"] = "starting"
    port: int = 0
    reason: str = ""
    launched_s: float = 0.0
    loading_s: float | None = None
    listening_s: float | None = None
    exit_status: int | None = None
    was_told: bool = False
    grace_s: float = 0.0
    oom_kills: int = 0


class ReplicaFiles:
    """The files of one replica."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lifeline_log = directory / "lifeline.log"
        self._lock = directory / "lock"

    @property
    def mark(self) -> str:
        """What stands behind MARK, before the token."""
        return f"{self.directory}:"

    def want(self) -> Want | None:
        """None where nothing is written, or nothing that this version understands."""
        return _read(self.directory / "want.json", Want)

    def state(self) -> EngineState | None:
        return _read(self.directory / "state.json", EngineState)

    def write_want(self, want: Want) -> None:
        """Raises OSError, as on a full disk; then the one before still stands."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(self.directory / "want.json", want)

    def write_state(self, state: EngineState) -> None:
        """Raises OSError, as on a full disk; then the one before still stands."""
        _replace(self.directory / "state.json", state)

    def state_version(self) -> tuple[int, int]:
        """Another one after every change of the state; reading it is much cheaper than reading the state."""
        try:
            found = os.stat(self.directory / "state.json")
        except FileNotFoundError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    def take_lock(self) -> int | None:
        """A descriptor that holds the lock until it is closed; None while somebody else holds it. Raises OSError."""
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def is_held(self) -> bool:
        """Whether a lifeline lives."""
        try:
            lock = os.open(self._lock, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who ask at once don't take each other for a lifeline.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def _replace(path: Path, value: msgspec.Struct) -> None:
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(value))
    draft.replace(path)
