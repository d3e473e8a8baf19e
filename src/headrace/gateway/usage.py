"""Closes the account of a request: one terminal record, one per attempt, and every metric derived from the same facts."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headrace.core.clock import Clock
from headrace.core.fleet import Deployment, Replica
from headrace.core.outcome import AttemptOutcome, Outcome
from headrace.core.request import InferenceRequest
from headrace.core.usage import ExecutionRecord, TokenUsage, UsageRecord, UsageSource
from headrace.gateway.delivery import Delivery
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


class RecordSink(Protocol):
    """Where records go: the ledger. Must not block."""

    def append(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None: ...


class AttemptEnd(msgspec.Struct, frozen=True):
    """How one attempt ended, as the attempt itself saw it.

    Attributes:
        started_s, ended_s, first_event_s: Monotonic.
        upstream_status: HTTP status of the replica, 0 if none came.
    """

    outcome: AttemptOutcome
    replica: Replica
    started_s: float
    ended_s: float
    first_event_s: float | None
    upstream_status: int
    usage: TokenUsage


class Account:
    """What a request has used so far. Owner: the walk; written by the attempt loop."""

    __slots__ = ("attempts", "deployment", "queue_wait_s", "request")

    def __init__(self, request: InferenceRequest, deployment: Deployment) -> None:
        self.request = request
        self.deployment = deployment
        self.queue_wait_s = 0.0
        self.attempts: list[AttemptEnd] = []

    def usage(self, outcome: Outcome) -> TokenUsage:
        """The request's tokens: those of the attempt that made the answer, which is the last.

        Attempts that failed before it are in their own records; what is charged for them is a rule of the price book.
        """
        if not self.attempts:
            return TokenUsage(source=UsageSource.NONE)
        return self.attempts[-1].usage


class UsageCloser:
    """Writes records and metrics for requests that have ended."""

    def __init__(self, ledger: RecordSink, metrics: Metrics, log: Log, *, clock: Clock) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._log = log
        self._clock = clock

    def close(self, account: Account, delivery: Delivery) -> None:
        """The one terminal write of a request, whatever its end. Refusals before any work leave a metric and a log line
        and no record: a refused flood must not fill the disk."""
        assert delivery.is_over, "an account is closed after its delivery has ended"
        request, outcome = account.request, delivery.outcome
        total_s = self._clock.now_s() - request.arrived_s
        reason = "ok" if outcome is Outcome.DELIVERED else _reason(account, delivery)
        self._measure(account, delivery, reason=reason, total_s=total_s)
        if outcome is Outcome.REFUSED:
            return
        usage = account.usage(outcome)
        first_s = delivery.first_content_s
        self._ledger.append(
            UsageRecord(
                request_id=request.id,
                tenant=request.principal.tenant,
                key_id=request.principal.key_id,
                model=request.model,
                revision=account.deployment.revision,
                endpoint=request.endpoint.value,
                is_streaming=request.is_streaming,
                started_s=request.arrived_wall_s,
                outcome=outcome.value,
                reason=reason,
                status=delivery.status,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                usage_source=usage.source.value,
                queue_wait_s=account.queue_wait_s,
                ttft_s=None if first_s is None else first_s - request.arrived_s,
                total_s=total_s,
                attempts=len(account.attempts),
            ),
            [self._execution(request, index, end) for index, end in enumerate(account.attempts, start=1)],
        )

    def _execution(self, request: InferenceRequest, index: int, end: AttemptEnd) -> ExecutionRecord:
        return ExecutionRecord(
            request_id=request.id,
            attempt=index,
            replica=end.replica.id,
            generation=end.replica.generation,
            started_s=request.arrived_wall_s + (end.started_s - request.arrived_s),
            duration_s=end.ended_s - end.started_s,
            ttft_s=None if end.first_event_s is None else end.first_event_s - end.started_s,
            outcome=end.outcome.value,
            upstream_status=end.upstream_status,
            prompt_tokens=end.usage.prompt_tokens,
            completion_tokens=end.usage.completion_tokens,
            cached_tokens=end.usage.cached_tokens,
            usage_source=end.usage.source.value,
        )

    def _measure(self, account: Account, delivery: Delivery, *, reason: str, total_s: float) -> None:
        metrics, request, outcome = self._metrics, account.request, delivery.outcome
        model, endpoint = request.model, request.endpoint.value
        metrics.requests.labels(endpoint, model, outcome.value, reason).add()
        metrics.request_seconds.labels(endpoint, model, outcome.value).observe(total_s)
        if outcome is Outcome.REFUSED:
            metrics.refusals.labels(reason).add()
        else:
            metrics.queue_wait_seconds.labels(model).observe(account.queue_wait_s)
        if delivery.first_content_s is not None:
            metrics.ttft_seconds.labels(model).observe(delivery.first_content_s - request.arrived_s)
        for end in account.attempts:
            metrics.attempts.labels(model, end.replica.id, end.outcome.value).add()
            for kind, tokens in (
                ("prompt", end.usage.prompt_tokens),
                ("cached", end.usage.cached_tokens),
                ("completion", end.usage.completion_tokens),
            ):
                if tokens:
                    metrics.tokens.labels(model, kind).add(tokens)
        if outcome is not Outcome.DELIVERED:
            self._log.event(
                f"request.{outcome.value}",
                request_id=request.id,
                tenant=request.principal.tenant,
                key_id=request.principal.key_id,
                model=model,
                endpoint=endpoint,
                reason=reason,
                status=delivery.status,
                total_s=round(total_s, 3),
            )


def _reason(account: Account, delivery: Delivery) -> str:
    """Why it was not delivered: the last attempt's fault, else our refusal's code."""
    if delivery.outcome in (Outcome.FAILED, Outcome.BROKEN) and account.attempts:
        last = account.attempts[-1].outcome
        if last not in (AttemptOutcome.COMPLETED, AttemptOutcome.CANCELLED):
            return str(last.value)
    assert delivery.error is not None, "whatever was not delivered has an error"
    return str(delivery.error.code)
