"""T39, T40, REPORTS 45: what is remembered of a token is never another token's, and never outlives what it was found out by."""

import base64
import hashlib
import hmac
import random
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from headrace.core.clock import ManualClock
from headrace.core.errors import Forbidden, HeadraceError, Saturated, Unauthenticated
from headrace.core.ids import KeyId, TenantId
from headrace.core.isolation import CachePartitions
from headrace.core.signing import KeySet
from headrace.core.tenant import CacheBoundary, Principal, Scope, TenantLimits, TenantTerms
from headrace.gateway import tokens
from headrace.gateway.tokens import BAD_SIGNATURES_PER_S, Tokens
from headrace.policies.issuers import Issuer, ScopeRule
from headrace.protocols.jwks import read_key_set
from headrace.telemetry.metrics import Metrics
from tests.support.issuer import SigningKey, new_key

ISSUER = Issuer(
    "idp",
    "https://id.example",
    "api://headrace",
    algorithms=("ES256", "RS256"),
    tenant_claim="tenant",
    leeway_s=0,
)
FIRST, SECOND, RSA = new_key("first"), new_key("second"), new_key("rsa", "RS256")


def key_set(*keys: SigningKey, next_look_s: float = 1e9) -> KeySet:
    return KeySet(
        "idp", read_key_set(msgspec.json.encode({"keys": [key.member for key in keys]})), next_look_s
    )


def tenant(name: str, **terms: Any) -> Principal:
    return Principal(TenantId(name), KeyId(""), TenantLimits(), terms=TenantTerms(**terms))


