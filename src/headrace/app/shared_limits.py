"""Limits that several hosts share, put together: the store, this host's name in it, and who speaks with it."""

import socket
from pathlib import Path

from headrace import config
from headrace.config import Config
from headrace.control.shared_rates import SharedRates
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.stores import opening
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


def begin_shared_rates(
    settings: Config, data: Path, *, metrics: Metrics, log: Log, clock: Clock
) -> SharedRates | None:
    """None without a store. Doesn't connect yet; raises ConfigError where the reference leads nowhere."""
    limits = settings.limits
    if not limits.store:
        return None
    url = config.resolve_secret(limits.store, key="limits.store")
    try:
        from headrace.stores.limit_store import LimitStore  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ConfigError(
            f"`limits.store` needs the extra for Valkey ({error}): pip install 'headrace[valkey]'"
        ) from error
    return SharedRates(
        LimitStore(url, limits.host or f"{socket.gethostname()}:{opening.own_id(data)}"),
        workers=settings.server.workers,
        hosts_max=limits.hosts_max,
        metrics=metrics,
        log=log,
        clock=clock,
    )
