"""With which key does this provider sign its service cards? An Ed25519 key of its data directory, made when it is first needed."""

import base64
import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from headrace.stores import secret_file

NAME = "card.key"
ALGORITHM = "Ed25519"
_BYTES = 32


class CardKey:
    """The private half. It never leaves the data directory; `public` is what customers hold a card to."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = _text(private.public_key().public_bytes_raw())

    def sign(self, content: bytes) -> str:
        return _text(self._private.sign(content))


def load(data: Path) -> CardKey:
    """That of the data directory. Raises ConfigError for a file that others can read, or that holds none."""
    secret = secret_file.held(data / NAME, bytes_n=_BYTES, make=_made)
    return CardKey(Ed25519PrivateKey.from_private_bytes(secret))


def is_signed(content: bytes, *, public: str, signature: str) -> bool:
    """Whether the holder of that key has signed just this."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
        key.verify(base64.b64decode(signature, validate=True), content)
    except (ValueError, InvalidSignature):
        return False
    return True


def fingerprint(public: str) -> str:
    """A short name of a public key, to compare over the telephone."""
    return hashlib.sha256(public.encode()).hexdigest()[:16]


def _made() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes_raw()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
