"""API keys: recognised by shape alone, and by every byte of it."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import keys

RANDOM = st.tuples(
    st.sampled_from(keys.ENVIRONMENTS),
    st.binary(min_size=keys.ID_RANDOM_BYTES, max_size=keys.ID_RANDOM_BYTES),
    st.binary(min_size=keys.SECRET_RANDOM_BYTES, max_size=keys.SECRET_RANDOM_BYTES),
)


def made(environment: str = "live", id_random: bytes = bytes(16), secret_random: bytes = bytes(32)) -> bytes:
    return keys.make(environment, id_random=id_random, secret_random=secret_random).encode()


@given(random=RANDOM)
def test_every_key_that_is_made_is_well_formed_and_shows_its_id(random: tuple[str, bytes, bytes]) -> None:
    key = made(*random)
    assert len(key) == keys.KEY_BYTES
    assert keys.is_well_formed(key)
    assert key.startswith(b"hr_" + random[0].encode() + b"_")
    shown = keys.key_id(key)
    assert shown is not None
    assert len(shown) == 8
    assert shown == key.split(b"_")[2].decode()


@given(random=RANDOM, place=st.integers(0, keys.KEY_BYTES - 1), byte=st.integers(0, 255))
def test_a_key_with_any_byte_changed_is_not_well_formed(
    random: tuple[str, bytes, bytes], place: int, byte: int
) -> None:
    """T40: a twin of a key fails before any look-up."""
    key = bytearray(made(*random))
    is_same = key[place] == byte
    key[place] = byte
    assert keys.is_well_formed(bytes(key)) == is_same
    assert (keys.key_id(bytes(key)) is None) == (not is_same)


@given(text=st.binary(max_size=100))
def test_other_bytes_are_no_key(text: bytes) -> None:
    assert not keys.is_well_formed(text)
    assert keys.key_id(made() + text) is None or not text


@given(one=RANDOM, other=RANDOM)
def test_keys_differ_where_their_random_bytes_do(
    one: tuple[str, bytes, bytes], other: tuple[str, bytes, bytes]
) -> None:
    assert (made(*one)[17:60] == made(*other)[17:60]) == (one[2] == other[2])


@given(pepper=st.binary(max_size=64), key=st.binary(max_size=80))
def test_both_ways_to_digest_are_hmac_sha256(pepper: bytes, key: bytes) -> None:
    expected = hmac.new(pepper, key, hashlib.sha256).digest()
    digester = keys.KeyDigester(pepper)
    assert keys.digest(pepper, key) == digester.digest(key) == digester.digest(key) == expected


@pytest.mark.parametrize("environment", ["", "prod", "live_"])
def test_a_key_of_an_unknown_environment_is_a_bug_of_the_caller(environment: str) -> None:
    with pytest.raises(AssertionError):
        made(environment)
