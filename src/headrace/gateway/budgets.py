"""May this request be paid for? What it may use at most is reserved before any work, and settled by its record."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, QuotaExhausted
from headrace.core.fleet import Deployment
from headrace.core.ids import RequestId, TenantId
from headrace.core.leases import WorkerId
from headrace.core.quotas import Amounts, BudgetKey, Limits, span_of
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import Principal
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.gateway.usage import RecordSink
from headrace.policies import budgets, spending
from headrace.policies.budgets import Budget, Budgets
from headrace.policies.spending import Assumptions, PriceMost
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

Source = TypeVar("Source")
# The one that holds what is reserved here, where there is no other.
OWN: WorkerId = 0


@dataclass(frozen=True, slots=True)
class QuotaView:
    """What the quota header says: of the quota with the least left, relative to its limit."""

    key: BudgetKey
    limit: int
    remaining: int
    reset_s: float


class BudgetSource(Protocol):
    """Who owns the budgets of this process: it knows what was spent, and hears of everything that is."""

    @property
    def budgets(self) -> Budgets: ...

    async def open(self, limits: Limits, *, revision: int) -> None:
        """These are the quotas from now on; returns when what was spent of them is known, or soon without."""
        ...

    def spend(self, record: UsageRecord) -> None:
        """The record says what a request has used."""
        ...


@dataclass(frozen=True, slots=True)
class Estimator:
    """What a request may use at most."""

    assumed: Assumptions
    price_most: PriceMost

    def most(self, request: InferenceRequest, deployment: Deployment) -> Amounts:
        return spending.most(
            request,
            context_tokens=deployment.context_tokens,
            assumed=self.assumed,
            price_most=self.price_most,
        )


class Reservation(Generic[Source]):
    """What one request has reserved. Owner: the reservations of this process.

    Attributes:
        keys: The budgets that it needs; `parts` are those that it has got so far, in the same order.
        question: What it waits for an answer to; see leased_budgets.py.
    """

    __slots__ = ("amounts", "keys", "parts", "question")

    def __init__(self, amounts: Amounts, keys: Sequence[BudgetKey]) -> None:
        self.amounts = amounts
        self.keys = keys
        self.parts: list[tuple[Source, BudgetKey, int]] = []
        self.question: object = None


class Reservations(ABC, Generic[Source]):
    """What all requests in progress have reserved, and the sink of their records, which settle it.

    State: `_by_request`; `_keys`, the budgets of each tenant that has any: for all others a request pays one look-up.
    """

    def __init__(
        self, records: RecordSink, estimator: Estimator, *, metrics: Metrics, log: Log, clock: Clock
    ) -> None:
        # RecordSink. What a record had spent that is replaced, because it couldn't be committed, stays spent until the ledger is
        # read again, at the next start: too little is left then, never too much.
        self.begin, self.replace, self.confirm = records.begin, records.replace, records.confirm
        self._records = records
        self._estimator = estimator
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._by_request: dict[RequestId, Reservation[Source]] = {}
        self._keys: dict[TenantId, list[BudgetKey]] = {}
        self._limits: Limits = {}

    def has_quota(self, tenant: TenantId) -> bool:
        return tenant in self._keys

    def go_by(self, limits: Limits, *, revision: int) -> None:
        """These quotas are enforced from now on."""
        self._limits = limits
        self._keys = {}
        for key in limits:
            self._keys.setdefault(key.tenant, []).append(key)

    def assume(self, assumed: Assumptions) -> None:
        """What is assumed of requests that don't say, from now on."""
        self._estimator = replace(self._estimator, assumed=assumed)

    def reserve(self, request: InferenceRequest, deployment: Deployment) -> None:
        """Reserves what the request may use at most. Raises QuotaExhausted or QuotaUnavailable, and then nothing is reserved.

        Again for the same request, it does nothing, or goes on where it stopped for a lease.
        """
        held = self._by_request.get(request.id)
        if held is None:
            principal = request.principal
            keys = [
                key for key in self._keys.get(principal.tenant, ()) if key.key_id in ("", principal.key_id)
            ]
            held = Reservation(self._estimator.most(request, deployment), keys)
            self._by_request[request.id] = held
        for key in held.keys[len(held.parts) :]:
            amount = held.amounts.of(key.unit)
            try:
                source = self._take(held, key, amount, request)
            except HeadraceError as refusal:
                self.release(request.id)
                if isinstance(refusal, QuotaExhausted):
                    self._metrics.quota_refusals.labels(key.unit.value, key.period.value).add()
                raise
            held.parts.append((source, key, amount))

    def bounded(self, request: InferenceRequest, deployment: Deployment) -> InferenceRequest:
        """The request with a bound on its output where it needs one: else nobody could say what it may use."""
        if (
            request.output_tokens_max is not None
            or deployment.context_tokens
            or request.endpoint is Endpoint.EMBEDDINGS
        ):
            return request
        bound = self._estimator.assumed.output_tokens_max_assumed
        return msgspec.structs.replace(request, output_tokens_max=bound, is_bound_ours=True)

    def release(self, request: RequestId) -> None:
        """The request is over; without a record it has used nothing."""
        held = self._by_request.pop(request, None)
        if held is not None:
            for source, _, amount in held.parts:
                self._settle(source, amount, spent=0)

    def append(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        """RecordSink: what the request has reserved becomes what it has used."""
        held = self._by_request.pop(usage.request_id, None)
        if held is None:
            self._record(usage, executions, ())
            return
        used = spending.used(usage)
        settled = [
            (source, self._settle(source, amount, spent=used.of(key.unit)))
            for source, key, amount in held.parts
        ]
        self._record(usage, executions, settled)
        over = [key for _, key, amount in held.parts if used.of(key.unit) > amount]
        if over:
            self._report(usage, over, reserved=held.amounts, used=used)

    def view(self, principal: Principal) -> QuotaView | None:
        """For the quota header; None without a quota."""
        keys = self._keys.get(principal.tenant)
        if keys is None:
            return None
        wall_s = self._clock.wall_s()
        tightest: QuotaView | None = None
        for key in keys:
            if key.key_id in ("", principal.key_id):
                limit, left = self._limits[key], max(0, self._left(key, wall_s))
                if tightest is None or left * tightest.limit < tightest.remaining * limit:
                    reset_s = max(0.0, span_of(key.period, wall_s).end_s - wall_s)
                    tightest = QuotaView(key, limit, left, reset_s)
        return tightest

    def header(self, principal: Principal) -> bytes:
        """The line that tells a tenant with quotas how much is left of the tightest."""
        view = self.view(principal)
        if view is None:
            return b""
        key = view.key
        reset = f"; reset={math.ceil(view.reset_s)}" if math.isfinite(view.reset_s) else ""
        return (
            f"x-headrace-quota: {key.quota_name}; limit={key.value(view.limit)}; "
            f"remaining={key.value(view.remaining)}{reset}\r\n"
        ).encode()

    @property
    def reserved_requests(self) -> int:
        """Requests in progress that have reserved something."""
        return len(self._by_request)

    @abstractmethod
    async def open(self, limits: Limits, *, revision: int) -> None:
        """Prepares for quotas that will be in force; returns soon, if possible once what was spent of them is known."""

    @abstractmethod
    def _take(
        self, held: Reservation[Source], key: BudgetKey, amount: int, request: InferenceRequest
    ) -> Source:
        """Reserves the amount of one budget. Raises QuotaExhausted or QuotaUnavailable."""

    @abstractmethod
    def _settle(self, source: Source, amount: int, *, spent: int) -> int:
        """What was reserved is free, but for what was spent, as far as it was reserved: that is returned."""

    @abstractmethod
    def _record(
        self,
        usage: UsageRecord,
        executions: Sequence[ExecutionRecord],
        settled: Sequence[tuple[Source, int]],
    ) -> None:
        """Hands on the record of a request, and what it has spent of what it had reserved."""

    @abstractmethod
    def _left(self, key: BudgetKey, wall_s: float) -> int: ...

    def _report(self, usage: UsageRecord, over: list[BudgetKey], *, reserved: Amounts, used: Amounts) -> None:
        """An engine has generated more than it was asked for, or read more than there was."""
        for key in over:
            self._metrics.budget_overshoots.labels(key.unit.value).add()
            self._log.event(
                "budget.overshot",
                request_id=usage.request_id,
                tenant=usage.tenant,
                model=usage.model,
                quota=key.quota_name,
                reserved=key.show(reserved.of(key.unit)),
                used=key.show(used.of(key.unit)),
            )


class OwnReservations(Reservations[Budget | None]):
    """Of a process that shares its budgets with no other: exact, and decided at once."""

    def __init__(
        self,
        records: RecordSink,
        estimator: Estimator,
        source: BudgetSource,
        *,
        metrics: Metrics,
        log: Log,
        clock: Clock,
    ) -> None:
        super().__init__(records, estimator, metrics=metrics, log=log, clock=clock)
        self._budgets = source.budgets
        self._source = source

    async def open(self, limits: Limits, *, revision: int) -> None:
        await self._source.open(limits, revision=revision)

    def _take(
        self, held: Reservation[Budget | None], key: BudgetKey, amount: int, request: InferenceRequest
    ) -> Budget | None:
        book = self._budgets.find(key)
        if book is None:
            return None  # the quota is about to be given up
        wall_s = request.arrived_wall_s
        budget = book.at(wall_s)
        if budget is None:
            raise budgets.unavailable(key)
        if not budget.lend(OWN, amount):
            raise budgets.exhausted(
                key,
                amount=amount,
                limit=budget.limit,
                spent=budget.spent,
                left=budget.left,
                span=budget.span,
                wall_s=wall_s,
            )
        return budget

    def _settle(self, source: Budget | None, amount: int, *, spent: int) -> int:
        if source is not None:
            source.give_back(OWN, amount)
        return min(spent, amount)

    def _record(
        self,
        usage: UsageRecord,
        executions: Sequence[ExecutionRecord],
        settled: Sequence[tuple[Budget | None, int]],
    ) -> None:
        self._source.spend(usage)
        self._records.append(usage, executions)

    def _left(self, key: BudgetKey, wall_s: float) -> int:
        book = self._budgets.find(key)
        budget = None if book is None else book.at(wall_s)
        return 0 if budget is None else budget.left
