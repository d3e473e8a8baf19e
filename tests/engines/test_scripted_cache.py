"""The scripted engine's prefix cache: what it finds again, under which salt, and how that shows."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engines.scripted_cache import BLOCK_BYTES, BLOCK_TOKENS, PrefixCache
from tests.support.scripted import ScriptedEngine, scripted_engine

BLOCK = st.sampled_from([b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES, b"c" * BLOCK_BYTES])
PROMPT = st.builds(
    lambda blocks, rest: b"".join(blocks) + rest,
    st.lists(BLOCK, max_size=4),
    st.sampled_from([b"", b"a" * 9]),
)


@given(asked=st.lists(st.tuples(PROMPT, st.sampled_from(["", "s", "t"]), st.booleans()), max_size=12))
def test_what_is_found_is_the_longest_beginning_that_was_asked_under_the_same_salt(
    asked: list[tuple[bytes, str, bool]],
) -> None:
    cache = PrefixCache(10_000)
    seen: list[tuple[bytes, str]] = []
    for prompt, salt, may_read in asked:
        blocks = [
            end
            for end in range(BLOCK_BYTES, len(prompt) + 1, BLOCK_BYTES)
            if any(other.startswith(prompt[:end]) for other, theirs in seen if theirs == salt)
        ]
        found = max(blocks, default=0)
        if found and found == len(prompt):
            found -= BLOCK_BYTES
        assert cache.use(prompt, salt=salt, may_read=may_read) == (found // 4 if may_read else 0)
        seen.append((prompt, salt))


def test_what_was_unused_for_longest_makes_room() -> None:
    cache = PrefixCache(2 * BLOCK_TOKENS)
    first, second, third = (letter * BLOCK_BYTES + b"x" for letter in (b"a", b"b", b"c"))
    for prompt in (first, second, first, third):
        cache.use(prompt)
    assert cache.use(first) == BLOCK_TOKENS
    assert cache.use(second) == 0


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with scripted_engine(prefix_cache=100_000, prefill_tokens_per_s=5000, log=True, tokens=2) as running:
        yield running


def ask(engine: ScriptedEngine, path: str = "chat/completions", **fields: Any) -> tuple[int, dict[str, Any]]:
    status, body = engine.request("POST", f"/v1/{path}", json.dumps({"model": "scripted", **fields}).encode())
    return status, json.loads(body)


def cached(engine: ScriptedEngine, text: str, **fields: Any) -> int:
    status, answer = ask(engine, messages=[{"role": "user", "content": text}], **fields)
    assert status == 200
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_a_prompt_is_found_again_under_its_own_salt_alone(engine: ScriptedEngine) -> None:
    """As vLLM does it: no salt is a salt of its own."""
    text = "found again " * 40
    salts = [{"cache_salt": "s" * 43}, {"cache_salt": "t" * 43}, {}]
    assert [cached(engine, text, **salt) for salt in salts] == [0, 0, 0]
    assert [cached(engine, text, **salt) for salt in salts] == [112, 112, 112]
    assert cached(engine, text, cache_prompt=False) == 0


@pytest.mark.parametrize("path", ["completions", "embeddings"])
def test_text_completions_and_embeddings_have_it_too(engine: ScriptedEngine, path: str) -> None:
    fields = {"prompt" if path == "completions" else "input": ["one " * 40, "two " * 40], "cache_salt": path}
    for _ in range(2):
        assert ask(engine, path, **fields)[0] == 200
    first, second = [each["cached_tokens"] for each in engine.executions() if each.get("cache_salt") == path]
    assert (first, second) == (0, 64)


def test_the_first_token_waits_for_what_is_not_cached(engine: ScriptedEngine) -> None:
    """500 tokens at 5000 a second: a tenth of a second, and next to nothing the second time."""
    text = "how long it takes " * 111
    took_s = []
    for _ in range(2):
        began_s = time.monotonic()
        cached(engine, text)
        took_s.append(time.monotonic() - began_s)
    assert took_s[0] >= 0.09
    assert took_s[1] < took_s[0]


@pytest.mark.parametrize("salt", ["", "a" * 1025, "a\n", "é", 7])
def test_an_odd_salt_is_refused(engine: ScriptedEngine, salt: Any) -> None:
    status, answer = ask(engine, messages=[{"role": "user", "content": "x"}], cache_salt=salt)
    assert (status, "salt" in answer["error"]["message"]) == (400, True)
