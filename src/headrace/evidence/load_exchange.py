"""How do a load generator's requests get to the server and back? Kept-alive HTTP/1.1 connections, one exchange at a time on each.

Its own client rather than that of engines/: when a byte was read is what is measured here, and nothing may be between.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import httptools

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.engines.tls import explain
from headrace.evidence.load_call import Call

HEAD_BYTES_MAX = 64 * 1024
# Below the keep-alive of common servers (uvicorn: 5 s): a request on a connection that is being closed would be lost, and the
# server wouldn't be to blame.
IDLE_MAX_S = 4.0
# After a stream's proper end, how long its HTTP message may take to end as well.
LINGER_S = 1.0


class Owner(Protocol):
    """Who sends. Told once of each call, when it is over."""

    def over(self, call: Call, now_s: float) -> None: ...


class Exchange(asyncio.Protocol):
    """One connection. `call` is what it carries at this moment, if anything; between a stream's own end and that of its HTTP
    message there is none, and the connection can't be used yet.

    Attributes:
        since_s: When it last became idle, or the call on it was over.
    """

    __slots__ = (
        "_clock", "_has_head", "_head_bytes", "_headers", "_is_message_over", "_is_spoilt", "_now_s", "_owner", "_parser", "_pool",
        "_transport", "call", "is_exchanging", "since_s",
    )  # fmt: skip

    def __init__(self, pool: "Pool", owner: Owner, clock: Clock) -> None:
        self._pool = pool
        self._owner = owner
        self._clock = clock.now_s
        self._parser: Any = None
        self._transport: asyncio.Transport | None = None
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._has_head = self._is_message_over = self._is_spoilt = False
        self.is_exchanging = False
        self._now_s = 0.0
        self.call: Call | None = None
        self.since_s = 0.0

    def send(self, payload: bytes, call: Call) -> None:
        """Begins an exchange; the connection must be idle and open."""
        assert self._transport is not None
        self.call = call
        call.exchange = self
        self.is_exchanging = True
        self._has_head = self._is_message_over = False
        self._head_bytes = 0
        self._transport.write(payload)

    def leave(self, now_s: float) -> None:
        """The caller hangs up; what they have heard is what the call is judged by."""
        self._finish(now_s)
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports have the methods, not the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._now_s = now_s = self._clock()
        if not self.is_exchanging:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a bug of ours
        except httptools.HttpParserError:
            if not self._is_message_over:
                self._fail()
                return
            self._is_spoilt = True
        if self._is_message_over:
            self._end()
        elif not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._fail()
        elif self.call is not None and self.call.is_at_end:
            self._finish(now_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        call = self.call
        if call is None:
            return
        if self._has_head and exc is None and not self._is_framed():
            call.is_whole = True  # a body without length or chunks ends with its connection
        self._finish(self._clock())

    # Called by llhttp.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, {}
        status = self._parser.get_status_code()
        if status >= 200 and self.call is not None and not self._is_message_over:
            self._has_head = True
            self.call.head(status, headers)
            if self.call.trouble:
                self.leave(self._now_s)

    def on_body(self, data: bytes) -> None:
        call = self.call
        if call is not None and not self._is_message_over and not call.heard(data, self._now_s):
            self.leave(self._now_s)

    def on_message_complete(self) -> None:
        if not self._has_head:
            return  # an interim response (1xx)
        self._is_message_over = True
        if self.call is not None:
            self.call.is_whole = True
        if not self._parser.should_keep_alive():
            self._is_spoilt = True

    def _end(self) -> None:
        """The message is over: the connection may carry the next, which the owner perhaps sends at once."""
        call, self.call = self.call, None
        self.is_exchanging = False
        self.since_s = self._now_s
        if self._is_spoilt or self.is_closing:
            self.close()
        else:
            self._pool.keep(self)
        if call is not None:
            self._owner.over(call, self._now_s)

    def _finish(self, now_s: float) -> None:
        call, self.call = self.call, None
        self.since_s = now_s
        if call is not None:
            self._owner.over(call, now_s)

    def _fail(self) -> None:
        if self.call is not None:
            self.call.trouble = "not_http"
        self.leave(self._now_s)

    def _is_framed(self) -> bool:
        assert self.call is not None
        return bool({b"content-length", b"transfer-encoding"} & self.call.headers.keys())


class Pool:
    """All connections to the target. `_idle` wait for work, the one used last in front; `open_count` counts all, also those that
    are being made."""

    def __init__(
        self,
        owner: Owner,
        *,
        host: str,
        port: int,
        trust: Callable[[], ssl.SSLContext | None],
        clock: Clock,
        tasks: asyncio.TaskGroup,
        connect_s: float,
    ) -> None:
        self._owner = owner
        self._host, self._port = host, port
        self._trust = trust
        self._clock = clock
        self._tasks = tasks
        self._connect_s = connect_s
        self._idle: deque[Exchange] = deque()
        self._exchanges: set[Exchange] = set()
        self._is_closed = False
        self.open_count = 0
        self.complaint = ""  # what the last connection failed for, in a sentence

    def take(self, now_s: float) -> Exchange | None:
        """An idle connection that is still good."""
        oldest_s = now_s - IDLE_MAX_S
        while self._idle:
            exchange = self._idle.pop()
            if not exchange.is_closing and exchange.since_s >= oldest_s:
                return exchange
            exchange.close()
        return None

    def open(self, payload: bytes, call: Call) -> None:
        """Makes a connection and sends on it; a failure to is the end of the call."""
        self.open_count += 1
        self._tasks.create_task(self._open(payload, call))

    async def _open(self, payload: bytes, call: Call) -> None:
        try:
            async with asyncio.timeout(self._connect_s):
                tls = self._trust()
                _, exchange = await asyncio.get_running_loop().create_connection(
                    lambda: Exchange(self, self._owner, self._clock),
                    self._host,
                    self._port,
                    ssl=tls,
                    server_hostname=self._host if tls is not None else None,
                )
        except (OSError, TimeoutError, ValueError, ConfigError) as error:
            # ValueError: a host that is no name. A timeout of ours has no text of its own.
            self.open_count -= 1
            self.complaint = explain(error) if isinstance(error, OSError) and str(error) else "no connection"
            call.trouble = "unreachable"
            if not call.is_over:
                self._owner.over(call, self._clock.now_s())
            return
        self._exchanges.add(exchange)
        if self._is_closed or exchange.is_closing:
            exchange.close()
            if not call.is_over:
                self._owner.over(call, self._clock.now_s())
        elif call.is_over:  # its caller is gone; the next one finds the connection
            exchange.since_s = self._clock.now_s()
            self.keep(exchange)
        else:
            exchange.send(payload, call)

    def keep(self, exchange: Exchange) -> None:
        if self._is_closed:
            exchange.close()
        else:
            self._idle.append(exchange)

    def forget(self, exchange: Exchange) -> None:
        """Called by a connection that is gone."""
        if exchange in self._exchanges:
            self._exchanges.remove(exchange)
            self.open_count -= 1

    def carrying(self) -> list[Exchange]:
        """Those with a call on them."""
        return [exchange for exchange in self._exchanges if exchange.call is not None]

    def tidy(self, now_s: float) -> None:
        """Closes those that nobody may use any more, and those whose message doesn't end though their stream has."""
        for exchange in list(self._exchanges):
            if exchange.call is None and exchange.is_exchanging and exchange.since_s < now_s - LINGER_S:
                exchange.close()
        while self._idle and (self._idle[0].is_closing or self._idle[0].since_s < now_s - IDLE_MAX_S):
            self._idle.popleft().close()

    def close(self) -> None:
        self._is_closed = True
        for exchange in list(self._exchanges):
            exchange.close()
