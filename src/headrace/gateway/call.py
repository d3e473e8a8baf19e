"""What is a call to the code that answers it? A request and one way back, whichever protocol brought it."""

from dataclasses import dataclass
from typing import Protocol

from headrace.core.ids import RequestId
from headrace.core.tenant import Principal
from headrace.gateway.routes import Route
from headrace.gateway.rules import RequestRules
from headrace.protocols.http1 import RequestHead


@dataclass(frozen=True, slots=True)
class Screened:
    """What is known of a request before its body.

    Attributes:
        principal: None where no key is needed.
        keys_version: Of the key ring that was asked.
        expires_s: When the key does, in Unix seconds; infinity if it never does.
        rules: What its request goes by. They change only together with the key ring.
    """

    head: RequestHead
    route: Route
    principal: Principal | None
    keys_version: int
    expires_s: float
    rules: RequestRules


class PauseWatcher(Protocol):
    """Who wants to know that the caller has stopped or resumed taking bytes."""

    def paused(self) -> None: ...

    def resumed(self) -> None: ...


class Call(Protocol):
    """One request, and the way to answer it: exactly one of respond, finish, break_off or a lost caller.

    A stream is made of events: JSON that each call frames as its caller reads it. Those which came together are written
    together.
    """

    head: RequestHead
    route: Route
    principal: Principal | None
    rules: RequestRules
    body: bytes
    request_id: RequestId
    received_s: float

    @property
    def must_stream(self) -> bool:
        """Whether an answer to this caller is always a stream, asked for or not."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether the caller takes its bytes more slowly than they come."""
        ...

    @property
    def paused_since_s(self) -> float:
        """Since when it takes nothing at all; only meaningful while `is_paused`."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the caller has left."""
        ...

    def abort(self) -> None:
        """Drops the connection at once, whatever is unsent."""
        ...

    def tell(self, watcher: PauseWatcher) -> None:
        """Who hears of the caller stopping and resuming to take bytes, until the call ends."""
        ...

    def respond(self, status: int, body: bytes, *, headers: bytes = b"") -> None:
        """A whole answer in JSON."""
        ...

    def open_stream(self, *, headers: bytes) -> None:
        """Says that a stream begins."""
        ...

    def write(self, events: list[bytes]) -> None:
        """Events of the stream, at least one."""
        ...

    def beat(self) -> None:
        """A sign of life that is no event, in a stream that has begun."""
        ...

    def finish(self, events: list[bytes]) -> None:
        """The last events of the stream, perhaps none, and its end."""
        ...

    def break_off(self, status: int, body: bytes) -> None:
        """An error in JSON instead of the end of the stream: no client can take it for a whole answer."""
        ...


class PassedCall:
    """Another call, to which everything is passed on; what a subclass wants to see on its way, it overrides."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.head = call.head
        self.route = call.route
        self.principal = call.principal
        self.rules = call.rules
        self.body = b""
        self.request_id = call.request_id
        self.received_s = call.received_s

    @property
    def must_stream(self) -> bool:
        return self._call.must_stream

    @property
    def is_paused(self) -> bool:
        return self._call.is_paused

    @property
    def paused_since_s(self) -> float:
        return self._call.paused_since_s

    @property
    def is_gone(self) -> bool:
        return self._call.is_gone

    def abort(self) -> None:
        self._call.abort()

    def tell(self, watcher: PauseWatcher) -> None:
        self._call.tell(watcher)

    def respond(self, status: int, body: bytes, *, headers: bytes = b"") -> None:
        self._call.respond(status, body, headers=headers)

    def open_stream(self, *, headers: bytes) -> None:
        self._call.open_stream(headers=headers)

    def write(self, events: list[bytes]) -> None:
        self._call.write(events)

    def beat(self) -> None:
        self._call.beat()

    def finish(self, events: list[bytes]) -> None:
        self._call.finish(events)

    def break_off(self, status: int, body: bytes) -> None:
        self._call.break_off(status, body)
