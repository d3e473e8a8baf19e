"""Who may come in? Accepts connections on the public port while there is room for them, and begins TLS where it is on.

Our own loop of `accept` rather than the event loop's: that one closes the listening socket when descriptors run out, and
can't leave callers in the kernel's backlog until there is room.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.clock import Clock
from headrace.gateway.certificate import ServedCertificate
from headrace.gateway.walk import Walk
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

BACKLOG = 1024
ACCEPTS_MAX = 64  # in one turn of the loop, so that a flood of callers doesn't hold up the streams that run
PAUSE_S = 1.0
LOG_EVERY_S = 10.0
# How long a caller may take to say its part of the end of a TLS connection.
TLS_GOODBYE_S = 2.0


def open_sockets(host: str, port: int, *, is_shared: bool = False) -> list[socket.socket]:
    """Listening sockets on every address of that name, all with one port; 0 chooses a free one. Raises OSError.

    Args:
        is_shared: Other processes of ours listen on the same port, and the kernel divides the connections.
    """

    def listening(family: int, address: tuple[str, int]) -> socket.socket:
        return socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=is_shared)

    return _on_every_address(host, port, listening)


def reserve_port(host: str, port: int) -> list[socket.socket]:
    """Sockets that hold a port for processes of ours that will share it. They don't listen, so nobody comes to them.

    Raises OSError when somebody else has the port: it is bound first and shared then, or a second service would quietly
    get a part of the connections.
    """

    def holding(family: int, address: tuple[str, int]) -> socket.socket:
        held = socket.socket(family, socket.SOCK_STREAM)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            held.bind(address)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except BaseException:
            held.close()
            raise
        return held

    return _on_every_address(host, port, holding)


def _on_every_address(
    host: str, port: int, make: Callable[[int, tuple[str, int]], socket.socket]
) -> list[socket.socket]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            taken = opened[0].getsockname()[1] if opened else port
            opened.append(make(family, (str(address[0]), taken)))
            opened[-1].setblocking(False)
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


@dataclass(frozen=True, slots=True)
class Room:
    """How many connections there may be.

    Attributes:
        connections_max: Above it new ones are closed at once.
        descriptors_max: Above it nobody is accepted, so that those who are in have the descriptors that they need.
    """

    connections_max: int
    descriptors_max: int


class Port(Protocol):
    """Where the gateway's connections come from."""

    @property
    def number(self) -> int: ...

    @property
    def keeps_waiting(self) -> bool:
        """Whether callers are left in the kernel's backlog."""
        ...

    async def open(self, make: Callable[[], asyncio.Protocol], *, count: Callable[[], int]) -> None:
        """From now on connections come.

        Args:
            make: The protocol of a new connection.
            count: Connections that the gateway has now.
        """
        ...

    def tick(self, now_s: float) -> None:
        """Called a few times a second."""
        ...

    def close(self) -> None:
        """No more connections come; those in the gateway's hands go on."""
        ...


class Listener:
    """The public port on listening sockets. Owner of them and of `_arriving`: connections that were accepted and aren't
    yet the gateway's, because their TLS handshake is under way.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        room: Room,
        certificate: ServedCertificate | None,
        handshake_timeout_s: float,
        metrics: Metrics,
        log: Log,
        clock: Clock,
    ) -> None:
        self._sockets = list(sockets)
        self._make: Callable[[], asyncio.Protocol] = asyncio.Protocol
        self._count: Callable[[], int] = int
        self._room = room
        self._certificate = certificate
        self._handshake_timeout_s = handshake_timeout_s
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._arriving: dict[socket.socket, Walk] = {}
        self._is_accepting = False
        self._resume_s = 0.0
        self._log_due_s = 0.0

    def set_handshake_timeout(self, limit_s: float) -> None:
        """Of the TLS handshakes that begin from now on."""
        self._handshake_timeout_s = limit_s

    @property
    def number(self) -> int:
        number: int = self._sockets[0].getsockname()[1]
        return number

    @property
    def keeps_waiting(self) -> bool:
        return not self._is_accepting

    async def open(self, make: Callable[[], asyncio.Protocol], *, count: Callable[[], int]) -> None:
        self._make, self._count = make, count
        self._start()

    def close(self) -> None:
        self._stop()
        for each in self._sockets:
            each.close()
        for walk in list(self._arriving.values()):
            walk.cancel()

    def tick(self, now_s: float) -> None:
        """Accepts again when there is room."""
        if not self._is_accepting and now_s >= self._resume_s and self._open < self._room.descriptors_max:
            self._start()

    @property
    def _open(self) -> int:
        return self._count() + len(self._arriving)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            if self._open >= self._room.descriptors_max:
                self._pause("descriptors", for_s=0.0)
                return
            try:
                accepted, _ = listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # it left while it waited
            except OSError as error:  # no descriptor or no memory, of this process or of the machine
                self._pause(error.strerror or type(error).__name__, for_s=PAUSE_S)
                return
            if self._open >= self._room.connections_max:
                accepted.close()
                self._log.event("connection.rejected", code="connections_max")
                continue
            accepted.setblocking(False)
            walk = Walk(self._welcome(accepted), on_end=lambda: None)
            self._arriving[accepted] = walk
            walk.start()

    async def _welcome(self, accepted: socket.socket) -> None:
        """Hands a connection to the gateway, after the handshake if there is one. Raises nothing but CancelledError."""
        try:
            if self._certificate is None:
                await self._loop.connect_accepted_socket(self._make, accepted)
            else:
                await self._loop.connect_accepted_socket(
                    self._make,
                    accepted,
                    ssl=self._certificate.context,
                    ssl_handshake_timeout=self._handshake_timeout_s,
                    ssl_shutdown_timeout=TLS_GOODBYE_S,
                )
        except OSError:  # ssl.SSLError is one: not TLS, no version in common, too slow, gone
            self._metrics.tls_handshake_failures.labels().add()
        finally:
            del self._arriving[accepted]

    def _start(self) -> None:
        self._is_accepting = True
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def _stop(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for each in self._sockets:
                self._loop.remove_reader(each)

    def _pause(self, reason: str, *, for_s: float) -> None:
        """Leaves callers in the kernel's backlog. Asking again at once would spin: the socket stays readable."""
        self._stop()
        now_s = self._clock.now_s()
        self._resume_s = now_s + for_s
        self._metrics.accept_pauses.labels().add()
        if now_s >= self._log_due_s:
            self._log_due_s = now_s + LOG_EVERY_S
            self._log.event("accept.paused", reason=reason, connections=self._open)
