"""How a request or an attempt ended, and why: one word each, written once."""

from enum import StrEnum


class Outcome(StrEnum):
    """The end of a request.

    DELIVERED: the whole answer was handed to the caller's connection.
    REFUSED: turned away before any work (limits, admission, validation).
    FAILED: work was tried, nothing of the answer reached the caller.
    BROKEN: part of the answer reached the caller, then an explicit error.
    CANCELLED: the caller left, or took its answer so slowly that it was let go.
    """

    DELIVERED = "delivered"
    REFUSED = "refused"
    FAILED = "failed"
    BROKEN = "broken"
    CANCELLED = "cancelled"


class AttemptOutcome(StrEnum):
    """The end of one attempt on one replica; where the request ends with it, the value is the reason as well."""

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
    GARBAGE = "upstream_garbage"  # not the protocol
    OVERSIZED = "upstream_oversized"  # an answer, but over a size cap

    @property
    def is_replica_fault(self) -> bool:
        """Whether this speaks against the replica's health."""
        return self not in _NOT_THE_REPLICA


_NOT_THE_REPLICA = frozenset(
    {
        AttemptOutcome.COMPLETED,
        AttemptOutcome.CANCELLED,
        AttemptOutcome.DEADLINE,
        AttemptOutcome.REJECTED,
        AttemptOutcome.BUSY,
        # What one caller asked for was large: that must not take the replica away from the others.
        AttemptOutcome.OVERSIZED,
    }
)


class Reason(StrEnum):
    """Why a request ended as it did; the value stands in records, metrics and logs. What follows from it: core/endings.py."""

    OK = "ok"

    # The caller.
    CLIENT_GONE = "client_gone"
    SLOW_READER = "slow_reader"  # it took nothing of its answer for the write stall limit
    DEADLINE = "deadline_exceeded"

    # Its request.
    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    NETWORK = "network"  # its key isn't for where it comes from
    SCOPE = "scope"  # its key isn't for this endpoint
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    LOCATION = "location"  # the model runs nowhere that the tenant's requests may go
    BODY_TOO_SLOW = "body_too_slow"
    PAYLOAD_TOO_LARGE = "payload_too_large"

    # Its tenant's limits, its key's, and those of its tenant for one model.
    RATE_LIMITED = "rate_limited"
    TOKENS_LIMITED = "tokens_limited"
    CONCURRENCY_LIMITED = "concurrency_limited"
    KEY_RATE_LIMITED = "key_rate_limited"
    KEY_TOKENS_LIMITED = "key_tokens_limited"
    KEY_CONCURRENCY_LIMITED = "key_concurrency_limited"
    MODEL_RATE_LIMITED = "model_rate_limited"
    MODEL_TOKENS_LIMITED = "model_tokens_limited"
    MODEL_CONCURRENCY_LIMITED = "model_concurrency_limited"
    TOKENS_OVER_LIMIT = "tokens_over_limit"  # more than ever come at once
    QUOTA_EXHAUSTED = "quota_exhausted"

    # Our own.
    QUEUE_FULL = "queue_full"
    WAIT_TOO_LONG = "wait_too_long"  # it would have waited longer than it may, or ended after its deadline
    QUEUE_TIME_OVER = "queue_time_over"  # it did wait as long as anybody may
    DISPLACED = "displaced"  # it lost its place in a full queue to another with more right to it
    NO_READY_REPLICA = "no_ready_replica"
    BODY_UNREAD = "body_unread"  # too many large bodies wait to be read, or their reader ended
    RESTING = "replicas_resting"  # every replica asked, by Retry-After, to be left alone
    QUOTA_UNAVAILABLE = "quota_unavailable"  # nobody says what is left of a quota
    LEDGER_BEHIND = "ledger_behind"  # usage can't be recorded at the moment
    UNRECORDED = "unrecorded"  # its answer was whole, and its record couldn't be committed, as was agreed
    KEYS_STALE = "keys_stale"  # nobody knows which keys have been revoked since
    WORK_UNKNOWN = "work_unknown"  # nobody says whether work with this Idempotency-Key was done
    PRESSED = "pressed"  # the process is short of memory, descriptors or time
    DRAINING = "draining"  # it came after the service was asked to stop
    STOPPING = "stopping"  # the time to finish what was in progress is over
    INTERNAL = "internal_error"

    # The replica's.
    REJECTED = AttemptOutcome.REJECTED.value
    BUSY = AttemptOutcome.BUSY.value
    UNREACHABLE = AttemptOutcome.UNREACHABLE.value
    LOST = AttemptOutcome.LOST.value
    TRUNCATED = AttemptOutcome.TRUNCATED.value
    STALLED = AttemptOutcome.STALLED.value
    ERRED = AttemptOutcome.ERRED.value
    GARBAGE = AttemptOutcome.GARBAGE.value
    OVERSIZED = AttemptOutcome.OVERSIZED.value
