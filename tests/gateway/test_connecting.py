"""A connection whose caller left while it was opened is kept for the next, not forgotten."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from headrace.core.clock import SystemClock
from headrace.core.fleet import Replica
from headrace.core.ids import ReplicaId
from headrace.engines.http import ReplicaClient
from headrace.engines.outbox import Outbox
from headrace.gateway.walk import Walk


class _LeavesWhenOpen:
    """A task group whose caller leaves in the very turn in which its connection was opened."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self.walk: Walk | None = None

    def create_task(self, opening: Coroutine[Any, Any, None]) -> None:
        self._tasks.create_task(self._open_and_leave(opening))

    async def _open_and_leave(self, opening: Coroutine[Any, Any, None]) -> None:
        await opening
        assert self.walk is not None
        self.walk.cancel()


def test_a_connection_that_is_there_when_its_caller_leaves_serves_the_next() -> None:
    async def leave_in_the_same_turn() -> None:
        closed = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            closed.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.TaskGroup() as tasks:
            leaver = _LeavesWhenOpen(tasks)
            client = ReplicaClient(
                Replica(ReplicaId("r"), "127.0.0.1", port, slots=1),
                outbox=Outbox(),
                tasks=cast(asyncio.TaskGroup, leaver),
                clock=SystemClock(),
            )
            got: list[object] = []

            async def walk() -> None:
                got.append(await client.connect(limit_s=5.0))

            ended = asyncio.Event()
            leaver.walk = Walk(walk(), on_end=ended.set)
            leaver.walk.start()
            await ended.wait()
        assert got == []
        connection = client.idle_connection()
        assert connection is not None
        client.keep(connection)
        client.close()
        await closed.wait()
        server.close()

    asyncio.run(leave_in_the_same_turn())
