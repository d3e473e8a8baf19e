"""T40: claims are judged by what was agreed with their provider, and by nothing that they say of themselves."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, Forbidden, Unauthenticated
from headrace.core.signing import ALGORITHMS
from headrace.policies.issuers import (
    Issuer,
    ScopeRule,
    bearer_of,
    check_issuers,
    expiry_s,
    is_issued_after,
    screen,
)

NOW_S = 1_700_000_000.0
ISSUER = Issuer("idp", "https://id.example", "api://headrace", tenant_claim="tenant")
GOOD = {
    "iss": "https://id.example", "aud": "api://headrace", "iat": NOW_S - 10, "exp": NOW_S + 600, "tenant": "acme", "sub": "anna"
}  # fmt: skip


def issuer(**changed: Any) -> Issuer:
    return msgspec.structs.replace(ISSUER, **changed)


def refusal(given: Issuer = ISSUER, **changed: Any) -> str:
    """The reason why a token with these claims is refused, or "" if it is not."""
    claims = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    try:
        screen(claims, given, now_s=NOW_S)
        bearer_of(claims, given)
    except (Unauthenticated, Forbidden) as refused:
        return refused.reason
    return ""


def test_a_good_token_speaks_for_its_tenant_and_user() -> None:
    screen(GOOD, ISSUER, now_s=NOW_S)
    bearer = bearer_of(GOOD, ISSUER)
    assert (bearer.issuer, bearer.tenant, bearer.user, bearer.rules) == ("idp", "acme", "anna", None)
    assert (bearer.issued_s, bearer.expires_s) == (NOW_S - 10, NOW_S + 605)
    assert bearer.expires_s == expiry_s(GOOD, ISSUER)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": None}, "token_audience"),
        ({"aud": "api://other"}, "token_audience"),
        ({"aud": "api://headrace/"}, "token_audience"),
        ({"aud": ["api://other"]}, "token_audience"),
        ({"aud": {"api://headrace": 1}}, "token_audience"),
        ({"aud": ["api://other", "api://headrace"]}, ""),
        ({"exp": None}, "token_lifetime"),
        ({"exp": NOW_S - 5}, "token_expired"),
        ({"exp": NOW_S - 4.9}, ""),
        ({"exp": 0}, "token_expired"),
        ({"exp": "1700000600"}, "token_malformed"),
        ({"exp": True}, "token_malformed"),
        ({"exp": -1}, "token_malformed"),
        ({"exp": 10**30}, "token_malformed"),
        ({"nbf": NOW_S + 6}, "token_not_yet_valid"),
        ({"nbf": NOW_S + 5}, ""),
        ({"nbf": []}, "token_malformed"),
        ({"iat": NOW_S + 6}, "token_not_yet_valid"),
        ({"iat": None}, ""),
        ({"exp": NOW_S + 86_391}, "token_lifetime"),
        ({"exp": NOW_S + 86_390}, ""),
        ({"iat": None, "exp": NOW_S + 86_401}, "token_lifetime"),
        ({"iat": 1, "exp": NOW_S + 1}, "token_lifetime"),
        ({"tenant": None}, "token_tenant"),
        ({"tenant": ["acme"]}, "token_tenant"),
        ({"sub": None}, ""),
        ({"sub": 7}, "token_user"),
        ({"sub": "a\nb"}, "token_user"),
        ({"sub": "a" * 257}, "token_user"),
    ],
)
def test_each_claim_is_judged(changed: dict[str, Any], reason: str) -> None:
    assert refusal(**changed) == reason


def test_a_provider_of_one_tenant_speaks_for_no_other() -> None:
    """T41: whatever its tokens say."""
    only = issuer(tenant="globex", tenant_claim="")
    assert bearer_of(GOOD, only).tenant == "globex"


def test_a_map_names_tenants_and_nothing_outside_it_is_one() -> None:
    mapped = issuer(tenant_claim="groups", tenants={"g-1": "acme", "g-2": "globex", "g-3": "acme"})
    assert bearer_of({**GOOD, "groups": "g-2"}, mapped).tenant == "globex"
    assert bearer_of({**GOOD, "groups": ["all", 5, "g-1"]}, mapped).tenant == "acme"
    assert bearer_of({**GOOD, "groups": ["g-3", "g-1"]}, mapped).tenant == "acme"
    for groups in (None, "acme", "globex", [], ["all"], {"g-1": 1}, 5, ["g-1", "g-2"]):
        assert refusal(mapped, groups=groups) == "token_tenant"


def test_nobody_is_named_where_no_claim_names_the_user() -> None:
    assert bearer_of(GOOD, issuer(user_claim="")).user == ""
    assert bearer_of(GOOD, issuer(user_claim="email")).user == ""


@pytest.mark.parametrize("claim", ["read chat", ["chat", "read"], ["chat", 5]])
def test_scopes_open_what_they_are_mapped_to(claim: Any) -> None:
    chat, vectors = ScopeRule(models=("m",)), ScopeRule(endpoints=("/v1/embeddings",))
    scoped = issuer(scopes={"chat": chat, "vectors": vectors}, scope_claim="scp")
    assert bearer_of({**GOOD, "scp": claim}, scoped).rules == (chat,)
    assert bearer_of({**GOOD, "scp": "vectors chat"}, scoped).rules == (chat, vectors)
    useless: tuple[Any, ...] = (None, "", "Chat", "chats", [], 7, {"chat": 1}, "chat,vectors")
    for scopes in useless:
        assert refusal(scoped, scp=scopes) == "token_scope"


def test_tokens_from_before_a_cut_are_told_by_when_they_were_issued() -> None:
    """T39: and one that doesn't say when might be from before."""
    bearer = bearer_of(GOOD, ISSUER)
    unknown = bearer_of({**GOOD, "iat": None}, ISSUER)
    assert is_issued_after(bearer, 0)
    assert is_issued_after(unknown, 0)
    assert is_issued_after(bearer, NOW_S - 10)
    assert not is_issued_after(bearer, NOW_S - 9)
    assert not is_issued_after(unknown, 1)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
