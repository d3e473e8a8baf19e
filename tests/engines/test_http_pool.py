"""The pool of connections to one replica, under any order of questions, answers, closes and departures."""

import asyncio
from typing import ClassVar, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.fleet import Replica
from headrace.core.ids import ReplicaId
from headrace.engines.http import LINGER_S, Headers, ReplicaClient, UpstreamConnection
from headrace.engines.outbox import Outbox
from tests.simulation.loop import LoopClock, SimulatedLoop
from tests.simulation.network import Endpoint

ARRIVAL_S = 0.2  # longer than any way through the network
HOST, PORT = "replica", 9000
HEAD = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "whole": HEAD + b"content-length: 2\r\n\r\nok",
    "chunked": HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "the last": HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nok",
    "two": (HEAD + b"content-length: 2\r\n\r\nok") * 2,
    "half": HEAD + b"content-length: 2\r\n\r\no",
    "garbage": b"what?\r\n\r\n",
    "interim": b"HTTP/1.1 103 Early Hints\r\n\r\n",
}
# After these a connection may carry another question.
REUSABLE = {"whole", "chunked"}


class Server(asyncio.Protocol):
    """The replica's end: it holds at most one question, and gets none on a connection that it can't be answered on."""

    transport: Endpoint

    def __init__(self, accepted: "list[Server]") -> None:
        accepted.append(self)
        self.is_asked = False
        self.is_spoilt = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Endpoint, transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST"):
            assert not self.is_asked, "one question at a time"
            assert not self.is_spoilt, "a question on a connection that can't be trusted"
            self.is_asked = True

    def answer(self, kind: str) -> None:
        self.transport.write(ANSWERS[kind])
        if kind in REUSABLE:
            self.is_asked = False
        elif kind != "interim":
            self.is_spoilt = True
        if kind == "the last":
            self.transport.close()


class Sink:
    """Whoever asked. It hears of its end once, and nothing after it, or after it went away."""

    is_streamed: ClassVar[bool] = False

    def __init__(self, connection: UpstreamConnection) -> None:
        self.connection = connection
        self.ends: list[str] = []
        self.has_left = False

    def head(self, status: int, headers: Headers) -> None:
        self._hear()
        assert status >= 200

    def data(self, data: bytes) -> None:
        self._hear()

    def ended(self) -> None:
        self._hear()
        self.ends.append("ended")

    def lost(self, *, is_garbage: bool) -> None:
        self._hear()
        self.ends.append("garbage" if is_garbage else "lost")

    def _hear(self) -> None:
        assert not self.ends
        assert not self.has_left


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = SimulatedLoop("pool")
        self.bugs: list[object] = []
        self.loop.set_exception_handler(lambda _, context: self.bugs.append(context))
        self.servers: list[Server] = []
        self.sinks: list[Sink] = []
        self.loop.network.listen(lambda: Server(self.servers), HOST, PORT)
        self.stop = asyncio.Event()
        opened = self.loop.create_future()
        self.group = self.loop.create_task(self._own(opened))
        self.client: ReplicaClient = self.loop.run_until_complete(opened)

    async def _own(self, opened: "asyncio.Future[ReplicaClient]") -> None:
        replica = Replica(ReplicaId("r"), HOST, PORT, slots=4)
        async with asyncio.TaskGroup() as tasks:
            opened.set_result(
                ReplicaClient(replica, outbox=Outbox(), tasks=tasks, clock=LoopClock(self.loop))
            )
            await self.stop.wait()

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @property
    def asking(self) -> list[Sink]:
        return [sink for sink in self.sinks if not sink.ends and not sink.has_left]

    @precondition(lambda self: len(self.asking) < 4)
    @rule()
    def ask(self) -> None:
        self.loop.run_until_complete(self._ask())

    async def _ask(self) -> None:
        connection = self.client.idle_connection()
        if connection is None:
            connection = await self.client.connect(limit_s=5.0)
        assert not connection.is_closing
        assert connection not in [sink.connection for sink in self.asking], "a connection is one asker's"
        sink = Sink(connection)
        self.sinks.append(sink)
        connection.send(self.client.payload("/v1/x", (b"{", b"}"), request_id="req"), sink)

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, 50), kind=st.sampled_from(sorted(ANSWERS)))
    def answer(self, which: int, kind: str) -> None:
        server = self.servers[which % len(self.servers)]
        if server.is_asked and not server.is_spoilt:
            server.answer(kind)

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, 50), resets=st.booleans())
    def hang_up(self, which: int, resets: bool) -> None:
        transport = self.servers[which % len(self.servers)].transport
        transport.reset() if resets else transport.close()

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, 50))
    def speak_unasked(self, which: int) -> None:
        self.pass_time(ARRIVAL_S)  # what is under way is no longer
        server = self.servers[which % len(self.servers)]
        if not server.is_asked and not server.transport.is_closing():
            server.is_spoilt = True
            server.transport.write(ANSWERS["whole"])
            self.pass_time(ARRIVAL_S)

    @precondition(lambda self: self.asking)
    @rule(which=st.integers(0, 50), in_peace=st.booleans())
    def leave(self, which: int, in_peace: bool) -> None:
        """In peace: the asker has all that it wants, and the message may still end."""
        sink = self.asking[which % len(self.asking)]
        sink.has_left = True
        self.loop.call_soon(sink.connection.release if in_peace else sink.connection.abort)
        self.pass_time(0.0)

    @rule(seconds=st.sampled_from([0.0, 0.0001, 0.1, LINGER_S + 0.1, 5.0]))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @invariant()
    def nothing_broke(self) -> None:
        assert not self.bugs, self.bugs
        assert all(len(sink.ends) <= 1 for sink in self.sinks)

    def teardown(self) -> None:
        """Once closed, the pool keeps nothing but what is still being asked, and that ends with its connection."""
        self.client.close()
        self.pass_time(ARRIVAL_S)
        for server in self.servers:
            server.transport.close()
        self.pass_time(2 * LINGER_S)
        assert not self.bugs, self.bugs
        assert not self.loop.network.open
        assert all(sink.ends or sink.has_left for sink in self.sinks), "an asker was forgotten"
        self.stop.set()
        self.loop.run_until_complete(self.group)
        self.loop.close()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=30, stateful_step_count=40)
