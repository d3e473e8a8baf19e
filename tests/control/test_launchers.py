"""Launched, adopted, fenced: whoever launches may die at any moment, and no replica has two engines or one that nobody finds."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace.control import processes
from headrace.control.launchers import EngineHandle, Launcher
from headrace.control.replica_files import ReplicaFiles, Want
from headrace.core.clock import SystemClock
from headrace.core.ids import ReplicaId
from tests.control.rig import Engines, eventually, is_running, launching, until

REPLICA = ReplicaId("chat-0")
# An engine that reports, with a worker in a session of its own, as some have.
ENGINE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
print('{"state": "listening", "pid": %d, "port": 4711}' % os.getpid(), flush=True)
time.sleep(600)
"""


def want(launcher: Launcher, token: str = "token", *, code: str = ENGINE, **fields: Any) -> Want:
    return Want(
        REPLICA,
        token,
        command=(sys.executable, "-c", code),
        log=str(launcher.log_of(REPLICA)),
        grace_s=0.3,
        **fields,
    )


def engines_of(directory: Path) -> list[int]:
    """Every process that was started for a replica under that folder, however far it has strayed."""
    mark = str(directory / "replicas")
    return [each.pid for each in processes.family(None, processes.rows(), mark=mark)]


async def listening(handle: EngineHandle) -> EngineHandle:
    await eventually(lambda: handle.look() and handle.state and handle.state.stage == "listening")
    return handle


def run(directory: Path, scenario: Callable[[Launcher], Coroutine[Any, Any, None]]) -> None:
    """On the loop that the service uses; fails if anything is left."""
    with launching(Engines(directory)) as launcher:
        uvloop.run(scenario(launcher))
    until(lambda: not engines_of(directory))


def test_a_launched_engine_reports_ends_and_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(launcher: Launcher) -> None:
        handle = await listening(await launcher.launch(want(launcher, generation=3)))
        assert handle.state is not None
        assert (handle.state.port, handle.want.generation) == (4711, 3)
        assert handle.pid is not None
        assert handle.progress().rss_bytes > 1_000_000
        assert [(held.replica, held.is_running, held.token) for held in launcher.inventory()] == [
            (REPLICA, True, "token")
        ]
        await handle.stop()
        assert not engines_of(tmp_path)
        assert [held.is_running for held in launcher.inventory()] == [False]
        launcher.forget(REPLICA)
        assert launcher.inventory() == ()

    run(tmp_path, scenario)


def test_an_adopted_engine_is_held_like_a_launched_one(tmp_path: Path) -> None:
    """E3: who launched it is gone, and the next one waits for it, reads it and ends it all the same."""

    async def scenario(launcher: Launcher) -> None:
        launched = await listening(await launcher.launch(want(launcher, authorization="Bearer secret")))
        launched.let_go()
        assert await launcher.adopt(REPLICA, "another token") is None
        adopted = await launcher.adopt(REPLICA, "token")
        assert adopted is not None
        assert (adopted.pid, adopted.want, adopted.state) == (launched.pid, launched.want, launched.state)
        assert adopted.pid is not None
        os.kill(adopted.pid, signal.SIGTERM)
        async with asyncio.timeout(60):
            await adopted.ended()
            assert await adopted.wait() == 128 + signal.SIGTERM
        await adopted.stop()
        assert await launcher.adopt(REPLICA, "token") is None

    run(tmp_path, scenario)


def test_a_new_launch_ends_what_ran_before_under_that_id(tmp_path: Path) -> None:
    async def scenario(launcher: Launcher) -> None:
        first = await listening(await launcher.launch(want(launcher, "first")))
        second = await listening(await launcher.launch(want(launcher, "second")))
        async with asyncio.timeout(60):
            await first.wait()
        assert len(engines_of(tmp_path)) == 2, "an engine and its worker"
        await first.stop()
        assert second.pid is not None
        assert is_running(second.pid), "who holds the older one can't end the newer one"
        await second.stop()

    run(tmp_path, scenario)


def test_what_is_fenced_can_neither_run_nor_come_late(tmp_path: Path) -> None:
    async def scenario(launcher: Launcher) -> None:
        handle = await launcher.launch(want(launcher))  # perhaps it has not even begun
        await launcher.fence(REPLICA)
        assert not engines_of(tmp_path)
        assert [held.is_running for held in launcher.inventory()] == [False]
        async with asyncio.timeout(60):
            await handle.wait()
        handle.let_go()
        await launcher.fence(ReplicaId("nothing-7"))
        assert len(launcher.inventory()) == 1

    run(tmp_path, scenario)


