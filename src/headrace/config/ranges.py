"""Is every value of a configuration possible, by itself and beside the others?"""

import ipaddress
import math
import re

from headrace.config.sections import Config
from headrace.core.errors import ConfigError
from headrace.policies.issuers import check_issuers

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s@?#]+", re.IGNORECASE)  # RFC 6454, section 6.2

_AT_LEAST: dict[str, float] = {
    "server.connections_max": 1,
    "server.header_timeout_s": 0.1,
    "server.idle_timeout_s": 0.1,
    "server.body_bytes_per_s_min": 1,
    "server.body_bytes_max": 1024,
    "server.drain_s": 0,
    "server.workers": 1,
    "budgets.output_tokens_max_assumed": 1,
    "budgets.template_tokens_max_assumed": 0,
    "request.deadline_s": 0.001,
    "request.deadline_max_s": 0.001,
    "request.first_event_limit_s": 0.01,
    "request.stall_limit_s": 0.01,
    "request.write_stall_limit_s": 0.01,
    "request.heartbeat_s": 0.01,
    "request.attempts_max": 1,
    "request.retry_ratio": 0,
    "request.retry_floor_per_s": 0,
    "request.retry_backoff_s": 0,
    "admission.queue_length_max": 0,
    "admission.queue_bytes_max": 0,
    "admission.queue_wait_max_s": 0,
    "health.failures_to_eject": 1,
    "health.ejection_s": 0.01,
    "health.ejection_max_s": 0.01,
    "idempotency.keep_s": 1,
    "idempotency.keys_max": 1,
    "idempotency.bytes_max": 0,
    "idempotency.answer_bytes_max": 0,
    "ledger.records_max": 100,
    "ledger.reconcile_every_s": 0,
    "ledger.counters_every_s": 0.1,
    "pressure.memory_bytes_max": 0,
    "pressure.lag_s_max": 0.01,
    "pressure.hold_s": 0,
    "health.slow_start_s": 0,
    "health.rest_s": 0,
    "health.quiet_s": 0.01,
    "media.bytes_max": 1024,
    "media.time_s": 0.01,
    "media.redirects_max": 0,
    "media.fetches_max": 1,
    "auth.keys_refresh_s": 1,
    "auth.keys_gap_s": 1,
    "auth.keys_keep_s": 0,
    "tenant_defaults.requests_per_minute": 0,
    "tenant_defaults.requests_burst": 1,
    "tenant_defaults.concurrency_max": 0,
    "tenant_defaults.tokens_per_minute": 0,
    "tenant_defaults.tokens_burst": 0,
    "limits.hosts_max": 1,
    "stores.stale_max_s": 1,
    "stores.shipped_keep_s": 0,
    "engine.slots": 1,
    "engine.context_tokens": 256,
    "engine.threads": 0,
    "models.disk_bytes_max": 0,
    "prefix_cache.salt_rotation": 0,
}


def check_ranges(config: Config, *, file: str) -> None:
    """Raises ConfigError naming file, key and what it takes."""
    for key, least in _AT_LEAST.items():
        section, name = key.split(".")
        value = getattr(getattr(config, section), name)
        if not math.isfinite(value):
            raise ConfigError(f"{file}: `{key}` must be a number, got {value}")
        if value < least:
            raise ConfigError(f"{file}: `{key}` must be at least {least}, got {value}")
    for key, network in (
        *(("media.networks", network) for network in config.media.networks),
        *(("server.trusted_proxies", network) for network in config.server.trusted_proxies),
    ):
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise ConfigError(
                f"{file}: `{key}` must hold networks such as 10.1.2.0/24, got {network!r}"
            ) from None
    if config.request.deadline_s > config.request.deadline_max_s:
        raise ConfigError(
            f"{file}: `request.deadline_s` must be at most `request.deadline_max_s`, "
            f"got {config.request.deadline_s} and {config.request.deadline_max_s}"
        )
    if config.limits.store and config.limits.hosts_max < 2:
        raise ConfigError(
            f"{file}: `limits.store` needs `limits.hosts_max`, the number of hosts that share it: 2 or more"
        )
    for key, port in (("server.port", config.server.port), ("server.admin_port", config.server.admin_port)):
        if not 0 <= port <= 65535:
            raise ConfigError(f"{file}: `{key}` must be between 0 and 65535, got {port}")
    for origin in config.server.websocket_origins:
        if not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"{file}: `server.websocket_origins` holds {origin!r}; "
                "an origin is a scheme and a host, such as `https://app.example`, without a path"
            )
    try:
        check_issuers(config.auth.issuers)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    if bool(config.models.s3.access_key) != bool(config.models.s3.secret_key):
        raise ConfigError(f"{file}: `models.s3.access_key` and `models.s3.secret_key` go together")
    if bool(config.models.mlflow.username) != bool(config.models.mlflow.password):
        raise ConfigError(f"{file}: `models.mlflow.username` and `models.mlflow.password` go together")
    for index, upstream in enumerate(config.upstreams):
        if upstream.slots < 1:
            raise ConfigError(f"{file}: `upstreams[{index}].slots` must be at least 1, got {upstream.slots}")
        is_shared = upstream.cache_isolation == "none"
        if is_shared != bool(upstream.shared_cache_reason.strip()):
            raise ConfigError(
                f'{file}: `upstreams[{index}].cache_isolation = "none"` and `upstreams[{index}].shared_cache_reason` '
                "go together: say why tenants may see in the timing of answers what others have asked"
            )
