"""What does an API key look like? `hr_<env>_<id>_<43 characters>_<crc>`, cut at fixed positions.

    hr_live_k3x9q2ab_WmYx...43 characters...0_s8Q_1f0c9a3e
    0  3    8        17                            61

Positions and not separators, because the secret is url-safe base64 and may contain `_`. The checksum lets a scanner
recognise a leaked key, and tools a mistyped one; it is no protection, the 256 random bits are. The gateway doesn't read it:
it holds its keys in memory, where the look-up costs no more than the checksum.
"""

import base64
import hashlib
import hmac
import zlib

from headrace.core.ids import KeyId

ENVIRONMENTS = ("live", "test")
ADMIN = "admn"
"""Stands where keys have their environment, in tokens for the admin port."""
KEY_BYTES = 69
ID_RANDOM_BYTES = 16
SECRET_RANDOM_BYTES = 32

_ID_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 8
_PREFIXES = frozenset({b"hr_live_", b"hr_test_", b"hr_admn_"})
_CRC_AT = 61
_BLOCK_BYTES = 64  # of SHA-256


def make(environment: str, *, id_random: bytes, secret_random: bytes) -> str:
    """A key from random bytes: ID_RANDOM_BYTES of them for its public id, SECRET_RANDOM_BYTES for the secret."""
    assert environment in (*ENVIRONMENTS, ADMIN)
    assert len(id_random) == ID_RANDOM_BYTES
    assert len(secret_random) == SECRET_RANDOM_BYTES
    # 128 bits reduced to 8 characters (41.4 bits): the bias of the remainder is below 2**-86.
    number = int.from_bytes(id_random, "big")
    characters = []
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_ID_ALPHABET))
        characters.append(_ID_ALPHABET[digit])
    secret = base64.urlsafe_b64encode(secret_random).rstrip(b"=").decode("ascii")
    body = f"hr_{environment}_{''.join(characters)}_{secret}_"
    return f"{body}{zlib.crc32(body.encode('ascii')):08x}"


def is_well_formed(key: bytes) -> bool:
    """Whether this could be one of our keys: length, prefix and checksum."""
    return (
        len(key) == KEY_BYTES
        and key[:8] in _PREFIXES
        and b"%08x" % zlib.crc32(key[:_CRC_AT]) == key[_CRC_AT:]
    )


def key_id(key: bytes) -> KeyId | None:
    """The public part of a well-formed key, safe to show and to log; None for anything else."""
    return KeyId(key[8:16].decode("ascii", "replace")) if is_well_formed(key) else None


def digest(pepper: bytes, key: bytes) -> bytes:
    """What is stored of a key and what it is looked up by: HMAC-SHA-256, 32 bytes.

    A slow hash would add nothing: it protects guessable passwords, and the key holds 256 random bits. The pepper lives
    outside the database, so that a copy of the database alone can neither verify nor recognise a key.
    """
    return hmac.digest(pepper, key, "sha256")


class KeyDigester:
    """The same digest for the path of every request: the pepper is hashed once, and the interpreter's lock is kept.

    `hmac.digest` gives the lock up around its microsecond of work; with another thread waiting for it (the ledger's),
    getting it back was measured at 26 us a call. So this is HMAC written out (RFC 2104): H(K ^ opad, H(K ^ ipad, text)).
    """

    def __init__(self, pepper: bytes) -> None:
        assert len(pepper) <= _BLOCK_BYTES, "RFC 2104 hashes longer keys first"
        padded = pepper.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def digest(self, key: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(key)
        outer.update(inner.digest())
        return outer.digest()
