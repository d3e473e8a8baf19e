"""What does a replica send back? One reception for each send: it reads the answer, hands it on, and says how it ended.

Callbacks run for each read of the answer. Three ways to receive: relay the events of a stream, assemble them into a whole
answer, or take a whole answer as it is.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from headrace.core.clock import Clock
from headrace.core.fleet import Replica
from headrace.core.load import Histogram
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.usage import TokenUsage, UsageSource, estimate_tokens
from headrace.engines.http import Headers, UpstreamConnection, header
from headrace.gateway.delivery import Delivery
from headrace.gateway.walk import Signal
from headrace.protocols import answers, assembling, http1, sse

WHOLE_BYTES_MAX = 32 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024


class Reception(ABC):
    """What all three share: the replica's errors, and the end. Owner of its connection while the exchange lasts.

    What only few answers change is an attribute of the class first, so that it costs the others nothing.

    Attributes:
        over: Set when `outcome` holds: the last word, since the walk goes on before `set` returns.
        outcome: CANCELLED is what it stays if the walk leaves first.
        fault: What the replica said of its failure.
        retry_after_s: When it wants to be asked again.
        is_stale: The connection had been kept alive and turned out to be closed: nothing was received, and nothing counts.
        heard_s: When the replica was last heard of: at the send, then with each read.
        first_event_s: When its answer began.
    """

    is_streamed: ClassVar[bool]
    status = 0
    outcome = AttemptOutcome.CANCELLED
    fault: answers.UpstreamFault | None = None
    retry_after_s: float | None = None
    first_event_s: float | None = None
    is_stale = False

    def __init__(
        self,
        request: InferenceRequest,
        replica: Replica,
        delivery: Delivery,
        *,
        sent_s: float,
        itl: Histogram,
        clock: Clock,
    ) -> None:
        self._request = request
        self._replica = replica
        self._delivery = delivery
        self._itl = itl
        self._clock = clock
        self._body: list[bytes] = []
        self._body_bytes = 0
        self.connection: UpstreamConnection | None = None
        self.heard_s = sent_s
        self.over = Signal()

    def again(self, *, sent_s: float) -> Self:
        """A new one for a second send of the same."""
        return type(self)(
            self._request, self._replica, self._delivery, sent_s=sent_s, itl=self._itl, clock=self._clock
        )

    @abstractmethod
    def usage(self) -> TokenUsage:
        """What was used so far, by the stated precedence."""

    def end(self, outcome: AttemptOutcome) -> None:
        """The last word; a second one does nothing."""
        if not self.over.is_set:
            self.outcome = outcome
            self.over.set()

    def let_go(self) -> None:
        """Gives the connection up: back to its pool after a complete answer, else dropped, which stops the engine."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if self.outcome is AttemptOutcome.COMPLETED:
            connection.release()
        else:
            connection.abort()

    # Called for the caller's connection.

    def pause(self) -> None:
        """The caller takes nothing at the moment: nothing more is read."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        self.heard_s = self._clock.now_s()  # what the replica sent meanwhile waits to be read
        if self.connection is not None:
            self.connection.resume()

    def cut_reader(self) -> None:
        """The caller has taken nothing for too long."""
        self._delivery.cut_reader()

    # Called by the connection: engines.http.ResponseSink.

    def head(self, status: int, headers: Headers) -> None:
        self.status = status
        if status != 200:
            self.retry_after_s = http1.retry_after_s(header(headers, b"retry-after"))

    @abstractmethod
    def data(self, data: bytes) -> None: ...

    def ended(self) -> None:
        # It is in the pool again, and may serve another attempt before this one is closed.
        self.connection = None
        if self.over.is_set:
            return
        if self.status == 200:
            self._end_answer()
        else:
            self.fault = answers.fault_of_body(b"".join(self._body), status=self.status)
            self.end(_outcome_of_status(self.status))

    def lost(self, *, is_garbage: bool) -> None:
        connection, self.connection = self.connection, None
        if self.over.is_set:
            return
        if is_garbage:
            self.end(AttemptOutcome.GARBAGE)
        elif connection is not None and connection.has_answered:
            self._lose_answer()
        else:
            self.is_stale = connection is not None and connection.is_reused
            self.end(AttemptOutcome.UNREACHABLE)

    # What the three do differently.

    @abstractmethod
    def _end_answer(self) -> None:
        """The message of an answer with status 200 has ended."""

    def _lose_answer(self) -> None:
        """The connection ended inside the message."""
        self.end(AttemptOutcome.LOST)

    def _keep(self, data: bytes) -> None:
        """A piece of a body that is read when all of it is there."""
        self.heard_s = self._clock.now_s()
        if self.first_event_s is None:
            self.first_event_s = self.heard_s
        self._body_bytes += len(data)
        if self._body_bytes <= (WHOLE_BYTES_MAX if self.status == 200 else ERROR_BYTES_MAX):
            self._body.append(data)
        elif self.status == 200:
            self.end(AttemptOutcome.OVERSIZED)

    def _end_by(self, fault: answers.UpstreamFault) -> None:
        """The replica put an error where an answer should be."""
        self.fault = fault
        self.end(_outcome_of_status(fault.status))


class WholeReception(Reception):
    """Takes a whole answer as it is."""

    is_streamed = False
    _usage: TokenUsage | None = None
    _output_bytes = 0

    def data(self, data: bytes) -> None:
        if not self.over.is_set:  # one read of the connection may hold more than the end
            self._keep(data)

    def _end_answer(self) -> None:
        try:
            body, self._usage = answers.read_whole(
                b"".join(self._body),
                hides_cached=self._request.endpoint not in self._replica.traits.tells_cached,
            )
        except answers.BadAnswer:
            self.end(AttemptOutcome.GARBAGE)
            return
        except answers.ReportedFault as reported:
            self._end_by(reported.fault)
            return
        if self._usage.source is UsageSource.UNKNOWN:
            self._output_bytes = answers.output_bytes(body)
        self._delivery.whole(body)
        self.end(AttemptOutcome.COMPLETED)

    def usage(self) -> TokenUsage:
        if self._usage is None:
            return TokenUsage(source=UsageSource.UNKNOWN)
        if self._usage.source is not UsageSource.UNKNOWN:
            return self._usage
        return TokenUsage(
            estimate_tokens(self._request.prompt_bytes),
            estimate_tokens(self._output_bytes),
            0,
            UsageSource.ESTIMATED,
            units=self._usage.units,
        )


class RelayReception(Reception):
    """Relays the events of a stream as they come."""

    is_streamed = True

    def __init__(
        self,
        request: InferenceRequest,
        replica: Replica,
        delivery: Delivery,
        *,
        sent_s: float,
        itl: Histogram,
        clock: Clock,
    ) -> None:
        super().__init__(request, replica, delivery, sent_s=sent_s, itl=itl, clock=clock)
        self._events = sse.EventParser()
        traits = replica.traits
        self._answer = answers.StreamedAnswer(
            choices=request.choices,
            wants_usage=request.wants_usage or not request.is_streaming,
            hides_cached=request.endpoint not in traits.tells_cached,
            hides_progress=traits.reports_progress and not request.wire_fields.get("timings_per_token"),
        )

    def head(self, status: int, headers: Headers) -> None:
        super().head(status, headers)
        if status == 200 and not _is_event_stream(headers):
            self.end(AttemptOutcome.GARBAGE)

    def data(self, data: bytes) -> None:
        if self.over.is_set:
            return  # one read of the connection may hold more than the end
        if self.status != 200:
            self._keep(data)
            return
        try:
            events = self._events.feed(data)
        except sse.EventTooLarge:
            self.end(AttemptOutcome.OVERSIZED)
            return
        if events:
            self._take(events)

    def _take(self, events: list[bytes]) -> None:
        now_s = self._clock.now_s()
        answer = self._answer
        kept: list[bytes] = []
        is_bad = False
        try:
            for payload in events:
                event = answer.take(payload)
                if event is not None:
                    kept.append(event)
                if answer.is_done or answer.fault is not None:
                    break
        except answers.BadAnswer:
            is_bad = True  # what came before it is delivered, however the bytes were cut
        if self.first_event_s is None:
            self.first_event_s = now_s
        else:
            self._itl.observe(now_s - self.heard_s)
        self.heard_s = now_s
        if answer.is_done:
            self._complete(kept)
            return
        if kept:
            self._pass_on(kept, now_s)
        if is_bad:
            self.end(AttemptOutcome.GARBAGE)
        elif answer.fault is not None:
            self._end_by(answer.fault)

    def _pass_on(self, events: list[bytes], now_s: float) -> None:
        self._delivery.content(events, now_s=now_s)

    def _complete(self, events: list[bytes]) -> None:
        """The answer is whole with these last events."""
        self._delivery.end_stream(events)
        self.end(AttemptOutcome.COMPLETED)

    def _end_answer(self) -> None:
        # Only an answer that said it was complete is one; a clean end of the bytes alone proves nothing.
        if self._answer.is_complete:
            self._complete([])
        else:
            self.end(AttemptOutcome.TRUNCATED)

    def _lose_answer(self) -> None:
        if self.status == 200 and self._answer.is_complete:
            self._complete([])
        else:
            self.end(AttemptOutcome.LOST)

    def usage(self) -> TokenUsage:
        if self.status not in (0, 200):
            return TokenUsage(source=UsageSource.UNKNOWN)
        return self._answer.usage(prompt_bytes=self._request.prompt_bytes)


class AssemblyReception(RelayReception):
    """Assembles the events of a stream into the whole answer that the caller asked for."""

    def __init__(
        self,
        request: InferenceRequest,
        replica: Replica,
        delivery: Delivery,
        *,
        sent_s: float,
        itl: Histogram,
        clock: Clock,
    ) -> None:
        super().__init__(request, replica, delivery, sent_s=sent_s, itl=itl, clock=clock)
        self._assembler = assembling.AnswerAssembler(is_chat=request.endpoint is Endpoint.CHAT_COMPLETIONS)

    def _pass_on(self, events: list[bytes], now_s: float) -> None:
        try:
            for event in events:
                self._body_bytes += len(event)
                self._assembler.take(event)
        except answers.BadAnswer:
            self.end(AttemptOutcome.GARBAGE)
            return
        if self._body_bytes > WHOLE_BYTES_MAX:
            self.end(AttemptOutcome.OVERSIZED)

    def _complete(self, events: list[bytes]) -> None:
        self._pass_on(events, self.heard_s)
        if not self.over.is_set:
            self._delivery.whole(self._assembler.body())
            self.end(AttemptOutcome.COMPLETED)


def kind_of(request: InferenceRequest, *, is_streamed: bool) -> type[Reception]:
    """How to receive what the replica was asked for (`is_streamed`) and the caller wants."""
    if not is_streamed:
        return WholeReception
    return RelayReception if request.is_streaming else AssemblyReception


def _outcome_of_status(status: int) -> AttemptOutcome:
    """400, 413 and 422 speak of the caller's request; 429 and 503 of a full replica; everything else of the replica."""
    if status in (400, 413, 422):
        return AttemptOutcome.REJECTED
    if status in (429, 503):
        return AttemptOutcome.BUSY
    return AttemptOutcome.ERRED


def _is_event_stream(headers: Headers) -> bool:
    return (header(headers, b"content-type") or b"").lower().startswith(b"text/event-stream")
