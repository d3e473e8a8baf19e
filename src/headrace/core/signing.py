"""With which keys does an identity provider sign, and by which algorithms? Public halves alone, as they are handed around."""

from typing import NamedTuple

import msgspec


class Fit(NamedTuple):
    """The kind of key that an algorithm takes: `kty` and `crv` of its JWK (RFC 7518, RFC 8037)."""

    kind: str
    curve: str


_RSA = Fit("RSA", "")
ALGORITHMS: dict[str, Fit] = {
    "RS256": _RSA,
    "RS384": _RSA,
    "RS512": _RSA,
    "PS256": _RSA,
    "PS384": _RSA,
    "PS512": _RSA,
    "ES256": Fit("EC", "P-256"),
    "ES384": Fit("EC", "P-384"),
    "ES512": Fit("EC", "P-521"),
    "EdDSA": Fit("OKP", "Ed25519"),
}
"""What may be pinned. `none` is no signature, and with `HS256` and its kin whoever can check a token can make one."""


class PublicKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """One public key of a provider, in the words of its JWK (RFC 7517): numbers are url-safe base64.

    Attributes:
        id: Its `kid`; "" where it has none.
        algorithm: Its `alg`, the only one that it is for; "" where it doesn't say.
    """

    kind: str = msgspec.field(name="kty")
    id: str = msgspec.field(name="kid", default="")
    algorithm: str = msgspec.field(name="alg", default="")
    curve: str = msgspec.field(name="crv", default="")
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""

    def fits(self, algorithm: str) -> bool:
        """Whether signatures by this algorithm of ALGORITHMS can be checked with it."""
        return self.algorithm in ("", algorithm) and ALGORITHMS[algorithm] == (self.kind, self.curve)


class KeySet(msgspec.Struct, frozen=True):
    """All keys of one provider, as of its last good answer; none if there never was one, or it is too long ago.

    Attributes:
        issuer: Our name for the provider.
        next_look_s: Monotonic seconds: not before then does a key that is missing lead to another look.
    """

    issuer: str
    keys: tuple[PublicKey, ...] = ()
    next_look_s: float = 0.0
