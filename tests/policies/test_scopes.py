"""Where a call comes from is what somebody we trust has seen, whatever its headers say."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Forbidden
from headrace.core.ids import KeyId, TenantId
from headrace.core.tenant import Principal, Scope, TenantLimits
from headrace.policies import scopes

PROXIES = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))
trusted = st.ip_addresses(network="10.0.0.0/8") | st.ip_addresses(network="fd00::/8")
others = st.ip_addresses(network="203.0.113.0/24") | st.ip_addresses(network="2001:db8::/32")
made_up = st.lists(st.text(st.characters(max_codepoint=255, exclude_characters=","), max_size=20), max_size=5)


def caller(scope: Scope) -> Principal:
    return Principal(TenantId("acme"), KeyId("k3x9q2ab"), TenantLimits(), scope=scope)


def networks(*texts: str) -> Scope:
    return Scope(networks=tuple(map(ipaddress.ip_network, texts)))


@given(peer=others, lies=made_up)
def test_who_is_no_trusted_proxy_is_where_the_call_comes_from_whatever_it_says(
    peer: ipaddress.IPv4Address, lies: list[str]
) -> None:
    header = ",".join(lies).encode("latin-1")
    assert scopes.origin(str(peer), header, PROXIES) == peer
    assert scopes.origin(str(peer), header, ()) == peer


@given(
    peer=trusted,
    chain=st.lists(trusted, max_size=5),
    client=others,
    lies=made_up,
    padding=st.sampled_from(["", " "]),
)
def test_behind_trusted_proxies_it_is_the_rightmost_address_that_is_not_theirs(
    peer: ipaddress.IPv4Address,
    chain: list[ipaddress.IPv4Address],
    client: ipaddress.IPv4Address,
    lies: list[str],
    padding: str,
) -> None:
    header = f",{padding}".join([*lies, str(client), *map(str, chain)]).encode("latin-1")
    assert scopes.origin(str(peer), header, PROXIES) == client


@given(peer=trusted, chain=st.lists(trusted, max_size=5))
def test_where_all_are_trusted_it_is_the_first_of_them(
    peer: ipaddress.IPv4Address, chain: list[ipaddress.IPv4Address]
) -> None:
    header = ", ".join(map(str, chain)).encode()
    assert scopes.origin(str(peer), header, PROXIES) == (chain[0] if chain else peer)


def test_a_chain_longer_than_any_real_one_leads_to_no_address() -> None:
    header = ",".join(["10.0.0.1"] * 1000).encode()
    assert scopes.origin("10.0.0.1", header, PROXIES) is None


@pytest.mark.parametrize(
    "said", [b"unknown", b"_hidden", b"203.0.113.7, ", b"300.1.1.1", b"\xff", b"[::1", b"::1]"]
)
def test_what_a_trusted_proxy_says_and_is_no_address_is_none(said: bytes) -> None:
    assert scopes.origin("10.0.0.1", said, PROXIES) in (None, ipaddress.ip_address("::1"))
    with pytest.raises(Forbidden, match="from where"):
        scopes.check_network(caller(networks("203.0.113.0/24", "10.0.0.0/8")), None)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("203.0.113.7:4711", "203.0.113.7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8::7", "2001:db8::7"),
    ],
)
def test_an_address_is_read_however_proxies_write_it(written: str, meant: str) -> None:
    assert scopes.origin("::ffff:10.0.0.1", written.encode(), PROXIES) == ipaddress.ip_address(meant)
    assert scopes.origin(written, b"", ()) == ipaddress.ip_address(meant)


def test_a_key_for_some_networks_works_there_and_nowhere_else() -> None:
    narrow = caller(networks("203.0.113.0/24", "2001:db8::/32"))
    for inside in ("203.0.113.7", "2001:db8::7"):
        scopes.check_network(narrow, ipaddress.ip_address(inside))
    for outside in ("203.0.112.255", "2001:db9::", "::ffff:203.0.113.7"):
        with pytest.raises(Forbidden) as refused:
            scopes.check_network(narrow, ipaddress.ip_address(outside))
        assert (refused.value.reason, refused.value.caller) == ("network", narrow)
    scopes.check_network(caller(Scope()), None)


def test_a_key_for_some_endpoints_and_models_is_for_no_others() -> None:
    narrow = caller(Scope(models=frozenset({"small"}), endpoints=frozenset({"/v1/embeddings"})))
    scopes.check_endpoint(narrow, "/v1/embeddings")
    with pytest.raises(Forbidden, match="`/v1/completions`") as refused:
        scopes.check_endpoint(narrow, "/v1/completions")
    assert refused.value.reason == "scope"
    scopes.check_endpoint(caller(Scope()), "/v1/completions")
    assert scopes.allows_model(narrow.scope, "small")
    assert not scopes.allows_model(narrow.scope, "large")
    assert scopes.allows_model(Scope(), "large")
    assert not scopes.allows_model(Scope(models=frozenset()), "large")
