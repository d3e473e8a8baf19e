"""What is promised to whoever calls this deployment? One document, made of the values that the gateway goes by."""

from typing import Any

import msgspec

import headrace
from headrace.core import errors
from headrace.core.endings import ENDINGS, Charge, Ending, Stage
from headrace.core.errors import HeadraceError, OverloadError
from headrace.core.fleet import Deployment
from headrace.core.isolation import CacheIsolation
from headrace.core.outcome import Outcome
from headrace.core.prices import MEASURES, Item, Price
from headrace.core.request import Endpoint
from headrace.core.tenant import Principal, TenantLimits, TenantTerms
from headrace.core.usage import UsageRecord
from headrace.protocols import bounds, openai, shapes
from headrace.protocols.bounds import Bound

FORM = 1
"""Of the document: it grows when a reader of the last one would misread this one. New members don't change it."""


class ServiceTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration promises; see config.Config for what each value means.

    Attributes:
        media_bytes_max: 0 where URLs are refused.
    """

    body_bytes_max: int
    body_bytes_per_s_min: int
    header_timeout_s: float
    idle_timeout_s: float
    deadline_s: float
    deadline_max_s: float
    queue_wait_max_s: float
    first_event_limit_s: float
    stall_limit_s: float
    write_stall_limit_s: float
    heartbeat_s: float
    attempts_max: int
    keep_s: float
    answer_bytes_max: int
    media_bytes_max: int
    drain_s: float


class EndpointTerms(msgspec.Struct, frozen=True):
    """One path that serves the deployment; `request`, `answer` and `event` are JSON schemas, `event` null without streams."""

    path: str
    unit: str
    streams: bool
    websocket: bool
    bounds: list[Bound]
    request: dict[str, Any]
    answer: dict[str, Any]
    event: dict[str, Any] | None


class FieldTerms(msgspec.Struct, frozen=True):
    """What becomes of fields that stand in no schema, and of some that do."""

    unknown: str
    never_passed: list[str]
    set_by_us: list[str]


class StreamTerms(msgspec.Struct, frozen=True):
    """How an answer comes piece by piece."""

    asked_with: str
    content_type: str
    event: str
    first_event: str
    heartbeat: str
    heartbeat_s: float
    usage: str
    end: str
    error: str


class EndingTerms(msgspec.Struct, frozen=True):
    """One way to end, as core/endings.py has it."""

    reason: str
    stage: str
    meaning: str
    charged: str


class ErrorTerms(msgspec.Struct, frozen=True):
    """One code.

    Attributes:
        should_retry: The header `x-should-retry`; null where it isn't sent.
        has_retry_after: Whether `retry-after` says when.
        in_streams: Whether it may also end a stream that has begun, as its last event.
    """

    code: str
    status: int
    type: str
    should_retry: bool | None
    has_retry_after: bool
    in_streams: bool
    remedy: str
    reasons: list[EndingTerms]


class RetryTerms(msgspec.Struct, frozen=True):
    """Who tries again, and when."""

    by_us: str
    attempts_max: int
    by_the_caller: str


class CancellationTerms(msgspec.Struct, frozen=True):
    """What happens when the caller leaves."""

    how: str
    effect: str
    write_stall_limit_s: float
    endings: list[EndingTerms]


class IdempotencyTerms(msgspec.Struct, frozen=True):
    header: str
    promise: str
    keep_s: float
    answer_bytes_max: int
    kept: str


class TimeTerms(msgspec.Struct, frozen=True):
    """Seconds that something may take, by the configuration's names."""

    deadline_header: str
    deadline_s: float
    deadline_max_s: float
    queue_wait_max_s: float
    first_event_limit_s: float
    stall_limit_s: float
    header_timeout_s: float
    idle_timeout_s: float
    body_bytes_per_s_min: int
    drain_s: float


