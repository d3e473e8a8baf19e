"""What is a call on an HTTP connection? Whole answers, and streams as server-sent events, in the framing that its caller reads."""

import asyncio
from typing import Protocol

from headrace.core.ids import RequestId
from headrace.gateway.call import PauseWatcher, Screened
from headrace.protocols import http1, sse

_STREAM_HEADERS = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)


class HttpConnection(Protocol):
    """What a call needs of the connection that it came on."""

    is_paused: bool
    paused_since_s: float
    watcher: PauseWatcher | None
    keeps_alive: bool

    @property
    def is_gone(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...

    def detach(self, last: bytes) -> tuple[asyncio.Transport, Screened]:
        """See HttpCall.switch."""
        ...


class HttpCall:
    """One request on a connection, answered in HTTP; see gateway.call.Call. Its streams are server-sent events."""

    __slots__ = (
        "_connection",
        "_is_chunked",
        "body",
        "head",
        "principal",
        "received_s",
        "request_id",
        "route",
        "rules",
    )

    def __init__(
        self,
        connection: HttpConnection,
        screened: Screened,
        body: bytes,
        request_id: RequestId,
        received_s: float,
    ) -> None:
        self._connection = connection
        self._is_chunked = screened.head.version == "1.1"
        self.head = screened.head
        self.route = screened.route
        self.principal = screened.principal
        self.rules = screened.rules
        self.body = body
        self.request_id = request_id
        self.received_s = received_s

    must_stream = False

    @property
    def is_paused(self) -> bool:
        return self._connection.is_paused

    @property
    def paused_since_s(self) -> float:
        return self._connection.paused_since_s

    @property
    def is_gone(self) -> bool:
        return self._connection.is_gone

    def abort(self) -> None:
        self._connection.abort()

    def tell(self, watcher: PauseWatcher) -> None:
        self._connection.watcher = watcher

    def switch(self, headers: bytes) -> tuple[asyncio.Transport, Screened]:
        """Answers a handshake with these header lines and gives the transport up, to another protocol.

        Raises InvalidRequest if something came that can't be of that protocol yet.
        """
        connection = self._connection
        return connection.detach(
            b"%b%bx-request-id: %b\r\n\r\n" % (http1.STATUS_LINES[101], headers, self.request_id.encode())
        )

    def respond(self, status: int, body: bytes, *, headers: bytes = b"") -> None:
        connection = self._connection
        if not connection.keeps_alive:
            end = b"connection: close\r\n\r\n"
        elif self._is_chunked:
            end = b"\r\n"
        else:
            end = b"connection: keep-alive\r\n\r\n"  # HTTP/1.0 must be told
        connection.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b%b"
            % (
                http1.STATUS_LINES[status],
                len(body),
                self.request_id.encode(),
                headers,
                end,
                body,
            )
        )

    def open_stream(self, *, headers: bytes) -> None:
        """Sends 200 and the headers of an event stream."""
        connection = self._connection
        if not self._is_chunked:
            connection.keeps_alive = False  # HTTP/1.0: the body ends with the connection
        framing = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
        end = b"\r\n" if connection.keeps_alive else b"connection: close\r\n\r\n"
        connection.write(
            b"%b%bx-request-id: %b\r\n%b%b%b"
            % (http1.STATUS_LINES[200], _STREAM_HEADERS, self.request_id.encode(), headers, framing, end)
        )

    def write(self, events: list[bytes]) -> None:
        if len(events) == 1 and self._is_chunked:
            (event,) = events
            if b"\n" not in event:  # as below, in one step, because most writes are this one
                self._connection.write(b"%x\r\ndata: %b\n\n\r\n" % (len(event) + 8, event))
                return
        data = b"".join(map(sse.encode, events))
        self._connection.write(http1.chunk(data) if self._is_chunked else data)

    def beat(self) -> None:
        data = sse.HEARTBEAT
        self._connection.write(http1.chunk(data) if self._is_chunked else data)

    def finish(self, events: list[bytes]) -> None:
        """`[DONE]` is added here and nowhere else."""
        data = b"".join(map(sse.encode, events)) + sse.DONE_EVENT
        self._connection.write(http1.chunk(data) + http1.LAST_CHUNK if self._is_chunked else data)

    def break_off(self, status: int, body: bytes) -> None:
        """A last event; then the connection closes without the end of the body."""
        self._connection.keeps_alive = False
        self.write([body])
