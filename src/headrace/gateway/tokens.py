"""Who is calling with a token of an identity provider? A JWT to the same entry as for an API key, once its signature has been checked.

From then on it costs one hash and one look-up. This module alone imports PyJWT, and is imported only where a provider is configured: it takes 50 ms and 12 MB.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jwt
import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import Forbidden, HeadraceError, Saturated
from headrace.core.ids import KeyId, TenantId
from headrace.core.isolation import CachePartitions
from headrace.core.signing import KeySet
from headrace.core.tenant import Principal, Scope
from headrace.policies import issuers
from headrace.policies.issuers import Bearer, Issuer, ScopeRule
from headrace.protocols.jwt import Token, read_token, refusal
from headrace.stores.key_ring import KeyEntry
from headrace.telemetry.metrics import Metrics

TOKENS_MAX = 10_000
# Signatures that turn out bad, in a second: each costs 40 to 200 us, so that a flood of forged tokens takes at most a tenth
# of this process. Beyond that, tokens that haven't been seen yet are put off; those that have, and keys, never notice.
BAD_SIGNATURES_PER_S = 500.0
RETRY_AFTER_S = 1.0
TELL_EVERY_S = 1.0


class _Seen:
    """A token whose signature was good. `bearer` is what it says, `entry` what that means by the tenants of `version`. Where
    it opens nothing, there is the `reason` why, and whose it is, if it is anybody's."""

    __slots__ = ("bearer", "entry", "expires_s", "owner", "reason", "version")

    def __init__(self, bearer: Bearer | None, reason: str, expires_s: float) -> None:
        self.bearer = bearer
        self.reason = reason
        self.owner: Principal | None = None
        self.expires_s = expires_s
        self.entry: KeyEntry | None = None
        self.version = -1


class _Name(NamedTuple):
    """By what a key is found: its id, and the algorithm of the signature."""

    id: str
    algorithm: str


