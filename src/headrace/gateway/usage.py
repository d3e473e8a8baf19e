"""Closes the account of a request: one terminal record, one per attempt, and every metric derived from the same facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.core.clock import Clock
from headrace.core.endings import COMPLETE, Ending
from headrace.core.fleet import Deployment, Replica
from headrace.core.load import TargetLoad
from headrace.core.outcome import AttemptOutcome, Outcome
from headrace.core.request import InferenceRequest
from headrace.core.usage import ExecutionRecord, TokenUsage, Unit, UsageRecord, UsageSource
from headrace.gateway.delivery import Delivery
from headrace.gateway.loads import Loads
from headrace.gateway.walk import Signal
from headrace.policies import charging
from headrace.policies.prices import PriceBook
from headrace.policies.tickets import Ticket
from headrace.telemetry.families import Distribution, Value
from headrace.telemetry.logs import Field, Log
from headrace.telemetry.metrics import Metrics

_COUNTED = (Outcome.BROKEN, Outcome.CANCELLED)  # whose line says what was used
OWN = "@own"  # in metrics, behind the model of what the service asks for itself
SERIES_MAX = 4096  # label values are bounded by the families; this bounds what we keep of them


class Confirmation:
    """That a record is in the ledger, or that it can't be known.

    Attributes:
        over: Await it: then `is_good` holds.
        is_good: What waits for the record may go on.
    """

    __slots__ = ("is_good", "over")

    def __init__(self) -> None:
        self.over = Signal()
        self.is_good = False

    def settle(self, *, is_good: bool) -> None:
        """The last word; where nobody waits any more, nobody hears it."""
        if not self.over.is_set:
            self.is_good = is_good
            self.over.set()


class RecordSink(Protocol):
    """Where records go: the ledger. Must not block."""

    def begin(self, request: InferenceRequest, replica: Replica, attempt: int, /) -> None:
        """That replica gets the request, which will have records: until they come, a crash leaves a mark of it."""
        ...

    def append(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None: ...

    def replace(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        """The same in the place of what was appended for the request before, unless that is committed."""
        ...

    def confirm(self) -> Confirmation:
        """Of all that was appended until now."""
        ...


class AttemptEnd(msgspec.Struct, frozen=True, gc=False):
    """How one attempt ended, as the attempt itself saw it.

    Attributes:
        started_s, ended_s, first_event_s: Monotonic.
        upstream_status: HTTP status of the replica, 0 if none came.
        revision: What the replica ran.
    """

    outcome: AttemptOutcome
    replica: Replica
    started_s: float
    ended_s: float
    first_event_s: float | None
    upstream_status: int
    usage: TokenUsage
    revision: str = ""


class Account:
    """What a request has used so far. Owner: the walk; written by the attempt loop.

    Attributes:
        deployment: The target that it is with now.
        load: What is counted of that.
        attempts_before: So many of `attempts` were another target's.
        rejected_by: What is counted of a target that found the request wrong, until it is known who was right: see `follow`.
        is_drafted: Its record was appended before its end, which waits for the commit.
    """

    __slots__ = (
        "_loads",
        "attempts",
        "attempts_before",
        "deployment",
        "is_drafted",
        "load",
        "queue_wait_s",
        "rejected_by",
        "request",
    )

    def __init__(self, request: InferenceRequest, deployment: Deployment, loads: Loads) -> None:
        self._loads = loads
        self.request = request
        self.deployment = deployment
        self.load = loads.arrived(deployment, request.target or deployment.key)
        self.attempts_before = 0
        self.rejected_by: TargetLoad | None = None
        self.queue_wait_s = 0.0
        self.is_drafted = False
        self.attempts: list[AttemptEnd] = []

    def follow(self, deployment: Deployment) -> None:
        """The request is with that target now: the one before had it only wait, or failed it before the first byte.

        What it rejected is its failure only if another one then answers it; else the caller's mistakes would speak against
        every target but the accepted one, which is asked last.
        """
        if deployment is self.deployment:
            return
        self.settle_rejection(is_answered=False)
        load, failed = self.load, self.attempts[self.attempts_before :]
        if failed and failed[-1].outcome is AttemptOutcome.REJECTED:
            self.rejected_by = load
        elif failed:
            cause = failed[-1].outcome.value
            load.failed_over += 1
            load.causes[cause] = load.causes.get(cause, 0) + 1
        else:
            load.handed_over += 1
        _count_tokens(load, failed)
        self.deployment = deployment
        self.load = self._loads.arrived(deployment, deployment.key)
        self.attempts_before = len(self.attempts)

    def settle_rejection(self, *, is_answered: bool) -> None:
        """It is known now what became of a request that a target had found wrong."""
        load = self.rejected_by
        if load is None:
            return
        self.rejected_by = None
        if is_answered:
            load.failed_over += 1
        else:
            load.rejected += 1
        cause = AttemptOutcome.REJECTED.value
        load.causes[cause] = load.causes.get(cause, 0) + 1

    def ended(self, ticket: Ticket) -> None:
        """Where the request was in the end, and how long it waited on its way."""
        self.queue_wait_s = ticket.waited_s
        if ticket.moved_to is not None:
            self.follow(ticket.moved_to)

    def usage(self) -> TokenUsage:
        """The request's tokens: those of the attempt that made the answer, which is the last.

        Attempts that failed before it are in their own records; what is charged for them is a rule of the price book. How
        much of the prompt was cached is counted only where the caller may know it: a bill that fell with another's prompt
        would tell of it. What the engine said is in the attempt's record in any case.
        """
        if not self.attempts:
            return TokenUsage(source=UsageSource.NONE)
        last = self.attempts[-1]
        usage = last.usage
        if usage.cached_tokens and self.request.endpoint not in last.replica.traits.tells_cached:
            return msgspec.structs.replace(usage, cached_tokens=0)
        return usage


@dataclass(frozen=True, slots=True)
class _Series:
    """The series that one kind of ending counts in, and what the ending says, looked up together because every request
    needs them."""

    requests: Value
    seconds: Distribution
    prompt: Value
    cached: Value
    completion: Value
    endpoint: str
    model: str
    outcome: str
    reason: str
    end: str
    is_refused: bool
    is_logged: bool
    unit: Unit | None


class UsageCloser:
    """Writes records and metrics for requests that have ended.

    Attributes:
        prices: The price book in force; whoever watches the stores puts a new one here.
        loads: What is counted by target.
    """

    def __init__(self, ledger: RecordSink, metrics: Metrics, log: Log, *, clock: Clock) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self.prices = PriceBook()
        self.loads = Loads()
        self._series: dict[tuple[str, str, Ending], _Series] = {}

    def close(self, account: Account, delivery: Delivery) -> None:
        """The one terminal write of a request, whatever its end. Refusals before any work leave a metric and a log line
        and no record: a refused flood must not fill the disk."""
        request, ending = account.request, delivery.ending
        assert ending is not None, "an account is closed after its delivery has ended"
        total_s = self._clock.now_s() - request.arrived_s
        series = self._series_of(request, ending)
        series.requests.value += 1
        series.seconds.observe(total_s)
        if series.is_logged:
            self._report(account, delivery, ending, total_s=total_s)
        load = account.load
        if account.rejected_by is not None:
            account.settle_rejection(is_answered=ending is COMPLETE)
        if ending is COMPLETE:
            load.delivered += 1
            load.total.observe(total_s)
        else:
            _count_end(load, series)
        if series.is_refused:
            assert ending.error is not None, "every refusal has its error"
            self._metrics.refusals.labels(ending.error.code, series.reason).add()
            return
        load.queue_wait.observe(account.queue_wait_s)
        ttft_s: float | None = None
        if delivery.first_content_s is not None:
            ttft_s = delivery.first_content_s - request.arrived_s
            load.ttft.observe(ttft_s)
        _count_tokens(
            load, account.attempts[account.attempts_before :] if account.attempts_before else account.attempts
        )
        for end in account.attempts:
            tokens = end.usage
            self._metrics.attempts.labels(series.model, end.replica.id, str(end.outcome)).value += 1
            series.prompt.value += tokens.prompt_tokens
            series.cached.value += tokens.cached_tokens
            series.completion.value += tokens.completion_tokens
        if account.is_drafted and ending is COMPLETE:
            return
        usage, executions = self._entry(account, series, ending, delivery.status, ttft_s, total_s)
        load.charge_pico += usage.charge_pico
        (self._ledger.replace if account.is_drafted else self._ledger.append)(usage, executions)

    def draft(self, account: Account, delivery: Delivery) -> Confirmation:
        """The records of a request whose answer is whole and whose end is held. `close` follows, however that ends."""
        request, now_s = account.request, self._clock.now_s()
        first_s = now_s if delivery.first_content_s is None else delivery.first_content_s
        account.is_drafted = True
        series = self._series_of(request, COMPLETE)
        self._ledger.append(
            *self._entry(
                account, series, COMPLETE, 200, first_s - request.arrived_s, now_s - request.arrived_s
            )
        )
        return self._ledger.confirm()

    def _entry(
        self,
        account: Account,
        series: _Series,
        ending: Ending,
        status: int,
        ttft_s: float | None,
        total_s: float,
    ) -> tuple[UsageRecord, list[ExecutionRecord]]:
        # By position, in the order of the records: names would cost as much as the records themselves.
        request = account.request
        executions: list[ExecutionRecord] = []
        revision = account.deployment.revision
        for end in account.attempts:
            tokens, replica, first_s = end.usage, end.replica, end.first_event_s
            executions.append(
                ExecutionRecord(
                    request.id, len(executions) + 1, replica.id, replica.generation,
                    request.arrived_wall_s + (end.started_s - request.arrived_s), end.ended_s - end.started_s,
                    None if first_s is None else first_s - end.started_s, str(end.outcome), end.upstream_status,
                    tokens.prompt_tokens, tokens.completion_tokens, tokens.cached_tokens, str(tokens.source),
                    "" if end.revision == revision else end.revision,
                )
            )  # fmt: skip
        usage, principal, model = account.usage(), request.principal, request.model
        version, charge_pico = "", 0
        price = self.prices.find(principal.tenant, model, wall_s=request.arrived_wall_s)
        if price is not None and price.rates is not None:
            version = price.version
            charge_pico = charging.charge(ending.charge, usage, price.rates, unit=series.unit)
        return UsageRecord(
            request.id, principal.tenant, principal.key_id, model, revision, series.endpoint,
            request.is_streaming, request.arrived_wall_s, series.outcome, series.reason, status,
            usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, str(usage.source),
            account.queue_wait_s, ttft_s, total_s, len(executions),
            version, charge_pico, usage.reasoning_tokens, usage.units, principal.user,
        ), executions  # fmt: skip

    def _series_of(self, request: InferenceRequest, ending: Ending) -> _Series:
        endpoint, model = str(request.endpoint), request.model
        if request.is_pinned:  # nobody's request but our own, which must not look like callers'
            model += OWN
        return self._series.get((endpoint, model, ending)) or self._open_series(
            endpoint, model, ending, unit=request.endpoint.unit
        )

    def _open_series(self, endpoint: str, model: str, ending: Ending, *, unit: Unit | None) -> _Series:
        metrics = self._metrics
        outcome, reason = str(ending.outcome), str(ending.reason)
        series = _Series(
            requests=metrics.requests.labels(endpoint, model, outcome, reason),
            seconds=metrics.request_seconds.labels(endpoint, model, outcome),
            prompt=metrics.tokens.labels(model, "prompt"),
            cached=metrics.tokens.labels(model, "cached"),
            completion=metrics.tokens.labels(model, "completion"),
            endpoint=endpoint,
            model=model,
            outcome=outcome,
            reason=reason,
            end="rejected" if ending.attempt is AttemptOutcome.REJECTED else outcome,
            is_refused=ending.outcome is Outcome.REFUSED,
            is_logged=ending.event is not None,
            unit=unit,
        )
        if len(self._series) < SERIES_MAX:
            self._series[(endpoint, model, ending)] = series
        return series

    def _report(self, account: Account, delivery: Delivery, ending: Ending, *, total_s: float) -> None:
        assert ending.event is not None
        assert ending.error is not None
        request, attempts, more = account.request, account.attempts, dict[str, Field]()
        if account.queue_wait_s:
            more["queue_wait_s"] = round(account.queue_wait_s, 3)
        if ending.outcome is not Outcome.REFUSED:
            more["attempts"] = len(attempts)
            if attempts:
                more["replica"] = attempts[-1].replica.id
            if delivery.first_content_s is not None:
                more["ttft_s"] = round(delivery.first_content_s - request.arrived_s, 3)
        if ending.outcome in _COUNTED:
            tokens = account.usage()
            more["usage_source"] = tokens.source
            if tokens.source is not UsageSource.UNKNOWN:
                more["prompt_tokens"] = tokens.prompt_tokens
                more["completion_tokens"] = tokens.completion_tokens
                more["cached_tokens"] = tokens.cached_tokens
        self._log.event(
            ending.event,
            request_id=request.id,
            tenant=request.principal.tenant,
            key_id=request.principal.key_id,
            model=request.model,
            revision=account.deployment.revision,
            endpoint=str(request.endpoint),
            config_version=request.config_version,
            code=ending.error.code,
            reason=ending.reason,
            status=delivery.status,
            total_s=round(total_s, 3),
            **more,
        )


def _count_end(load: TargetLoad, series: _Series) -> None:
    setattr(load, series.end, getattr(load, series.end) + 1)
    load.causes[series.reason] = load.causes.get(series.reason, 0) + 1


def _count_tokens(load: TargetLoad, ends: list[AttemptEnd]) -> None:
    """What was used of the target, whoever pays for it."""
    for end in ends:
        tokens = end.usage
        load.prompt_tokens += tokens.prompt_tokens
        load.cached_tokens += tokens.cached_tokens
        load.output_tokens += tokens.completion_tokens
