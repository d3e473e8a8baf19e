"""The lifeline: whatever happens to the service and to who launches, nothing outlives the service, and no replica runs twice."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.control.replica_files import EngineState, ReplicaFiles, Want
from tests.control.rig import is_running, until

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

SERVICE = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


class Place:
    """A replica's folder, and lifelines for it."""

    def __init__(self, directory: Path) -> None:
        self.files = ReplicaFiles(directory / "replica")
        self.log = directory / "replica.log"
        self._started: list[subprocess.Popen[bytes]] = []

    def want(self, *command: str, token: str = "token", **fields: Any) -> list[str]:
        """What shall run; returns the lifeline's command line."""
        wanted = Want("replica", token, command=command, log=str(self.log), grace_s=0.3, **fields)
        self.files.write_want(wanted)
        return self.command(token)

    def command(self, token: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "headrace.control.lifeline",
            str(self.files.directory),
            token,
        ]

    def start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        """A lifeline whose service is this test."""
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        self._started.append(started)
        return started

    def state(self) -> EngineState:
        state = self.files.state()
        assert state is not None
        return state

    def engine(self) -> int:
        """The pid of the engine, once there is one."""
        until(lambda: (state := self.files.state()) is not None and state.engine is not None)
        engine = self.state().engine
        assert engine is not None
        return engine.pid

    def close(self) -> None:
        for each in self._started:
            for end in (each.stdin, each.stderr):
                if end is not None:
                    with contextlib.suppress(BrokenPipeError):
                        end.close()
            each.wait(60)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.close()


class Family:
    """An engine and its workers under a lifeline, found by what the engine wrote down."""

    def __init__(self, place: Place, pids: Path) -> None:
        self.place = place
        self._file = pids

    def want(self, *words: str) -> list[str]:
        return self.place.want(sys.executable, "-c", ENGINE, str(self._file), *words)

    def members(self) -> list[int]:
        until(self._file.exists)
        return [int(pid) for pid in self._file.read_text().split()]

    def is_gone(self) -> bool:
        return not any(is_running(pid) for pid in self.members())


@pytest.fixture
def family(place: Place, tmp_path: Path) -> Iterator[Family]:
    found = Family(place, tmp_path / "pids")
    yield found
    if not found.is_gone():  # so that a failing test leaves no processes behind
        for pid in filter(is_running, found.members()):
            os.kill(pid, signal.SIGKILL)


def test_kill_9_of_the_service_leaves_neither_engine_nor_workers(family: Family) -> None:
    """The pipe ends with its last writer, and no process can keep the kernel from closing it."""
    service = subprocess.Popen([sys.executable, "-c", SERVICE, *family.want()])
    assert all(is_running(pid) for pid in family.members())
    service.kill()
    service.wait()
    until(family.is_gone, within_s=60)


@pytest.mark.slow
def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(family: Family) -> None:
    lifeline = family.place.start(family.want("stubborn"))
    family.members()
    lifeline.terminate()
    assert lifeline.wait(60) == 128 + signal.SIGKILL
    assert family.is_gone(), "the lifeline ends last"
    state = family.place.state()
    assert (state.exit_status, state.was_told) == (128 + signal.SIGKILL, True)


def test_workers_of_an_engine_that_died_on_its_own_are_ended_too(family: Family) -> None:
    lifeline = family.place.start(family.want())
    engine = family.members()[0]
    os.kill(engine, signal.SIGKILL)
    assert lifeline.wait(60) == 128 + signal.SIGKILL
    assert family.is_gone()
    assert not family.place.state().was_told


def test_kill_9_of_the_lifeline_takes_the_engine_with_it(place: Place) -> None:
    """Also one that knows nothing of us; what it started is found by its mark, see test_launchers.py."""
    lifeline = place.start(place.want("sleep", "600"))
    engine = place.engine()
    lifeline.kill()
    until(lambda: not is_running(engine))


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV),
        (["no-such-command-anywhere"], 127),
    ],
)
def test_the_exit_status_is_passed_on_and_written_down(place: Place, command: list[str], status: int) -> None:
    assert place.start(place.want(*command)).wait(60) == status
    assert place.state().exit_status == status


def test_the_engine_gets_its_settings_and_environment_and_its_words_go_to_the_log(place: Place) -> None:
    script = "read line; echo got $line; echo with $HIDDEN >&2; cat"
    lifeline = place.start(
        place.want(
            "sh", "-c", script, settings="settings", environment={"HIDDEN": "secret"}, speaks_reports=False
        )
    )
    until(lambda: place.log.exists() and place.log.read_text() == "got settings\nwith secret\n")
    assert lifeline.poll() is None, "the engine's input ends with its lifeline, not with the settings"
    lifeline.terminate()
    lifeline.wait(60)


