"""Calls on one connection in their turn: none begins before it is known whether the caller takes the answers before it."""

import asyncio
from collections.abc import Callable

from headrace.app.gateway_parts import request_rules
from headrace.config import Config
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.core.ids import RequestId
from headrace.engines.outbox import Outbox
from headrace.gateway.call import Call
from headrace.gateway.connection import ClientConnection, PortConnection, Screened
from headrace.gateway.routes import LIVEZ
from headrace.gateway.screening import Caller
from headrace.gateway.transport import WRITE_BUFFER_MAX
from headrace.gateway.walk import Signal
from headrace.protocols.http1 import RequestHead

REQUEST = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"


class StuckTransport(asyncio.Transport):
    """Takes what it is given, and sends none of it until `drain`."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._given = protocol
        self.waiting_bytes = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.waiting_bytes += len(data)
        if self.waiting_bytes > WRITE_BUFFER_MAX:
            self._given.pause_writing()

    def is_closing(self) -> bool:
        return False

    def drain(self) -> None:
        self.waiting_bytes = 0
        self._given.resume_writing()


class Owner:
    """A gateway whose every answer is larger than what a caller may leave untaken."""

    header_timeout_s = idle_timeout_s = write_stall_limit_s = 10.0
    body_bytes_per_s_min = 1024
    keeps_alive = True

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.outbox = Outbox()
        self.begun = 0
        self.replica = Signal()

    def screen(self, head: RequestHead, caller: Caller) -> Screened:
        return Screened(head, LIVEZ, None, 0, float("inf"), request_rules(Config(), 1))

    def still_holds(self, screened: Screened) -> bool:
        return True

    def new_request_id(self) -> RequestId:
        return RequestId("req")

    async def handle(self, call: Call) -> None:
        assert not call.is_paused
        self.begun += 1
        await self.replica
        call.respond(200, bytes(2 * WRITE_BUFFER_MAX))

    def opened(self, connection: PortConnection) -> None:
        pass

    def closed(self, connection: PortConnection) -> None:
        pass

    def refused_early(self, error: HeadraceError, request_id: RequestId) -> None:
        raise error


def in_a_loop(check: Callable[[], None]) -> None:
    async def run() -> None:
        check()

    asyncio.run(run())


def test_a_request_that_comes_in_the_turn_in_which_an_answer_ended_waits_until_that_is_taken() -> None:
    """T12: begun at once, it would later be cut for a slow reader before it had anything to read: no ending has that."""

    def check() -> None:
        owner = Owner()
        connection = ClientConnection(owner)
        transport = StuckTransport(connection)
        connection.connection_made(transport)
        connection.data_received(REQUEST)
        owner.replica.set()  # the whole answer is written, and not yet handed to the transport
        connection.data_received(REQUEST)
        assert owner.begun == 1
        transport.drain()
        assert owner.begun == 2

    in_a_loop(check)
