"""Who is calling? An API key to a Principal, by one hash and one look-up; the key is compared only as its digest."""

from headrace.core import keys
from headrace.core.clock import Clock
from headrace.core.errors import Unauthenticated
from headrace.core.tenant import Principal
from headrace.stores.keys import KeyEntry

_SCHEME = b"bearer "
# One message for every way to fail: it must not tell a caller which part was right.
_MESSAGE = "a valid API key is required: `Authorization: Bearer hr_...`"


class Authenticator:
    """Holds the key ring, replaced whole when keys change. Wall time decides expiry, because people set it.

    Attributes:
        version: Grows with every new ring: what was found out under another one no longer holds.
    """

    def __init__(self, pepper: bytes, *, clock: Clock) -> None:
        self._digester = keys.KeyDigester(pepper)
        self._clock = clock
        self._ring: dict[bytes, KeyEntry] = {}
        self.version = 0

    def replace(self, ring: dict[bytes, KeyEntry]) -> None:
        """Takes over a new key ring; the next call is judged by it."""
        self._ring = ring
        self.version += 1

    @property
    def key_count(self) -> int:
        return len(self._ring)

    def identify(self, headers: dict[bytes, bytes]) -> Principal:
        """The caller behind the Authorization header. Raises Unauthenticated."""
        return self.find(headers).principal

    def find(self, headers: dict[bytes, bytes]) -> KeyEntry:
        """The key in the Authorization header. Raises Unauthenticated."""
        value = headers.get(b"authorization", b"")
        if value[:7].lower() != _SCHEME:
            raise Unauthenticated(_MESSAGE)
        key = value[7:].strip()
        if len(key) != keys.KEY_BYTES:
            raise Unauthenticated(_MESSAGE)
        # The look-up is by HMAC under a secret pepper: an attacker can't steer it, so its timing says nothing of a key.
        entry = self._ring.get(self._digester.digest(key))
        if entry is None or (entry.expires_s is not None and entry.expires_s <= self._clock.wall_s()):
            raise Unauthenticated(_MESSAGE)
        return entry
