"""T42: whatever an engine calls it, nothing of an answer says how much of a prompt was cached."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols import hiding

SPELLINGS = [
    {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}},
    {"usage": {"prompt_tokens": 9, "input_tokens_details": {"cached_tokens": 8}}},
    {"usage": {"prompt_tokens": 9, "cached_tokens": 8}},
    {"usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 1}},
    {"usage": {"prompt_tokens": 9, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 1}},
    {"usage": {"prompt_tokens": 9, "numCachedTokens": 8}},
    {"usage": {"prompt_tokens": 9}, "num_cached_tokens": 8},
    {"usage": {"prompt_tokens": 9}, "prompt_progress": {"cache": 8}},
    {"usage": {"prompt_tokens": 9}, "choices": [{"index": 0, "meta": {"cached_tokens_details": [8]}}]},
]
NAME = st.sampled_from(["a", "usage", "cached_tokens", "promptCacheHit", "headache", "details"])
JSON = st.recursive(
    st.none() | st.integers(-9, 9) | st.sampled_from(["cache", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=4),
)


def expected(value: Any) -> Any:
    """The same, put plainly."""
    if isinstance(value, list):
        return [expected(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {
        name: expected(inner)
        for name, inner in value.items()
        if name.find("cache") < 0 and name.find("Cache") < 0
    }
    emptied = {name for name, inner in kept.items() if inner == {} and value[name] != {}}
    return {name: inner for name, inner in kept.items() if name not in emptied}


@given(answer=st.dictionaries(NAME, JSON, max_size=5))
def test_no_field_that_speaks_of_a_cache_is_left_and_no_other_is_lost(answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    left = hiding.without_cache(data)
    assert json.loads(left) == expected(answer)
    if expected(answer) == answer:
        assert left is data


@pytest.mark.parametrize("answer", SPELLINGS, ids=lambda answer: json.dumps(answer)[:60])
def test_every_known_spelling_goes_and_the_tokens_stay(answer: dict[str, Any]) -> None:
    left = hiding.without_cache(json.dumps(answer).encode())
    assert b"ache" not in left
    assert b"8" not in left
    assert json.loads(left)["usage"] == {"prompt_tokens": 9}


def test_words_of_the_model_are_words_wherever_they_stand() -> None:
    """Older completions have tokens as names in their log-probabilities, and some engines give tools an object."""
    data = (
        b'{"choices": [{"logprobs": {"top_logprobs": [{" cache": -0.1, "x": -2.0}]}, '
        b'"message": {"tool_calls": [{"function": {"arguments": {"cache_key": "a"}}}]}}]}'
    )
    assert hiding.without_cache(data) is data


def test_text_about_caches_is_text() -> None:
    data = b'{"choices": [{"delta": {"content": "a cached page"}}]}'
    assert hiding.without_cache(data) is data


def test_fields_without_it_keep_their_bytes() -> None:
    data = b'{"cached": 1, "x": [1.50, 12345678901234567890], "usage": {"a": 1}}'
    assert hiding.without_cache(data) == b'{"x":[1.50, 12345678901234567890],"usage":{"a": 1}}'
