"""The requests of one conversation have a key in common, and those of two seldom."""

from typing import Any

import pytest

from headrace.core.request import Endpoint
from headrace.protocols import openai, strict_json
from headrace.protocols.conversations import KEY_CHARACTERS_MAX, key_of

USER = {"role": "user", "content": "What is a headrace?"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"session_id": "s", "prompt_cache_key": "p", "user": "u", "messages": [USER]}, "s"),
        ({"prompt_cache_key": "p", "user": "u", "messages": [USER]}, "p"),
        ({"user": "u", "messages": [USER]}, "u"),
        ({"user": "", "prompt_cache_key": None, "messages": [SYSTEM, USER]}, "What is a headrace?"),
        ({"session_id": 7, "messages": [USER]}, "What is a headrace?"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "this?"}]}]}, "this?"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ""),
        ({"messages": [{"role": "user", "content": None}]}, ""),
        ({"messages": [SYSTEM]}, ""),
        ({"messages": ["user"]}, ""),
        ({"messages": [{"role": "user"}]}, ""),
        ({"messages": [{"role": "user", "content": "first"}, USER]}, "first"),
        ({"prompt": "Once"}, ""),
    ],
)  # fmt: skip
def test_what_says_most_of_the_conversation_is_its_key(fields: dict[str, Any], key: str) -> None:
    assert key_of(fields) == key


def test_every_later_turn_of_a_conversation_has_the_key_of_the_first() -> None:
    later = [
        SYSTEM,
        USER,
        {"role": "assistant", "content": "A channel."},
        {"role": "user", "content": "Of what?"},
    ]
    assert key_of({"messages": [SYSTEM, USER]}) == key_of({"messages": later})


@pytest.mark.parametrize("place", [0, -1], ids=["begin", "end"])
def test_of_a_long_message_both_ends_count(place: int) -> None:
    """An application may put a long text of its own before or behind what its user says; and what is kept is bounded."""
    same = "x" * 100_000
    keys = set()
    for number in range(2):
        parts = [same, same]
        parts[place] = f"{number}"
        keys.add(key_of({"user": "".join(parts)}))
    assert len(keys) == 2
    assert max(map(len, keys)) <= KEY_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("endpoint", "more"),
    [
        (Endpoint.CHAT_COMPLETIONS, {"messages": [USER]}),
        (Endpoint.COMPLETIONS, {"prompt": "Once"}),
        (Endpoint.EMBEDDINGS, {"input": "Once"}),
    ],
)
def test_a_parsed_body_says_it_and_a_session_is_still_not_sent_on(
    endpoint: Endpoint, more: dict[str, Any]
) -> None:
    """A session's name is for us: by the engine's own, one could look into another's."""
    parsed = openai.parse_body(endpoint, strict_json.encode({"model": "m", "session_id": "mine", **more}))
    assert parsed.conversation == "mine"
    assert b"mine" not in parsed.canonical
