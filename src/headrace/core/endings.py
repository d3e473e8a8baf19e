"""Every way a request can end, and what follows from it: one table, which the code reads and docs/reference shows.

A row is found by the reason and by how far the request had come. The walk reads from it whether another replica may try,
what the caller is told and what stands in records, metrics and logs; the price book reads what is charged.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.core import errors
from headrace.core.errors import HeadraceError, OverloadError
from headrace.core.outcome import AttemptOutcome, Outcome, Reason


class Stage(StrEnum):
    """How far a request had come.

    UNSTARTED: no replica had it: it had just arrived, or waited in the queue.
    WORKING: a replica had it; of the answer nothing had reached the caller (comment lines are nothing of it).
    ANSWERING: part of the answer had reached the caller, or all of it.
    """

    UNSTARTED = "unstarted"
    WORKING = "working"
    ANSWERING = "answering"


class Charge(StrEnum):
    """What is billed, whatever the price; the counts are those of the record, and unknown ones are not billed.

    NOTHING: the caller got nothing, for a reason that isn't its own.
    DELIVERED: the prompt, and the tokens that reached the caller before the answer broke.
    GENERATED: the prompt, and every token that was generated, whether the caller took it or not.
    """

    NOTHING = "nothing"
    DELIVERED = "delivered tokens"
    GENERATED = "generated tokens"


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """One row.

    Attributes:
        meaning: For people, in docs/reference/endings.md.
        error: What the caller is told, with its status, code and `x-should-retry`; None where the answer was delivered.
        message: The error's text where whoever ends the request has no better one.
        may_retry: Another replica may try instead, within the limits on retries; only if none does, is this the end.
        attempt: How the last attempt ended; None if there was none.
        event: The line in the log; None where there is none.
    """

    reason: Reason
    stage: Stage
    meaning: str
    outcome: Outcome
    charge: Charge
    error: type[HeadraceError] | None = None
    message: str = ""
    may_retry: bool = False
    attempt: AttemptOutcome | None = None

    @property
    def event(self) -> str | None:
        return None if self.outcome is Outcome.DELIVERED else f"request.{self.outcome}"

    def as_error(self, said: str = "", *, retry_after_s: float = 1.0) -> HeadraceError:
        """What the caller is told: what the replica said, if that is shown, else the row's own words."""
        assert self.error is not None, "a delivered answer has no error"
        message = said if said and self.error is errors.InvalidRequest else self.message
        wait_s = retry_after_s if issubclass(self.error, OverloadError) else None
        return self.error(message, reason=self.reason, retry_after_s=wait_s)


def _refused(reason: Reason, error: type[HeadraceError], meaning: str) -> tuple[Ending, ...]:
    """Turned away before any work."""
    return (Ending(reason, Stage.UNSTARTED, meaning, Outcome.REFUSED, Charge.NOTHING, error),)


def _failed(
    attempt: AttemptOutcome,
    error: type[HeadraceError],
    message: str,
    meaning: str,
    *,
    reason: Reason | None = None,
    may_retry: bool = False,
) -> tuple[Ending, ...]:
    """Work was tried: before the first byte nothing is owed for it, after it what was delivered."""
    reason = reason or Reason(attempt.value)
    return (
        Ending(
            reason,
            Stage.WORKING,
            meaning,
            Outcome.FAILED,
            Charge.NOTHING,
            error,
            message,
            may_retry=may_retry,
            attempt=attempt,
        ),
        Ending(
            reason,
            Stage.ANSWERING,
            meaning,
            Outcome.BROKEN,
            Charge.DELIVERED,
            error,
            message,
            attempt=attempt,
        ),
    )


def _left(reason: Reason, stage: Stage, meaning: str) -> tuple[Ending, ...]:
    """The caller has gone: what was generated for it is its own."""
    is_unstarted = stage is Stage.UNSTARTED
    return (
        Ending(
            reason,
            stage,
            meaning,
            Outcome.CANCELLED,
            Charge.NOTHING if is_unstarted else Charge.GENERATED,
            errors.ClientGone,
            attempt=None if is_unstarted else AttemptOutcome.CANCELLED,
        ),
    )


