"""Of two controllers one acts, whatever became of the other: started by hand here, as two services on one machine never would."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.app import controller_link as wire
from headrace.app.controller_seat import COMMAND
from headrace.app.pair import Line
from headrace.config import Config
from headrace.control.launchers import Lifeline
from headrace.core.clock import SystemClock
from headrace.core.deployments import (
    AppliedVersion,
    DeploymentSpec,
    EngineArgs,
    EngineKind,
    Identity,
    Revision,
)
from headrace.core.fleet import FleetSnapshot, Replica, Task
from headrace.stores import fleet
from headrace.stores.deployments import open_deployments
from tests.control.rig import eventually, is_running

pytestmark = pytest.mark.slow
NOTHING = FleetSnapshot()


class Controller:
    """A controller whose service is the test. State: what it sent."""

    def __init__(self, data: Path, lifeline: Lifeline) -> None:
        self._data = data
        self._lifeline = lifeline
        self.snapshot = NOTHING
        self.report: wire.Report | None = None
        self.refusal = ""
        self.pid = 0

    async def start(self, before: FleetSnapshot = NOTHING) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.link = await wire.service_end(ours, received=self._received, lost=lambda: None)
            self.process = await asyncio.create_subprocess_exec(
                *COMMAND, stdin=theirs.fileno(), pass_fds=(self._lifeline.reading_fd,)
            )
        self.pid = self.process.pid
        self.link.send(
            wire.Start(
                Config(), self._data, [], self._lifeline.reading_fd, before is NOTHING, before, [], {}, {}
            )
        )

    def replicas(self) -> tuple[Replica, ...]:
        offered = self.snapshot.deployments.get("chat@v1")
        return () if offered is None else offered.replicas

    def _received(self, message: wire.Up) -> None:
        match message:
            case wire.Published(snapshot):
                self.snapshot = snapshot
            case wire.Report():
                self.report = message
            case wire.Refused(text):
                self.refusal = text
            case Line() | _:
                pass


@contextlib.asynccontextmanager
async def controllers(data: Path) -> AsyncIterator[tuple[Controller, Controller]]:
    """Two that aren't started yet, for a directory in which one deployment was applied."""
    (data / "run").mkdir()
    apply(data)
    lifeline = Lifeline()
    both = Controller(data, lifeline), Controller(data, lifeline)
    try:
        yield both
    finally:
        for each in both:
            if each.pid and each.process.returncode is None:
                each.process.kill()
                await each.process.wait()
            if each.pid:
                each.link.close()
        lifeline.close()
        state = data / "run" / "replicas" / "chat-0" / "lock"
        await eventually(lambda: not state.exists() or not _is_held(state))


async def stop_between_writes(controller: Controller, data: Path) -> None:
    """One that is stopped in the middle of a write would keep everybody from writing."""

    def is_stopped() -> bool:
        os.kill(controller.pid, signal.SIGSTOP)
        database = sqlite3.connect(data / "headrace.db", timeout=0.2)
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            os.kill(controller.pid, signal.SIGCONT)
            return False
        finally:
            database.close()
        return True

    await eventually(is_stopped)


def _is_held(lock: Path) -> bool:

    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def apply(data: Path, *, slots: int = 4) -> AppliedVersion:
    store = open_deployments(data, clock=SystemClock())
    args = EngineArgs(slots=slots)
    try:
        return store.apply(
            DeploymentSpec(Identity("chat", EngineKind.SCRIPTED)),
            Revision(Task.CHAT, EngineKind.SCRIPTED, args=args),
            "",
        )[0]
    finally:
        store.close()


def test_the_second_one_waits_and_goes_on_when_the_first_one_ends(tmp_path: Path) -> None:
    """With the very same engine: recovery doesn't start what runs."""

    async def scenario() -> None:
        async with controllers(tmp_path) as (first, second):
            await first.start()
            (replica,) = await eventually(first.replicas)
            await second.start(first.snapshot)
            await asyncio.sleep(1.0)
            assert (second.snapshot, second.report) == (NOTHING, None)
            os.kill(first.pid, signal.SIGKILL)
            report = await eventually(lambda: second.report)
            assert report.epoch == 2
            (status,) = report.replicas
            assert (status.replica, status.generation) == (replica.id, replica.generation)
            assert second.replicas() in ((), (replica,)), "what is in force needn't be published again"

    asyncio.run(scenario())


def test_one_that_was_given_up_and_comes_back_changes_nothing(tmp_path: Path) -> None:
    """A stopped process that another one has taken over from, and that goes on afterwards: it ends, and no engine with it."""

    async def scenario() -> None:
        async with controllers(tmp_path) as (first, second):
            await first.start()
            (replica,) = await eventually(first.replicas)
            await stop_between_writes(first, tmp_path)
            (tmp_path / "run" / "controller.lock").unlink()  # nobody does that, but it must not matter
            await second.start(first.snapshot)
            report = await eventually(lambda: second.report)
            os.kill(first.pid, signal.SIGCONT)
            assert await asyncio.wait_for(first.process.wait(), 60) == 1
            assert "has taken over (epoch 2)" in first.refusal
            (status,) = report.replicas
            assert status.replica == replica.id
            assert status.pid is not None
            assert is_running(status.pid)
            lease = fleet.open_fleet(tmp_path, clock=SystemClock())
            assert lease.lease() is not None
            lease.close()

    asyncio.run(scenario())