class LimitTerms(msgspec.Struct, frozen=True):
    """Limits that the caller falls under; 0 is none.

    Attributes:
        of: "tenant", "key", or "model" for the tenant's requests for this model.
    """

    of: str
    requests_per_minute: int
    requests_at_once: int
    tokens_per_minute: int
    tokens_at_once: int
    concurrency_max: int


class DataTerms(msgspec.Struct, frozen=True):
    """What is kept, where it may be, and who else may tell.

    Attributes:
        kept_answers_s: Of this caller; 0 where nothing is kept.
        is_durable: The end of an answer goes out only when its record is on the disk.
        locations: Those that the operator has named where the model runs, and this caller's requests may be.
    """

    prompts_and_answers: str
    kept_answers_s: float
    records: list[str]
    records_kept: str
    is_durable: bool
    logs: str
    locations: list[str]
    location_rule: str
    cache_isolation: str | None
    cache_isolation_means: str
    media: str


class PriceTerms(msgspec.Struct, frozen=True):
    """The price of one item; `per` says of how many."""

    item: str
    per: str
    price: str


class ChargeTerms(msgspec.Struct, frozen=True):
    """The rule of one outcome."""

    outcome: str
    charged: str


class BillingTerms(msgspec.Struct, frozen=True):
    """What is billed; `version` and `currency` are empty where no price is set, and then nothing is."""

    version: str
    currency: str
    prices: list[PriceTerms]
    rules: list[ChargeTerms]
    counts: str
    units: str


class Contract(msgspec.Struct, frozen=True):
    """The whole document.

    Attributes:
        context_tokens: Prompt and output of one request together; null where nobody says.
        limits, quotas: Those that the caller falls under.
    """

    form: int
    model: str
    revision: str
    version: str
    tasks: list[str]
    context_tokens: int | None
    endpoints: list[EndpointTerms]
    fields: FieldTerms
    streams: StreamTerms
    errors: list[ErrorTerms]
    retries: RetryTerms
    cancellation: CancellationTerms
    idempotency: IdempotencyTerms
    time: TimeTerms
    limits: list[LimitTerms]
    quotas: list[str]
    data: DataTerms
    billing: BillingTerms


ISOLATION_MEANS: dict[CacheIsolation | None, str] = {
    CacheIsolation.SALT: "a salt of ours with each request: an engine finds only what the same tenant has left in its cache",
    CacheIsolation.SLOTS: "slots of the engine's cache that we assign, each reused only for the tenant that filled it",
    CacheIsolation.PROMPT: "a line of ours before each prompt, so that no other tenant's begins like it",
    CacheIsolation.OFF: "nothing is reused: each request says so",
    CacheIsolation.NONE: "nothing: the time to a first token may tell what other tenants have asked",
    None: "unknown while nothing serves the model",
}
_CHARGES = {
    Charge.NOTHING: "nothing",
    Charge.DELIVERED: "the prompt, and what had reached the caller",
    Charge.GENERATED: "the prompt, and what was generated, taken or not",
}


def contract(
    deployment: Deployment,
    terms: ServiceTerms,
    *,
    caller: Principal | None = None,
    price: Price | None = None,
) -> Contract:
    """The contract of a deployment, with what holds for a caller where one asks.

    Args:
        price: The one that holds for the caller now.
    """
    agreed = TenantTerms() if caller is None else caller.terms
    keep_s = terms.keep_s if agreed.retention_s is None else min(terms.keep_s, agreed.retention_s)
    return Contract(
        form=FORM,
        model=deployment.name,
        revision=deployment.revision,
        version=headrace.__version__,
        tasks=sorted(deployment.tasks),
        context_tokens=deployment.context_tokens or None,
        endpoints=[
            _endpoint(endpoint, deployment, terms)
            for endpoint in Endpoint
            if endpoint.task in deployment.tasks
        ],
        fields=_fields(),
        streams=_streams(terms),
        errors=[_error(kind) for kind in errors.catalogue() if kind is not errors.ClientGone],
        retries=_retries(terms),
        cancellation=_cancellation(terms),
        idempotency=_idempotency(terms, keep_s=keep_s),
        time=_time(terms),
        limits=[] if caller is None else _limits(caller, deployment.name),
        quotas=[] if caller is None else [*caller.terms.quotas, *caller.terms.budgets],
        data=_data(deployment, terms, agreed, keep_s=keep_s),
        billing=_billing(deployment, price),
    )