class Rig:
    """Tokens on a clock of its own, for tenants `acme` and `globex`; `missed` are providers whose keys were missing."""

    def __init__(self, issuer: Issuer = ISSUER) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.missed: list[str] = []
        self.tokens = Tokens(
            [issuer],
            partitions=CachePartitions(bytes(32)),
            missing=self.missed.append,
            metrics=self.metrics,
            clock=self.clock,
        )
        self.tokens.replace({TenantId(name): tenant(name) for name in ("acme", "globex")})
        self.tokens.take_keys(key_set(FIRST, RSA))

    def token(
        self, key: SigningKey = FIRST, *, headers: dict[str, Any] | None = None, **changed: Any
    ) -> bytes:
        now_s = int(self.clock.wall_s())
        claims = {
            "iss": ISSUER.issuer, "aud": ISSUER.audience, "iat": now_s, "exp": now_s + 600, "tenant": "acme", "sub": "anna", **changed
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(
            claims, key.private, algorithm=key.algorithm, headers={"kid": key.id, **(headers or {})}
        ).encode()

    def refusal(self, token: bytes) -> HeadraceError:
        with pytest.raises(HeadraceError) as refused:
            self.tokens.find(token)
        return refused.value

    def checked(self, result: str = "good") -> float:
        return self.metrics.token_signatures.labels(result).value


def test_a_token_is_its_tenants_and_its_users_until_it_expires() -> None:
    """T39."""
    rig = Rig()
    token = rig.token()
    entry = rig.tokens.find(token)
    principal = entry.principal
    assert (principal.tenant, principal.user, principal.key_id, principal.scope) == (
        "acme",
        "anna",
        "token:idp",
        Scope(),
    )
    assert entry.expires_s == int(rig.clock.wall_s()) + 600
    rig.clock.advance(599)
    assert rig.tokens.find(token) is entry
    rig.clock.advance(1)
    assert rig.refusal(token).reason == "token_expired"
    assert rig.checked() == 1


def test_the_holder_of_a_token_shares_a_prefix_cache_with_its_tenant_or_with_nobody() -> None:
    """T42: with the tenant's keys by default, with no other user where users are kept apart, and with a key in no case then."""
    rig, partitions = Rig(), CachePartitions(bytes(32))

    def partition(user: str | None) -> str:
        return rig.tokens.find(rig.token(sub=user)).principal.cache_partition

    assert (
        partition("anna") == partition("boris") == partitions.of(TenantId("acme"), KeyId("k"), TenantTerms())
    )
    for boundary in (CacheBoundary.USER, CacheBoundary.KEY):
        rig.tokens.replace({TenantId("acme"): tenant("acme", cache_boundary=boundary)})
        terms = TenantTerms(cache_boundary=boundary)
        keys = {
            partitions.of(TenantId("acme"), KeyId("k"), terms, user=user) for user in ("anna", "boris", "")
        }
        holders = {partition("anna"), partition("boris")}
        assert len(holders) == 2
        assert holders.isdisjoint(keys)


def test_twins_with_one_beginning_are_never_taken_for_each_other() -> None:
    """REPORTS 45, T40: two valid tokens alternate, and forgeries of both with all of their bytes but the signature's."""
    rig = Rig()
    mine, theirs = rig.token(RSA, sub="anna"), rig.token(RSA, sub="boris", tenant="globex")
    assert mine[:40] == theirs[:40]
    forged = [
        good.rsplit(b".", 1)[0] + b"." + other.rsplit(b".", 1)[1]
        for good, other in ((mine, theirs), (theirs, mine))
    ]
    for _ in range(20):
        assert rig.tokens.find(mine).principal.user == "anna"
        assert rig.tokens.find(theirs).principal.tenant == "globex"
        for each in forged:
            assert rig.refusal(each).reason == "token_signature"


def test_no_change_of_a_good_token_is_good() -> None:
    """T40: a bit here, a character there, a part more or less; 400 of them."""
    rig, chance = Rig(), random.Random(40)
    token = rig.token()
    rig.tokens.find(token)
    for _ in range(400):
        changed = bytearray(token)
        place = chance.randrange(len(changed))
        if chance.random() < 0.5:
            changed[place] ^= 1 << chance.randrange(7)
        elif chance.random() < 0.5:
            del changed[place]
        else:
            changed.insert(place, changed[chance.randrange(len(changed))])
        if bytes(changed) != token:
            rig.clock.advance(1)
            assert isinstance(rig.refusal(bytes(changed)), Unauthenticated), bytes(changed)


def test_a_public_key_is_no_secret() -> None:
    """T40: a token signed by HMAC with the text of the public key, as itself and as what it says to be."""
    rig = Rig()
    public = RSA.private.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for algorithm, reason in (
        ("HS256", "token_algorithm"),
        ("RS256", "token_signature"),
        ("none", "token_algorithm"),
    ):
        header, payload, _ = rig.token(RSA).split(b".")
        header = base64.urlsafe_b64encode(msgspec.json.encode({"alg": algorithm, "kid": "rsa"})).rstrip(b"=")
        mac = hmac.digest(pem, header + b"." + payload, hashlib.sha512)
        signature = base64.urlsafe_b64encode(mac).rstrip(b"=")
        assert rig.refusal(b".".join((header, payload, signature))).reason == reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "https://id.example/"}, "token_issuer"),
        ({"iss": None}, "token_issuer"),
        ({"aud": "api://other"}, "token_audience"),
        ({"nbf": 1_700_000_100}, "token_not_yet_valid"),
        ({"exp": 1_699_999_999}, "token_expired"),
        ({"exp": 1_900_000_000}, "token_lifetime"),
    ],
)
def test_what_cannot_be_good_costs_no_signature(changed: dict[str, Any], reason: str) -> None:
    """T40: the reason is for the log; the caller hears the same whatever it is."""
    rig = Rig()
    refused = rig.refusal(rig.token(**changed))
    assert (refused.reason, refused.message) == (reason, Unauthenticated.MESSAGE)
    assert (rig.checked("good"), rig.checked("bad")) == (0, 0)


def test_an_issuer_that_is_no_text_is_nobodys() -> None:
    rig = Rig()
    token = rig.token(iss=None)
    header, payload, signature = token.split(b".")
    claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + b"=="))
    payload = base64.urlsafe_b64encode(msgspec.json.encode({**claims, "iss": ["x"]})).rstrip(b"=")
    assert rig.refusal(b".".join((header, payload, signature))).reason == "token_issuer"


