"""T40: a token is read strictly, and cheaply, before anybody checks its signature."""

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Unauthenticated
from headrace.protocols.jwt import TOKEN_BYTES_MAX, read_token

GOOD_HEADER = {"alg": "ES256", "kid": "first", "typ": "JWT"}
SIGNATURE = b"s" * 86


def part(value: Any) -> bytes:
    """As a part of a token: JSON, or bytes as they are."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(header: Any = None, claims: Any = None, signature: bytes = SIGNATURE) -> bytes:
    return b".".join(
        (part(GOOD_HEADER if header is None else header), part({} if claims is None else claims), signature)
    )


def refused(data: bytes) -> str:
    with pytest.raises(Unauthenticated) as raised:
        read_token(data)
    assert raised.value.message == Unauthenticated.MESSAGE
    return raised.value.reason


def test_a_token_says_its_algorithm_its_key_and_its_claims() -> None:
    claims = {"iss": "https://id.example", "aud": ["a", "b"], "exp": 1.5}
    read = read_token(token(claims=claims))
    assert (read.algorithm, read.key_id, read.claims) == ("ES256", "first", claims)
    assert json.loads(read.payload) == claims
    assert read_token(token({"alg": "RS256"})).key_id == ""


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+JWT", "application/jwt"])
def test_types_of_access_tokens_are_taken(kind: str) -> None:
    """RFC 9068, section 2.1."""
    assert read_token(token({**GOOD_HEADER, "typ": kind})).algorithm == "ES256"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"alg": "none"}, "token_algorithm"),
        ({"alg": "None"}, "token_algorithm"),
        ({"alg": "HS256"}, "token_algorithm"),
        ({"alg": "es256"}, "token_algorithm"),
        ({"alg": ""}, "token_algorithm"),
        ({"alg": None}, "token_malformed"),
        ({"alg": ["ES256"]}, "token_malformed"),
        ({}, "token_malformed"),
        ([], "token_malformed"),
        ({**GOOD_HEADER, "kid": 1}, "token_malformed"),
        ({**GOOD_HEADER, "crit": ["exp"]}, "token_type"),
        ({**GOOD_HEADER, "crit": []}, "token_type"),
        ({**GOOD_HEADER, "b64": False}, "token_type"),
        ({**GOOD_HEADER, "typ": "logout+jwt"}, "token_type"),
        ({**GOOD_HEADER, "typ": "dpop+jwt"}, "token_type"),
        (b'{"alg":"ES256"', "token_malformed"),
        (b"\xff", "token_malformed"),
        (b'{"alg":"ES256","kid":"' + b'\\ud800"}', "token_malformed"),
    ],
)
def test_a_header_that_cannot_be_believed_is_refused(header: Any, reason: str) -> None:
    """T40: no signature, a secret instead of a key pair, extensions that must be understood, tokens for something else."""
    assert refused(token(header)) == reason


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"..",
        b"a.b",
        b"a.b.c.d",
        b"a.b.c.d.e",
        b"' OR 1=1 --",
        b"\xff\xfe\x80",
        b"a" * 64 * 1024,
        token() + b"=",
        token() + b"\n",
        b" " + token(),
        token().replace(b".", b". "),
        token(signature=b"s+s/" * 30),
        token(claims=b"[" * 4000),
        token(claims=[1]),
        token(claims=b'{"exp": NaN}'),
        token(claims=b'{"exp": 1e999}'),
        b"A." + token().split(b".", 1)[1],
    ],
)
def test_what_is_no_token_is_refused(data: bytes) -> None:
    """T40, REPORTS 47."""
    assert refused(data) == "token_malformed"


def test_a_signature_too_short_for_any_algorithm_is_not_checked() -> None:
    assert refused(token(signature=b"s" * 80)) == "token_signature"


def test_the_size_of_a_token_has_a_bound() -> None:
    room = TOKEN_BYTES_MAX - len(token(claims={"a": ""}))
    longest = token(claims={"a": "x" * (room * 3 // 4 - 4)})
    assert TOKEN_BYTES_MAX - 16 < len(longest) <= TOKEN_BYTES_MAX
    assert read_token(longest).algorithm == "ES256"
    assert refused(token(claims={"a": "x" * room})) == "token_malformed"


@given(st.binary(max_size=200) | st.lists(st.binary(max_size=60).map(part), max_size=5).map(b".".join))
def test_any_bytes_are_a_token_or_refused(data: bytes) -> None:
    with suppress(Unauthenticated):
        read_token(data)
