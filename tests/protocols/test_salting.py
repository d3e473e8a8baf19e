"""A salt at the start of a prompt: before the first words, and nothing else is touched."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols import openai, salting

LINE = "salt\n"
TEXT = st.text(alphabet=st.sampled_from(['"', "\\", "{", "é", "a", " "]), max_size=6)
CONTENT = (
    st.none() | TEXT | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=2)
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": CONTENT})
OTHERS = st.dictionaries(st.sampled_from(["seed", "tools", "x"]), st.integers() | TEXT, max_size=3)


def salted(fields: dict[str, Any]) -> dict[str, Any]:
    canonical = openai.encode(fields)[1:]
    found: dict[str, Any] = json.loads(b"{" + salting.salted(canonical, LINE))
    return found


def words(content: Any) -> str:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


@given(messages=st.lists(MESSAGE, min_size=1, max_size=3), others=OTHERS)
def test_the_first_message_begins_with_the_line_and_nothing_else_changes(
    messages: list[dict[str, Any]], others: dict[str, Any]
) -> None:
    """T42, for engines without a salt of their own."""
    found = salted({**others, "messages": messages})
    first, *rest = found.pop("messages")
    assert words(first.pop("content")) == LINE + words(messages[0]["content"])
    assert (first, rest, found) == ({"role": messages[0]["role"]}, messages[1:], others)


@pytest.mark.parametrize(
    ("prompt", "expected"), [("a", LINE + "a"), (["a", "b"], [LINE + "a", LINE + "b"]), ("", LINE)]
)
def test_every_prompt_begins_with_the_line(prompt: Any, expected: Any) -> None:
    assert salted({"prompt": prompt, "n": 1}) == {"prompt": expected, "n": 1}


def test_fields_that_say_nothing_still_do() -> None:
    assert not any(salted({"prompt": None, "messages": None}).values())


def test_pictures_stay_behind_the_line() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:x"}}
    (message,) = salted({"messages": [{"role": "user", "content": [picture]}]})["messages"]
    assert message["content"] == [{"type": "text", "text": LINE}, picture]


def test_numbers_beyond_a_float_keep_their_bytes() -> None:
    canonical = b'"seed":12345678901234567890,"x":1.50,"prompt":"a"}'
    assert salting.salted(canonical, LINE) == b'"seed":12345678901234567890,"x":1.50,"prompt":"salt\\na"}'