def _endpoint(endpoint: Endpoint, deployment: Deployment, terms: ServiceTerms) -> EndpointTerms:
    shape = shapes.SHAPES[endpoint]
    streams = shape.event is not None
    return EndpointTerms(
        path=endpoint.value,
        unit="" if endpoint.unit is None else endpoint.unit.value,
        streams=streams,
        websocket=streams,
        bounds=bounds.of(endpoint, deployment, body_bytes_max=terms.body_bytes_max),
        request=shapes.standalone(shape.request),
        answer=shapes.standalone(shape.answer),
        event=None if shape.event is None else shapes.standalone(shape.event),
    )


def _fields() -> FieldTerms:
    return FieldTerms(
        unknown="passed to the engine as they are; they are part of the body's bounds and of nothing else",
        never_passed=list(openai.OPERATOR_FIELDS),
        set_by_us=["model", *openai.WIRE_FIELDS],
    )


def _streams(terms: ServiceTerms) -> StreamTerms:
    return StreamTerms(
        asked_with='"stream": true, or a WebSocket, where every answer is a stream',
        content_type="text/event-stream",
        event="one `data:` line with a JSON object, then an empty line",
        first_event="status and headers wait for it, so an early failure has its real status",
        heartbeat="a comment line, which clients ignore, in every silence of `heartbeat_s`, also before the first event",
        heartbeat_s=terms.heartbeat_s,
        usage='the last event before the end, where `"stream_options": {"include_usage": true}` asks for it',
        end="`data: [DONE]`, which only a complete answer has",
        error="one `data:` event with an error object, then the connection closes without the end of the body; "
        "never `[DONE]` after it, and nothing is sent twice",
    )


def _error(kind: type[HeadraceError]) -> ErrorTerms:
    rows = [row for row in ENDINGS.values() if row.error is kind]
    return ErrorTerms(
        code=kind.code,
        status=kind.status,
        type=kind.type,
        should_retry=kind.should_retry,
        has_retry_after=issubclass(kind, OverloadError),
        in_streams=any(row.stage is Stage.ANSWERING for row in rows),
        remedy=kind.remedy,
        reasons=[_ending(row) for row in rows],
    )


def _ending(row: Ending) -> EndingTerms:
    return EndingTerms(row.reason.value, row.stage.value, row.meaning, _CHARGES[row.charge])


def _retries(terms: ServiceTerms) -> RetryTerms:
    return RetryTerms(
        by_us="on another replica, only before the first byte of an answer, and within a budget for retries",
        attempts_max=terms.attempts_max,
        by_the_caller="where `x-should-retry` is `true`, after the seconds in `retry-after` where it is sent; "
        f"work that must not be done twice carries `{bounds.IDEMPOTENCY_KEY}`",
    )


def _cancellation(terms: ServiceTerms) -> CancellationTerms:
    return CancellationTerms(
        how="close the connection, or its sending half",
        effect="the request leaves the queue, or the engine stops working on it; nobody else's is touched",
        write_stall_limit_s=terms.write_stall_limit_s,
        endings=[_ending(row) for row in ENDINGS.values() if row.outcome is Outcome.CANCELLED],
    )


def _idempotency(terms: ServiceTerms, *, keep_s: float) -> IdempotencyTerms:
    return IdempotencyTerms(
        header=bounds.IDEMPOTENCY_KEY,
        promise="the same request with the same key gets the answer of the first, byte for byte; no engine works and "
        "nothing is billed again",
        keep_s=keep_s,
        answer_bytes_max=terms.answer_bytes_max,
        kept="in memory, for the tenant alone; a restart forgets it",
    )


