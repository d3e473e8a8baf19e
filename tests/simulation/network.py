"""A network in memory: what a kernel and a wire do to bytes between two endpoints, decided by the seed.

Each connection has a latency, small buffers at both ends and a way to cut what is read. Connects are refused, hang or take
time; a close with unread bytes is a reset, as Linux does it, and a reset may overtake what came before it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import Random
from types import TracebackType
from typing import Any

READ_BYTES_MAX = 256 * 1024  # what asyncio reads at once
_LATENCIES_S = (0.00005, 0.0002, 0.001, 0.02)
_CAPACITIES = (512, 4096, 65536, 262144)


class Mark(Enum):
    """What travels besides bytes."""

    FIN = auto()
    RESET = auto()


class Cutting(Enum):
    """How a receiver gets what has arrived."""

    WHOLE = auto()
    ANYWHERE = auto()
    SHREDS = auto()


class Pipe:
    """One direction of a connection. `_flying` are bytes and marks on their way, in order, `arrived` what can be read.

    Attributes:
        seam_bytes: How many more bytes come before the place at which no read may end; None if there is none.
    """

    def __init__(
        self, network: "Network", receiver: "Endpoint", sender: "Endpoint", *, latency_s: float
    ) -> None:
        self._network = network
        self._receiver = receiver
        self._sender = sender
        self._latency_s = latency_s
        self._capacity = network.chance.choice(_CAPACITIES)
        self._flying: deque[bytes | Mark] = deque()
        self._flying_bytes = 0
        self._last_due_s = 0.0
        self.arrived = bytearray()
        self.has_fin = False
        self.seam_bytes: int | None = None

    def send(self, data: bytes) -> int:
        """Takes as much as there is room for, and says how much that was."""
        room = self._capacity - self._flying_bytes - len(self.arrived)
        taken = data[: max(0, room)]
        if taken:
            self._flying_bytes += len(taken)
            self._fly(taken)
        return len(taken)

    @property
    def is_readable(self) -> bool:
        """Whether there are bytes to be read, and not only up to the seam."""
        return len(self.arrived) > 1 if self.seam_bytes == 1 else bool(self.arrived)

    def glue(self, after_bytes: int) -> None:
        """No read ends when so many more bytes were read than are on their way now."""
        self.seam_bytes = self._flying_bytes + len(self.arrived) + after_bytes

    def mark(self, mark: Mark) -> None:
        self._fly(mark)

    def read(self, size: int) -> bytes:
        """Takes what has arrived; the sender hears of the room after the wire's latency."""
        size = min(size, len(self.arrived))
        if self.seam_bytes is not None:
            if size == self.seam_bytes:
                size += 1 if size < len(self.arrived) else -1
            self.seam_bytes = self.seam_bytes - size if size < self.seam_bytes else None
        data = bytes(self.arrived[:size])
        del self.arrived[:size]
        self._network.loop.call_later(self._latency_s, self._sender.has_room)
        return data

    def _fly(self, thing: bytes | Mark) -> None:
        loop, chance = self._network.loop, self._network.chance
        due_s = loop.time() + self._latency_s * (0.5 + chance.random())
        self._last_due_s = max(self._last_due_s, due_s)
        self._flying.append(thing)
        loop.call_at(self._last_due_s, self._land)

    def _land(self) -> None:
        thing = self._flying.popleft()
        receiver = self._receiver
        if isinstance(thing, bytes):
            self._flying_bytes -= len(thing)
        if receiver.is_lost:
            if isinstance(thing, bytes):
                self._sender.answered_by_reset(self._latency_s)
        elif thing is Mark.RESET:
            if self._network.chance.random() < 0.5:
                self.arrived.clear()
            receiver.was_reset()
        elif thing is Mark.FIN:
            self.has_fin = True
            receiver.has_news()
        else:
            assert isinstance(thing, bytes)
            self.arrived += thing
            receiver.has_news()


