"""With which key does this provider sign its service cards? An Ed25519 key of its data directory, made when it is first needed."""

import base64
import hashlib
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from headrace.core.errors import ConfigError

NAME = "card.key"
ALGORITHM = "Ed25519"


class CardKey:
    """The private half. It never leaves the data directory; `public` is what customers hold a card to."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = _text(private.public_key().public_bytes_raw())

    def sign(self, content: bytes) -> str:
        return _text(self._private.sign(content))


def load(data: Path) -> CardKey:
    """That of the data directory. Raises ConfigError for a file that holds none."""
    path = data / NAME
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        secret = _made(path)
    try:
        return CardKey(Ed25519PrivateKey.from_private_bytes(secret))
    except ValueError as error:
        raise ConfigError(f"{path}: not a key of {ALGORITHM}; move it away, and a new one is made") from error


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


def _made(path: Path) -> bytes:
    """Of several that make one at the same time the first wins, and all sign with that."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(Ed25519PrivateKey.generate().private_bytes_raw())
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_bytes()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