def test_an_algorithm_that_is_not_pinned_is_refused_though_the_key_is_there() -> None:
    """T40: and a key of another kind checks nothing, whatever its id."""
    rig = Rig()
    assert rig.refusal(rig.token(SigningKey("rsa", "PS256", RSA.private))).reason == "token_algorithm"
    assert rig.refusal(rig.token(SigningKey("first", "RS256", RSA.private))).reason == "token_key_unknown"


def test_a_token_need_not_name_the_only_key_of_its_kind() -> None:
    rig = Rig()
    nameless = rig.token(SigningKey("", "ES256", FIRST.private))
    assert rig.tokens.find(nameless).principal.tenant == "acme"
    rig.tokens.take_keys(key_set(FIRST, SECOND, RSA))
    assert rig.refusal(nameless).reason == "token_key_unknown"


def test_keys_that_go_take_their_tokens_with_them_and_new_ones_bring_theirs() -> None:
    """T39, T40: a rotation; a look that finds the same keys again changes nothing."""
    rig = Rig()
    old, new = rig.token(), rig.token(SECOND)
    rig.tokens.find(old)
    assert rig.tokens.take_keys(key_set(FIRST, RSA)) is False
    assert rig.tokens.take_keys(KeySet("other")) is False
    rig.tokens.find(old)
    assert rig.checked() == 1
    assert rig.tokens.take_keys(key_set(SECOND, RSA)) is True
    assert rig.refusal(old).reason == "token_key_unknown"
    assert rig.tokens.find(new).principal.tenant == "acme"


def test_unknown_keys_lead_to_one_word_a_second_and_never_to_a_wait() -> None:
    """T40: a thousand tokens with ids that nobody has; the provider is asked elsewhere, at its own pace."""
    rig = Rig()
    for number in range(1000):
        assert rig.refusal(rig.token(headers={"kid": f"k{number}"})).reason == "token_key_unknown"
    assert rig.missed == ["idp"]
    rig.clock.advance(1)
    rig.refusal(rig.token(SECOND))
    assert rig.missed == ["idp", "idp"]
    assert (rig.checked("good"), rig.checked("bad")) == (0, 0)


def test_while_a_look_may_find_the_key_the_caller_is_asked_to_come_back() -> None:
    rig = Rig()
    rig.tokens.take_keys(key_set(FIRST, RSA, next_look_s=rig.clock.now_s() + 30))
    assert rig.refusal(rig.token(SECOND)).status == 401
    rig.clock.advance(30)
    refused = rig.refusal(rig.token(SECOND))
    assert (refused.status, refused.reason, refused.retry_after_s) == (503, "token_keys", 1.0)
    rig.tokens.take_keys(key_set(FIRST, RSA, next_look_s=rig.clock.now_s() + 60))
    assert rig.refusal(rig.token(SECOND)).status == 401


def test_a_token_without_an_id_may_be_for_a_key_that_has_come_since() -> None:
    """Some providers name no key: then a signature that doesn't fit leads to a look, too, and never to more of them."""
    rig = Rig()
    rig.tokens.take_keys(key_set(FIRST, RSA, next_look_s=rig.clock.now_s() + 30))
    new = rig.token(SigningKey("", "ES256", SECOND.private))
    for _ in range(3):
        refused = rig.refusal(new)
        assert (refused.status, refused.reason) == (401, "token_signature")
    assert rig.missed == ["idp"]
    rig.clock.advance(30)
    assert rig.refusal(new).status == 503
    rig.tokens.take_keys(key_set(SECOND, RSA, next_look_s=rig.clock.now_s() + 60))
    assert rig.tokens.find(new).principal.tenant == "acme"


def test_a_provider_without_keys_is_not_its_callers_fault() -> None:
    rig = Rig()
    rig.tokens.take_keys(KeySet("idp", (), 1e9))
    assert isinstance(rig.refusal(rig.token()), Saturated)


