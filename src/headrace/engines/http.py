"""How do bytes get to a replica and back? Pooled HTTP/1.1 connections, one exchange at a time on each.

Callbacks, not coroutines: a streamed answer costs one call per read. The one await is opening a new connection.
"""

import asyncio
import ssl
from collections import deque
from typing import Any, ClassVar, Protocol, cast

import httptools

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.fleet import Replica
from headrace.engines import tls
from headrace.engines.outbox import Outbox
from headrace.protocols import http1

HEAD_BYTES_MAX = 64 * 1024
# Below the keep-alive of common servers (uvicorn: 5 s), so that we rarely send on a connection they are closing.
IDLE_MAX_S = 4.0
# After an answer's own end, how long its HTTP message may take to end as well before the connection is dropped.
LINGER_S = 1.0


Headers = list[tuple[bytes, bytes]]


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header, `name` in lower case; most answers are never asked, so nothing is indexed."""
    for key, value in headers:
        if key.lower() == name:
            return value
    return None


class ResponseSink(Protocol):
    """Who receives a response. Exactly one of `ended` and `lost` is called, last, unless the exchange is dropped first.

    Attributes:
        is_streamed: Whether it reads the headers of an answer 200; else it may be given none of them.
    """

    is_streamed: ClassVar[bool]

    def head(self, status: int, headers: Headers) -> None: ...

    def data(self, data: bytes) -> None: ...

    def ended(self) -> None: ...

    def lost(self, *, is_garbage: bool) -> None:
        """The connection ended inside the exchange, or (`is_garbage`) what came was not HTTP."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to a replica. Owner of its socket; `_sink` is whom the current exchange answers to, if any.

    An answer's end is acted on when the read that brought it has been parsed: only then is it known whether more came
    than was asked for, and nobody can be given the connection while the parser is still at work on the last answer.
    """

    def __init__(self, client: "ReplicaClient") -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._sink: ResponseSink | None = None
        self._is_exchanging = False
        self._is_message_over = False  # within one read: the answer's last byte was seen
        self._is_spoilt = False  # more came than one answer, or the replica will close
        self._is_paused = False
        self._payload = b""
        self._linger: asyncio.TimerHandle | None = None
        self._headers: Headers = []
        self._head_bytes = 0
        self._has_head = False
        self.is_reused = False
        self.has_answered = False
        self.idle_since_s = 0.0

    def send(self, payload: bytes, sink: ResponseSink) -> None:
        """Starts an exchange; the connection must be idle. If it has been lost since it was opened or taken from the
        pool, the sink hears so at once."""
        assert not self._is_exchanging, "one exchange at a time"
        self.has_answered = False
        if self._transport is None:
            sink.lost(is_garbage=False)
            return
        self._sink = sink
        self._is_exchanging = True
        self._has_head = self._is_message_over = False
        self._headers = []
        self._head_bytes = 0
        self._payload = payload
        self._client.outbox.add(self)

    def flush(self) -> None:
        if self._payload and self._transport is not None:
            self._transport.write(self._payload)
        self._payload = b""

    def abort(self) -> None:
        """Drops the exchange and the connection: for the replica the caller has gone."""
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    def release(self) -> None:
        """The answer is complete for us; the connection is reused if its message ends within LINGER_S, else dropped."""
        self._sink = None
        if self._is_exchanging:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def pause(self) -> None:
        if not self.is_closing and not self._is_paused:
            self._is_paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def resume(self) -> None:
        if not self.is_closing and self._is_paused:
            self._is_paused = False
            cast(asyncio.Transport, self._transport).resume_reading()

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports have the methods, not the base class.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_exchanging:
            self.abort()  # nobody asked: not a connection to trust
            return
        self.has_answered = True
        if not self._has_head:
            if not self._head_bytes and self._is_taken_plain(data):
                return
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a bug of ours, not the replica's garbage: the event loop reports it and drops the connection
        except httptools.HttpParserError:
            if not self._is_message_over:
                self._fail(is_garbage=True)
                return
            self._is_spoilt = True
        if self._is_message_over:
            self._end()
        elif not self._has_head and self._head_bytes > HEAD_BYTES_MAX:
            self._fail(is_garbage=True)

    def _is_taken_plain(self, data: bytes) -> bool:
        """Takes an answer that came whole in this one read, if its sink needs no more than its body."""
        sink = self._sink
        if sink is None or sink.is_streamed:
            return False
        body = http1.plain_answer(data)
        if body is None:
            return False
        self._has_head = True
        sink.head(200, [])
        sink.data(body)
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
        self._client.forget(self)
        sink, self._sink = self._sink, None
        if sink is None or not self._is_exchanging:
            return
        self._is_exchanging = False
        if self._has_head and exc is None and not self._is_framed():
            sink.ended()  # a body without length or chunks ends with its connection
        else:
            sink.lost(is_garbage=False)

    # Called by llhttp.

    def on_message_begin(self) -> None:
        if self._is_message_over:
            self._is_spoilt = True  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            return
        self._has_head = True
        if self._sink is not None and not self._is_message_over:
            self._sink.head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        if self._sink is not None and not self._is_message_over:
            self._sink.data(data)

    def on_message_complete(self) -> None:
        if not self._has_head:
            return  # an interim response (1xx)
        self._is_message_over = True
        if not self._parser.should_keep_alive():
            self._is_spoilt = True

    def _end(self) -> None:
        """The answer is over: keeps the connection if it can be trusted, then tells the sink."""
        self._is_exchanging = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if not self._is_spoilt and not self.is_closing:
            if self._is_paused:
                self.resume()
            self._client.keep(self)
        else:
            self.close()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.ended()

    def _fail(self, *, is_garbage: bool) -> None:
        sink, self._sink = self._sink, None
        self._is_exchanging = False
        self.abort()
        if sink is not None:
            sink.lost(is_garbage=is_garbage)

    def _is_framed(self) -> bool:
        return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._headers)


class ReplicaClient:
    """The connections to one replica. `_idle` holds those waiting for work; all together are at most a little over the
    replica's slots, because a connection carries one exchange."""

    def __init__(
        self,
        replica: Replica,
        *,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        connect_timeout_s: float = 5.0,
    ) -> None:
        self.outbox = outbox
        self._replica = replica
        self._tasks = tasks
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[UpstreamConnection] = deque()
        self._is_closed = False
        self._tls: ssl.SSLContext | None = None
        host = f"[{replica.host}]" if ":" in replica.host else replica.host
        authorization = f"authorization: {replica.authorization}\r\n" if replica.authorization else ""
        self._heads: dict[str, bytes] = {}
        self._common = (
            f"host: {host}:{replica.port}\r\n{authorization}content-type: application/json\r\n".encode()
        )

    def payload(self, path: str, body: tuple[bytes, bytes], *, request_id: str) -> bytes:
        """A POST to the replica, head and both pieces of the body in one."""
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = (
                f"POST {self._replica.path_prefix}{path} HTTP/1.1\r\n".encode() + self._common
            )
        ours, callers = body
        start = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            head,
            request_id.encode(),
            len(ours) + len(callers),
            ours,
        )
        return start + callers

    def idle_connection(self) -> UpstreamConnection | None:
        """The connection used last that is still good, or None."""
        oldest_s = self._clock.now_s() - IDLE_MAX_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closing and connection.idle_since_s >= oldest_s:
                connection.is_reused = True
                return connection
            connection.close()
        return None

    async def connect(self, *, limit_s: float) -> UpstreamConnection:
        """A new connection. Raises OSError, or TimeoutError after `limit_s` or the connect timeout if that is shorter.
        One that comes after its caller has left serves others."""
        made: asyncio.Future[UpstreamConnection] = asyncio.get_running_loop().create_future()
        self._tasks.create_task(self._open(made, min(limit_s, self._connect_timeout_s)))
        try:
            return await made
        except asyncio.CancelledError:
            # It may be there already, and its caller leave before the walk came to take it.
            if not made.cancel() and made.exception() is None:
                self.keep(made.result())
            raise

    async def _open(self, made: "asyncio.Future[UpstreamConnection]", limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                replica = self._replica
                if replica.is_secure and self._tls is None:
                    # The system's authorities take tens of milliseconds to read.
                    self._tls = await asyncio.to_thread(tls.client_context, replica.ca_file, key="ca_file")
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: UpstreamConnection(self),
                    replica.host,
                    replica.port,
                    ssl=self._tls,
                    server_hostname=replica.host if replica.is_secure else None,
                )
        except (OSError, TimeoutError, ValueError, ConfigError) as error:
            # ValueError: a host that is no name; ConfigError: the file of authorities has gone since the start. Neither
            # must end the group, which is the gateway's.
            if not made.done():
                made.set_exception(error if isinstance(error, OSError) else OSError(str(error)))
            return
        if made.done():
            self.keep(connection)
        else:
            made.set_result(connection)

    def close(self) -> None:
        """Closes idle connections now and the others when their exchange ends."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def keep(self, connection: UpstreamConnection) -> None:
        """Takes a connection that is idle: its exchange has ended well, or it was opened for a caller who has left."""
        if self._is_closed:
            connection.close()
            return
        connection.idle_since_s = self._clock.now_s()
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """Called by a connection that is gone."""
        try:
            self._idle.remove(connection)
        except ValueError:
            pass
