"""One attempt on one replica: what was sent, what came back of it, and how it ended."""

from headrace.core.clock import Clock
from headrace.core.fleet import Replica
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import InferenceRequest
from headrace.core.usage import TokenUsage, UsageSource
from headrace.engines.http import UpstreamConnection
from headrace.gateway.call import Call
from headrace.gateway.reception import Reception
from headrace.gateway.usage import AttemptEnd
from headrace.gateway.walk import Signal
from headrace.policies.health import ReplicaHealth


class Attempt:
    """Joins a reception to its caller: while the caller takes nothing, nothing more is read from the replica.

    Attributes:
        reception: Of the last send: a stale connection makes us send again, with a new one.
        health: The replica's, which hears through the watch that the replica says something.
        started_s: Monotonic; connecting is part of it.
        revision: What the replica runs.
        was_sent: Any of the request may have reached the replica.
    """

    __slots__ = ("call", "health", "reception", "replica", "request", "revision", "started_s", "was_sent")

    def __init__(
        self,
        request: InferenceRequest,
        replica: Replica,
        health: ReplicaHealth,
        call: Call,
        reception: Reception,
        *,
        revision: str,
        now_s: float,
    ) -> None:
        self.revision = revision
        self.request = request
        self.replica = replica
        self.health = health
        self.call = call
        self.reception = reception
        self.started_s = now_s
        self.was_sent = False

    def send(self, payload: bytes, connection: UpstreamConnection) -> Signal:
        """Await what is returned for the end: then `reception.outcome` holds, unless it is stale."""
        reception, call = self.reception, self.call
        reception.connection = connection
        call.tell(self)
        if call.is_paused:
            connection.pause()
        self.was_sent = True
        connection.send(payload, reception)
        return reception.over

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is expected: it isn't while the way to the replica is still being opened."""
        reception = self.reception
        return reception.connection is not None and not reception.over.is_set

    def close(self, clock: Clock) -> AttemptEnd:
        """Lets go of the connection and sums up; called exactly once, however the attempt ended."""
        reception = self.reception
        reception.let_go()
        return AttemptEnd(
            outcome=reception.outcome,
            replica=self.replica,
            started_s=self.started_s,
            ended_s=clock.now_s(),
            first_event_s=reception.first_event_s,
            upstream_status=reception.status,
            usage=self._usage(),
            revision=self.revision,
        )

    def _usage(self) -> TokenUsage:
        """Nothing that was never sent was used, nor what the replica refused."""
        if not self.was_sent or self.reception.outcome in (AttemptOutcome.REJECTED, AttemptOutcome.BUSY):
            return TokenUsage(source=UsageSource.NONE)
        return self.reception.usage()

    # Called by the client connection: gateway.call.PauseWatcher.

    def paused(self) -> None:
        self.reception.pause()

    def resumed(self) -> None:
        self.reception.resume()
