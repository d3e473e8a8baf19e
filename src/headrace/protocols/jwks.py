"""Which of the keys that an identity provider publishes can be used? A JWK Set (RFC 7517) to public keys, within bounds."""

import re
from typing import Any

import msgspec

from headrace.core.signing import ALGORITHMS, Fit, PublicKey

KEYS_MAX = 64
KEY_ID_LENGTH_MAX = 256
# Characters of base64: a modulus of 2048 bits, below which RSA is no longer safe, and of 8192, above which one
# signature would take too long.
_MODULUS_LENGTHS = range(-(-2048 // 6), -(-8192 // 6) + 2)
_NUMBER = re.compile(r"[A-Za-z0-9_-]{1,1368}")
_NUMBERS = {"RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",)}
_FITS = frozenset(ALGORITHMS.values())


class BadKeySet(ValueError):
    """This is no JWK Set, or none that we would hold in memory."""


def read_key_set(document: bytes) -> tuple[PublicKey, ...]:
    """The keys in it that check signatures by one of our algorithms; all others are left out, as RFC 7517 asks. Of several
    with the same id and kind the first counts.

    Raises BadKeySet.
    """
    try:
        found = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadKeySet("it is not JSON") from None
    members = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(members, list):
        raise BadKeySet("it is not a JWK Set: an object with a list `keys`")
    if len(members) > KEYS_MAX:
        raise BadKeySet(f"it holds {len(members)} keys, more than {KEYS_MAX}")
    keys: dict[tuple[str, str], PublicKey] = {}
    for member in members:
        key = _read_key(member)
        if key is not None:
            keys.setdefault((key.id, key.kind), key)
    return tuple(keys.values())


def _read_key(member: Any) -> PublicKey | None:
    """None for a key that is not ours to use."""
    if not isinstance(member, dict) or member.get("use", "sig") != "sig":
        return None
    operations = member.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    if "d" in member:  # a private key that anybody can read: whoever signs with it need not be the provider
        return None
    try:
        key = msgspec.convert(member, PublicKey)
    except msgspec.ValidationError:
        return None
    return key if _is_usable(key) else None


def _is_usable(key: PublicKey) -> bool:
    if Fit(key.kind, key.curve) not in _FITS or len(key.id) > KEY_ID_LENGTH_MAX:
        return False
    if key.algorithm and (key.algorithm not in ALGORITHMS or not key.fits(key.algorithm)):
        return False
    if not all(_NUMBER.fullmatch(getattr(key, number)) for number in _NUMBERS[key.kind]):
        return False
    return key.kind != "RSA" or len(key.n) in _MODULUS_LENGTHS
