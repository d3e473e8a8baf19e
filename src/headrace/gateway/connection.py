"""What happens on one client connection? Bytes in, calls out, in order; sizes, times and the close are watched here.

The walk (gateway/server.py) is a coroutine that runs for each call in its turn; a caller that leaves cancels it.
"""

import asyncio
from typing import Protocol, cast

from headrace.core.errors import BodyTooSlow, HeadraceError, InvalidRequest
from headrace.core.ids import RequestId
from headrace.gateway.call import Call, Screened
from headrace.gateway.http_call import HttpCall
from headrace.gateway.screening import Caller
from headrace.gateway.transport import (
    LINGER_S,
    WRITE_BUFFER_MARK,
    CallerTransport,
    TransportOwner,
    paced_limit_s,
)
from headrace.gateway.walk import Walk
from headrace.protocols import http1, openai

PIPELINE_MAX = 2  # calls read ahead on one connection; above it we stop reading
DISCARD_BYTES_MAX = (
    64 * 1024
)  # read and thrown away after an early refusal, beyond what the body limit allowed


class ConnectionOwner(TransportOwner, Protocol):
    """What a connection needs of the gateway."""

    header_timeout_s: float
    idle_timeout_s: float
    body_bytes_per_s_min: int
    keeps_alive: bool

    def screen(self, head: http1.RequestHead, caller: Caller) -> Screened:
        """Decides on a head alone whether its body may come. Raises HeadraceError."""
        ...

    def still_holds(self, screened: Screened) -> bool:
        """Whether `screen` would decide the same again: no key has changed or expired meanwhile."""
        ...

    def new_request_id(self) -> RequestId: ...

    async def handle(self, call: Call) -> None: ...

    def opened(self, connection: "PortConnection") -> None:
        """The connection counts until `closed`."""
        ...

    def closed(self, connection: "PortConnection") -> None: ...

    def refused_early(self, error: HeadraceError, request_id: RequestId) -> None:
        """A message was refused before it became a call."""
        ...


class PortConnection(Protocol):
    """What the gateway asks of every connection, whichever protocol it speaks."""

    def check(self, now_s: float) -> None: ...

    def drain(self) -> None: ...

    def hurry(self, now_s: float) -> None: ...

    def refuse_body(self, error: HeadraceError) -> None: ...

    def cut(self) -> None: ...

    @property
    def has_unsent(self) -> bool: ...


class _Refusal:
    """A message that was refused before it became a call: answered in its turn, then the connection closes."""

    __slots__ = ("error", "request_id")

    def __init__(self, error: HeadraceError, request_id: RequestId) -> None:
        self.error = error
        self.request_id = request_id


