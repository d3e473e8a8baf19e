"""Which server, which model, and as whom? What every command that asks a server from outside says of it."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headrace.core.errors import ConfigError
from headrace.engines import tls

CHAT_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Target:
    """A model of a server.

    Attributes:
        url: `http://HOST:PORT`, with or without `/v1`.
        key: Sent as bearer token; "" sends none.
        ca_file: PEM file of the authorities that may sign its certificate; "" is those of the system.
        certificate: PEM file with the server's own certificate, which is then the only one that is trusted.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    ca_file: str = ""
    certificate: str = ""

    def address(self) -> "Address":
        """Raises ConfigError for a URL that isn't one, or one with something secret in it."""
        return parsed(self.url)

    def trust(self) -> Callable[[], ssl.SSLContext | None]:
        """What the next connection is made with: a TLS context, or None for http://. Raises ConfigError."""
        if not self.address().is_tls:
            return _no_tls
        if self.certificate:
            return tls.PinnedServer(self.certificate, key="--certificate").context
        context = tls.client_context(self.ca_file, key="--ca")
        return lambda: context


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go.

    Attributes:
        prefix: What comes before `/v1`.
    """

    host: str
    port: int
    prefix: str
    is_tls: bool

    @property
    def path(self) -> str:
        return self.prefix + CHAT_PATH

    @property
    def authority(self) -> str:
        """As the Host header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def parsed(url: str) -> Address:
    """Raises ConfigError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ConfigError(
            f"--url {url!r}: it must be http://HOST:PORT or https://HOST, and nothing secret in it"
        )
    is_tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port or (443 if is_tls else 80), prefix, is_tls)


def _no_tls() -> None:
    """What a server with http:// is asked with."""
