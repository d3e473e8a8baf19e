"""The simulated network does what a kernel does where that decides a law."""

import asyncio

from tests.simulation.loop import SimulatedLoop


class _Seen(asyncio.Protocol):
    """Whether a connection was made, and how it ended."""

    def __init__(self) -> None:
        self.was_made = False
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.was_made = True

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(error)


def test_a_connection_that_waits_when_its_port_is_closed_is_reset_and_never_served() -> None:
    """A process that has ended answers nobody, whoever had connected just before."""

    async def play(loop: SimulatedLoop) -> tuple[bool, Exception | None]:
        server, client = _Seen(), _Seen()
        listener = await loop.create_server(lambda: server, "h", 1)
        await loop.create_connection(lambda: client, "h", 1)
        listener.close()
        return server.was_made, await client.ended

    loop = SimulatedLoop("a seed")
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        was_served, error = runner.run(play(loop))
    assert not was_served
    assert isinstance(error, ConnectionResetError)
