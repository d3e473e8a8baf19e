"""The lifeline: whatever happens to the supervisor, nothing that it started outlives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.rig import is_running, until

LIFELINE = [sys.executable, "-m", "headrace.control.lifeline"]

# An engine with two workers of its own: one in its group that ignores SIGTERM, one that left for a session of its own.
ENGINE = """
import os, signal, sys, time
stubborn = os.fork()
if stubborn == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
escaped = os.fork()
if escaped == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(0.1)
print(os.getpid(), stubborn, escaped, file=open(sys.argv[1] + ".part", "w"), flush=True)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""

SUPERVISOR = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


class Family:
    """An engine and its workers under a lifeline, found by what the engine wrote down."""

    def __init__(self, pids: Path) -> None:
        self.command = [*LIFELINE, "--grace-s", "0.3", "--", sys.executable, "-c", ENGINE, str(pids)]
        self._file = pids

    def members(self) -> list[int]:
        until(self._file.exists)
        return [int(pid) for pid in self._file.read_text().split()]

    def is_gone(self) -> bool:
        return not any(is_running(pid) for pid in self.members())


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    found = Family(tmp_path / "pids")
    yield found
    if not found.is_gone():  # so that a failing test leaves no processes behind
        for pid in filter(is_running, found.members()):
            os.kill(pid, signal.SIGKILL)


def test_kill_9_of_the_supervisor_leaves_neither_engine_nor_workers(family: Family) -> None:
    """The pipe ends with its last writer, and no process can keep the kernel from closing it."""
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, *family.command])
    assert all(is_running(pid) for pid in family.members())
    supervisor.kill()
    supervisor.wait()
    until(family.is_gone, within_s=60)


@pytest.mark.slow
def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(family: Family) -> None:
    lifeline = subprocess.Popen([*family.command, "stubborn"], stdin=subprocess.PIPE)
    family.members()
    lifeline.terminate()
    assert lifeline.wait(60) == 128 + signal.SIGKILL
    assert family.is_gone(), "the lifeline ends last"
    assert lifeline.stdin is not None
    lifeline.stdin.close()


def test_workers_of_an_engine_that_died_on_its_own_are_ended_too(family: Family) -> None:
    lifeline = subprocess.Popen(family.command, stdin=subprocess.PIPE)
    engine = family.members()[0]
    os.kill(engine, signal.SIGKILL)
    assert lifeline.wait(60) == 128 + signal.SIGKILL
    assert family.is_gone()
    assert lifeline.stdin is not None
    lifeline.stdin.close()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV),
        (["no-such-command-anywhere"], 127),
    ],
)
def test_the_exit_status_of_the_command_is_passed_on(command: list[str], status: int) -> None:
    done = subprocess.run(
        [*LIFELINE, "--", *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == status


def test_the_command_reads_what_the_supervisor_writes_into_the_lifeline() -> None:
    """The lifeline watches the pipe for its end and takes nothing out of it."""
    with subprocess.Popen(
        [*LIFELINE, "--", "sh", "-c", "read line; echo got $line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as lifeline:
        assert lifeline.stdin is not None
        lifeline.stdin.write(b"settings\n")
        lifeline.stdin.flush()
        assert lifeline.stdout is not None
        assert lifeline.stdout.read() == b"got settings\n"
        assert lifeline.wait(60) == 0


def test_a_missing_command_is_explained_and_not_guessed() -> None:
    done = subprocess.run([*LIFELINE], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"usage: " in done.stderr
