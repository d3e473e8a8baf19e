"""What has the caller been promised? A transition table, and the only code that writes an answer.

The commit point is the first byte of the answer. Before it a failed attempt may be repeated elsewhere and the caller never
knows; after it no edge leads back: the answer is delivered, or broken by an explicit error event, or the caller left.
Response headers wait for the first event, so that an early failure has its real status. If nothing comes for the heartbeat
time, a streaming caller gets 200 and a comment line (OPEN): no answer was promised yet, so a retry is still allowed.
"""

from collections.abc import Callable
from enum import StrEnum, auto

from headrace.core import endings
from headrace.core.clock import Clock
from headrace.core.endings import COMPLETE, Ending, Stage
from headrace.core.errors import ClientGone, HeadraceError
from headrace.core.fleet import Deployment
from headrace.core.outcome import Outcome, Reason
from headrace.core.request import InferenceRequest
from headrace.gateway.call import Call
from headrace.protocols import openai


class State(StrEnum):
    """How much the caller has seen. The last five are ends."""

    WAITING = auto()  # nothing
    OPEN = auto()  # 200 and comment lines, nothing of the answer
    DELIVERING = auto()  # part of the answer
    DELIVERED = auto()
    REFUSED = auto()
    FAILED = auto()
    BROKEN = auto()
    CANCELLED = auto()


class Event(StrEnum):
    HEARTBEAT = auto()
    CONTENT = auto()
    END = auto()
    REFUSAL = auto()  # turned away before any work
    LOSS = auto()  # the last attempt failed
    GONE = auto()  # the caller left


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.WAITING: {
        Event.HEARTBEAT: State.OPEN,
        Event.CONTENT: State.DELIVERING,
        Event.END: State.DELIVERED,
        Event.REFUSAL: State.REFUSED,
        Event.LOSS: State.FAILED,
        Event.GONE: State.CANCELLED,
    },
    State.OPEN: {
        Event.HEARTBEAT: State.OPEN,
        Event.CONTENT: State.DELIVERING,
        Event.END: State.DELIVERED,
        Event.REFUSAL: State.REFUSED,
        Event.LOSS: State.FAILED,
        Event.GONE: State.CANCELLED,
    },
    State.DELIVERING: {
        Event.HEARTBEAT: State.DELIVERING,
        Event.CONTENT: State.DELIVERING,
        Event.END: State.DELIVERED,
        Event.LOSS: State.BROKEN,
        Event.GONE: State.CANCELLED,
    },
    State.DELIVERED: {},
    State.REFUSED: {},
    State.FAILED: {},
    State.BROKEN: {},
    State.CANCELLED: {},
}

# What a row of core/endings.py does to a delivery.
EVENTS = {
    Outcome.DELIVERED: Event.END,
    Outcome.REFUSED: Event.REFUSAL,
    Outcome.FAILED: Event.LOSS,
    Outcome.BROKEN: Event.LOSS,
    Outcome.CANCELLED: Event.GONE,
}


