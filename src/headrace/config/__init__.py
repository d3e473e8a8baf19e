"""What did the operator ask for? Flags, environment and headrace.toml as frozen values, read once, checked whole."""

from headrace.config.reading import load, parse
from headrace.config.sections import (
    TABLES,
    AdmissionConfig,
    AuthConfig,
    Config,
    EngineConfig,
    HealthConfig,
    IdempotencyConfig,
    LedgerConfig,
    LimitsConfig,
    MediaConfig,
    PrefixCacheConfig,
    PressureConfig,
    RequestConfig,
    ServerConfig,
    StoresConfig,
    TenantDefaults,
    UpstreamConfig,
)
from headrace.config.surroundings import data_directory, environment, resolve_secret, variable

__all__ = [
    "TABLES",
    "AdmissionConfig",
    "AuthConfig",
    "Config",
    "EngineConfig",
    "HealthConfig",
    "IdempotencyConfig",
    "LedgerConfig",
    "LimitsConfig",
    "MediaConfig",
    "PrefixCacheConfig",
    "PressureConfig",
    "RequestConfig",
    "ServerConfig",
    "StoresConfig",
    "TenantDefaults",
    "UpstreamConfig",
    "data_directory",
    "environment",
    "load",
    "parse",
    "resolve_secret",
    "variable",
]