class Endpoint(asyncio.Transport):
    """One end of a connection: a transport that keeps the promises of asyncio's own.

    Attributes:
        is_lost: `connection_lost` was called; the socket is closed.
    """

    def __init__(self, network: "Network", name: str) -> None:
        super().__init__()
        self._network = network
        self._loop = network.loop
        self._protocol: Any = None
        self._inbound: Pipe
        self._outbound: Pipe
        self._cutting = network.chance.choices(list(Cutting), weights=(60, 35, 5))[0]
        self._buffer = bytearray()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_reading_soon = False
        self._is_closing = False
        self._is_losing = False
        self._eof = False  # we sent, or will send, FIN
        self._saw_fin = False
        self._reset: ConnectionResetError | None = None
        self.name = name
        self.is_lost = False

    def join(self, peer: "Endpoint", *, latency_s: float) -> None:
        """Lays the wire between both ends."""
        self._outbound = peer._inbound = Pipe(self._network, peer, self, latency_s=latency_s)
        peer._outbound = self._inbound = Pipe(self._network, self, peer, latency_s=latency_s)
        self._peer, peer._peer = peer, self

    def start(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self.has_news()

    @property
    def is_peer_closing(self) -> bool:
        """Whether the other end has closed or is about to, whatever has been heard of it here."""
        return self._peer.is_closing()

    # asyncio.Transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_reading_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self.has_news()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._is_losing:
            return
        assert not self._eof, "nothing is written after write_eof"
        if self._reset is not None:
            self._lose(self._reset)
            return
        self._buffer += data
        self._flush()
        if len(self._buffer) > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def glue(self, after_bytes: int) -> None:
        """The receiver gets the next so many bytes, to be written now, never without the one after them."""
        self._outbound.glue(len(self._buffer) + after_bytes)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._eof or self._is_closing:
            return
        self._eof = True
        self._flush()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        self._buffer.clear()
        self._lose(None)

    def reset(self) -> None:
        """Closes as SO_LINGER with a time of 0 does: whatever is unsent is dropped and the peer is told at once."""
        if self._is_losing:
            return
        self._outbound.mark(Mark.RESET)
        self._eof = True
        self.abort()

    # Called by the pipes.

    def has_news(self) -> None:
        """Bytes or a FIN have arrived, or reading was resumed."""
        if self._protocol is None or self._is_reading_soon or self._is_reading_paused or self._is_closing:
            return
        if (
            self._reset is not None
            or self._inbound.is_readable
            or (self._inbound.has_fin and not self._saw_fin)
        ):
            self._is_reading_soon = True
            self._loop.call_soon(self._read)

    def has_room(self) -> None:
        """The receiver has taken something."""
        if self._buffer and not self._is_losing:
            self._flush()

    def answered_by_reset(self, latency_s: float) -> None:
        """What we sent came to a closed socket."""
        self._loop.call_later(latency_s, self.was_reset)

    def was_reset(self) -> None:
        """A reset has arrived. As with a real socket, who neither reads nor has something to write doesn't hear of it."""
        if self.is_lost or self._reset is not None:
            return
        self._reset = ConnectionResetError("connection reset by peer")
        if self._buffer:
            self._lose(self._reset)
        else:
            self.has_news()

    def _flush(self) -> None:
        if self._buffer:
            del self._buffer[: self._outbound.send(bytes(self._buffer))]
        if self._is_writing_paused and len(self._buffer) <= self._low:
            self._is_writing_paused = False
            self._protocol.resume_writing()
        if self._buffer:
            return
        if self._is_closing:
            self._lose(None)
        elif self._eof:
            self._outbound.mark(Mark.FIN)

    def _read(self) -> None:
        self._is_reading_soon = False
        if self._is_reading_paused or self._is_closing:
            return
        inbound = self._inbound
        if inbound.is_readable:
            data = inbound.read(self._cut(len(inbound.arrived)))
            self._network.read(self, len(data))
            self._protocol.data_received(data)
            self.has_news()
        elif self._reset is not None:
            self._lose(self._reset)
        elif inbound.has_fin and not self._saw_fin:
            self._saw_fin = True
            if not self._protocol.eof_received():
                self.close()

    def _cut(self, available: int) -> int:
        match self._cutting:
            case Cutting.WHOLE:
                return READ_BYTES_MAX
            case Cutting.ANYWHERE:
                return self._network.chance.randint(1, available)
            case Cutting.SHREDS:
                return self._network.chance.randint(1, 7) if available < 2048 else available - 1024

    def _lose(self, error: ConnectionResetError | None) -> None:
        if self._is_losing:
            return
        self._is_closing = self._is_losing = True
        self._buffer.clear()
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: ConnectionResetError | None) -> None:
        self.is_lost = True
        self._network.open.discard(self)
        try:
            self._protocol.connection_lost(error)
        finally:
            if self._reset is None:
                if self._inbound.arrived:
                    self._outbound.mark(Mark.RESET)
                elif not self._eof:
                    self._outbound.mark(Mark.FIN)


class Listener:
    """A listening socket; also the `Server` that `create_server` returns.

    Attributes:
        is_deaf: Connects neither succeed nor fail: a host that drops packets, or a full backlog.
    """

    def __init__(self, network: "Network", factory: Callable[[], Any], address: tuple[str, int]) -> None:
        self._network = network
        self.factory = factory
        self.address = address
        self.is_deaf = False

    @property
    def sockets(self) -> tuple["Listener", ...]:
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def is_serving(self) -> bool:
        return self._network.listeners.get(self.address) is self

    def accept(self, endpoint: "Endpoint") -> None:
        """A connection that was made reaches the server; one that waited in the backlog of a closed socket is reset."""
        if self.is_serving():
            endpoint.start(self.factory())
        else:
            endpoint.start(asyncio.Protocol())
            endpoint.reset()

    def close(self) -> None:
        if self.is_serving():
            del self._network.listeners[self.address]

    async def wait_closed(self) -> None:
        """There is nothing to wait for."""

    async def __aenter__(self) -> "Listener":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Open(dict["Endpoint", None]):
    """Endpoints in the order in which they were opened: a set's order would change from run to run."""

    def discard(self, endpoint: "Endpoint") -> None:
        self.pop(endpoint, None)


class Network:
    """All listeners and connections of one loop. `read` is called for every read: the network's part of the history."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: Random) -> None:
        self.loop = loop
        self.chance = chance
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.open = _Open()
        self.read: Callable[[Endpoint, int], None] = lambda endpoint, count: None
        self._connections = 0

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Listener:
        address = (host, port or 50_000 + len(self.listeners))
        if address in self.listeners:
            raise OSError(98, f"address in use: {address}")
        listener = self.listeners[address] = Listener(self, factory, address)
        return listener

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Endpoint, Any]:
        latency_s = self.chance.choice(_LATENCIES_S)
        await asyncio.sleep(latency_s * (1 + self.chance.random()))
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(111, f"refused: {host}:{port}")
        if listener.is_deaf:
            await self.loop.create_future()
        self._connections += 1
        near = Endpoint(self, f"{self._connections}:near")
        far = Endpoint(self, f"{self._connections}:far")
        near.join(far, latency_s=latency_s)
        self.open[near] = self.open[far] = None
        self.loop.call_later(latency_s, listener.accept, far)
        protocol = factory()
        near.start(protocol)
        try:
            await asyncio.sleep(0)  # as asyncio's own, which returns a turn after `connection_made`
        except asyncio.CancelledError:
            near.close()
            raise
        return near, protocol
