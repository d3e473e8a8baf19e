"""Does this engine still have a service? Holds one engine, tells what becomes of it, and leaves nothing of it behind.

    python -m headrace.control.lifeline DIRECTORY TOKEN

DIRECTORY is the replica's (replica_files.py). Only one lifeline at a time can hold its lock, and only the one whose token
stands in want.json may start anything: a launch that comes too late ends here.

Standard input is a pipe whose writing end only the service holds. It is never read, only watched for its end. When it ends
(the service is gone, however it died) or a signal asks for it, the engine's process group gets SIGTERM, and SIGKILL after
the grace. Who launched this process doesn't matter to it: it may be gone, and another one may ask for the end.

Whatever the engine started ends with it. As subreaper this process inherits every descendant whose parent died, also those
that left the group, and it kills them before it ends itself.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.control import processes
from headrace.control.replica_files import MARK, EngineState, ReplicaFiles, Want
from headrace.core.clock import SystemClock
from headrace.engines.child import EngineReport

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
COMMAND_NOT_FOUND = 127
LIFELINE_FD = 0
# sysexits.h: a usage error; try again later; not yours to do.
EX_USAGE, EX_TEMPFAIL, EX_NOPERM = 64, 75, 77
# How long the last lifeline of the replica may take to end.
LOCK_WAIT_S = 10.0
LOCK_LOOK_S = 0.02
# A state that could not be written (a full disk) is tried again.
WRITE_AGAIN_S = 1.0
SETTINGS_BYTES_MAX = 32 * 1024  # half of what a pipe takes without a reader
REPORT_BYTES_MAX = 64 * 1024
READ_BYTES = 64 * 1024

_WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m headrace.control.lifeline DIRECTORY TOKEN\n")
        return EX_USAGE
    files, token = ReplicaFiles(Path(arguments[0])), arguments[1]
    lock = _lock(files, token)
    if lock is None:
        sys.stderr.write("lifeline: another one holds this replica\n")
        return EX_TEMPFAIL
    _become_subreaper()
    lifeline = Lifeline(files, token)
    want = files.want()
    # After the state is written: who looks for us and finds neither our state nor a free lock waits until we have read this.
    if want is None or want.token != token or not want.command:
        sys.stderr.write("lifeline: this launch is not wanted any more\n")
        return EX_NOPERM
    return lifeline.hold(want)


def _lock(files: ReplicaFiles, token: str) -> int | None:
    """Waits for the end of the replica's last lifeline, as long as this launch is the one that is wanted."""
    clock = SystemClock()
    until_s = clock.now_s() + LOCK_WAIT_S
    while (lock := files.take_lock()) is None:
        want = files.want()
        if clock.now_s() > until_s or want is None or want.token != token:
            return None
        select.select([], [], [], LOCK_LOOK_S)
    return lock


