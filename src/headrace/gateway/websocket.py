"""What happens on a WebSocket? Messages in, one request at a time, its events out; the walk is the one of HTTP.

A connection of gateway/connection.py hands its transport over after the handshake. From then on each message is a request with
a record of its own, judged by the key of the handshake anew; what HTTP says in status lines and headers is said in JSON.
"""

import asyncio
from collections import deque

from websockets.frames import CloseCode

from headrace.core.errors import HeadraceError, InvalidRequest, Unauthenticated
from headrace.core.ids import RequestId
from headrace.gateway.call import PauseWatcher, Screened
from headrace.gateway.connection import ConnectionOwner
from headrace.gateway.routes import Route, WebSocketRoute
from headrace.gateway.transport import LINGER_S, CallerTransport, paced_limit_s
from headrace.gateway.walk import Walk
from headrace.protocols import openai, websocket
from headrace.protocols.http1 import RequestHead

# A client that does not hear us may still speak, and a busy one may be told so; both come to an end.
UNHEARD_BYTES_MAX = 64 * 1024
BUSY_MAX = 16


class WebSocketCall:
    """One request in a message, answered in messages; see gateway.call.Call.

    Attributes:
        is_cancelled: The client wants no more of it. For the walk that is a caller who left.
        has_ended: The last message of its answer is on its way.
    """

    __slots__ = (
        "_connection",
        "body",
        "has_ended",
        "head",
        "is_cancelled",
        "principal",
        "received_s",
        "request_id",
        "route",
        "rules",
    )

    def __init__(
        self,
        connection: "WebSocketConnection",
        head: RequestHead,
        screened: Screened,
        body: bytes,
        request_id: RequestId,
        received_s: float,
    ) -> None:
        assert isinstance(screened.route, WebSocketRoute)
        self._connection = connection
        self.head = head
        self.route: Route = screened.route.requests
        self.principal = screened.principal
        self.rules = screened.rules
        self.body = body
        self.request_id = request_id
        self.received_s = received_s
        self.is_cancelled = False
        self.has_ended = False

    must_stream = True

    @property
    def is_paused(self) -> bool:
        return self._connection.is_paused

    @property
    def paused_since_s(self) -> float:
        return self._connection.paused_since_s

    @property
    def is_gone(self) -> bool:
        return self.is_cancelled or self._connection.is_gone

    def abort(self) -> None:
        self._connection.abort()

    def tell(self, watcher: PauseWatcher) -> None:
        self._connection.watcher = watcher

    def respond(self, status: int, body: bytes, *, headers: bytes = b"") -> None:
        assert status != 200, "every answer is a stream"
        self.has_ended = True
        self._connection.say(websocket.error_message(status, body, headers))

    def open_stream(self, *, headers: bytes) -> None:
        self._connection.say(websocket.open_message(self.request_id, headers))

    def write(self, events: list[bytes]) -> None:
        self._connection.send(b"".join(map(websocket.event_frame, events)))

    def beat(self) -> None:
        self._connection.send(websocket.PING)

    def finish(self, events: list[bytes]) -> None:
        self.has_ended = True
        self.write([*events, websocket.done_message(self.request_id)])

    def break_off(self, status: int, body: bytes) -> None:
        """The connection stays: no client can take an error message for the end of an answer."""
        self.respond(status, body)