class ClientConnection(CallerTransport):
    """One client connection. `_turns` are calls read and not yet answered; `_limit_s` is when it has been too slow to send,
    which each byte of a body puts off, `_paced_bytes` of them so far.

    A call starts only when the answers before it are taken but for WRITE_BUFFER_MARK bytes: whoever sends requests and
    never reads would else fill our memory with answers.
    """

    _owner: ConnectionOwner

    def __init__(self, owner: ConnectionOwner) -> None:
        super().__init__(owner)
        self._walk: Walk | None = None
        self._reader = http1.RequestReader(self)
        # A list, though it is taken from in front: an empty deque takes 700 bytes, a fifth of an idle connection.
        self._turns: list[HttpCall | _Refusal] = []
        self._is_busy = False
        self._is_advancing = False
        self._is_done = False  # nothing more is answered
        self._screened: Screened | None = None
        # The head of `_screened`, if the next one may say the same.
        self._repeated: http1.RepeatedHead | None = None
        self._paced_bytes = 0
        self._limit_s = 0.0
        self._owes_continue = False  # the next body waits for a word that comes after the answers before it
        self._discardable: int | None = None  # set once nothing more is read as a request
        self.keeps_alive = True

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports have the methods, not the base class.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._owner.opened(self)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_MARK)
        self._limit_s = self._owner.clock.now_s() + self._owner.header_timeout_s

    def data_received(self, data: bytes) -> None:
        if self._discardable is not None:
            self._discardable -= len(data)
            if self._discardable < 0 and self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()  # not yet a reset: the refusal may still be unsent
            return
        reader = self._reader
        was_idle = reader.is_idle
        if self._repeated is not None and was_idle and self._is_taken_as_repeated(data, self._repeated):
            return
        messages = reader.messages
        try:
            reader.feed(data)
        except HeadraceError as error:
            self._refuse(error)
            return
        if was_idle and reader.is_idle and reader.messages == messages + 1:
            self._repeated = http1.repeated_head(data)
        if not reader.is_idle and not reader.is_reading_body and was_idle:
            self._limit_s = self._owner.clock.now_s() + self._owner.header_timeout_s
        self._hold_back()

    def _hold_back(self) -> None:
        """Reads no more while enough is read ahead."""
        transport = self._transport
        if len(self._turns) > PIPELINE_MAX and transport is not None and not transport.is_closing():
            transport.pause_reading()

    def _is_taken_as_repeated(self, data: bytes, repeated: http1.RepeatedHead) -> bool:
        """Takes the call without reading its head, if that is the last one again and what was decided on it holds."""
        body, screened = repeated.body_of(data), self._screened
        if body is None or screened is None or len(body) > screened.route.body_bytes_max:
            return False
        owner = self._owner
        if not owner.still_holds(screened):
            self._repeated = None
            return False
        self._take_turn(HttpCall(self, screened, body, owner.new_request_id(), owner.clock.now_s()))
        self._hold_back()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.keeps_alive = False
        self._is_done = True
        self.cut()
        self._owner.closed(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._advance()

    # Called by the reader.

    def head_received(self, head: http1.RequestHead) -> int:
        # Both are of the message before: neither a refusal of this one nor a later head may lean on them.
        self._screened = self._repeated = None
        screened = self._screened = self._owner.screen(head, self)
        self._limit_s = self._owner.clock.now_s() + self._owner.header_timeout_s
        self._paced_bytes = 0
        self._owes_continue = False
        return screened.route.body_bytes_max

    def body_awaited(self) -> None:
        if self._turns or self._is_busy:
            self._owes_continue = True
        elif self._transport is not None:
            self.write(http1.CONTINUE)

    def request_received(self, body: bytes) -> None:
        screened, owner = self._screened, self._owner
        assert screened is not None
        if not owner.still_holds(screened):  # a body may be hours on its way
            screened = self._screened = owner.screen(screened.head, self)
        self._take_turn(HttpCall(self, screened, body, owner.new_request_id(), owner.clock.now_s()))

    def detach(self, last: bytes) -> tuple[asyncio.Transport, Screened]:
        """See HttpCall.switch; nothing here touches the transport any more."""
        transport, screened = self._transport, self._screened
        if transport is None or screened is None or transport.is_closing() or self._discardable is not None:
            raise InvalidRequest("nothing may follow a request to change protocols before its answer")
        self.write(last)
        self.flush()
        self._transport = None
        self._is_done = True
        self._owner.closed(self)
        return transport, screened

    # Called by the gateway.

    def check(self, now_s: float) -> None:
        """Called once a second: closes what is too slow. While a call is in progress its own deadlines hold."""
        if self._transport is None:
            return
        if self._is_busy:
            return
        if self._is_stuck(self._transport, now_s):
            self.abort()
            return
        if self._turns:
            return  # they wait for the caller to take the answers before them
        if self._discardable is not None:
            if now_s >= self._limit_s:
                self.abort()
            return
        reader = self._reader
        if reader.is_reading_body:
            self._keep_pace(now_s)
            if now_s >= self._limit_s:
                self._refuse(
                    BodyTooSlow(
                        f"the body arrives more slowly than {self._owner.body_bytes_per_s_min} bytes a second"
                    )
                )
        elif now_s >= self._limit_s:
            if reader.is_idle:
                self._transport.close()
            else:
                self._refuse(BodyTooSlow("the request head took too long"))

    def _keep_pace(self, now_s: float) -> None:
        owner, body_bytes = self._owner, self._reader.body_bytes
        self._limit_s = paced_limit_s(
            self._limit_s,
            body_bytes - self._paced_bytes,
            bytes_per_s_min=owner.body_bytes_per_s_min,
            ahead_max_s=owner.header_timeout_s,
            now_s=now_s,
        )
        self._paced_bytes = body_bytes

    def drain(self) -> None:
        """Closes after the call in progress, or now if there is none. Who has just come is on the point of asking, and is
        told why it is refused."""
        self.keeps_alive = False
        reader, transport = self._reader, self._transport
        is_waiting = reader.is_idle and not self._is_busy and not self._turns
        if is_waiting and not reader.is_fresh and transport is not None:
            self.flush()  # an answer of this very turn of the loop
            transport.close()

    def hurry(self, now_s: float) -> None:
        """Under pressure a connection that was answered and idles is worth little: its time ends soon."""
        reader = self._reader
        if not self._is_busy and reader.is_idle and not reader.is_fresh and self._discardable is None:
            self._limit_s = min(self._limit_s, now_s + self._owner.idle_timeout_s)

    def refuse_body(self, error: HeadraceError) -> None:
        """Turns away a request whose body is still on its way, and lets go of what has come of it."""
        if not self._is_busy and self._reader.is_reading_body and self._discardable is None:
            self._refuse(error)
            self._reader.abandon()

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    def cut(self) -> None:
        """Ends the call in progress, because the time to drain is over."""
        if self._walk is not None:
            self._walk.cancel()

    def _take_turn(self, turn: HttpCall | _Refusal) -> None:
        self._turns.append(turn)
        self._advance()

    def _advance(self) -> None:
        """Answers turn by turn; a call that ends before its walk first waits must not nest the next one in it."""
        if self._is_advancing:
            return
        self._is_advancing = True
        while self._turns and not self._is_busy and not self._is_done:
            if self._unsent:
                self.flush()  # only then is it known whether the caller takes its answers
            if self.is_paused:
                break
            turn = self._turns.pop(0)
            if isinstance(turn, _Refusal):
                self._is_done = True
                self._answer_refusal(turn)
            else:
                self._is_busy = True
                self.keeps_alive = self.keeps_alive and turn.head.keeps_alive and self._owner.keeps_alive
                self._walk = Walk(self._owner.handle(turn), on_end=self._turn_ended)
                self._walk.start()
        self._is_advancing = False

    def _turn_ended(self) -> None:
        self._is_busy = False
        self._walk = self.watcher = None
        now_s, owner = self._owner.clock.now_s(), self._owner
        # What came of the next message while this one was answered has had no limit yet.
        self._limit_s = now_s + (owner.idle_timeout_s if self._reader.is_idle else owner.header_timeout_s)
        self._paced_bytes = self._reader.body_bytes
        self._untaken_bytes = 0
        transport = self._transport
        if transport is None:
            return
        if not self.keeps_alive:
            self._is_done = True
            self.flush()
            transport.close()
            return
        if len(self._turns) == PIPELINE_MAX and not transport.is_closing():
            transport.resume_reading()
        if self._turns:
            self._advance()
        elif self._owes_continue:
            self._owes_continue = False
            if self._reader.is_reading_body and not self._reader.body_bytes:
                self.write(http1.CONTINUE)

    def _refuse(self, error: HeadraceError) -> None:
        """Answers in its turn, and reads no more than a little of what still comes."""
        request_id = self._owner.new_request_id()
        self._owner.refused_early(error, request_id)
        body_bytes_max = self._screened.route.body_bytes_max if self._screened is not None else 0
        self._discardable = DISCARD_BYTES_MAX + max(0, body_bytes_max - self._reader.body_bytes)
        self._limit_s = self._owner.clock.now_s() + LINGER_S
        self._take_turn(_Refusal(error, request_id))

    def _answer_refusal(self, refusal: _Refusal) -> None:
        if self._transport is None:
            return
        error = refusal.error
        body = openai.error_body(error, request_id=refusal.request_id)
        self.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n%bconnection: close\r\n\r\n%b"
            % (
                http1.STATUS_LINES[error.status],
                len(body),
                refusal.request_id.encode(),
                openai.error_headers(error),
                body,
            )
        )
        # Closing with unread bytes in the socket would reset the connection and lose the refusal; so the sender gets a
        # moment to read it and to stop.
        self._limit_s = self._owner.clock.now_s() + LINGER_S
        self.flush()
        if self._transport.can_write_eof():
            self._transport.write_eof()
