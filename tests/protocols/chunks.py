"""Events of a streamed answer, as engines send them."""

import json
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import strategies as st

TEXT = st.text(max_size=30)


def pieces(text: str, chance: Random) -> list[str]:
    """The text cut anywhere, sometimes with empty pieces."""
    places = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(5)))
    bounds = [0, *places, len(text)]
    return [text[begin:end] for begin, end in pairwise(bounds)]


def choice(carrier: str, text: str, *, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    if carrier == "text":
        return {"index": index, "text": text, "finish_reason": finish}
    delta: dict[str, Any] = {carrier: text}
    if carrier in ("arguments", "name"):
        delta = {"tool_calls": [{"index": 0, "function": {carrier: text}}]}
    return {"index": index, "delta": delta, "finish_reason": finish}


def chunk(*choices: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"id": "x", "choices": list(choices), **fields}).encode()


def usage_of(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": completion, **details}
