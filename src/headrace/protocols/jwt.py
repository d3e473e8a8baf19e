"""What does a token say, before anybody has checked its signature? A JWS in its compact form (RFC 7515), read strictly.

Everything here is cheap and refuses what could never be believed, so that public-key arithmetic is left for tokens that
only their provider could have made.
"""

import re
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.core.errors import Unauthenticated
from headrace.core.signing import ALGORITHMS

TOKEN_BYTES_MAX = 8 * 1024
SIGNATURE_BYTES_MIN = 64
_COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
# RFC 8725, section 3.11: a token made for something else (a logout, a proof of possession) is not one for us. Most
# providers say "JWT" or nothing; RFC 9068 says "at+jwt".
_TYPES = frozenset({"", "jwt", "at+jwt", "application/jwt", "application/at+jwt"})


class _Header(msgspec.Struct, frozen=True):
    """What is read of a header. Where it names keys itself (`jwk`, `jku`, `x5u`, `x5c`), nobody looks."""

    alg: str
    kid: str = ""
    typ: str = ""
    crit: object = None
    b64: bool = True


@dataclass(frozen=True, slots=True)
class Token:
    """A token as its bearer shows it. Nothing of it is true until the signature is checked.

    Attributes:
        payload: The bytes that `claims` were read from.
    """

    algorithm: str
    key_id: str
    claims: dict[str, Any]
    payload: bytes


_header = msgspec.json.Decoder(_Header).decode
_claims = msgspec.json.Decoder(dict[str, Any]).decode


def read_token(token: bytes) -> Token:
    """Raises Unauthenticated."""
    if len(token) > TOKEN_BYTES_MAX:
        raise refusal("token_malformed")
    parts = _COMPACT.fullmatch(token)
    if parts is None:
        raise refusal("token_malformed")
    try:
        header = _header(_decoded(parts[1]))
        payload = _decoded(parts[2])
        claims = _claims(payload)
    except (ValueError, RecursionError):
        # ValueError is the root of what base64, UTF-8 and JSON raise; deep nesting fits into a few kilobytes.
        raise refusal("token_malformed") from None
    if header.alg not in ALGORITHMS:
        raise refusal("token_algorithm")
    if header.crit is not None or not header.b64 or header.typ.lower() not in _TYPES:
        raise refusal("token_type")
    if len(parts[3]) * 3 // 4 < SIGNATURE_BYTES_MIN:
        raise refusal("token_signature")
    return Token(header.alg, header.kid, claims, payload)


def refusal(reason: str) -> Unauthenticated:
    """One message for every way to fail: the reason is for our log alone."""
    return Unauthenticated(Unauthenticated.MESSAGE, reason=reason)


def _decoded(part: bytes) -> bytes:
    return urlsafe_b64decode(part + b"=" * (-len(part) % 4))
