"""Every refusal and failure, with its status and code: the one catalogue of what we say when we don't answer.

HeadraceError
  RequestError          the caller must change the request
    InvalidRequest          400 invalid_request
    Unauthenticated         401 unauthenticated
    Forbidden               403 forbidden
    ModelNotFound           404 model_not_found
    NotFound                404 not_found
    BodyTooSlow             408 body_too_slow
    PayloadTooLarge         413 payload_too_large
  OverloadError         the caller should come back, always with retry_after_s
    RateLimited             429 rate_limited            the tenant's own limit
    ConcurrencyLimited      429 concurrency_limited     the tenant's own limit
    QuotaExhausted          429 quota_exhausted         the tenant's own limit
    QuotaUnavailable        503 quota_unavailable       ours
    Saturated               503 saturated               ours
    NoReadyReplica          503 no_ready_replica        ours
  DeadlineExceeded      504 deadline_exceeded       too late to be useful
  UpstreamError         502 replica_failed          a replica failed us
  ClientGone            499 client_gone             only in logs and records
  ConfigError           the operator must act: exit code 2
"""

from typing import ClassVar

from headrace.core.tenant import Principal


class HeadraceError(Exception):
    """Root of everything that we raise on purpose.

    Class attributes:
        status: HTTP status of the answer.
        code: Machine-readable name; a promise (docs/reference/errors.md).
        type: OpenAI's coarse class of the error.
        should_retry: What `x-should-retry` says; None leaves the decision to the client.
        remedy: What a caller does about it, for people; a group's holds for those below it that say nothing else.

    Attributes:
        reason: Why, for records, metrics and logs: a word of core.outcome.Reason, finer than the code where there is one,
            which is the code itself unless said otherwise. Where no request ends with it, a word of its own.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    should_retry: ClassVar[bool | None] = None
    remedy: ClassVar[str] = "report it with the request id"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.reason = reason or self.code


class InternalError(HeadraceError):
    """A bug of ours; the message never carries its text."""


class RequestError(HeadraceError):
    """The caller must change the request; repeating it unchanged is useless."""

    type = "invalid_request_error"
    should_retry = False
    remedy = "change the request"


class InvalidRequest(RequestError):
    """400: the request is malformed; `param` names the field where there is one."""

    status = 400
    code = "invalid_request"
    remedy = "change the field that `param` names"


class Unauthenticated(RequestError):
    """401: no key and no token, or none that we know. The message never says which."""

    status = 401
    code = "unauthenticated"
    type = "authentication_error"
    remedy = "send a key or a token that is in force"

    MESSAGE: ClassVar = (
        "a valid API key, or a token of a provider known here, is required: `Authorization: Bearer ...`"
    )


class Forbidden(RequestError):
    """403: a valid key or token that may not do this.

    Attributes:
        caller: Whose it is, where that is known: somebody wants to look into it.
    """

    status = 403
    code = "forbidden"
    type = "permission_error"
    remedy = "ask the operator for the right"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        reason: str = "",
        caller: Principal | None = None,
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s, reason=reason)
        self.caller = caller


class ModelNotFound(RequestError):
    """404: no deployment of that name is offered to this caller."""

    status = 404
    code = "model_not_found"
    remedy = "take one that `GET /v1/models` lists"

    @classmethod
    def of(cls, model: str) -> "ModelNotFound":
        """In the same words whether there is no such model or the caller's key isn't for it."""
        return cls(
            f"the model `{model[:100]}` does not exist; GET /v1/models lists those that do", param="model"
        )


class NotFound(RequestError):
    """404: no such path, or not with that method."""

    status = 404
    code = "not_found"
    remedy = "check the path and the method"


class BodyTooSlow(RequestError):
    """408: headers or body arrived more slowly than the port allows."""

    status = 408
    code = "body_too_slow"
    should_retry = True
    remedy = "send it again, on a better connection"


class PayloadTooLarge(RequestError):
    """413: the body is over the limit of its route."""

    status = 413
    code = "payload_too_large"
    remedy = "send less"


class OverloadError(HeadraceError):
    """The caller should come back after `retry_after_s`, which is always set."""

    type = "rate_limit_error"
    should_retry = True
    remedy = "wait for `retry-after` seconds, then send the same again"

    def __init__(
        self, message: str, *, retry_after_s: float, param: str | None = None, reason: str = ""
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s, reason=reason)


class RateLimited(OverloadError):
    """429: the tenant's own request rate is spent."""

    status = 429
    code = "rate_limited"


class ConcurrencyLimited(OverloadError):
    """429: the tenant has as many requests in progress as it may."""

    status = 429
    code = "concurrency_limited"


class QuotaExhausted(OverloadError):
    """429: what the request may use at most doesn't fit into what is left of a quota of its tenant or key."""

    status = 429
    code = "quota_exhausted"
    type = (
        "insufficient_quota"  # by this word OpenAI's clients tell it from a rate that is spent for a moment
    )
    should_retry = False


class QuotaUnavailable(OverloadError):
    """503: the request needs a quota, and what is left of it can't be found out in time."""

    status = 503
    code = "quota_unavailable"
    type = "server_error"


class Saturated(OverloadError):
    """503: the deployment's queue is full, the wait would pass the deadline, or we can't keep up; `reason` says which."""

    status = 503
    code = "saturated"
    type = "server_error"

    def __init__(self, message: str, *, retry_after_s: float, reason: str, param: str | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s, param=param, reason=reason)


class NoReadyReplica(OverloadError):
    """503: the model is known, but nothing that serves it is ready."""

    status = 503
    code = "no_ready_replica"
    type = "server_error"


class DeadlineExceeded(HeadraceError):
    """504: the deadline passed before the answer was complete."""

    status = 504
    code = "deadline_exceeded"
    type = "timeout_error"
    should_retry = False
    remedy = "ask for less, or allow more time with `X-Headrace-Deadline-Ms`"


class UpstreamError(HeadraceError):
    """502: a replica failed us. `reason` says how, for logs and records, in a fixed vocabulary."""

    status = 502
    code = "replica_failed"
    should_retry = False
    remedy = "the work may have been done: repeat it only if twice is harmless"

    def __init__(
        self, message: str, *, reason: str, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s, reason=reason)


class ClientGone(HeadraceError):
    """499, only in logs and records: the caller left before the end."""

    status = 499
    code = "client_gone"
    remedy = "nothing"


class ConfigError(HeadraceError):
    """The operator must change something: the message names file, key and what would be accepted."""


def catalogue(kind: type[HeadraceError] = HeadraceError) -> list[type[HeadraceError]]:
    """Every error that a request can end with: what is at the tree's ends, without ConfigError, told on the command line."""
    below = [
        inner for inner in kind.__subclasses__() if inner.__module__ == __name__ and inner is not ConfigError
    ]
    return [error for inner in below for error in catalogue(inner)] or [kind]


def leaves(group: BaseException) -> list[BaseException]:
    """The errors inside a group, however deep; the error itself if it is none."""
    if isinstance(group, BaseExceptionGroup):
        return [leaf for inner in group.exceptions for leaf in leaves(inner)]
    return [group]
