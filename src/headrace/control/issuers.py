"""With which keys do the identity providers sign now? Their key sets, fetched off the request path and handed to the gateway."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from urllib.parse import urlsplit

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, UpstreamError
from headrace.core.signing import KeySet, PublicKey
from headrace.engines import tls
from headrace.engines.fetch import fetch
from headrace.policies.issuers import Issuer
from headrace.protocols.jwks import BadKeySet, read_key_set
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

FETCH_LIMIT_S = 5.0
FIRST_GAP_S = 1.0
DOCUMENT_BYTES_MAX = 256 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class LookRules:
    """How often providers are asked; see config.AuthConfig."""

    refresh_s: float
    gap_s: float
    keep_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document is: an `https://` URL, cut up; plain HTTP only on this machine, where nobody is in between."""

    host: str
    port: int
    path: str
    tls: SSLContext | None

    @classmethod
    def of(cls, url: str, *, ca_file: str, key: str) -> "Place":
        """Raises ConfigError that names `key`."""
        try:
            parts = urlsplit(url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode("ascii")
        except ValueError as error:
            raise ConfigError(f"{key}: {url!r}: {error}") from error
        is_secure = parts.scheme == "https"
        is_local = parts.scheme == "http" and host in _LOOPBACK
        if not host or port == 0 or parts.username is not None or parts.fragment or not url.isprintable():
            raise ConfigError(f"{key}: {url!r} is not a URL of the form https://HOST[:PORT]/PATH")
        if not is_secure and not is_local:
            raise ConfigError(
                f"{key}: {url!r} must be https://: whoever can change keys on their way makes tokens for everybody"
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not path.isascii() or " " in path:
            raise ConfigError(f"{key}: {url!r} must be percent-encoded")
        context = tls.client_context(ca_file, key=f"{key}: ca_file") if is_secure else None
        return cls(host, port or (443 if is_secure else 80), path, context)


class _Discovered(msgspec.Struct, frozen=True):
    """What we need of OpenID Connect Discovery."""

    issuer: str
    jwks_uri: str


class LookFailed(Exception):
    """What a provider did instead of showing its keys."""


class Provider:
    """One identity provider. State: its keys, when we got them, and where they are.

    Attributes:
        wanted: Set when a token names a key that we haven't got.
    """

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.keys: tuple[PublicKey, ...] = ()
        self.good_s: float | None = None
        self.is_failing = False
        self.wanted = asyncio.Event()
        key = f"auth.issuers: {issuer.name}"
        self._discovery: Place | None = None
        self._place: Place | None = None
        if issuer.jwks_url:
            self._place = Place.of(issuer.jwks_url, ca_file=issuer.ca_file, key=f"{key}: jwks_url")
        else:
            url = issuer.issuer.rstrip("/") + _DISCOVERY
            self._discovery = Place.of(url, ca_file=issuer.ca_file, key=f"{key}: issuer")

    async def look(self) -> tuple[PublicKey, ...]:
        """Its keys now. Raises LookFailed; then, where discovery found their place, it is looked for again."""
        if self._place is None:
            self._place = await self._discover()
        try:
            return read_key_set(await _document(self._place))
        except BadKeySet as error:
            raise LookFailed(f"its keys can't be read: {error}") from None
        except LookFailed:
            if self._discovery is not None:
                self._place = None
            raise

    async def _discover(self) -> Place:
        assert self._discovery is not None, "the place is known, or how to find it"
        document = await _document(self._discovery)
        try:
            found = msgspec.json.decode(document, type=_Discovered)
            if found.issuer != self.issuer.issuer:
                raise LookFailed(f"its discovery document is of another issuer: {found.issuer[:200]!r}")
            return Place.of(found.jwks_uri, ca_file=self.issuer.ca_file, key="jwks_uri")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise LookFailed("its discovery document can't be read") from None
        except ConfigError as error:
            raise LookFailed(f"its discovery document can't be followed: {error}") from None


class Issuers:
    """Owner of what is known of the providers. One fetch at a time of each, and never two within `rules.gap_s`, whatever
    tokens are shown to us.
    """

    def __init__(
        self,
        issuers: Sequence[Issuer],
        rules: LookRules,
        *,
        publish: Callable[[KeySet], None],
        metrics: Metrics,
        log: Log,
        clock: Clock,
    ) -> None:
        """Raises ConfigError where a URL can't be used."""
        self._providers = {issuer.name: Provider(issuer) for issuer in issuers}
        self._rules = rules
        self._publish = publish
        self._metrics = metrics
        self._log = log
        self._clock = clock

    def missing(self, name: str) -> None:
        """A token names a key of that provider that we haven't got. Cheap, however often it is called."""
        provider = self._providers.get(name)
        if provider is not None:
            provider.wanted.set()

    async def run(self) -> None:
        """Keeps to the providers' keys until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for provider in self._providers.values():
                tasks.create_task(self._watch(provider), name=f"keys of {provider.issuer.name}")

    async def _watch(self, provider: Provider) -> None:
        rules = self._rules
        # Both may start together: a provider that has never answered is asked again sooner, and no caller speeds that up.
        first_gap_s = min(FIRST_GAP_S, rules.gap_s)
        while True:
            started_s = self._clock.now_s()
            provider.wanted.clear()
            await self._look(provider)
            gap_s = rules.gap_s
            if provider.good_s is None:
                gap_s, first_gap_s = first_gap_s, min(2 * first_gap_s, rules.gap_s)
            self._publish(KeySet(provider.issuer.name, provider.keys, started_s + gap_s))
            await asyncio.sleep(max(0.0, started_s + gap_s - self._clock.now_s()))
            if provider.is_failing:
                continue
            try:
                async with asyncio.timeout(max(0.0, started_s + rules.refresh_s - self._clock.now_s())):
                    await provider.wanted.wait()
            except TimeoutError:
                pass

    async def _look(self, provider: Provider) -> None:
        name = provider.issuer.name
        try:
            provider.keys = await provider.look()
        except LookFailed as failure:
            self._metrics.issuer_looks.labels(name, "failed").add()
            if not provider.is_failing:
                self._log.event("issuer.failing", issuer=name, error=str(failure), keys=len(provider.keys))
            provider.is_failing = True
            if provider.good_s is not None and self._clock.now_s() - provider.good_s > self._rules.keep_s:
                provider.keys = ()
        else:
            self._metrics.issuer_looks.labels(name, "answered").add()
            if provider.is_failing or provider.good_s is None:
                self._log.event("issuer.answered", issuer=name, keys=len(provider.keys))
            provider.is_failing = False
            provider.good_s = self._clock.now_s()
        self._metrics.issuer_keys.labels(name).set(len(provider.keys))


async def _document(place: Place) -> bytes:
    """Raises LookFailed. A redirect isn't followed: where the keys are is the operator's word or the issuer's."""
    try:
        answer = await fetch(
            place.host,
            place.port,
            "GET",
            place.path,
            headers=(("Accept", "application/json"),),
            timeout_s=FETCH_LIMIT_S,
            body_bytes_max=DOCUMENT_BYTES_MAX,
            tls=place.tls,
        )
    except UpstreamError as error:
        raise LookFailed(f"{place.host}:{place.port}: {error.message}") from None
    if answer.status != 200:
        raise LookFailed(f"{place.host}:{place.port}: answered {answer.status}")
    return answer.body
