"""Who is calling? An API key to a Principal, by one hash and one look-up; the key is compared only as its digest.

What has another length than a key is a token (gateway/tokens.py), where tokens are accepted.
"""

from collections.abc import Mapping
from typing import Protocol

from headrace.core import keys
from headrace.core.clock import Clock
from headrace.core.errors import Unauthenticated
from headrace.core.ids import TenantId
from headrace.core.signing import KeySet
from headrace.core.tenant import Principal
from headrace.stores.key_ring import KeyEntry

_SCHEME = b"bearer "


class TokenJudge(Protocol):
    """What is asked of who accepts tokens; see gateway.tokens.Tokens."""

    def find(self, token: bytes) -> KeyEntry:
        """Raises HeadraceError."""
        ...

    def replace(self, tenants: Mapping[TenantId, Principal]) -> None: ...

    def take_keys(self, key_set: KeySet) -> bool:
        """Whether the keys are others than before."""
        ...


class Authenticator:
    """Holds the key ring, replaced whole when keys change. Wall time decides expiry, because people set it.

    Attributes:
        version: Grows with every new ring, and with other keys of a provider: what was found out before no longer holds.
    """

    def __init__(self, pepper: bytes, *, clock: Clock, tokens: TokenJudge | None = None) -> None:
        self._digester = keys.KeyDigester(pepper)
        self._clock = clock
        self._ring: dict[bytes, KeyEntry] = {}
        self._tokens = tokens
        self.version = 0

    def replace(
        self, ring: dict[bytes, KeyEntry], tenants: Mapping[TenantId, Principal] | None = None
    ) -> None:
        """Takes over a new key ring; the next call is judged by it. Tokens are for the tenants alone."""
        self._ring = ring
        if self._tokens is not None:
            self._tokens.replace(tenants or {})
        self.version += 1

    def take_keys(self, key_set: KeySet) -> None:
        """A look at a provider's keys."""
        if self._tokens is not None and self._tokens.take_keys(key_set):
            self.version += 1

    @property
    def key_count(self) -> int:
        return len(self._ring)

    def identify(self, headers: dict[bytes, bytes]) -> Principal:
        """The caller behind the Authorization header. Raises Unauthenticated."""
        return self.find(headers).principal

    def find(self, headers: dict[bytes, bytes]) -> KeyEntry:
        """The key or token in the Authorization header. Raises Unauthenticated, and as gateway.tokens.Tokens.find does."""
        value = headers.get(b"authorization", b"")
        if value[:7].lower() != _SCHEME:
            raise Unauthenticated(Unauthenticated.MESSAGE)
        key = value[7:].strip()
        if len(key) != keys.KEY_BYTES:
            if self._tokens is None:
                raise Unauthenticated(Unauthenticated.MESSAGE)
            return self._tokens.find(key)
        # The look-up is by HMAC under a secret pepper: an attacker can't steer it, so its timing says nothing of a key.
        entry = self._ring.get(self._digester.digest(key))
        if entry is None or (entry.expires_s is not None and entry.expires_s <= self._clock.wall_s()):
            raise Unauthenticated(Unauthenticated.MESSAGE)
        return entry
