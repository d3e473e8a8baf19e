"""Which certificate does the public port show? Read from two files, and read again when they change."""

import asyncio
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.protocols import x509
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

# How often the files are looked at. They must look the same twice before they are read: whoever renews a certificate
# writes two files, one after the other.
CHECK_S = 1.0

Fingerprint = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where an operator keeps a certificate, with its chain, and its private key; both PEM."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Loaded:
    """A certificate and key that belong together. `expiry_s` is in Unix seconds."""

    context: ssl.SSLContext
    expiry_s: float


def load(files: CertificateFiles) -> Loaded:
    """Reads both files. Raises ConfigError that names the key of the one that is wrong."""
    expiry_s = _expiry_s(_text(files.certificate, key="server.tls_certificate"), files.certificate)
    _text(files.key, key="server.tls_key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"{files.key} is not the private key of {files.certificate}"
        else:
            problem = f"{files.key} holds no private key in PEM form ({error.reason or 'unreadable'})"
        raise ConfigError(f"`server.tls_key`: {problem}") from None
    return Loaded(context, expiry_s)


class ServedCertificate:
    """The certificate for new connections. Owner of `_loaded`; connections that exist keep the one they began with."""

    def __init__(self, files: CertificateFiles, *, metrics: Metrics, log: Log, clock: Clock) -> None:
        """Raises ConfigError as `load` does."""
        self._files = files
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._seen = _fingerprint(files)
        self._loaded = load(files)
        if self.days_left <= 0:
            self._log.event("tls.expired", days_left=self.days_left)

    @property
    def context(self) -> ssl.SSLContext:
        return self._loaded.context

    @property
    def days_left(self) -> float:
        """Days until it expires; negative afterwards."""
        return (self._loaded.expiry_s - self._clock.wall_s()) / 86_400

    async def watch(self) -> None:
        """Until cancelled: what changes is in force within seconds, and what is wrong changes nothing but the log."""
        before = self._seen
        while True:
            await asyncio.sleep(CHECK_S)
            now = await asyncio.to_thread(_fingerprint, self._files)
            if now == before and now != self._seen:
                self._seen = now
                await self._reload()
            before = now

    async def _reload(self) -> None:
        try:
            loaded = await asyncio.to_thread(load, self._files)
            if loaded.expiry_s <= self._clock.wall_s():
                raise ConfigError(f"`server.tls_certificate`: {self._files.certificate} has expired already")
        except ConfigError as error:
            self._metrics.tls_reload_failures.labels().add()
            self._log.event("tls.failing", error=error.message, days_left=self.days_left)
            return
        self._loaded = loaded
        self._log.event("tls.reloaded", days_left=self.days_left)


def _expiry_s(pem: str, path: Path) -> float:
    """Of the first certificate in the file, which is the server's own."""
    own = x509.first_pem(pem)
    try:
        return x509.expiry_s(ssl.PEM_cert_to_DER_cert(own) if own else b"")
    except ValueError:
        raise ConfigError(f"`server.tls_certificate`: {path} holds no certificate in PEM form") from None


def _text(path: Path, *, key: str) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"`{key}`: {path} cannot be read: {error.strerror or error}") from error


def _no_passphrase() -> str:
    # Without this OpenSSL would ask on the terminal, and a service would hang there.
    return ""


def _fingerprint(files: CertificateFiles) -> Fingerprint:
    return tuple(_mark(path) for path in (files.certificate, files.key))


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
