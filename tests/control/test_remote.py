"""A server that others run, as a replica."""

import asyncio

import pytest

from headrace.control import remote
from headrace.control.remote import RemoteReplica
from headrace.control.status import ReplicaStatus
from headrace.control.upstreams import Upstream
from headrace.core.fleet import ReplicaState
from headrace.core.ids import ReplicaId
from tests.control.lives import run, scripted
from tests.control.rig import eventually


class FullDisk:
    """Launches that can't be numbered."""

    def __init__(self) -> None:
        self.asked = 0

    async def next(self, replica: ReplicaId) -> tuple[int, str]:
        self.asked += 1
        raise OSError("disk is full")


def test_a_number_that_cant_be_kept_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """E8: a full disk is told of, and ends nothing."""
    monkeypatch.setattr(remote, "AGAIN_S", 0.01)
    told: list[ReplicaStatus] = []

    async def scenario() -> None:
        launches = FullDisk()
        replica = RemoteReplica(
            scripted(),
            Upstream("http://127.0.0.1:9", 4),
            id=ReplicaId("chat-0"),
            launches=launches,
            before=None,
            changed=told.append,
            found=lambda _: None,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(replica.run())
            await eventually(lambda: launches.asked >= 3)
            running.cancel()

    run(scenario)
    assert (told[-1].state, told[-1].reason) == (
        ReplicaState.FAILED,
        "its number can't be kept: disk is full",
    )
