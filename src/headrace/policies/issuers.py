"""May a token of this identity provider be believed, and whom does it speak for? Claims, judged by what was agreed."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.core.errors import ConfigError, Forbidden, Unauthenticated
from headrace.core.ids import TenantId
from headrace.core.request import Endpoint
from headrace.core.signing import ALGORITHMS
from headrace.core.tenant import Principal

LEEWAY_MAX_S = 60.0
USER_LENGTH_MAX = 256
_PATHS = tuple(endpoint.value for endpoint in Endpoint)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class ScopeRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a scope of the provider is good for here.

    Attributes:
        models, endpoints: Those that it opens; none given opens all that the tenant has.
    """

    models: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()


class Issuer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An identity provider whose tokens are accepted beside API keys, and what was agreed with it.

    Attributes:
        name: What we call it, in logs and records.
        issuer: Its `iss`, compared byte by byte.
        audience: Our `aud`: a token for somebody else is not one for us.
        algorithms: Signatures accepted, of core.signing.ALGORITHMS.
        jwks_url: Where its keys are; "" finds them by OpenID Connect Discovery at the issuer.
        ca_file: PEM file of the authorities that may sign its certificate; "" for those of the system.
        leeway_s: How far its clock and ours may be apart.
        lifetime_max_s: A token for longer is refused.
        tenant: Every token is this tenant's.
        tenant_claim: The claim that names the tenant.
        tenants: What that claim says, and which tenant it means; empty if it names tenants as we do.
        user_claim: The claim that names the user, for records; absent or "" names nobody.
        scope_claim: The claim with the scopes: text with blanks between them, or a list.
        scopes: What each scope is good for; empty if scopes don't matter.
    """

    name: str
    issuer: str
    audience: str
    algorithms: tuple[str, ...] = ("RS256",)
    jwks_url: str = ""
    ca_file: str = ""
    leeway_s: float = 5.0
    lifetime_max_s: float = 86400.0
    tenant: str = ""
    tenant_claim: str = ""
    tenants: dict[str, str] = {}
    user_claim: str = "sub"
    scope_claim: str = "scope"
    scopes: dict[str, ScopeRule] = {}


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a good token speaks for.

    Attributes:
        rules: Those of its scopes that mean something here, in their order; None if scopes don't matter.
        issued_s: Unix seconds; None if it doesn't say.
        expires_s: See `expiry_s`.
    """

    issuer: str
    tenant: TenantId
    user: str
    rules: tuple[ScopeRule, ...] | None
    issued_s: float | None
    expires_s: float


def check_issuers(issuers: Iterable[Issuer]) -> None:
    """Raises ConfigError that names the issuer by its place."""
    names: set[str] = set()
    urls: set[str] = set()
    for index, issuer in enumerate(issuers):
        where = f"`auth.issuers[{index}]"
        if _NAME.fullmatch(issuer.name) is None:
            raise ConfigError(
                f"{where}.name` must be 1 to 32 of a-z, 0-9 and `-`, beginning with a letter or a digit,"
                f" got {issuer.name!r}"
            )
        if issuer.name in names or issuer.issuer in urls:
            raise ConfigError(f"{where}` repeats a name or an issuer: each provider stands there once")
        names.add(issuer.name)
        urls.add(issuer.issuer)
        _check_issuer(issuer, where)


def _check_issuer(issuer: Issuer, where: str) -> None:
    for key, value in (("issuer", issuer.issuer), ("audience", issuer.audience)):
        if not value:
            raise ConfigError(f"{where}.{key}` must not be empty")
    for algorithm in issuer.algorithms:
        if algorithm not in ALGORITHMS:
            raise ConfigError(
                f"{where}.algorithms` holds {algorithm!r}; accepted: {', '.join(ALGORITHMS)}. Without a signature, or with"
                " a secret that both sides hold (HS256), a token proves nothing"
            )
    if not issuer.algorithms:
        raise ConfigError(f"{where}.algorithms` must not be empty; accepted: {', '.join(ALGORITHMS)}")
    if not 0 <= issuer.leeway_s <= LEEWAY_MAX_S:
        raise ConfigError(f"{where}.leeway_s` must be from 0 to {LEEWAY_MAX_S:g}, got {issuer.leeway_s}")
    if not issuer.lifetime_max_s >= 1:
        raise ConfigError(f"{where}.lifetime_max_s` must be at least 1, got {issuer.lifetime_max_s}")
    if bool(issuer.tenant) == bool(issuer.tenant_claim):
        raise ConfigError(
            f"{where}` needs either `tenant`, whose every token is, or `tenant_claim`, which names it"
        )
    if issuer.tenants and not issuer.tenant_claim:
        raise ConfigError(f"{where}.tenants` says what `tenant_claim` means, which is missing")
    for scope, rule in issuer.scopes.items():
        for path in rule.endpoints:
            if path not in _PATHS:
                raise ConfigError(
                    f"{where}.scopes.{scope}.endpoints` holds {path!r}; accepted: {', '.join(_PATHS)}"
                )