class Lifeline:
    """One engine from its launch to its end. Owner of the state below, and of the replica's state.json."""

    def __init__(self, files: ReplicaFiles, token: str) -> None:
        self._files = files
        self._clock = SystemClock()
        self._watch = select.poll()
        self._readers: dict[int, Callable[[bytes], None]] = {}
        self._state = EngineState(token, processes.key_of(os.getpid()), launched_s=self._clock.now_s())
        self._is_unwritten = False
        self._kill_at_s: float | None = None
        self._half_line = b""
        self._oom_kills = oom_kills()
        self._become()

    def hold(self, want: Want) -> int:
        """Starts the engine, waits until it has ended, and ends it when told to; returns its exit status."""
        log = _Log(Path(want.log), bytes_max=want.log_bytes_max)
        signals = _signals_as_bytes()
        settings_fd, settings = os.pipe()
        output, output_fd = os.pipe()
        reports, reports_fd = os.pipe()
        assert len(want.settings) < SETTINGS_BYTES_MAX
        os.write(settings, want.settings.encode() + b"\n")
        ends = (settings_fd, reports_fd if want.speaks_reports else output_fd, output_fd)
        child = _spawn(want, ends, mark=f"{self._files.mark}{want.token}")
        for descriptor in (settings_fd, output_fd, reports_fd):
            os.close(descriptor)
        self._become(engine=processes.key_of(child), grace_s=want.grace_s)
        self._read(output, log.write)
        self._read(reports, self._take_reports)
        self._watch.register(signals, select.POLLIN)
        self._watch.register(
            LIFELINE_FD, 0
        )  # the end of the pipe is reported even when nothing else is asked
        while (status := _reaped(child)) is None:
            self._turn(child, signals=signals, grace_s=want.grace_s)
        for descriptor in tuple(self._readers):
            self._drain(descriptor)
        self._become(exit_status=status, oom_kills=oom_kills() - self._oom_kills)
        _end_descendants()
        while self._is_unwritten and self._kill_at_s is None:
            self._turn(child, signals=signals, grace_s=want.grace_s)
        return status

    def _turn(self, child: int, *, signals: int, grace_s: float) -> None:
        ready = {fd for fd, _ in self._watch.poll(self._wait_ms())}
        if self._is_unwritten:
            self._become()
        must_stop = LIFELINE_FD in ready
        if must_stop:
            self._watch.unregister(LIFELINE_FD)
        if signals in ready:
            must_stop |= any(number != signal.SIGCHLD for number in os.read(signals, 4096))
        for descriptor in ready & self._readers.keys():
            self._drain(descriptor)
        now_s = self._clock.now_s()
        if must_stop and self._kill_at_s is None:
            self._kill_at_s = now_s + grace_s
            self._become(was_told=True)
            _signal_group(child, signal.SIGTERM)
        elif self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill_at_s += grace_s
            _signal_group(child, signal.SIGKILL)

    def _wait_ms(self) -> float | None:
        waits_s = [WRITE_AGAIN_S] if self._is_unwritten else []
        if self._kill_at_s is not None:
            waits_s.append(max(0.0, self._kill_at_s - self._clock.now_s()))
        return min(waits_s) * 1000 if waits_s else None

    def _read(self, descriptor: int, taken: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._readers[descriptor] = taken
        self._watch.register(descriptor, select.POLLIN)

    def _drain(self, descriptor: int) -> None:
        """What is there now, at most a pipe full of it, so that a chatty engine can't keep us from a signal."""
        with contextlib.suppress(BlockingIOError):
            if some := os.read(descriptor, READ_BYTES):
                self._readers[descriptor](some)
                return
            self._watch.unregister(descriptor)
            del self._readers[descriptor]
            os.close(descriptor)

    def _take_reports(self, some: bytes) -> None:
        *lines, self._half_line = (self._half_line + some).split(b"\n")
        if len(self._half_line) > REPORT_BYTES_MAX:
            self._half_line = b""
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):  # what isn't a report says nothing
                self._take_report(msgspec.json.decode(line, type=EngineReport))

    def _take_report(self, report: EngineReport) -> None:
        now_s = self._clock.now_s()
        match report.state:
            case "loading":
                self._become(stage=report.state, loading_s=now_s)
            case "listening":
                self._become(stage=report.state, port=report.port, listening_s=now_s)
            case "failed":
                self._become(stage=report.state, reason=report.reason)

    def _become(self, **changes: object) -> None:
        """Another state, on disk as soon as the disk takes it."""
        self._state = msgspec.structs.replace(self._state, **changes)
        try:
            self._files.write_state(self._state)
        except OSError as error:
            if not self._is_unwritten:
                sys.stderr.write(f"lifeline: the state can't be written: {error}\n")
            self._is_unwritten = True
        else:
            self._is_unwritten = False


class _Log:
    """The engine's log, with a bound: what goes past it begins a new file, and one previous file is kept."""

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file: int | None = None
        self._bytes = 0
        with contextlib.suppress(OSError):  # an engine runs without a log rather than not at all
            self._begin()

    def write(self, some: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk loses lines, not the engine
            if self._file is None or self._bytes >= self._bytes_max:
                self._begin()
            assert self._file is not None
            self._bytes += os.write(self._file, some)

    def _begin(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._bytes = 0


def oom_kills() -> int:
    """How often the kernel has killed for want of memory, on this machine since its boot; 0 where it doesn't say."""
    try:
        with open("/proc/vmstat", "rb") as counters:
            return next((int(line.split()[1]) for line in counters if line.startswith(b"oom_kill ")), 0)
    except OSError:
        return 0


def _become_subreaper() -> None:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _signals_as_bytes() -> int:
    """A descriptor on which each signal arrives as one byte, so that one poll waits for signals and pipes alike."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    for number in _WATCHED:
        signal.signal(number, lambda *_: None)
    return readable


def _spawn(want: Want, ends: tuple[int, int, int], *, mark: str) -> int:
    """Starts the engine as leader of its own process group; returns its pid.

    Plain fork and exec: `subprocess` would reap the child on its own, and only one place may do that.
    """
    us, command = os.getpid(), want.command
    # A signal that comes before the engine is itself must end it, not our handler in it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    child = os.fork()
    if child == 0:
        try:
            for number in _WATCHED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            os.setpgid(0, 0)
            for standard, end in enumerate(ends):
                os.dup2(end, standard)
            # Should this process be killed, the engine goes too; those that it started see the end of their parent.
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != us:
                os._exit(COMMAND_NOT_FOUND)
            os.putenv(MARK, mark)
            for name, value in want.environment.items():
                os.putenv(name, value)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"lifeline: {command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(COMMAND_NOT_FOUND)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(child, child)  # also from here: whoever runs first must not signal the wrong group
    return child


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _reaped(child: int) -> int | None:
    """Collects every descendant that has ended; the exit status if the engine was among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_descendants() -> None:
    """Kills and reaps until nothing is left. A pid can't be reused before we reap it, so no stranger is hit."""
    while True:
        # Their own children become ours when they die, and are found by the next look.
        for each in processes.rows():
            if each.parent == os.getpid():
                os.kill(each.pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
