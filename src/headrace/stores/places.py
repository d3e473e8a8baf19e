"""Which places that need an address or a name to be asked are there? Object storage and the registry, as configured."""

from dataclasses import dataclass

from headrace import config
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError
from headrace.stores import downloads
from headrace.stores.downloads import Authorize
from headrace.stores.mlflow import MlflowRegistry
from headrace.stores.s3 import S3Storage
from headrace.stores.s3_signing import S3Credentials


@dataclass(frozen=True, slots=True)
class Places:
    """None for what isn't set up."""

    s3: S3Storage | None = None
    mlflow: MlflowRegistry | None = None

    def storage(self) -> S3Storage:
        if self.s3 is None:
            raise ConfigError("s3:// needs a storage: set models.s3 in headrace.toml")
        return self.s3

    def registry(self) -> MlflowRegistry:
        if self.mlflow is None:
            raise ConfigError("mlflow: needs a registry: set models.mlflow.url in headrace.toml")
        return self.mlflow


NOWHERE = Places()


def configured(settings: config.ModelsConfig, *, clock: Clock | None = None) -> Places:
    """The places of headrace.toml, with their secrets. Raises ConfigError where one can't be had."""
    s3, mlflow = settings.s3, settings.mlflow
    return Places(
        s3=_storage(s3, clock or SystemClock()) if s3.region else None,
        mlflow=_registry(mlflow) if mlflow.url else None,
    )


def _storage(s3: config.S3Config, clock: Clock) -> S3Storage:
    credentials = None
    if s3.access_key:
        credentials = S3Credentials(
            config.resolve_secret(s3.access_key, key="models.s3.access_key"),
            config.resolve_secret(s3.secret_key, key="models.s3.secret_key"),
            config.resolve_secret(s3.session_token, key="models.s3.session_token")
            if s3.session_token
            else "",
        )
    endpoint = s3.endpoint or f"https://s3.{s3.region}.amazonaws.com"
    downloads.check_scheme(endpoint, allow_http=s3.allow_http)
    return S3Storage(endpoint, s3.region, credentials, clock, s3.allow_http)


def _registry(mlflow: config.MlflowConfig) -> MlflowRegistry:
    downloads.check_scheme(mlflow.url, allow_http=mlflow.allow_http)
    authorize: Authorize = downloads.as_anybody
    if mlflow.token:
        authorize = downloads.with_bearer(config.resolve_secret(mlflow.token, key="models.mlflow.token"))
    elif mlflow.username:
        password = config.resolve_secret(mlflow.password, key="models.mlflow.password")
        authorize = downloads.with_password(mlflow.username, password)
    return MlflowRegistry(mlflow.url, authorize, mlflow.allow_http)
