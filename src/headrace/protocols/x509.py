"""Which certificate of a PEM file is a server's own, and until when is it valid? What we must read and `ssl` doesn't show (RFC 5280)."""

from datetime import UTC, datetime

_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_VERSION = 0xA0


class NotACertificate(ValueError):
    """The bytes are not the DER form of an X.509 certificate."""


def first_pem(text: str) -> str:
    """The first certificate of a PEM file: where a chain is in it, the server's own. "" if there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = text.partition(begin)
    body, _, _ = rest.partition(end)
    return begin + body + end + "\n" if found else ""


def expiry_s(der: bytes) -> float:
    """The certificate's `notAfter` in Unix seconds. Raises NotACertificate."""
    try:
        _, certificate, _ = _element(der)
        _, signed, _ = _element(certificate)
        tag, _, after_version = _element(signed)
        rest = after_version if tag == _VERSION else signed  # version 1 certificates don't say so
        for _ in range(3):  # serial number, signature algorithm, issuer
            _, _, rest = _element(rest)
        _, validity, _ = _element(rest)
        _, _, after_beginning = _element(validity)
        tag, moment, _ = _element(after_beginning)
        return _moment_s(tag, moment.decode("ascii"))
    except (IndexError, ValueError):
        raise NotACertificate("not an X.509 certificate in DER form") from None


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Tag, content and what follows of the first element. Raises IndexError or ValueError."""
    tag, length, start = der[0], der[1], 2
    if length >= 0x80:  # then it says how many bytes the length takes
        start += length - 0x80
        length = int.from_bytes(der[2:start], "big")
    if len(der) < start + length:
        raise ValueError("cut short")
    return tag, der[start : start + length], der[start + length :]


def _moment_s(tag: int, text: str) -> float:
    if tag == _UTC_TIME:  # two digits of the year: 50 to 99 are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("not a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