class Delivery:
    """The one delivery of a request. Owner of `state`; `ending` and `status` say how it ended, for the records.

    Attributes:
        deployment: The target that answers, or is to.
        has_begun: A replica has the request, or had it; set by the attempt loop.
        held: The end of a durable tenant's answer, its last events or all of it, until `release`.
    """

    __slots__ = (
        "_call",
        "_clock",
        "_headers",
        "_heartbeat_s",
        "_is_durable",
        "_is_reader_slow",
        "_request",
        "_written_s",
        "deployment",
        "ending",
        "first_content_s",
        "has_begun",
        "held",
        "state",
        "status",
    )

    def __init__(
        self,
        call: Call,
        request: InferenceRequest,
        deployment: Deployment,
        *,
        clock: Clock,
        heartbeat_s: float,
        headers: Callable[[InferenceRequest, Deployment], bytes],
    ) -> None:
        self._call = call
        self._request = request
        self.deployment = deployment
        self._clock = clock
        self._headers = headers
        self._heartbeat_s = heartbeat_s
        self._written_s = 0.0
        self.state = State.WAITING
        self.status = 0
        self.ending: Ending | None = None
        self.has_begun = False
        self.held: list[bytes] | bytes | None = None
        self._is_durable = request.principal.terms.is_durable
        self._is_reader_slow = False
        self.first_content_s: float | None = None
        if request.is_streaming:
            self._written_s = clock.now_s()

    @property
    def is_over(self) -> bool:
        return self.ending is not None

    @property
    def stage(self) -> Stage:
        """How far the request has come; not to be asked after the end."""
        if self.state is State.DELIVERING:
            return Stage.ANSWERING
        return Stage.WORKING if self.has_begun else Stage.UNSTARTED

    def content(self, events: list[bytes], *, now_s: float) -> None:
        """Events of a streamed answer."""
        if self.state is not State.DELIVERING:
            self._open_stream()
            self._step(Event.CONTENT)
            self.first_content_s = now_s
        self._written_s = now_s
        self._call.write(events)

    def end_stream(self, events: list[bytes]) -> None:
        """The last events of a complete answer."""
        if self._is_durable:
            self.held = events
        else:
            self._end_stream(events)

    def whole(self, body: bytes) -> None:
        """A whole answer."""
        if self._is_durable:
            self.held = body
        else:
            self._respond(body)

    def release(self) -> None:
        """The end that was held may go out."""
        held, self.held = self.held, None
        assert held is not None, "what goes out was held"
        if isinstance(held, bytes):
            self._respond(held)
        else:
            self._end_stream(held)

    def _end_stream(self, events: list[bytes]) -> None:
        if self.state is not State.DELIVERING:
            self._open_stream()
            self.first_content_s = self._clock.now_s()
        self._step(Event.END)
        self.ending = COMPLETE
        self._call.finish(events)

    def _respond(self, body: bytes) -> None:
        self.first_content_s = self._clock.now_s()
        self._step(Event.END)
        self.ending = COMPLETE
        self.status = 200
        self._call.respond(200, body, headers=self._headers(self._request, self.deployment))

    def fail(self, error: HeadraceError) -> None:
        """Says that there is no answer, or no more of it: by status where none was sent yet, else by an error event."""
        has_head = self.state is not State.WAITING
        self._end(error)
        body = openai.error_body(error, request_id=self._call.request_id)
        if has_head:
            self._call.break_off(error.status, body)
        else:
            headers = self._headers(self._request, self.deployment) + openai.error_headers(error)
            self._call.respond(error.status, body, headers=headers)

    def beat(self, now_s: float) -> None:
        """Called four times a second for every stream: a sign of life after too long a silence.

        A caller that takes nothing has bytes to read, and needs none.
        """
        if now_s - self._written_s >= self._heartbeat_s and not self._call.is_paused:
            self._open_stream()
            self._step(Event.HEARTBEAT)
            self._call.beat()
            self._written_s = now_s

    def cut_reader(self) -> None:
        """Drops a caller that takes nothing; `client_gone` follows, as for one that left."""
        self._is_reader_slow = True
        self._call.abort()

    def client_gone(self) -> None:
        """The caller left, or was let go; what it has not seen it will not see.

        One that is slow before its answer began leaves the bytes of an earlier answer untaken, and has no ending of its own.
        """
        if self._is_reader_slow and self.stage is Stage.ANSWERING:
            self._end(ClientGone("the caller took nothing of its answer", reason=Reason.SLOW_READER))
        else:
            self._end(ClientGone("the caller closed the connection"))

    @property
    def is_delivered(self) -> bool:
        return self.ending is COMPLETE

    def _end(self, error: HeadraceError) -> None:
        ending = endings.find(error.reason, self.stage)
        self._step(EVENTS[ending.outcome])
        self.ending = ending
        self.status = error.status

    def _step(self, event: Event) -> None:
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{event} cannot happen to a delivery that is {self.state}"
        self.state = following

    def _open_stream(self) -> None:
        if self.state is State.WAITING:
            self.status = 200
            self._call.open_stream(headers=self._headers(self._request, self.deployment))