_TABLE: tuple[tuple[Ending, ...], ...] = (
    (
        Ending(
            Reason.OK,
            Stage.ANSWERING,
            "the answer was complete",
            Outcome.DELIVERED,
            Charge.GENERATED,
            attempt=AttemptOutcome.COMPLETED,
        ),
    ),
    # The caller.
    _left(Reason.CLIENT_GONE, Stage.UNSTARTED, "the caller left the queue"),
    _left(Reason.CLIENT_GONE, Stage.WORKING, "the caller left before the first byte of its answer"),
    _left(Reason.CLIENT_GONE, Stage.ANSWERING, "the caller left in the middle of its answer"),
    _left(
        Reason.SLOW_READER,
        Stage.ANSWERING,
        "the caller took nothing of its answer for `request.write_stall_limit_s`",
    ),
    _refused(
        Reason.DEADLINE, errors.DeadlineExceeded, "the deadline passed while the request waited for a slot"
    ),
    _failed(
        AttemptOutcome.DEADLINE,
        errors.DeadlineExceeded,
        "the deadline passed before the answer was complete",
        "the deadline passed while a replica worked",
    ),
    # Its request.
    _refused(Reason.INVALID_REQUEST, errors.InvalidRequest, "the request is malformed or asks for too much"),
    _refused(Reason.UNAUTHENTICATED, errors.Unauthenticated, "no key, or none of ours"),
    _refused(Reason.NETWORK, errors.Forbidden, "the key may not be used from where it comes from"),
    _refused(Reason.SCOPE, errors.Forbidden, "the key is for other endpoints"),
    _refused(
        Reason.MODEL_NOT_FOUND, errors.ModelNotFound, "no model of that name, or none that its key is for"
    ),
    _refused(Reason.NOT_FOUND, errors.NotFound, "no such path"),
    _refused(
        Reason.LOCATION, errors.Forbidden, "the model runs in none of the locations that its tenant allows"
    ),
    _refused(Reason.BODY_TOO_SLOW, errors.BodyTooSlow, "head or body came too slowly"),
    _refused(Reason.PAYLOAD_TOO_LARGE, errors.PayloadTooLarge, "the body is over the limit of its route"),
    # The limits that it falls under.
    _refused(Reason.RATE_LIMITED, errors.RateLimited, "the tenant's request rate is spent"),
    _refused(Reason.TOKENS_LIMITED, errors.RateLimited, "too few of the tenant's tokens are left for it"),
    _refused(
        Reason.CONCURRENCY_LIMITED, errors.ConcurrencyLimited, "the tenant has enough requests in progress"
    ),
    _refused(Reason.KEY_RATE_LIMITED, errors.RateLimited, "the key's request rate is spent"),
    _refused(Reason.KEY_TOKENS_LIMITED, errors.RateLimited, "too few of the key's tokens are left for it"),
    _refused(
        Reason.KEY_CONCURRENCY_LIMITED, errors.ConcurrencyLimited, "the key has enough requests in progress"
    ),
    _refused(
        Reason.MODEL_RATE_LIMITED, errors.RateLimited, "the tenant's request rate for the model is spent"
    ),
    _refused(
        Reason.MODEL_TOKENS_LIMITED,
        errors.RateLimited,
        "too few of the tenant's tokens for the model are left for it",
    ),
    _refused(
        Reason.MODEL_CONCURRENCY_LIMITED,
        errors.ConcurrencyLimited,
        "the tenant has enough requests for the model in progress",
    ),
    _refused(
        Reason.TOKENS_OVER_LIMIT,
        errors.InvalidRequest,
        "it asks for more tokens than a limit ever lets come at once",
    ),
    _refused(
        Reason.QUOTA_EXHAUSTED,
        errors.QuotaExhausted,
        "what it may use at most doesn't fit into what is left of a quota of its tenant or key",
    ),
    # Our own.
    _refused(Reason.QUEUE_FULL, errors.Saturated, "the queue is full"),
    _refused(
        Reason.WAIT_TOO_LONG,
        errors.Saturated,
        "the expected wait is longer than `admission.queue_wait_max_s`, or with the work longer than the time left",
    ),
    _refused(Reason.QUEUE_TIME_OVER, errors.Saturated, "it waited for `admission.queue_wait_max_s`"),
    _refused(
        Reason.DISPLACED, errors.Saturated, "another with more right to it took its place in the full queue"
    ),
    _refused(Reason.NO_READY_REPLICA, errors.NoReadyReplica, "nothing that serves the model is ready"),
    _refused(
        Reason.BODY_UNREAD,
        errors.Saturated,
        "too many large bodies wait to be read, or the process that reads them ended",
    ),
    _refused(
        Reason.RESTING, errors.Saturated, "every replica of the model has asked, by Retry-After, for a rest"
    ),
    _refused(
        Reason.QUOTA_UNAVAILABLE,
        errors.QuotaUnavailable,
        "what is left of a quota can't be found out at the moment",
    ),
    _refused(Reason.LEDGER_BEHIND, errors.Saturated, "usage can't be recorded at the moment"),
    _failed(
        AttemptOutcome.COMPLETED,
        errors.Saturated,
        "the answer was whole, but its usage can't be recorded at the moment",
        "of a durable tenant: the record of a whole answer could not be committed before its deadline, or the disk refuses",
        reason=Reason.UNRECORDED,
    ),
    _refused(Reason.KEYS_STALE, errors.Saturated, "nobody knows whether its key has been revoked meanwhile"),
    _refused(
        Reason.WORK_UNKNOWN,
        errors.Saturated,
        "the service does not say whether work with this `Idempotency-Key` was done (with several workers)",
    ),
    _refused(Reason.PRESSED, errors.Saturated, "the process is short of memory, descriptors or time"),
    _refused(Reason.DRAINING, errors.NoReadyReplica, "it arrived after the service was asked to stop"),
    _refused(Reason.STOPPING, errors.NoReadyReplica, "the time to drain was over before it had a slot"),
    _failed(
        AttemptOutcome.CANCELLED,
        errors.NoReadyReplica,
        "this server is stopping",
        "the time to drain was over before its answer was",
        reason=Reason.STOPPING,
    ),
    _refused(Reason.INTERNAL, errors.InternalError, "a bug of ours, before any work"),
    _failed(
        AttemptOutcome.CANCELLED,
        errors.InternalError,
        "a fault of ours; report it with the request id",
        "a bug of ours, while a replica worked",
        reason=Reason.INTERNAL,
    ),
    # The replica's.
    _failed(
        AttemptOutcome.REJECTED,
        errors.InvalidRequest,
        "the model found the request invalid",
        "the replica found the request invalid: 400, 413 or 422, or an error event that says so",
    ),
    _failed(
        AttemptOutcome.BUSY,
        errors.Saturated,
        "every replica of this model is busy",
        "the replica is full: 429 or 503, or an error event that says so",
        may_retry=True,
    ),
    _failed(
        AttemptOutcome.UNREACHABLE,
        errors.UpstreamError,
        "the replica failed",
        "no connection to the replica, or none of its answer arrived",
        may_retry=True,
    )[:1],
    _failed(
        AttemptOutcome.LOST,
        errors.UpstreamError,
        "the replica failed",
        "the connection was lost inside the replica's answer",
        may_retry=True,
    ),
    _failed(
        AttemptOutcome.TRUNCATED,
        errors.UpstreamError,
        "the replica's answer ended before it was complete",
        "the replica ended its answer cleanly, but without a `finish_reason` for every choice and without `[DONE]`",
        may_retry=True,
    ),
    _failed(
        AttemptOutcome.STALLED,
        errors.UpstreamError,
        "the replica stopped answering",
        "the replica was silent for `request.first_event_limit_s`, or inside its answer for `request.stall_limit_s`",
        may_retry=True,
    ),
    _failed(
        AttemptOutcome.ERRED,
        errors.UpstreamError,
        "the replica failed",
        "the replica reported an error of its own",
        may_retry=True,
    ),
    _failed(
        AttemptOutcome.GARBAGE,
        errors.UpstreamError,
        "the replica failed",
        "what the replica sent is no answer of the protocol",
        may_retry=True,
    ),
    _failed(
        AttemptOutcome.OVERSIZED,
        errors.UpstreamError,
        "the answer is too large: one event may have 8 MiB, a whole answer 32 MiB",
        "one event of the answer is over 8 MiB, or a whole answer over 32 MiB",
    ),
)

ENDINGS: dict[tuple[str, Stage], Ending] = {
    (row.reason.value, row.stage): row for rows in _TABLE for row in rows
}
COMPLETE = ENDINGS[Reason.OK, Stage.ANSWERING]


def find(reason: str, stage: Stage) -> Ending:
    """The row. Whoever ends a request in a way that has none has a bug."""
    return ENDINGS[reason, stage]