def _time(terms: ServiceTerms) -> TimeTerms:
    return TimeTerms(
        deadline_header=bounds.DEADLINE_HEADER,
        deadline_s=terms.deadline_s,
        deadline_max_s=terms.deadline_max_s,
        queue_wait_max_s=terms.queue_wait_max_s,
        first_event_limit_s=terms.first_event_limit_s,
        stall_limit_s=terms.stall_limit_s,
        header_timeout_s=terms.header_timeout_s,
        idle_timeout_s=terms.idle_timeout_s,
        body_bytes_per_s_min=terms.body_bytes_per_s_min,
        drain_s=terms.drain_s,
    )


def _limits(caller: Principal, model: str) -> list[LimitTerms]:
    agreed = {
        "tenant": caller.limits,
        "key": caller.key_limits,
        "model": caller.terms.model_limits.get(model),
    }
    return [_limit(of, limits) for of, limits in agreed.items() if limits is not None]


def _limit(of: str, limits: TenantLimits) -> LimitTerms:
    return LimitTerms(
        of,
        limits.requests_per_minute,
        limits.requests_burst if limits.requests_per_minute else 0,
        limits.tokens_per_minute,
        limits.tokens_at_once,
        limits.concurrency_max,
    )


def _data(deployment: Deployment, terms: ServiceTerms, agreed: TenantTerms, *, keep_s: float) -> DataTerms:
    allowed = set(agreed.locations)
    isolation = deployment.cache_isolation
    return DataTerms(
        prompts_and_answers=f"not stored, but for the answers to requests with `{bounds.IDEMPOTENCY_KEY}`: those are kept in "
        "memory for `kept_answers_s`",
        kept_answers_s=keep_s,
        records=[field.name for field in msgspec.structs.fields(UsageRecord)],
        records_kept="on the operator's disk, one for each request that was not refused; they hold no text of it",
        is_durable=agreed.is_durable,
        logs="no prompt, answer, key, token or value of a header",
        locations=[each for each in deployment.locations if each in allowed or not allowed],
        location_rule="requests run in the tenant's locations alone, retries too, and are refused where the model runs in none"
        if allowed
        else "not restricted: every replica that serves the model may get the request",
        cache_isolation=None if isolation is None else isolation.value,
        cache_isolation_means=ISOLATION_MEANS[isolation],
        media=f"URLs are fetched by us, at most {terms.media_bytes_max} bytes for a request; engines get the content"
        if terms.media_bytes_max and deployment.takes_media
        else "URLs are refused",
    )


def _billing(deployment: Deployment, price: Price | None) -> BillingTerms:
    stated = {} if price is None or price.stated is None else price.stated
    units = {endpoint.unit for endpoint in Endpoint if endpoint.task in deployment.tasks} - {None}
    return BillingTerms(
        version="" if price is None else price.version,
        currency="" if price is None else price.currency,
        prices=[
            PriceTerms(item.value, MEASURES[item].label, stated[item]) for item in Item if item in stated
        ],
        rules=[ChargeTerms(outcome, _CHARGES[rule]) for outcome, rule in _rules()],
        counts="those of the engine, or estimates where it reports none; unknown ones are not billed. An attempt that "
        "failed and was followed by another is not billed",
        units=", ".join(["token", *sorted(unit.value for unit in units if unit is not None)]),
    )


def _rules() -> list[tuple[str, Charge]]:
    """What each outcome costs; which it does, is the same for each of its endings but for who leaves unserved."""
    found: dict[str, Charge] = {}
    for row in ENDINGS.values():
        of = row.outcome.value
        if row.outcome is Outcome.CANCELLED:
            of = "cancelled in the queue" if row.stage is Stage.UNSTARTED else "cancelled at work"
        assert found.setdefault(of, row.charge) is row.charge, "one outcome, one rule"
    return list(found.items())
