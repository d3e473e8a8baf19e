"""The expiry of any certificate is read, and no bytes make the reader fail in another way than it says."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509 as oracle
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols import x509

KEY = ec.generate_private_key(ec.SECP256R1())
MOMENTS = st.datetimes(
    min_value=datetime(1951, 1, 2),  # noqa: DTZ001 -- the strategy takes naive limits
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.just(UTC),
).map(lambda moment: moment.replace(microsecond=0))


def certificate(ends: datetime, *, name: str = "test") -> bytes:
    who = oracle.Name([oracle.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        oracle.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(KEY.public_key())
        .serial_number(oracle.random_serial_number())
        .not_valid_before(ends - timedelta(days=1))
        .not_valid_after(ends)
        .sign(KEY, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )


@given(ends=MOMENTS)
def test_the_expiry_is_read(ends: datetime) -> None:
    """Both forms of time: two digits of the year up to 2049, four after it."""
    assert x509.expiry_s(certificate(ends)) == ends.timestamp()


def test_long_names_are_passed_over() -> None:
    """Lengths above 127 take more than one byte."""
    ends = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert x509.expiry_s(certificate(ends, name="n" * 64)) == ends.timestamp()


def element(tag: int, content: bytes) -> bytes:
    return bytes([tag, len(content)]) + content


def version_1(*, time_tag: int = 0x17) -> bytes:
    """As much of a certificate as is read, in the first version, which doesn't say so."""
    validity = element(0x30, element(0x17, b"300101000000Z") + element(time_tag, b"310203040506Z"))
    fields = element(2, b"\x01") + element(0x30, b"") + element(0x30, b"") + validity
    return element(0x30, element(0x30, fields))


def test_a_certificate_of_version_1_is_read() -> None:
    assert x509.expiry_s(version_1()) == datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC).timestamp()


def test_an_expiry_that_is_no_time_is_refused() -> None:
    with pytest.raises(x509.NotACertificate):
        x509.expiry_s(version_1(time_tag=0x04))


WHOLE = certificate(datetime(2031, 1, 1, tzinfo=UTC))


@given(at=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255))
def test_damaged_certificates_are_read_or_refused(at: int, value: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] = value
    try:
        x509.expiry_s(bytes(damaged))
    except x509.NotACertificate:
        pass


@given(data=st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(x509.NotACertificate):
        x509.expiry_s(data)


def test_a_certificate_cut_short_is_refused() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(x509.NotACertificate):
            x509.expiry_s(WHOLE[:length])


def test_the_first_certificate_of_a_file_is_the_servers_own() -> None:
    one, two = (
        f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n" for body in ("b25l", "dHdv")
    )
    assert x509.first_pem(f"a key perhaps\n{one}{two}") == one
    assert x509.first_pem("nothing of the kind") == ""