MAPPED = issuer(tenant_claim="groups", tenants={"g": "acme"}, scopes={"s": ScopeRule()}, scope_claim="scope")


@given(st.dictionaries(st.sampled_from([*GOOD, "nbf", "groups", "scope"]), values))
def test_any_claims_are_judged_or_refused(claims: dict[str, Any]) -> None:
    for each in (ISSUER, MAPPED):
        with suppress(Unauthenticated, Forbidden):
            screen({**GOOD, **claims}, each, now_s=NOW_S)
            bearer = bearer_of({**GOOD, **claims}, each)
            assert bearer.expires_s > NOW_S
            assert bearer.tenant == (claims.get("tenant", "acme") if each is ISSUER else "acme")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": ""}, "name"),
        ({"name": "Okta"}, "name"),
        ({"issuer": ""}, "issuer` must not be empty"),
        ({"audience": ""}, "audience` must not be empty"),
        ({"algorithms": ("none",)}, "proves nothing"),
        ({"algorithms": ("RS256", "HS256")}, "HS256"),
        ({"algorithms": ()}, "must not be empty"),
        ({"leeway_s": -1.0}, "from 0 to 60"),
        ({"leeway_s": 61.0}, "from 0 to 60"),
        ({"leeway_s": float("nan")}, "from 0 to 60"),
        ({"lifetime_max_s": 0.5}, "at least 1"),
        ({"lifetime_max_s": float("nan")}, "at least 1"),
        ({"tenant_claim": ""}, "either `tenant`"),
        ({"tenant": "acme"}, "either `tenant`"),
        ({"tenant": "acme", "tenant_claim": "", "tenants": {"a": "b"}}, "is missing"),
        (
            {"scopes": {"s": ScopeRule(endpoints=("/v1/chat",))}},
            "scopes.s.endpoints` holds '/v1/chat'; accepted: /v1/chat/",
        ),
    ],
)
def test_an_agreement_that_makes_no_sense_is_refused(changed: dict[str, Any], told: str) -> None:
    """T40: neither `none` nor a shared secret can be configured."""
    with pytest.raises(ConfigError, match=told) as refused:
        check_issuers([issuer(name="other", issuer="https://b.example"), issuer(**changed)])
    assert "`auth.issuers[1]" in refused.value.message


def test_each_provider_stands_there_once() -> None:
    scopes = {"vectors": ScopeRule(endpoints=("/v1/embeddings", "/v1/completions")), "all": ScopeRule()}
    other = issuer(name="b", issuer="https://b.example", algorithms=tuple(ALGORITHMS), scopes=scopes)
    check_issuers([ISSUER, other])
    for changed in ({"name": "b"}, {"issuer": "https://b.example"}):
        with pytest.raises(ConfigError, match="repeats"):
            check_issuers([ISSUER, issuer(**changed)])