def test_tenants_that_change_change_what_a_token_means_at_once() -> None:
    """REPORTS 43, T39: its tenant's limits, its tenant's end, and all its tokens from before a cut; no signature is checked again."""
    rig = Rig()
    token = rig.token()
    rig.tokens.find(token)
    wider = msgspec.structs.replace(TenantTerms(), organization="acme-group")
    rig.tokens.replace(
        {TenantId("acme"): Principal(TenantId("acme"), KeyId(""), TenantLimits(7), terms=wider)}
    )
    principal = rig.tokens.find(token).principal
    assert (principal.limits.requests_per_minute, principal.terms.organization) == (7, "acme-group")
    rig.tokens.replace({})
    for _ in range(3):
        refused = rig.refusal(token)
        assert (refused.status, refused.reason) == (403, "token_tenant")
    rig.tokens.replace({TenantId("acme"): tenant("acme", tokens_valid_from_s=int(rig.clock.wall_s()) + 1)})
    assert (rig.refusal(token).status, rig.refusal(token).reason) == (403, "token_revoked")
    rig.tokens.replace({TenantId("acme"): tenant("acme", tokens_valid_from_s=int(rig.clock.wall_s()))})
    assert rig.tokens.find(token).principal.tenant == "acme"
    assert rig.checked() == 1


def test_a_good_token_that_opens_nothing_is_remembered_as_such() -> None:
    """Whoever holds one could else have its signature checked for ever."""
    rig = Rig(msgspec.structs.replace(ISSUER, scopes={"chat": ScopeRule()}))
    token = rig.token(scope="mail")
    for _ in range(5):
        refused = rig.refusal(token)
        assert isinstance(refused, Forbidden)
        assert refused.reason == "token_scope"
    assert rig.checked() == 1


def test_scopes_together_open_what_each_of_them_opens() -> None:
    chat, vectors = ScopeRule(("m", "n"), ("/v1/chat/completions",)), ScopeRule(("n", "o"))
    assert tokens.scope_of(None) == Scope()
    assert tokens.scope_of((chat,)) == Scope(frozenset({"m", "n"}), frozenset({"/v1/chat/completions"}))
    assert tokens.scope_of((chat, vectors)) == Scope(frozenset({"m", "n", "o"}), None)
    assert tokens.scope_of((chat, ScopeRule())) == Scope(None, None)


def test_a_flood_of_forged_tokens_is_checked_only_so_fast() -> None:
    """T40: the tokens that are known, and nobody else, go on; a second later new ones are looked at again."""
    rig = Rig()
    known = rig.token()
    rig.tokens.find(known)
    body, _, signature = rig.token(sub="mallory").rpartition(b".")
    forged = body + b"." + signature[:-4] + b"AAAA"
    outcomes = [rig.refusal(forged).reason for _ in range(int(BAD_SIGNATURES_PER_S) + 50)]
    assert outcomes == ["token_signature"] * int(BAD_SIGNATURES_PER_S) + ["token_flood"] * 50
    fresh = rig.token(sub="new")
    assert (rig.refusal(fresh).status, rig.refusal(fresh).retry_after_s) == (503, 1.0)
    assert rig.tokens.find(known).principal.user == "anna"
    rig.clock.advance(1)
    assert rig.tokens.find(fresh).principal.user == "new"


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 3)
    rig = Rig()
    shown = [rig.token(sub=f"user-{number}") for number in range(4)]
    for token in shown:
        rig.tokens.find(token)
    for token in shown[1:]:
        rig.tokens.find(token)
    assert rig.checked() == 4
    rig.tokens.find(shown[0])
    assert rig.checked() == 5


def test_a_key_that_is_on_no_curve_is_left_out() -> None:
    member = {**SECOND.member, "x": FIRST.member["x"]}
    rig = Rig()
    rig.tokens.take_keys(
        KeySet("idp", read_key_set(msgspec.json.encode({"keys": [member, RSA.member]})), 1e9)
    )
    assert rig.refusal(rig.token(SECOND)).reason == "token_key_unknown"
    assert rig.tokens.find(rig.token(RSA)).principal.tenant == "acme"


def test_a_known_token_costs_one_hash_and_one_look_up() -> None:
    """No signature is checked again, however often it is shown."""
    rig = Rig()
    token = rig.token()
    entries = {id(rig.tokens.find(token)) for _ in range(1000)}
    assert len(entries) == 1
    assert rig.checked() == 1
