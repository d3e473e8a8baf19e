"""What is the gateway of one process made of? Its parts, built from the configuration and put together."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.app.budgets import estimator
from headrace.config import Config, IdempotencyConfig, MediaConfig
from headrace.control.budgets import BudgetAuthority
from headrace.core.chance import Chance
from headrace.core.clock import Clock
from headrace.core.fleet import Replica
from headrace.core.leases import Asking, Shadowed
from headrace.core.tenant import Principal
from headrace.engines.outbox import Outbox
from headrace.gateway.auth import Authenticator
from headrace.gateway.bodies import BodyReader
from headrace.gateway.budgets import Estimator, OwnReservations
from headrace.gateway.dispatch import Dispatch
from headrace.gateway.idempotency import AnswerBounds, AnswerTable, Idempotency, KeptAnswer, OwnAnswers
from headrace.gateway.intake import Intake
from headrace.gateway.ladder import Ladder
from headrace.gateway.leased_budgets import EscrowedRecords, LeasedReservations
from headrace.gateway.leased_dispatch import LeasedDispatch
from headrace.gateway.media import MediaFetcher
from headrace.gateway.rules import (
    AttemptLimits,
    Deadlines,
    MediaRules,
    PortLimits,
    RequestRules,
    RetryRules,
)
from headrace.gateway.server import Gateway
from headrace.gateway.shadow import OwnShadow
from headrace.gateway.upstream import Upstream
from headrace.gateway.usage import RecordSink, UsageCloser
from headrace.policies.admission import QueueBounds
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import Circuit, HealthRules
from headrace.policies.idempotency import IdempotencyTable
from headrace.policies.limits import TenantLimiter
from headrace.policies.shadow import ShadowLimiter
from headrace.protocols.contract import ServiceTerms
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


class Records(RecordSink, Protocol):
    """Where usage records go, and whether they get there."""

    @property
    def is_behind(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Lender:
    """What a data plane shares that is one of several `workers` on one port; `ask` carries questions to the authority, and
    `records` take along what they have spent of what it lent."""

    ask: Callable[[Asking | Shadowed], None]
    records: EscrowedRecords
    answers: AnswerTable
    workers: int
    port: int


def build_gateway(
    config: Config,
    *,
    auth: Authenticator,
    records: Records,
    budgets: BudgetAuthority | None,
    ladder: Ladder | None,
    metrics: Metrics,
    log: Log,
    clock: Clock,
    chance: Chance,
    lender: Lender | None = None,
    config_version: int = 1,
) -> Gateway:
    """The gateway with all that it owns, on whatever loop runs, clock ticks and ledger takes its records."""
    rules = request_rules(config, config_version)
    outbox = Outbox()
    most = estimator(config.budgets, lambda: usage.prices)
    reservations = _reservations(records, most, budgets, lender, metrics=metrics, log=log, clock=clock)
    usage = UsageCloser(reservations, metrics, log, clock=clock)
    return Gateway(
        auth=auth,
        outbox=outbox,
        dispatch=_build_dispatch(
            config, reservations, lender, metrics=metrics, log=log, clock=clock, chance=chance
        ),
        reservations=reservations,
        upstream=Upstream(
            rules=rules.retries,
            outbox=outbox,
            records=records,
            metrics=metrics,
            log=log,
            clock=clock,
            chance=chance,
        ),
        usage=usage,
        intake=Intake(BodyReader(clock=clock), MediaFetcher(rules.media.fetches_max, clock=clock)),
        idempotency=Idempotency(
            OwnAnswers(answer_table(config.idempotency)) if lender is None else lender.answers,
            metrics=metrics,
            clock=clock,
        ),
        limits=_port_limits(config),
        rules=rules,
        terms=service_terms(config),
        accepts_work=lambda: not records.is_behind,
        ladder=ladder,
        metrics=metrics,
        log=log,
        clock=clock,
        chance=chance,
    )


def reload_gateway(gateway: Gateway, config: Config, config_version: int) -> None:
    """The gateway goes by that configuration from now on: all of it that `build_gateway` took from another one, in one turn
    of the loop. Whatever the key ring is made of is not here."""
    gateway.dispatch.go_by(
        _queue_bounds(config), _health_rules(config), is_adaptive=config.admission.adaptive_concurrency
    )
    gateway.reservations.assume(config.budgets)
    gateway.idempotency.go_by(answer_bounds(config.idempotency))
    gateway.go_by(_port_limits(config), request_rules(config, config_version), service_terms(config))


def _reservations(
    records: Records,
    most: Estimator,
    budgets: BudgetAuthority | None,
    lender: Lender | None,
    *,
    metrics: Metrics,
    log: Log,
    clock: Clock,
) -> OwnReservations | LeasedReservations:
    if lender is not None:
        return LeasedReservations(lender.records, most, lender.ask, metrics=metrics, log=log, clock=clock)
    assert budgets is not None, "who borrows nothing has the budgets itself"
    return OwnReservations(records, most, budgets, metrics=metrics, log=log, clock=clock)


def service_terms(config: Config) -> ServiceTerms:
    """What a contract says of the configuration."""
    server, request, idempotency = config.server, config.request, config.idempotency
    return ServiceTerms(
        body_bytes_max=server.body_bytes_max,
        body_bytes_per_s_min=server.body_bytes_per_s_min,
        header_timeout_s=server.header_timeout_s,
        idle_timeout_s=server.idle_timeout_s,
        deadline_s=request.deadline_s,
        deadline_max_s=request.deadline_max_s,
        queue_wait_max_s=config.admission.queue_wait_max_s,
        first_event_limit_s=request.first_event_limit_s,
        stall_limit_s=request.stall_limit_s,
        write_stall_limit_s=request.write_stall_limit_s,
        heartbeat_s=request.heartbeat_s,
        attempts_max=request.attempts_max,
        keep_s=idempotency.keep_s,
        answer_bytes_max=min(idempotency.answer_bytes_max, idempotency.bytes_max),
        media_bytes_max=config.media.bytes_max if config.media.urls == "fetch" else 0,
        drain_s=server.drain_s,
    )


def answer_bounds(idempotency: IdempotencyConfig) -> AnswerBounds:
    """What a table of answers goes by."""
    return AnswerBounds(
        idempotency.keep_s,
        idempotency.keys_max,
        idempotency.bytes_max,
        min(idempotency.answer_bytes_max, idempotency.bytes_max),
    )


def answer_table(idempotency: IdempotencyConfig) -> IdempotencyTable[KeptAnswer]:
    """An empty table with the configured bounds."""
    bounds = answer_bounds(idempotency)
    return IdempotencyTable(
        ttl_s=bounds.keep_s,
        entries_max=bounds.keys_max,
        bytes_max=bounds.bytes_max,
        answer_bytes_max=bounds.answer_bytes_max,
        size_of=lambda answer: answer.size,
    )


def shadow_limiter(metrics: Metrics, log: Log) -> ShadowLimiter:
    """The judge of shadow limits, who says what he finds in metrics and log."""

    def judged(caller: Principal, model: str, reason: str) -> None:
        metrics.shadow_requests.labels(reason or "admitted").add()
        if reason:
            log.event("limit.shadow", tenant=caller.tenant, key_id=caller.key_id, model=model, reason=reason)

    return ShadowLimiter(judged)


def request_rules(config: Config, version: int) -> RequestRules:
    """What requests go by under that version of the configuration."""
    request = config.request
    limits = AttemptLimits(request.first_event_limit_s, request.stall_limit_s, request.write_stall_limit_s)
    return RequestRules(
        version=version,
        deadlines=Deadlines(default_s=request.deadline_s, max_s=request.deadline_max_s),
        heartbeat_s=request.heartbeat_s,
        limits=limits,
        retries=RetryRules(
            attempts_max=request.attempts_max,
            ratio=request.retry_ratio,
            floor_per_s=request.retry_floor_per_s,
            backoff_s=request.retry_backoff_s,
        ),
        media=_media_rules(config.media),
        is_exact=limits.are_short,
    )


def _port_limits(config: Config) -> PortLimits:
    server = config.server
    return PortLimits(
        header_timeout_s=server.header_timeout_s,
        idle_timeout_s=server.idle_timeout_s,
        write_stall_limit_s=config.request.write_stall_limit_s,
        body_bytes_per_s_min=server.body_bytes_per_s_min,
        body_bytes_max=server.body_bytes_max,
        websocket_origins=frozenset(origin.lower().encode() for origin in server.websocket_origins),
        trusted_proxies=tuple(map(ipaddress.ip_network, server.trusted_proxies)),
    )


def _queue_bounds(config: Config) -> QueueBounds:
    admission = config.admission
    return QueueBounds(admission.queue_length_max, admission.queue_bytes_max, admission.queue_wait_max_s)


def _health_rules(config: Config) -> HealthRules:
    request, health = config.request, config.health
    return HealthRules(
        failures_to_eject=health.failures_to_eject,
        ejection_s=health.ejection_s,
        ejection_max_s=health.ejection_max_s,
        slow_start_s=health.slow_start_s,
        rest_s=health.rest_s,
        quiet_s=health.quiet_s,
        silence_limit_s=request.stall_limit_s,
        silence_max_s=max(request.stall_limit_s, request.first_event_limit_s),
    )


def _build_dispatch(
    config: Config,
    reservations: OwnReservations | LeasedReservations,
    lender: Lender | None,
    *,
    metrics: Metrics,
    log: Log,
    clock: Clock,
    chance: Chance,
) -> Dispatch:
    admission = config.admission
    dispatcher = Dispatcher(
        bounds=_queue_bounds(config),
        health=_health_rules(config),
        chance=chance,
        is_adaptive=admission.adaptive_concurrency,
        workers=1 if lender is None else lender.workers,
        is_lent=lender is not None,
    )

    def circuit_changed(replica: Replica, circuit: Circuit) -> None:
        event = "replica.ejected" if circuit is Circuit.OPEN else "replica.returned"
        log.event(event, replica=replica.id, generation=replica.generation)

    if lender is None:
        return Dispatch(
            dispatcher,
            TenantLimiter(),
            reservations,
            shadow=OwnShadow(shadow_limiter(metrics, log)),
            clock=clock,
            queue_wait_max_s=admission.queue_wait_max_s,
            on_circuit=circuit_changed,
        )
    assert isinstance(reservations, LeasedReservations), "who borrows one thing borrows all"
    return LeasedDispatch(
        dispatcher,
        reservations,
        send=lender.ask,
        sharers=lender.workers * config.limits.hosts_max if config.limits.store else lender.workers,
        queue_length_max=admission.queue_length_max,
        queue_wait_max_s=admission.queue_wait_max_s,
        on_circuit=circuit_changed,
        clock=clock,
    )


def _media_rules(config: MediaConfig) -> MediaRules:
    return MediaRules(
        may_fetch=config.urls == "fetch",
        bytes_max=config.bytes_max,
        time_s=config.time_s,
        redirects_max=config.redirects_max,
        fetches_max=config.fetches_max,
        networks=tuple(map(ipaddress.ip_network, config.networks)),
    )