def test_kill_9_of_a_lifeline_leaves_no_worker_to_the_next_launch(tmp_path: Path) -> None:
    """The worker left the group, and its parents are dead: its mark is all that ties it to us."""

    async def scenario(launcher: Launcher) -> None:
        handle = await listening(await launcher.launch(want(launcher)))
        await eventually(lambda: len(engines_of(tmp_path)) == 2)
        assert handle.state is not None
        os.kill(handle.state.lifeline.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            await handle.ended()
            assert await handle.wait() is None, "nobody was left to tell"
        await handle.stop()
        assert not engines_of(tmp_path)

    run(tmp_path, scenario)


def test_a_reused_pid_is_nobody_that_we_know() -> None:
    """The number alone is no proof: the time of its start must be the same."""
    us = processes.key_of(os.getpid())
    descriptor = processes.open_process(us)
    assert descriptor is not None
    os.close(descriptor)
    stranger = type(us)(us.pid, us.started_ticks - 1)
    assert processes.open_process(stranger) is None
    processes.send(stranger, signal.SIGKILL)
    assert processes.open_process(type(us)(2**22 + 1, 1)) is None
    assert processes.row(2**22 + 1) is None
    with pytest.raises(ProcessLookupError):
        processes.key_of(2**22 + 1)


def test_an_engine_that_could_not_be_executed_says_so(tmp_path: Path) -> None:
    async def scenario(launcher: Launcher) -> None:
        handle = await launcher.launch(
            Want(REPLICA, "token", command=("no-such-engine",), log=str(launcher.log_of(REPLICA)))
        )
        async with asyncio.timeout(60):
            assert await handle.wait() == 127
        assert handle.first_error() == "lifeline: no-such-engine: No such file or directory"
        await handle.stop()

    run(tmp_path, scenario)


def test_files_of_another_version_are_nothing_that_could_be_adopted(tmp_path: Path) -> None:
    async def scenario(launcher: Launcher) -> None:
        handle = await listening(await launcher.launch(want(launcher)))
        files = ReplicaFiles(tmp_path / "replicas" / REPLICA)
        (files.directory / "state.json").write_text('{"written": "by a newer one"}')
        assert await launcher.adopt(REPLICA, "token") is None
        assert [held.is_running for held in launcher.inventory()] == [True]
        await handle.stop()

    run(tmp_path, scenario)


def test_what_doesnt_end_keeps_nobody_waiting_for_ever(tmp_path: Path) -> None:
    """A process that the kernel can't end, as one that waits for a device, is told; and nothing is started beside it."""

    async def scenario(launcher: Launcher) -> None:
        files = ReplicaFiles(tmp_path / "replicas" / REPLICA)
        files.write_want(Want(REPLICA, "old"))
        lock = files.take_lock()  # by nobody that could be found
        assert lock is not None
        impatient = Launcher(
            run=tmp_path / "replicas",
            logs=tmp_path,
            lifeline_fd=launcher.lifeline_fd,
            clock=SystemClock(),
            end_limit_s=0.1,
        )
        with pytest.raises(OSError, match="what ran there before doesn't end"):
            await impatient.launch(want(launcher))
        os.close(lock)
        assert not engines_of(tmp_path)

    run(tmp_path, scenario)


def test_a_launch_that_never_became_an_engine_says_why(tmp_path: Path) -> None:
    """Another one has taken its place before it began."""

    async def scenario(launcher: Launcher) -> None:
        late = await launcher.launch(want(launcher, "late"))
        ReplicaFiles(tmp_path / "replicas" / REPLICA).write_want(Want(REPLICA, "newer"))
        found = await eventually(lambda: (late.look(), late.pid or late.first_error())[1])
        # Unless it was quicker than we.
        assert found in (late.pid, "lifeline: this launch is not wanted any more")
        await late.stop()

    run(tmp_path, scenario)


LAUNCHES = """
import asyncio, sys
from pathlib import Path
from headrace.control.launchers import Launcher
from headrace.control.replica_files import Want
from headrace.core.clock import SystemClock

async def main(directory, lifeline_fd, token):
    launcher = Launcher(run=directory / "replicas", logs=directory, lifeline_fd=lifeline_fd, clock=SystemClock())
    print("ready", flush=True)
    for number in range(3):
        want = Want("chat-0", f"{token}-{number}", command=("sleep", "600"), log=str(directory / "log"), grace_s=0.3,
                    speaks_reports=False)
        handle = await launcher.launch(want)
        await handle.next_state()
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
"""


def launch_until_killed(command: list[str], lifeline_fd: int, *, after_s: float) -> None:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, pass_fds=[lifeline_fd], start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after_s)
        process.kill()


def kill_launchers_at_random(directory: Path, *, rounds: int) -> None:
    chance = random.Random(rounds)

    async def scenario(launcher: Launcher) -> None:
        lifeline_fd = os.dup(launcher.lifeline_fd)
        try:
            for number in range(rounds):
                command = [sys.executable, "-c", LAUNCHES, str(directory), str(lifeline_fd), f"t{number}"]
                launch_until_killed(command, lifeline_fd, after_s=chance.random() * 0.6)
                await check(launcher)
        finally:
            os.close(lifeline_fd)
        await launcher.fence(REPLICA)

    async def check(launcher: Launcher) -> None:
        """Whatever was half done settles to nothing or to one engine, which can be adopted or was to be replaced."""
        await eventually(
            lambda: (
                not any(held.is_running for held in launcher.inventory()) or len(engines_of(directory)) == 1
            )
        )
        running = [held for held in launcher.inventory() if held.is_running]
        if not running:
            return
        (held,) = running
        adopted = await launcher.adopt(REPLICA, held.token)
        if adopted is None:  # another launch was about to take its place
            assert held.want is not None
            assert (
                held.want.token != held.token or not ReplicaFiles(directory / "replicas" / REPLICA).is_held()
            )
        else:
            await eventually(lambda: (adopted.look(), adopted.pid)[1])
            assert [adopted.pid] == engines_of(directory)
            adopted.let_go()

    run(directory, scenario)


@pytest.mark.slow
def test_kill_9_of_who_launches_leaves_nothing_or_one_engine(tmp_path: Path) -> None:
    """E3: at any moment of a launch, of a first one and of one that takes the place of another."""
    kill_launchers_at_random(tmp_path, rounds=12)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_kill_9_of_who_launches_leaves_nothing_or_one_engine_at_200_moments(tmp_path: Path) -> None:
    kill_launchers_at_random(tmp_path, rounds=200)
