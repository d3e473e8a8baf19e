"""The estimate of tokens: the same for any cutting, never zero for a text."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.request import Endpoint
from headrace.core.usage import TokenUsage, Unit, UsageSource, estimate_tokens


@given(utf8_bytes=st.integers(0, 10**9))
def test_an_estimate_is_a_token_for_every_four_bytes_rounded_up(utf8_bytes: int) -> None:
    """T31."""
    tokens = estimate_tokens(utf8_bytes)
    assert 4 * (tokens - 1) < utf8_bytes <= 4 * tokens
    assert (tokens == 0) == (utf8_bytes == 0)


def test_usage_without_a_source_claims_that_nothing_was_done() -> None:
    assert TokenUsage().source is UsageSource.NONE


def test_only_embeddings_are_counted_in_something_beside_tokens() -> None:
    assert {endpoint: endpoint.unit for endpoint in Endpoint} == {
        Endpoint.CHAT_COMPLETIONS: None,
        Endpoint.COMPLETIONS: None,
        Endpoint.EMBEDDINGS: Unit.VECTOR,
    }