def test_reports_become_the_state_and_anything_else_is_no_report(place: Place) -> None:
    lines = [
        b'{"state": "loading", "pid": 1}',
        b"Loading checkpoint shards: 100%",
        b'{"state": "flying", "pid": 1}',
        b'{"state": "listening", "pid": 1, "port": 4711}',
    ]
    script = "; ".join(f"echo '{line.decode()}'" for line in lines)
    lifeline = place.start(place.want("sh", "-c", f"{script}; exec sleep 600"))
    until(lambda: place.files.state() and place.state().stage == "listening")
    state = place.state()
    assert (state.port, state.exit_status) == (4711, None)
    assert state.loading_s is not None
    assert state.listening_s is not None
    assert 0 < state.launched_s <= state.loading_s <= state.listening_s <= time.monotonic()
    lifeline.terminate()
    lifeline.wait(60)


def test_a_log_has_a_bound(place: Place) -> None:
    """An engine that writes for ever fills at most two files."""
    script = "yes something or other | head -c 3000000"
    assert (
        place.start(place.want("sh", "-c", script, speaks_reports=False, log_bytes_max=200_000)).wait(60) == 0
    )
    sizes = [path.stat().st_size for path in (place.log, place.log.with_name("replica.log.1"))]
    assert all(size <= 200_000 + 64 * 1024 for size in sizes), sizes


def test_of_two_lifelines_with_one_token_one_runs(place: Place) -> None:
    command = place.want("sleep", "600")
    first, second = place.start(command), place.start(command)
    engine = place.engine()
    place.files.write_want(Want("replica", "newer"))  # so that the other one doesn't wait for its turn
    until(lambda: (first.poll() is None) != (second.poll() is None))
    assert is_running(engine)
    for each in (first, second):
        each.terminate()
        each.wait(60)


def test_a_launch_that_comes_too_late_starts_nothing(place: Place, tmp_path: Path) -> None:
    """The token in the file is the newest one's; who comes with an older one has been fenced."""
    late = place.want("touch", str(tmp_path / "ran"), token="old")
    place.want("touch", str(tmp_path / "ran"), token="new")
    assert place.start(late).wait(60) == 77
    assert not (tmp_path / "ran").exists()


def test_a_service_that_ended_before_the_launch_is_noticed(place: Place) -> None:
    lifeline = place.start(place.want("sleep", "600"))
    assert lifeline.stdin is not None
    lifeline.stdin.close()
    assert lifeline.wait(60) == 128 + signal.SIGTERM


def test_a_disk_that_takes_no_state_costs_no_engine(place: Place) -> None:
    """E8, a full disk: the engine runs on, and the state is written once there is room."""
    lifeline = place.start(
        place.want(
            "sh", "-c", """read line; sleep 0.5; echo '{"state": "loading", "pid": 1}'; exec sleep 600"""
        )
    )
    engine = place.engine()
    draft = place.files.directory / "state.draft"
    draft.mkdir()  # nothing can be written there, whoever writes
    until(lambda: "can't be written" in _stderr_so_far(lifeline))
    assert is_running(engine)
    draft.rmdir()
    until(lambda: place.state().stage == "loading")
    lifeline.terminate()
    lifeline.wait(60)


def _stderr_so_far(lifeline: "subprocess.Popen[bytes]") -> str:
    assert lifeline.stderr is not None
    os.set_blocking(lifeline.stderr.fileno(), False)
    return (lifeline.stderr.read() or b"").decode()


def test_only_their_owner_reads_the_files(place: Place) -> None:
    """The first of them holds the engine's key."""
    lifeline = place.start(place.want("sleep", "600"))
    place.engine()
    assert place.files.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.files.directory.iterdir()} == {0o600}
    lifeline.terminate()
    lifeline.wait(60)


def test_a_missing_argument_is_explained_and_not_guessed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.control.lifeline"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 64
    assert b"usage: " in done.stderr


def test_a_secret_of_a_launch_is_in_no_representation() -> None:
    want = Want("replica", "token", settings="secret", environment={"KEY": "secret"}, authorization="secret")
    assert "secret" not in repr(want)
    assert msgspec.json.decode(msgspec.json.encode(want), type=Want) == want