def screen(claims: Mapping[str, Any], issuer: Issuer, *, now_s: float) -> None:
    """Whether a token of this issuer (its `iss` is this one's) can be good at that Unix time: all that is known before its
    signature is checked, and that tells whoever made it up nothing. Raises Unauthenticated.
    """
    audience = claims.get("aud")
    if audience != issuer.audience and not (isinstance(audience, list) and issuer.audience in audience):
        raise _refusal("token_audience")
    leeway_s = issuer.leeway_s
    expires_s, issued_s, begins_s = (_time(claims, name) for name in ("exp", "iat", "nbf"))
    if expires_s is None:
        raise _refusal("token_lifetime")
    if now_s >= expires_s + leeway_s:
        raise _refusal("token_expired")
    if max(begins_s or 0, issued_s or 0) > now_s + leeway_s:
        raise _refusal("token_not_yet_valid")
    # Without `iat` the clock starts now: it has at least that long to live.
    if expires_s - (now_s if issued_s is None else issued_s) > issuer.lifetime_max_s:
        raise _refusal("token_lifetime")


def expiry_s(claims: Mapping[str, Any], issuer: Issuer) -> float:
    """From when on, in Unix seconds, a token that passed `screen` is refused; the leeway is in it."""
    expires_s = _time(claims, "exp")
    assert expires_s is not None, "`screen` has seen it"
    return expires_s + issuer.leeway_s


def bearer_of(claims: Mapping[str, Any], issuer: Issuer) -> Bearer:
    """Whom a token speaks for that passed `screen`, and whose signature is good. Raises Forbidden."""
    return Bearer(
        issuer.name,
        _tenant(claims, issuer),
        _user(claims, issuer),
        _rules(claims, issuer),
        _time(claims, "iat"),
        expiry_s(claims, issuer),
    )


def is_issued_after(bearer: Bearer, cut_s: float) -> bool:
    """Whether a tenant whose older tokens were all revoked, at that Unix time, takes this one; 0 if they never were."""
    return not cut_s or (bearer.issued_s is not None and bearer.issued_s >= cut_s)


def forbidden(reason: str, *, caller: Principal | None = None) -> Forbidden:
    """A good token that opens nothing; the reason is for our log alone, and so is whose it is."""
    return Forbidden(
        "this token opens nothing here: ask the operator which tenant and scopes it must name",
        reason=reason,
        caller=caller,
    )


def _refusal(reason: str) -> Unauthenticated:
    return Unauthenticated(Unauthenticated.MESSAGE, reason=reason)


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Unix seconds in a claim; None without it."""
    value = claims.get(name)
    if value is None:
        return None
    # Of what is no time: `true` is a number in Python, and an integer may be too large for any clock.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise _refusal("token_malformed")
    return float(value)


def _tenant(claims: Mapping[str, Any], issuer: Issuer) -> TenantId:
    if issuer.tenant:
        return TenantId(issuer.tenant)
    value = claims.get(issuer.tenant_claim)
    if not issuer.tenants:
        if not isinstance(value, str):
            raise forbidden("token_tenant")
        return TenantId(value)
    values = value if isinstance(value, list) else [value]
    meant = {issuer.tenants[each] for each in values if isinstance(each, str) and each in issuer.tenants}
    if len(meant) != 1:  # of several groups that are tenants, nobody can say for which one the token speaks
        raise forbidden("token_tenant")
    return TenantId(meant.pop())


def _user(claims: Mapping[str, Any], issuer: Issuer) -> str:
    value = claims.get(issuer.user_claim, "") if issuer.user_claim else ""
    if not isinstance(value, str) or len(value) > USER_LENGTH_MAX or not value.isprintable():
        raise forbidden("token_user")
    return value


def _rules(claims: Mapping[str, Any], issuer: Issuer) -> tuple[ScopeRule, ...] | None:
    if not issuer.scopes:
        return None
    value = claims.get(issuer.scope_claim)
    words = value.split(" ") if isinstance(value, str) else value if isinstance(value, list) else []
    given = {word for word in words if isinstance(word, str)}
    rules = tuple(rule for scope, rule in issuer.scopes.items() if scope in given)
    if not rules:
        raise forbidden("token_scope")
    return rules
