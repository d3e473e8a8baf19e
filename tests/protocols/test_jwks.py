"""Of what a provider publishes only keys that can check signatures of ours are taken, and never too many."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.signing import ALGORITHMS
from headrace.protocols.jwks import KEYS_MAX, BadKeySet, read_key_set
from tests.support.issuer import new_key

EC = new_key("ec", "ES256").member
RSA = new_key("rsa", "RS256").member
ED = new_key("ed", "EdDSA").member


def read(*members: Any) -> list[str]:
    return [key.id for key in read_key_set(json.dumps({"keys": members}).encode())]


def without(member: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in member.items() if name not in names}


def test_keys_of_each_kind_are_taken() -> None:
    assert read(EC, RSA, ED) == ["ec", "rsa", "ed"]
    assert read(without(EC, "alg", "use", "kid"), {**RSA, "x5c": ["..."], "key_ops": ["verify"]}) == [
        "",
        "rsa",
    ]


def test_a_key_fits_only_its_own_algorithms() -> None:
    """T40: an algorithm decides which keys may check it; never the token alone."""
    ec, rsa, ed, bound = read_key_set(
        json.dumps(
            {"keys": [without(EC, "alg"), without(RSA, "alg"), ED, {**RSA, "kid": "r2", "alg": "PS384"}]}
        ).encode()
    )
    fitting = {key.id: {name for name in ALGORITHMS if key.fits(name)} for key in (ec, rsa, ed, bound)}
    assert fitting == {
        "ec": {"ES256"},
        "rsa": {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"},
        "ed": {"EdDSA"},
        "r2": {"PS384"},
    }


@pytest.mark.parametrize(
    "member",
    [
        None,
        "key",
        {},
        {"kty": "oct", "k": "c2VjcmV0"},
        {**EC, "use": "enc"},
        {**EC, "use": None},
        {**EC, "key_ops": ["sign"]},
        {**EC, "key_ops": "verify"},
        {**EC, "d": "private"},
        {**EC, "alg": "RS256"},
        {**EC, "alg": "HS256"},
        {**EC, "alg": "ECDH-ES"},
        {**EC, "crv": "secp256k1"},
        {**EC, "kid": 7},
        {**EC, "kid": "k" * 257},
        {**ED, "crv": "X25519"},
        without(EC, "y"),
        without(ED, "x"),
        {**EC, "x": "not base64!"},
        {**RSA, "n": RSA["n"][:170]},
        {**RSA, "n": "A" * 3000},
        {**RSA, "n": "A" * 1369},
        without(RSA, "e"),
    ],
)
def test_a_key_that_is_not_ours_to_use_is_left_out(member: Any) -> None:
    """For encryption, of another algorithm, private, too weak, too large, or no key at all; the others stay."""
    assert read(member, RSA) == ["rsa"]


def test_of_two_with_one_id_the_first_counts() -> None:
    second = {**new_key("ec", "ES256").member, "kid": "ec"}
    (key,) = read_key_set(json.dumps({"keys": [EC, second]}).encode())
    assert key.x == EC["x"]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "JSON"),
        (b"<html>", "JSON"),
        (b"\xff", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"[]", "JWK Set"),
        (b"{}", "JWK Set"),
        (b'{"keys": {}}', "JWK Set"),
        (json.dumps({"keys": [EC] * (KEYS_MAX + 1)}).encode(), "more than"),
    ],
)
def test_what_is_no_key_set_is_refused_whole(document: bytes, why: str) -> None:
    with pytest.raises(BadKeySet, match=why):
        read_key_set(document)


@given(
    st.binary(max_size=100)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(
        lambda v: json.dumps({"keys": v}).encode()
    )
)
def test_any_document_is_keys_or_refused(document: bytes) -> None:
    with suppress(BadKeySet):
        read_key_set(document)
