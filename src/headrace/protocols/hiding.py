"""What may a caller not see of an answer? How much of its prompt was cached: that may have been another tenant's prompt.

Engines have many spellings for it (`prompt_tokens_details.cached_tokens`, `prompt_cache_hit_tokens`,
`cache_read_input_tokens`, `numCachedTokens`, ...), so no list of names would hold: every field whose name speaks of a cache
goes, wherever it stands.
"""

import re
from typing import Any

import msgspec

# In `cache` and in `Cache`; most answers don't have it, and then nothing is parsed. Half the price of the operator `in`.
_hint = re.compile(b"ache").search

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_PLAIN = frozenset({"id", "object", "created", "model"})  # of every answer, and nothing is inside
_CONTAINERS = (dict, list)
# Inside these, names are words of the model: tokens, and what it gives to a tool.
_WORDS = frozenset({"logprobs", "arguments"})
_encode = msgspec.json.Encoder().encode


def without_cache(data: bytes) -> bytes:
    """The JSON object without such fields, and without objects that held nothing else; the same bytes if there is none.

    Fields of the object in which there is none stay byte for byte. Raises what msgspec's decoders do.
    """
    if _hint(data) is None:
        return data
    fields = _decode_object(data)
    kept: dict[str, msgspec.Raw] = {}
    is_same = True
    for name, raw in fields.items():
        if name in _PLAIN:
            kept[name] = raw
            continue
        if _is_hidden(name):
            is_same = False
            continue
        if _hint(raw) is not None:
            parsed = _decode_any(raw)
            if _strip(parsed):
                is_same = False
                if parsed:
                    kept[name] = msgspec.Raw(_encode(parsed))
                continue
        kept[name] = raw
    return data if is_same else _encode(kept)


def _is_hidden(name: str) -> bool:
    return "cache" in name or "Cache" in name


def _strip(value: Any) -> bool:
    """Takes such fields out of parsed JSON, in place; whether there were any."""
    found = False
    if type(value) is dict:
        for name, inner in list(value.items()):
            if _is_hidden(name):
                found = True
                del value[name]
            elif type(inner) in _CONTAINERS and name not in _WORDS and _strip(inner):
                found = True
                if not inner:
                    del value[name]
    elif type(value) is list:
        for item in value:
            found = _strip(item) or found
    return found