class WebSocketConnection(CallerTransport):
    """One WebSocket. Owner of `_backlog`, messages that wait until the client takes what it was told before, and of the
    call in progress; `_heard_s` is when it last said anything, `_unheard_bytes` what it was answered since it stopped
    reading, `_message_limit_s` when the message that is coming is too slow, `_paced_bytes` what that goes by.

    Attributes:
        is_closing: Our last words are said; `_limit_s` is when the connection is dropped.
    """

    _owner: ConnectionOwner

    def __init__(self, owner: ConnectionOwner, screened: Screened, route: WebSocketRoute) -> None:
        super().__init__(owner)
        self._screened = screened
        self._dialogue = websocket.Dialogue(message_bytes_max=route.requests.body_bytes_max)
        self._backlog: deque[bytes] = deque()
        self._is_advancing = False
        self._is_held = False  # nothing more is read, because of the backlog
        self._walk: Walk | None = None
        self._call: WebSocketCall | None = None
        self._headers: dict[str, str] | None = None  # for the next request
        self._busy_count = 0
        self._heard_s = owner.clock.now_s()
        self._message_limit_s = 0.0
        self._paced_bytes = 0
        self._unheard_bytes = 0
        self._is_draining = False
        self._limit_s = 0.0
        self.is_closing = False

    def take_over(self, transport: asyncio.Transport) -> None:
        """The handshake is answered: what comes now is ours."""
        self._transport = transport
        transport.set_protocol(self)
        self._owner.opened(self)

    def set_message_bytes_max(self, message_bytes_max: int) -> None:
        """The longest message from now on."""
        self._dialogue.set_message_bytes_max(message_bytes_max)

    # Called by the event loop.

    def data_received(self, data: bytes) -> None:
        dialogue = self._dialogue
        now_s = self._heard_s = self._owner.clock.now_s()
        was_receiving = dialogue.is_receiving
        messages = dialogue.feed(data)
        if messages or not was_receiving:
            self._message_limit_s = now_s + self._owner.header_timeout_s
            self._paced_bytes = 0
        self._backlog.extend(messages)
        self._advance()
        self._reply()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unheard_bytes = 0
        self._advance()
        self._reply()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.cut()
        self._owner.closed(self)

    # Called by calls.

    def say(self, message: bytes) -> None:
        """Sends one message."""
        self.send(websocket.text_frame(message))

    def send(self, frames: bytes) -> None:
        """Sends frames; after the close nothing more is said."""
        if self._dialogue.is_open:
            self.write(frames)

    # Called by the gateway.

    @property
    def is_gone(self) -> bool:
        return self._transport is None or not self._dialogue.is_open

    @property
    def has_unsent(self) -> bool:
        return super().has_unsent or (self.is_closing and self._transport is not None)

    def check(self, now_s: float) -> None:
        """Called once a second: closes what is too slow. While a call is in progress its own deadlines hold."""
        transport = self._transport
        if transport is None:
            return
        if self.is_closing:
            if now_s >= self._limit_s:
                transport.abort()
        elif self._is_dripping(now_s):
            self._dialogue.fail(CloseCode.POLICY_VIOLATION, "the message arrives too slowly")
            self._reply()
        elif self._walk is not None:
            return
        elif self._is_stuck(transport, now_s):
            transport.abort()
        elif self._backlog or self._dialogue.is_receiving:
            return  # not idle: the message is watched by its pace
        elif now_s - self._heard_s >= self._owner.idle_timeout_s:
            self._close(CloseCode.NORMAL_CLOSURE, "idle")

    def _is_dripping(self, now_s: float) -> bool:
        """Whether a message comes more slowly than a body may."""
        owner, dialogue = self._owner, self._dialogue
        if not dialogue.is_receiving or self._is_held:
            return False
        received_bytes = dialogue.received_bytes
        self._message_limit_s = paced_limit_s(
            self._message_limit_s,
            max(0, received_bytes - self._paced_bytes),
            bytes_per_s_min=owner.body_bytes_per_s_min,
            ahead_max_s=owner.header_timeout_s,
            now_s=now_s,
        )
        self._paced_bytes = received_bytes
        return now_s >= self._message_limit_s

    def drain(self) -> None:
        """Closes after the call in progress, or now if there is none."""
        self._is_draining = True
        if self._walk is None:
            self._close(CloseCode.GOING_AWAY, "this server is stopping")

    def hurry(self, now_s: float) -> None:
        """Under pressure the idle time is shorter for everybody, and `check` goes by it."""

    def refuse_body(self, error: HeadraceError) -> None:
        """Turns away a message that is still on its way, and lets go of what has come of it."""
        if self._walk is None and self._dialogue.is_receiving:
            self._dialogue.fail(CloseCode.TRY_AGAIN_LATER, error.message)
            self._reply()

    def cut(self) -> None:
        """Ends the call in progress: because the client has gone, or the time to drain is over."""
        if self._walk is not None:
            self._walk.cancel()

    # Messages.

    def _advance(self) -> None:
        """Takes message by message; what was said of one is handed over before the next is looked at, since only then is
        it known whether the client reads. While a call is in progress a message is taken at once: it may end that call."""
        transport = self._transport
        if self._is_advancing or transport is None:
            return
        self._is_advancing = True
        backlog = self._backlog
        while backlog and self._dialogue.is_open:
            if self._unsent:
                self.flush()
            if self.is_paused and self._walk is None:
                break
            self._take(backlog.popleft())
        self._is_advancing = False
        if not self._dialogue.is_open:
            backlog.clear()
        if bool(backlog) != self._is_held and not transport.is_closing():
            self._is_held = bool(backlog)
            if self._is_held:
                transport.pause_reading()
            else:
                transport.resume_reading()
                self._message_limit_s = self._owner.clock.now_s() + self._owner.header_timeout_s

    def _take(self, message: bytes) -> None:
        control = websocket.read_control(message)
        if control is None:
            if self._walk is None:
                self._start(message)
            else:
                self._refuse_as_busy()
            return
        if control.cancel and self._call is not None:
            self._call.is_cancelled = True
            self.cut()
        if control.headers is not None:
            self._headers = control.headers

    def _start(self, message: bytes) -> None:
        owner = self._owner
        request_id = owner.new_request_id()
        given, self._headers = self._headers, None
        try:
            if not owner.still_holds(self._screened):
                self._screened = owner.screen(self._screened.head, self)
            head = websocket.request_head(self._screened.head, given)
        except HeadraceError as error:
            owner.refused_early(error, request_id)
            body = openai.error_body(error, request_id=request_id)
            self.say(websocket.error_message(error.status, body, openai.error_headers(error)))
            if isinstance(error, Unauthenticated):
                self._close(CloseCode.POLICY_VIOLATION, "the API key is no longer valid")
            return
        self._call = WebSocketCall(self, head, self._screened, message, request_id, owner.clock.now_s())
        self._walk = Walk(owner.handle(self._call), on_end=self._call_ended)
        self._walk.start()

    def _call_ended(self) -> None:
        call, self._call = self._call, None
        self._walk = self.watcher = None
        self._busy_count = self._untaken_bytes = 0
        self._heard_s = self._owner.clock.now_s()
        if call is not None and call.is_cancelled and not call.has_ended:
            self.say(websocket.cancelled_message(call.request_id))
        if self._is_draining:
            self._close(CloseCode.GOING_AWAY, "this server is stopping")

    def _refuse_as_busy(self) -> None:
        self._busy_count += 1
        if self._busy_count > BUSY_MAX:
            self._dialogue.fail(CloseCode.POLICY_VIOLATION, "one request at a time")
            return
        error = InvalidRequest("a request is in progress here; await its end, or open another connection")
        request_id = self._owner.new_request_id()
        self._owner.refused_early(error, request_id)
        self.say(websocket.busy_message(error.status, openai.error_body(error, request_id=request_id)))

    def _close(self, code: CloseCode, reason: str) -> None:
        """The client answers, and then the connection ends."""
        self._dialogue.close(code, reason)
        self._reply()

    def _reply(self) -> None:
        """Sends what the dialogue has to say: pongs, and perhaps its last words."""
        transport, dialogue = self._transport, self._dialogue
        if transport is None:
            return
        if data := dialogue.to_send():
            self.write(data)
            if self.is_paused:
                self._unheard_bytes += len(data)
                if self._unheard_bytes > UNHEARD_BYTES_MAX:
                    transport.abort()
        if dialogue.is_open:
            return
        if not self.is_closing:
            self.is_closing = True
            self._limit_s = self._owner.clock.now_s() + LINGER_S
        self.cut()
        if dialogue.is_closed and not transport.is_closing():
            self.flush()
            if transport.can_write_eof():
                transport.write_eof()  # to close with unread bytes in the socket would reset it and lose our last words
            else:
                transport.close()