class _Provider:
    """One provider with the keys that we hold of it. `by_name` is made of `key_set`."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.key_set = KeySet(issuer.name)
        self.by_name: dict[_Name, jwt.PyJWK] = {}
        self.told_s = 0.0  # until then it was said already that a key is missing

    def take(self, key_set: KeySet) -> bool:
        """Whether the keys are others than before."""
        keys, self.key_set = self.key_set.keys, key_set
        if key_set.keys == keys:
            return False
        self.by_name = {}
        for algorithm in self.issuer.algorithms:
            fitting = [key for key in key_set.keys if key.fits(algorithm)]
            for key in fitting:
                member = msgspec.to_builtins(key)
                try:
                    made = jwt.PyJWK.from_dict(member, algorithm)
                except jwt.PyJWTError:  # not a point on its curve, for example
                    continue
                self.by_name[_Name(key.id, algorithm)] = made
                if len(fitting) == 1:  # then a token need not say which
                    self.by_name[_Name("", algorithm)] = made
        return True


class Tokens:
    """Holds the tokens that were found good, by the SHA-256 of all their bytes: a part of one, however long, is another
    token's as well. Wall time decides, because providers set it.

    State: `_seen`, bounded, the oldest is forgotten first; `_bad_left`, bad signatures that may still be found out.

    Args:
        partitions: Names the prefix cache partition of whoever shows a token.
        missing: Gets the name of a provider when a token names a key that isn't there.
    """

    def __init__(
        self,
        agreed_with: Sequence[Issuer],
        *,
        partitions: CachePartitions,
        missing: Callable[[str], None],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._providers = {issuer.issuer: _Provider(issuer) for issuer in agreed_with}
        self._partitions = partitions
        self._missing = missing
        self._metrics = metrics
        self._clock = clock
        self._jws = jwt.PyJWS()
        self._seen: dict[bytes, _Seen] = {}
        self._tenants: Mapping[TenantId, Principal] = {}
        self._version = 0
        self._bad_left = BAD_SIGNATURES_PER_S
        self._bad_left_at_s = clock.now_s()

    def replace(self, tenants: Mapping[TenantId, Principal]) -> None:
        """Tenants have changed: every token is matched with its tenant anew when it is next shown."""
        self._tenants = tenants
        self._version += 1

    def take_keys(self, key_set: KeySet) -> bool:
        """A look at a provider's keys. Returns whether they have changed; then every token is checked anew."""
        for provider in self._providers.values():
            if provider.issuer.name == key_set.issuer and provider.take(key_set):
                self._seen.clear()
                return True
        return False

    def find(self, token: bytes) -> KeyEntry:
        """Raises Unauthenticated, Forbidden, or Saturated where it can't be said at the moment."""
        digest = hashlib.sha256(token).digest()
        seen = self._seen.get(digest)
        if seen is None:
            seen = self._check(token)
            if len(self._seen) >= TOKENS_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[digest] = seen
        elif seen.expires_s <= self._clock.wall_s():
            raise refusal("token_expired")
        if seen.version != self._version:
            self._match(seen)
        if seen.entry is None:
            raise issuers.forbidden(seen.reason, caller=seen.owner)
        return seen.entry

    def _match(self, seen: _Seen) -> None:
        """What the token means by the tenants that there are now."""
        seen.version = self._version
        bearer = seen.bearer
        if bearer is None:
            return
        seen.entry = seen.owner = None
        tenant = self._tenants.get(bearer.tenant)
        if tenant is None:
            seen.reason = "token_tenant"
            return
        # A user is one of its provider's: another's may have the same name.
        holder = f"token:{bearer.issuer} {bearer.user}"
        principal = dataclasses.replace(
            tenant,
            key_id=KeyId(f"token:{bearer.issuer}"),
            scope=scope_of(bearer.rules),
            user=bearer.user,
            cache_partition=self._partitions.of(
                tenant.tenant, KeyId(holder), tenant.terms, user=holder if bearer.user else ""
            ),
        )
        if issuers.is_issued_after(bearer, tenant.terms.tokens_valid_from_s):
            seen.entry = KeyEntry(principal, bearer.expires_s)
        else:
            seen.reason, seen.owner = "token_revoked", principal

    def _check(self, token: bytes) -> _Seen:
        """A token that we haven't seen yet; its signature comes last, since it costs most."""
        shown = read_token(token)
        issuer_url = shown.claims.get("iss")
        provider = self._providers.get(issuer_url) if isinstance(issuer_url, str) else None
        if provider is None:
            raise refusal("token_issuer")
        issuer = provider.issuer
        if shown.algorithm not in issuer.algorithms:
            raise refusal("token_algorithm")
        issuers.screen(shown.claims, issuer, now_s=self._clock.wall_s())
        key = provider.by_name.get(_Name(shown.key_id, shown.algorithm))
        if key is None:
            raise self._no_key(provider, "token_key_unknown")
        if not self._is_signed(token, shown, key):
            # Without an id nobody knows which key it is for: perhaps for one that has come since.
            raise refusal("token_signature") if shown.key_id else self._no_key(provider, "token_signature")
        expires_s = issuers.expiry_s(shown.claims, issuer)
        try:
            return _Seen(issuers.bearer_of(shown.claims, issuer), "", expires_s)
        except Forbidden as refused:  # remembered as well: to say it again costs no signature
            return _Seen(None, refused.reason, expires_s)

    def _no_key(self, provider: _Provider, reason: str) -> HeadraceError:
        """Perhaps the provider has a new key. Nobody waits for a look: who comes back is told what it has found.

        `reason` is why the token is refused if no look is due.
        """
        now_s = self._clock.now_s()
        may_look = now_s >= provider.key_set.next_look_s
        if now_s >= provider.told_s:
            # Once a second is enough, however many ask. That the look is not too early is seen to where it is made.
            provider.told_s = now_s + TELL_EVERY_S
            self._missing(provider.issuer.name)
        if may_look or not provider.key_set.keys:
            return Saturated(
                "tokens of this provider can't be checked at the moment",
                retry_after_s=RETRY_AFTER_S,
                reason="token_keys",
            )
        return refusal(reason)

    def _is_signed(self, token: bytes, shown: Token, key: jwt.PyJWK) -> bool:
        """Whether the signature is by that key. Raises Saturated where too many were not."""
        now_s = self._clock.now_s()
        self._bad_left = min(
            BAD_SIGNATURES_PER_S, self._bad_left + (now_s - self._bad_left_at_s) * BAD_SIGNATURES_PER_S
        )
        self._bad_left_at_s = now_s
        if self._bad_left < 1.0:
            raise Saturated(
                "too many tokens are being checked at the moment",
                retry_after_s=RETRY_AFTER_S,
                reason="token_flood",
            )
        try:
            payload = self._jws.decode(token, key, [shown.algorithm])
        except jwt.InvalidTokenError:
            payload = None
        if payload != shown.payload:
            self._bad_left -= 1.0
            self._metrics.token_signatures.labels("bad").add()
            return False
        self._metrics.token_signatures.labels("good").add()
        return True


def scope_of(rules: tuple[ScopeRule, ...] | None) -> Scope:
    """What the scopes of a token open together: as much as the widest of them in each respect."""
    if rules is None:
        return Scope()
    return Scope(
        models=_union([rule.models for rule in rules]), endpoints=_union([rule.endpoints for rule in rules])
    )


def _union(opened: list[tuple[str, ...]]) -> frozenset[str] | None:
    """All that is named; None, which narrows nothing, if one of them names nothing."""
    return frozenset().union(*opened) if all(opened) else None
