"""What do we count? Every metric in one table."""

# ruff: noqa: RUF009 -- each call in the table's defaults returns dataclasses.field(), one step away.

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import headrace
from headrace.telemetry.families import (
    Counter,
    Distribution,
    Family,
    Gauge,
    Histogram,
    Kind,
    Merge,
    Spec,
    Value,
)

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 600)
TOKEN_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


def _value(
    name: str, kind: Kind, help: str, labels: tuple[str, ...], series_max: int, merge: Merge = Merge.SUM
) -> Family[Value]:
    spec = Spec(name, kind, help, labels, series_max if labels else 1, merge=merge)
    return field(default_factory=lambda: Family(spec, Value))


def _counter(name: str, help: str, *, labels: tuple[str, ...] = (), series_max: int = 1) -> Counter:
    return _value(name, Kind.COUNTER, help, labels, series_max)


def _gauge(
    name: str, help: str, *, labels: tuple[str, ...] = (), series_max: int = 1, merge: Merge = Merge.SUM
) -> Gauge:
    return _value(name, Kind.GAUGE, help, labels, series_max, merge)


def _histogram(
    name: str, help: str, *, labels: tuple[str, ...], buckets: tuple[float, ...], series_max: int
) -> Histogram:
    spec = Spec(name, Kind.HISTOGRAM, help, labels, series_max, buckets)
    return field(default_factory=lambda: Family(spec, lambda: Distribution(buckets)))


