"""A certificate authority of the tests' own: servers that need TLS get certificates, clients get what to trust."""

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Issued:
    """A certificate (with its chain) and its private key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into one folder. Attributes: `file`, its own certificate as PEM, for clients to trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("headrace tests")
        certificate = (
            _draft(self._name, self._name, self._key.public_key(), timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str = "server",
        *,
        hosts: Sequence[str] = HOSTS,
        valid_for: timedelta = timedelta(days=1),
        passphrase: bytes = b"",
    ) -> Issued:
        """A certificate for these hosts in `NAME.pem` and `NAME.key`; an older one of that name is replaced.

        Each file is replaced whole, the certificate last. A negative `valid_for` makes one that has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _draft(_name(name), self._name, key.public_key(), valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        issued = Issued(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        _replace(
            issued.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(passphrase)
                if passphrase
                else serialization.NoEncryption(),
            ),
        )
        _replace(issued.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return issued

    def client_context(self) -> ssl.SSLContext:
        """What a client of such a server uses: it trusts this authority and nobody else."""
        return ssl.create_default_context(cafile=str(self.file))


def self_signed(folder: Path, name: str = "own", *, hosts: Sequence[str] = HOSTS) -> Issued:
    """As `openssl req -x509` makes one, in `NAME.pem` and `NAME.key`; an older one of that name is replaced."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _draft(_name(name), _name(name), key.public_key(), timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    issued = Issued(folder / f"{name}.pem", folder / f"{name}.key")
    _replace(
        issued.key,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
    _replace(issued.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return issued


def server_context(issued: Issued) -> ssl.SSLContext:
    """What a plain server uses to present the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    return context


def _draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_for: timedelta
) -> x509.CertificateBuilder:
    ends = datetime.now(UTC) + valid_for
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC), ends) - timedelta(hours=1))
        .not_valid_after(ends)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(content)
    draft.replace(path)
