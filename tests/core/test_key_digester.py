"""The digest of the request path is the standard one."""

import hmac

from hypothesis import given
from hypothesis import strategies as st

from headrace.core import keys


@given(pepper=st.binary(min_size=1, max_size=64), key=st.binary(max_size=200))
def test_the_digester_agrees_with_the_library(pepper: bytes, key: bytes) -> None:
    """Written-out HMAC-SHA-256 equals hmac.digest for every pepper up to a block, so stored digests stay valid."""
    assert keys.KeyDigester(pepper).digest(key) == hmac.digest(pepper, key, "sha256")