@dataclass(slots=True, eq=False, repr=False)
class Metrics:
    """The table; docs/reference/metrics.md is checked against it. One object, built where the service is composed."""

    # Requests, as callers see them.
    requests: Counter = _counter(
        "headrace_requests_total",
        "Requests by how they ended.",
        labels=("endpoint", "model", "outcome", "reason"),
        series_max=4096,
    )
    request_seconds: Histogram = _histogram(
        "headrace_request_seconds",
        "Time from a request's arrival to its end.",
        labels=("endpoint", "model", "outcome"),
        buckets=SECONDS,
        series_max=512,
    )
    ttft_seconds: Histogram = _histogram(
        "headrace_ttft_seconds",
        "Time from a request's arrival to the first byte of its answer.",
        labels=("model",),
        buckets=SECONDS,
        series_max=128,
    )
    itl_seconds: Histogram = _histogram(
        "headrace_itl_seconds",
        "Time between two events of a streamed answer.",
        labels=("model",),
        buckets=TOKEN_SECONDS,
        series_max=128,
    )
    queue_wait_seconds: Histogram = _histogram(
        "headrace_queue_wait_seconds",
        "Time that a request waited for a slot.",
        labels=("model",),
        buckets=SECONDS,
        series_max=128,
    )
    refusals: Counter = _counter(
        "headrace_refusals_total",
        "Requests turned away before any work, by error code and, more finely, reason.",
        labels=("code", "reason"),
        series_max=64,
    )
    shadow_requests: Counter = _counter(
        "headrace_shadow_requests_total",
        "Requests that shadow limits judged: `admitted`, or the reason for which they would have been refused.",
        labels=("verdict",),
        series_max=16,
    )
    quota_refusals: Counter = _counter(
        "headrace_quota_refusals_total",
        "Requests refused because they might have passed a quota, by its unit and period.",
        labels=("unit", "period"),
        series_max=10,
    )
    budget_overshoots: Counter = _counter(
        "headrace_budget_overshoots_total",
        "Requests that used more of a budget than was reserved for them, because an engine kept to no bound.",
        labels=("unit",),
        series_max=4,
    )
    budget_reserved: Gauge = _gauge(
        "headrace_budget_reserved",
        "What is reserved of all budgets now, held by workers included: requests, tokens, or units of the currency.",
        labels=("unit",),
        series_max=4,
    )
    budgets_low: Gauge = _gauge(
        "headrace_budgets_low",
        "Budgets of which at least that many percent are spent in their current period.",
        labels=("percent",),
        series_max=3,
    )
    unmatched_requests: Counter = _counter(
        "headrace_unmatched_requests_total", "Requests for paths that are not ours."
    )
    tokens: Counter = _counter(
        "headrace_tokens_total",
        "Tokens by kind: prompt (cached ones included), cached, completion.",
        labels=("model", "kind"),
        series_max=384,
    )

    # The work behind them.
    attempts: Counter = _counter(
        "headrace_attempts_total",
        "Attempts on replicas by how they ended.",
        labels=("model", "replica", "outcome"),
        series_max=2048,
    )
    retries: Counter = _counter(
        "headrace_retries_total",
        "Attempts after the first one of a request.",
        labels=("model",),
        series_max=128,
    )
    in_flight: Gauge = _gauge(
        "headrace_in_flight",
        "Requests that run on a replica now.",
        labels=("model", "replica"),
        series_max=256,
    )
    replica_slots: Gauge = _gauge(
        "headrace_replica_slots",
        "Requests that the replica may run at once now: its slots, or fewer while its first tokens come late. Models of one replica share them.",
        labels=("model", "replica"),
        series_max=256,
    )
    queue_length: Gauge = _gauge(
        "headrace_queue_length", "Requests that wait for a slot now.", labels=("model",), series_max=128
    )
    queue_bytes: Gauge = _gauge(
        "headrace_queue_bytes",
        "Bytes of the requests that wait for a slot now.",
        labels=("model",),
        series_max=128,
    )
    connections: Gauge = _gauge("headrace_connections", "Client connections on the public port now.")
    bodies_reading: Gauge = _gauge(
        "headrace_bodies_reading", "Large request bodies that are being read, or wait for it, now."
    )
    websockets: Gauge = _gauge(
        "headrace_websocket_connections", "Those of them that are WebSockets, at work or idle."
    )
    streams_open: Gauge = _gauge("headrace_streams_open", "Streamed answers in progress now.")
    accept_pauses: Counter = _counter(
        "headrace_accept_pauses_total",
        "Times that new connections were left waiting in the kernel because descriptors ran short.",
    )
    tls_handshake_failures: Counter = _counter(
        "headrace_tls_handshake_failures_total",
        "Connections whose TLS handshake failed: not TLS, no version in common, too slow, or gone.",
    )
    tls_reload_failures: Counter = _counter(
        "headrace_tls_reload_failures_total",
        "Times that a changed certificate or key could not be used; the one in force stayed.",
    )
    tls_expiry_days: Gauge = _gauge(
        "headrace_tls_expiry_days",
        "Days until the certificate in force expires, negative afterwards; 0 without TLS.",
        merge=Merge.MIN,
    )

    # Replicas.
    replica_ready: Gauge = _gauge(
        "headrace_replica_ready",
        "1 while the replica is ready for requests, else 0.",
        labels=("model", "replica"),
        series_max=256,
    )
    replica_ejected: Gauge = _gauge(
        "headrace_replica_ejected",
        "1 while the replica is out of balancing for its failures, else 0.",
        labels=("model", "replica"),
        series_max=256,
        merge=Merge.MAX,
    )
    idempotent_replays: Counter = _counter(
        "headrace_idempotent_replays_total",
        "Requests answered from what was kept for their Idempotency-Key; no replica worked.",
        labels=(),
        series_max=1,
    )
    replica_circuit: Gauge = _gauge(
        "headrace_replica_circuit",
        "1 for what the replica gets: closed (its share), open (nothing), half_open (one request), slow_start.",
        labels=("model", "replica", "circuit"),
        series_max=256,
        merge=Merge.MAX,
    )
    replica_restarts: Counter = _counter(
        "headrace_replica_restarts_total",
        "Restarts of the replica.",
        labels=("model", "replica"),
        series_max=256,
    )
    replica_cold_start_seconds: Gauge = _gauge(
        "headrace_replica_cold_start_seconds",
        "Duration of each stage of the replica's last start: capacity, fetch, launch, load, warm.",
        labels=("model", "replica", "stage"),
        series_max=1280,
    )

    # Rollouts.
    rollout_share: Gauge = _gauge(
        "headrace_rollout_share",
        "Share of the model's traffic that the candidate of a rollout has now; 0 without a rollout.",
        labels=("model",),
        series_max=128,
    )
    rollouts: Counter = _counter(
        "headrace_rollouts_total",
        "Rollouts that have ended, by result: promoted, rolled_back, aborted, superseded.",
        labels=("model", "result"),
        series_max=512,
    )
    rollout_checks: Counter = _counter(
        "headrace_rollout_checks_total",
        "Checks of candidates, by gate and verdict: pass, fail, error, inconclusive.",
        labels=("model", "gate", "verdict"),
        series_max=1024,
    )
    rollout_rehearsed_s: Gauge = _gauge(
        "headrace_rollout_rehearsed_timestamp_seconds",
        "When a return to an earlier version was rehearsed last, in Unix seconds.",
        labels=("model",),
        series_max=128,
    )

    # How many of them there should be.
    scale_replicas_wanted: Gauge = _gauge(
        "headrace_scale_replicas_wanted",
        "Replicas that the autoscaler wants of a version, ready or on their way.",
        labels=("target",),
        series_max=256,
    )
    scale_replicas_advised: Gauge = _gauge(
        "headrace_scale_replicas_advised",
        "What it would want where it only advises (scale.mode); else the same.",
        labels=("target",),
        series_max=256,
    )
    scale_decisions: Counter = _counter(
        "headrace_scale_decisions_total",
        "Decisions of the autoscaler that were recorded, by reason.",
        labels=("model", "reason"),
        series_max=512,
    )

    # What engines report about themselves.
    engine_requests_processing: Gauge = _gauge(
        "headrace_engine_requests_processing",
        "Requests that the engine says it is processing.",
        labels=("model", "replica"),
        series_max=256,
    )
    engine_requests_deferred: Gauge = _gauge(
        "headrace_engine_requests_deferred",
        "Requests that the engine says it has put off.",
        labels=("model", "replica"),
        series_max=256,
    )
    engine_prompt_tokens: Counter = _counter(
        "headrace_engine_prompt_tokens_total",
        "Prompt tokens that the engine says it has processed.",
        labels=("model", "replica"),
        series_max=256,
    )
    engine_generated_tokens: Counter = _counter(
        "headrace_engine_generated_tokens_total",
        "Tokens that the engine says it has generated.",
        labels=("model", "replica"),
        series_max=256,
    )
    engine_cached_tokens: Counter = _counter(
        "headrace_engine_cached_tokens_total",
        "Prompt tokens that the engine says it took from its prefix cache.",
        labels=("model", "replica"),
        series_max=256,
    )

    # Tokens of identity providers.
    token_signatures: Counter = _counter(
        "headrace_token_signatures_total",
        "Signatures of tokens that were checked, by what came of it: good, bad.",
        labels=("result",),
        series_max=2,
    )
    issuer_looks: Counter = _counter(
        "headrace_issuer_looks_total",
        "Times that an identity provider was asked for its keys, by what came of it: answered, failed.",
        labels=("issuer", "result"),
        series_max=64,
    )
    issuer_keys: Gauge = _gauge(
        "headrace_issuer_keys",
        "Keys of the identity provider that tokens are checked with now.",
        labels=("issuer",),
        series_max=32,
    )

    # The books.
    reconciliation_differences: Gauge = _gauge(
        "headrace_reconciliation_differences",
        "Differences that the last comparison of the books found, by cause; see docs/operate/reconciliation.md.",
        labels=("cause",),
        series_max=32,
    )
    reconciled_s: Gauge = _gauge(
        "headrace_reconciled_timestamp_seconds",
        "When the books were compared last, in Unix seconds; 0 for never.",
    )

    # The service itself.
    ledger_backlog: Gauge = _gauge("headrace_ledger_backlog", "Usage records that are not on disk yet.")
    ledger_committed: Counter = _counter("headrace_ledger_committed_total", "Usage records on disk.")
    ledger_failures: Counter = _counter(
        "headrace_ledger_failures_total",
        "Times that the disk began to refuse usage records, and records set aside or lost.",
    )
    ledger_failing: Gauge = _gauge(
        "headrace_ledger_failing", "1 while the disk refuses usage records, which wait meanwhile; else 0."
    )
    ledger_adopted: Counter = _counter(
        "headrace_ledger_adopted_total",
        "Usage records that a process left in its journal when it died, and that are in the ledger now.",
    )
    ledger_orphans: Counter = _counter(
        "headrace_ledger_orphans_total",
        "Requests that a replica had when the process died that had sent them, and of which no record is left.",
    )
    ledger_shipped: Counter = _counter(
        "headrace_ledger_shipped_total", "Usage records that have reached the central database."
    )
    ledger_lag_seconds: Gauge = _gauge(
        "headrace_ledger_lag_seconds",
        "For how long the oldest usage record has waited for the central database.",
    )
    central_failing: Gauge = _gauge(
        "headrace_central_failing",
        "1 while the central database can't be had for this, else 0.",
        labels=("part",),
        series_max=2,
    )
    keys_age_seconds: Gauge = _gauge(
        "headrace_keys_age_seconds",
        "How old the copy of the central database's tenants and keys is.",
    )
    limit_store_failing: Gauge = _gauge(
        "headrace_limit_store_failing",
        "1 while the store of the limits that hosts share can't be had, and each has its part of them; else 0.",
    )
    limit_store_calls: Counter = _counter(
        "headrace_limit_store_calls_total",
        "Questions to that store: answered, late (and so without effect on whoever waited), or failed.",
        labels=("result",),
        series_max=3,
    )
    limit_hosts: Gauge = _gauge("headrace_limit_hosts", "Hosts that share limits over that store now.")
    pressure_level: Gauge = _gauge(
        "headrace_pressure_level",
        "What is given up to get by with what there is: 0 nothing, 1 keep-alive, 2 new work as well.",
        merge=Merge.MAX,
    )
    memory_left_bytes: Gauge = _gauge(
        "headrace_memory_left_bytes",
        "Memory that is left under the tightest limit that holds for the process.",
        merge=Merge.MIN,
    )
    tasks: Gauge = _gauge("headrace_tasks", "Tasks of the gateway's event loop now.")
    event_loop_lag_seconds: Gauge = _gauge(
        "headrace_event_loop_lag_seconds",
        "How late the gateway's event loop ran its last periodic task.",
        merge=Merge.MAX,
    )
    config_version: Gauge = _gauge(
        "headrace_config_version", "Version of the configuration in force; it grows with each reload, from 1."
    )
    config_pending: Gauge = _gauge(
        "headrace_config_restart_keys", "Keys of the configuration that only a restart puts in force."
    )
    config_reloads: Counter = _counter(
        "headrace_config_reloads_total",
        "Times that the configuration was read anew, by what came of it.",
        labels=("result",),
        series_max=4,
    )
    controller_up: Gauge = _gauge(
        "headrace_controller_up", "1 while the controller works, else 0: what it published stays in force."
    )
    controller_restarts: Counter = _counter(
        "headrace_controller_restarts_total", "Times that the controller had ended and was started again."
    )
    worker_up: Gauge = _gauge(
        "headrace_worker_up", "1 while the worker serves, else 0.", labels=("worker",), series_max=257
    )
    worker_restarts: Counter = _counter(
        "headrace_worker_restarts_total", "Restarts of the worker.", labels=("worker",), series_max=257
    )
    internal_errors: Counter = _counter(
        "headrace_internal_errors_total",
        "Errors that are bugs of ours, by place.",
        labels=("where",),
        series_max=32,
    )
    build_info: Gauge = _gauge(
        "headrace_build_info",
        "Always 1; the label says what runs.",
        labels=("version",),
        series_max=2,
        merge=Merge.MAX,
    )

    _fillers: list[Callable[[], None]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.build_info.labels(headrace.__version__).set(1)

    def families(self) -> list[Family[Value] | Family[Distribution]]:
        """Every family, in the order of the table."""
        return [getattr(self, each.name) for each in fields(self) if each.name != "_fillers"]

    def on_scrape(self, fill: Callable[[], None]) -> None:
        """`fill` sets gauges from facts that others keep, before each scrape.

        It runs on the scraping thread: it may read the loop's objects (copying containers before iterating over them),
        and sets only series that nothing else writes.
        """
        self._fillers.append(fill)

    def fill(self) -> None:
        """Runs the scrape callbacks. One that fails is counted, and costs neither the others nor the scrape."""
        for fill in self._fillers:
            try:
                fill()
            except Exception:  # noqa: BLE001 -- the outermost edge of a callback; what it does isn't ours to know
                self.internal_errors.labels("scrape").add()
