"""How a request or an attempt ended: one word each, written once."""

from enum import StrEnum


class Outcome(StrEnum):
    """The end of a request.

    DELIVERED: the whole answer was handed to the caller's connection.
    REFUSED: turned away before any work (limits, admission, validation).
    FAILED: work was tried, nothing of the answer reached the caller.
    BROKEN: part of the answer reached the caller, then an explicit error.
    CANCELLED: the caller left.
    """

    DELIVERED = "delivered"
    REFUSED = "refused"
    FAILED = "failed"
    BROKEN = "broken"
    CANCELLED = "cancelled"


class AttemptOutcome(StrEnum):
    """The end of one attempt on one replica; the value is the `reason` in records and metrics."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEADLINE = "deadline_exceeded"
    REJECTED = "upstream_rejected"  # the replica found the caller's request wrong (4xx)
    BUSY = "upstream_busy"  # 429 or 503 from the replica
    UNREACHABLE = "upstream_unreachable"  # no connection, or none of its answer arrived
    LOST = "upstream_lost"  # the connection ended inside the answer
    TRUNCATED = "upstream_truncated"  # a clean end, but no finish_reason and no [DONE]
    STALLED = "upstream_stalled"  # silent for longer than the stall limit
    ERRED = "upstream_error"  # an error status or an error event
    GARBAGE = "upstream_garbage"  # not the protocol, or over a size cap

    @property
    def is_replica_fault(self) -> bool:
        """Whether this speaks against the replica's health."""
        return self not in _NOT_THE_REPLICA

    @property
    def is_retryable(self) -> bool:
        """Whether another replica might do better, provided nothing was delivered."""
        return self.is_replica_fault or self is AttemptOutcome.BUSY


_NOT_THE_REPLICA = frozenset(
    {
        AttemptOutcome.COMPLETED,
        AttemptOutcome.CANCELLED,
        AttemptOutcome.DEADLINE,
        AttemptOutcome.REJECTED,
        AttemptOutcome.BUSY,
    }
)
