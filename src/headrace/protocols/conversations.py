"""Which conversation does a request belong to? Its caller may say; else its first user message does, which every turn repeats."""

from typing import Any

# Most particular first. Nothing else of the request is looked at where one of them is given.
KEY_FIELDS = ("session_id", "prompt_cache_key", "user")
KEY_CHARACTERS_MAX = 4096


def key_of(fields: dict[str, Any]) -> str:
    """What the requests of one conversation have in common, "" where nothing is known; bounded, whatever its source.

    Every request is asked, so what most of them look like comes first.
    """
    said = fields.get("session_id") or fields.get("prompt_cache_key") or fields.get("user")
    if said is not None:
        return _key_of_any(fields)
    try:
        for message in fields["messages"]:
            if message["role"] == "user":
                content = message["content"]
                if type(content) is str and len(content) <= KEY_CHARACTERS_MAX:
                    return content
                break
    except (KeyError, TypeError):
        pass
    return _key_of_any(fields)


def _key_of_any(fields: dict[str, Any]) -> str:
    for name in KEY_FIELDS:
        value = fields.get(name)
        if value and isinstance(value, str):
            return _bounded(value)
    messages = fields.get("messages")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict) and message.get("role") == "user":
                return _bounded(_text(message.get("content")))
    return ""


def _text(content: Any) -> str:
    """Of a message in parts, the first that is text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return next((text for text in texts if isinstance(text, str)), "")


def _bounded(text: str) -> str:
    """Both ends: many applications begin, or end, every message with the same words."""
    if len(text) <= KEY_CHARACTERS_MAX:
        return text
    return text[: KEY_CHARACTERS_MAX // 2] + text[-KEY_CHARACTERS_MAX // 2 :]
