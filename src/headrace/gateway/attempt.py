"""One attempt on one replica: receives its answer, watches its silence, and says how it ended.

Callbacks run for each read of the answer; the walk sleeps in `exchange` until the end. Three ways to receive: relay the
events of a stream, assemble them into a whole answer, or take a whole answer as it is.
"""

import asyncio
import math
from dataclasses import dataclass

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.core.fleet import Replica
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.usage import TokenUsage, UsageSource, estimate_tokens
from headrace.engines.http import Headers, UpstreamConnection, header
from headrace.gateway.connection import Call
from headrace.gateway.delivery import Delivery
from headrace.gateway.usage import AttemptEnd
from headrace.gateway.walk import Signal
from headrace.protocols import answers, sse
from headrace.telemetry.families import Distribution

# Attempts are looked at four times a second; limits below two looks need a timer.
EXACT_BELOW_S = 0.5
WHOLE_BYTES_MAX = 32 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """See config.RequestConfig."""

    first_event_limit_s: float
    stall_limit_s: float
    write_stall_limit_s: float

    @property
    def are_short(self) -> bool:
        """Whether one of them may pass before the next tick."""
        return min(self.first_event_limit_s, self.stall_limit_s) < 2 * EXACT_BELOW_S


class Attempt:
    """The receiving end of one exchange with a replica. Owner of its connection while the exchange lasts."""

    def __init__(
        self,
        request: InferenceRequest,
        replica: Replica,
        delivery: Delivery,
        call: Call,
        *,
        is_streamed: bool,
        limits: AttemptLimits,
        itl: Distribution,
        clock: Clock,
    ) -> None:
        self._request = request
        self._replica = replica
        self._delivery = delivery
        self._call = call
        self._limits = limits
        self._itl = itl
        self._clock = clock
        self._is_streamed = is_streamed
        self._started_s = clock.now_s()
        self._ended: Signal | None = None
        self._connection: UpstreamConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._usage: TokenUsage | None = None
        self._output_bytes = 0
        self._was_sent = False
        self._receive()
        self.outcome = AttemptOutcome.CANCELLED  # what it stays if the walk is cancelled
        self.fault: answers.UpstreamFault | None = None
        self.error: HeadraceError | None = None
        self.retry_after_s: float | None = None
        self.is_stale_connection = False

    def _receive(self) -> None:
        """State of one reception: all of it starts anew when a stale connection makes us send again."""
        traits = self._replica.traits
        self._status = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._event_s: float | None = None
        self._last_event_s = self._started_s
        self._answer: answers.StreamedAnswer | None = None
        self._assembler: answers.AnswerAssembler | None = None
        if self._is_streamed:
            self._events = sse.EventParser()
            self._answer = answers.StreamedAnswer(
                wants_usage=self._request.wants_usage or not self._request.is_streaming,
                hides_cached=not traits.partitions_slots,
                hides_progress=traits.reports_progress and not self._request.fields.get("timings_per_token"),
            )
            if not self._request.is_streaming:
                self._assembler = answers.AnswerAssembler(
                    is_chat=self._request.endpoint is Endpoint.CHAT_COMPLETIONS
                )

    def exchange(self, connection: UpstreamConnection, payload: bytes) -> Signal:
        """Sends; await what is returned for the end. Then `outcome` holds, unless `is_stale_connection` asks for another go."""
        self.is_stale_connection = False
        ended = self._ended = Signal()
        self._connection = connection
        self._call.tell(self)
        if self._call.is_paused:
            connection.pause()
        self._was_sent = True
        connection.send(payload, self)
        return ended

    def start_again(self) -> None:
        """The connection was stale: nothing was received, and nothing counts."""
        self.outcome = AttemptOutcome.CANCELLED
        self._receive()

    def fail(self, outcome: AttemptOutcome, error: HeadraceError | None = None) -> None:
        """Ends an attempt that was never sent."""
        self.outcome, self.error = outcome, error

    def close(self) -> AttemptEnd:
        """Lets go of the connection and sums up; called exactly once, however the attempt ended."""
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            if self.outcome is AttemptOutcome.COMPLETED:
                connection.release()
            else:
                connection.abort()
        return AttemptEnd(
            outcome=self.outcome,
            replica=self._replica,
            started_s=self._started_s,
            ended_s=self._clock.now_s(),
            first_event_s=self._event_s,
            upstream_status=self._status,
            usage=self._sum_up(),
        )

    # Called by the connection: engines.http.ResponseSink.

    def head(self, status: int, headers: Headers) -> None:
        self._status = status
        if status != 200:
            self.retry_after_s = _seconds(header(headers, b"retry-after"))
            self._answer = None
        elif self._answer is not None and not _is_event_stream(headers):
            self._end(AttemptOutcome.GARBAGE)

    def data(self, data: bytes) -> None:
        if self._is_over:
            return  # one read of the connection may hold more than the end
        if self._answer is None:
            self._keep(data)
            return
        try:
            events = self._events.feed(data)
            if events:
                self._take(events, self._answer)
        except sse.EventTooLarge:
            self._end(AttemptOutcome.GARBAGE)

    def ended(self) -> None:
        # It is in the pool again, and may serve another attempt before this one is closed.
        self._connection = None
        if self._is_over:
            return
        if self._answer is not None:
            # Only an answer that said it was complete is one; a clean end of the bytes alone proves nothing.
            if self._answer.is_complete:
                self._complete_stream(b"")
            else:
                self._end(AttemptOutcome.TRUNCATED)
        elif self._status == 200:
            self._complete_whole()
        else:
            self._end_by_status()

    def lost(self, *, is_garbage: bool) -> None:
        connection, self._connection = self._connection, None
        if self._is_over:
            return
        if is_garbage:
            self._end(AttemptOutcome.GARBAGE)
        elif connection is not None and connection.has_answered:
            if self._answer is not None and self._answer.is_complete:
                self._complete_stream(b"")
            else:
                self._end(AttemptOutcome.LOST)
        else:
            self.is_stale_connection = connection is not None and connection.is_reused
            self._end(AttemptOutcome.UNREACHABLE)

    # Called by the client connection: gateway.connection.PauseWatcher.

    def paused(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resumed(self) -> None:
        self._last_event_s = self._clock.now_s()
        if self._connection is not None:
            self._connection.resume()

    def _take(self, events: list[bytes], answer: answers.StreamedAnswer) -> None:
        now_s = self._clock.now_s()
        forward: list[bytes] = []
        is_bad = False
        try:
            for payload in events:
                kept = answer.take(payload)
                if kept is not None:
                    self._receive_event(kept, forward)
                if answer.is_done or answer.fault is not None:
                    break
        except answers.BadAnswer:
            is_bad = True  # what came before it is delivered, however the bytes were cut
        self._mark(now_s)
        if answer.is_done:
            self._complete_stream(b"".join(forward))
            return
        if forward:
            self._delivery.content(b"".join(forward), now_s=now_s)
        if is_bad:
            self._end(AttemptOutcome.GARBAGE)
        elif answer.fault is not None:
            self.fault = answer.fault
            self._end(_outcome_of_status(answer.fault.status))

    def _receive_event(self, kept: bytes, forward: list[bytes]) -> None:
        """One event on its way to the caller, or into the whole answer. Raises BadAnswer."""
        if self._assembler is None:
            forward.append(sse.encode(kept))
            return
        self._body_bytes += len(kept)
        if self._body_bytes > WHOLE_BYTES_MAX:
            raise answers.BadAnswer("the answer is larger than a whole one may be")
        self._assembler.take(kept)

    def _mark(self, now_s: float) -> None:
        if self._event_s is None:
            self._event_s = now_s
        else:
            self._itl.observe(now_s - self._last_event_s)
        self._last_event_s = now_s

    def _keep(self, data: bytes) -> None:
        self._last_event_s = self._clock.now_s()
        if self._event_s is None:
            self._event_s = self._last_event_s
        self._body_bytes += len(data)
        if self._body_bytes <= (WHOLE_BYTES_MAX if self._status == 200 else ERROR_BYTES_MAX):
            self._body.append(data)
        elif self._status == 200:
            self._end(AttemptOutcome.GARBAGE)

    def _complete_stream(self, events: bytes) -> None:
        if self._assembler is not None:
            self._delivery.whole(self._assembler.body())
        else:
            self._delivery.end_stream(events)
        self._end(AttemptOutcome.COMPLETED)

    def _complete_whole(self) -> None:
        try:
            body, self._usage = answers.read_whole(
                b"".join(self._body), hides_cached=not self._replica.traits.partitions_slots
            )
        except answers.BadAnswer:
            self._end(AttemptOutcome.GARBAGE)
            return
        except answers.ReportedFault as reported:
            self.fault = reported.fault
            self._end(_outcome_of_status(reported.fault.status))
            return
        if self._usage.source is UsageSource.UNKNOWN:
            self._output_bytes = answers.output_bytes(body)
        self._delivery.whole(body)
        self._end(AttemptOutcome.COMPLETED)

    def _end_by_status(self) -> None:
        self.fault = answers.fault_of_body(b"".join(self._body), status=self._status)
        self._end(_outcome_of_status(self._status))

    @property
    def _is_over(self) -> bool:
        """Whether the exchange has its outcome: what else the replica sends is nobody's."""
        return self._ended is None or self._ended.is_set

    def _end(self, outcome: AttemptOutcome) -> None:
        """The last word: the walk goes on before this returns."""
        if self._ended is None or self._ended.is_set:
            return
        self.outcome = outcome
        self._ended.set()

    def watch(self, now_s: float) -> None:
        """Called as it starts and then at every tick: ends what has waited too long.

        A limit that falls before the next tick but one gets a timer of its own, so it is met to the millisecond; a timer
        for every attempt would cost more than all else that an attempt does.
        """
        if self._is_over or self._timer is not None:
            return
        due_s = self._due_s()
        if due_s - now_s < EXACT_BELOW_S:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - now_s) + 0.001, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._clock.now_s()
        if now_s < self._due_s():
            self.watch(now_s)  # there was a sign of life meanwhile
        elif now_s >= self._request.deadline_s:
            self._end(AttemptOutcome.DEADLINE)
        elif self._call.is_paused:
            self._call.abort()
        else:
            self._end(AttemptOutcome.STALLED)

    def _due_s(self) -> float:
        """When it will have waited too long: for the whole answer, for its caller, or for the replica's next event."""
        if self._call.is_paused:
            limit_s = self._call.paused_since_s + self._limits.write_stall_limit_s
        else:
            limit_s = self._silence_ends_s()
        return min(limit_s, self._request.deadline_s)

    def _silence_ends_s(self) -> float:
        """A whole answer may take until the deadline to begin: it is only sent when all of it is there."""
        if self._event_s is not None:
            return self._last_event_s + self._limits.stall_limit_s
        return self._last_event_s + self._limits.first_event_limit_s if self._is_streamed else math.inf

    def _sum_up(self) -> TokenUsage:
        """Tokens by the stated precedence; nothing that was never sent was used."""
        if not self._was_sent or self.outcome in (AttemptOutcome.REJECTED, AttemptOutcome.BUSY):
            return TokenUsage(source=UsageSource.NONE)
        if self._answer is not None:
            return self._answer.usage(prompt_bytes=self._request.prompt_bytes)
        if self._usage is None:
            return TokenUsage(source=UsageSource.UNKNOWN)
        if self._usage.source is UsageSource.UNKNOWN:
            return TokenUsage(
                estimate_tokens(self._request.prompt_bytes),
                estimate_tokens(self._output_bytes),
                0,
                UsageSource.ESTIMATED,
            )
        return self._usage


def _outcome_of_status(status: int) -> AttemptOutcome:
    """400, 413 and 422 speak of the caller's request; 429 and 503 of a full replica; everything else of the replica."""
    if status in (400, 413, 422):
        return AttemptOutcome.REJECTED
    if status in (429, 503):
        return AttemptOutcome.BUSY
    return AttemptOutcome.ERRED


def _is_event_stream(headers: Headers) -> bool:
    return (header(headers, b"content-type") or b"").lower().startswith(b"text/event-stream")


def _seconds(value: bytes | None) -> float | None:
    """A Retry-After in seconds, at most an hour; dates and nonsense count as absent."""
    if value is None or not value.strip().isdigit() or len(value) > 6:
        return None
    return min(3600.0, float(value))
