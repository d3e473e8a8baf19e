"""Does this process still have a supervisor? Runs one command and leaves nothing of it behind.

    python -m headrace.control.lifeline [--grace-s S] -- COMMAND [ARGUMENT ...]

Standard input is the lifeline: a pipe whose other end only the supervisor holds. It is never read here, only watched
for its end, so that the command can read what the supervisor writes into it. When the pipe ends (the supervisor is
gone, however it died) or a signal asks for it, the command's process group gets SIGTERM, and SIGKILL after the grace.

Whatever the command started ends with it. As subreaper this process inherits every descendant whose parent died,
also those that left the group, and it kills them before it passes on the command's exit status (128 + N for signal N,
as shells do).
"""

import contextlib
import ctypes
import os
import select
import signal
import sys

from headrace.core.clock import SystemClock

PR_SET_CHILD_SUBREAPER = 36
COMMAND_NOT_FOUND = 127
LIFELINE_FD = 0


def main(arguments: list[str]) -> int:
    grace_s = 10.0
    if arguments[:1] == ["--grace-s"]:
        grace_s, arguments = float(arguments[1]), arguments[2:]
    if arguments[:1] != ["--"] or len(arguments) < 2:
        sys.stderr.write(
            "usage: python -m headrace.control.lifeline [--grace-s S] -- COMMAND [ARGUMENT ...]\n"
        )
        return 2
    _become_subreaper()
    signals = _signals_as_bytes()
    child = _spawn(arguments[1:])
    status = _hold(child, signals=signals, grace_s=grace_s)
    _end_descendants()
    return status


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _signals_as_bytes() -> int:
    """A descriptor on which each signal arrives as one byte, so that one poll waits for signals and the pipe alike."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return readable


def _spawn(command: list[str]) -> int:
    """Starts the command as leader of its own process group; returns its pid.

    Plain fork and exec: `subprocess` would reap the child on its own, and only one place may do that.
    """
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"lifeline: {command[0]}: {error.strerror}\n".encode())
        os._exit(COMMAND_NOT_FOUND)
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(child, child)  # also from here: whoever runs first must not signal the wrong group
    return child


def _hold(child: int, *, signals: int, grace_s: float) -> int:
    """Waits until the command has ended, and ends it when told to; returns its exit status."""
    clock = SystemClock()
    watch = select.poll()
    watch.register(signals, select.POLLIN)
    watch.register(LIFELINE_FD, 0)  # the end of the pipe is reported even when nothing else is asked for
    kill_at_s: float | None = None
    while (status := _reaped(child)) is None:
        wait_ms = None if kill_at_s is None else max(0.0, kill_at_s - clock.now_s()) * 1000
        ready = {fd for fd, _ in watch.poll(wait_ms)}
        must_stop = LIFELINE_FD in ready
        if must_stop:
            watch.unregister(LIFELINE_FD)
        if signals in ready:
            must_stop |= any(number != signal.SIGCHLD for number in os.read(signals, 4096))
        if must_stop and kill_at_s is None:
            kill_at_s = clock.now_s() + grace_s
            _signal_group(child, signal.SIGTERM)
        elif kill_at_s is not None and clock.now_s() >= kill_at_s:
            kill_at_s += grace_s
            _signal_group(child, signal.SIGKILL)
    return status


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _reaped(child: int) -> int | None:
    """Collects every descendant that has ended; the exit status if the command was among them."""
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
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Our direct children. Their own children become ours when they die, and are found by the next call."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            parent = stat.read().rpartition(b")")[2].split()[1]  # the name in parentheses may hold anything
            if int(parent) == os.getpid():
                found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
