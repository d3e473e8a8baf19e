"""How does a salt come to stand at the start of a prompt? The caller's JSON with a line before its first words."""

from typing import Any

import msgspec

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_messages = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def salted(canonical: bytes, line: str) -> bytes:
    """The fields of a chat or text completion, as in ParsedBody.canonical, with the line before the first message, or before
    each prompt.

    Only what holds the start is read and written anew; the rest, perhaps megabytes, keeps its bytes. A prompt of token ids,
    which no text can be put before, was refused when the request was read (Deployment.takes_token_ids). Both fields may be there,
    whatever the endpoint: some engines read both, and parse_body has seen to their form.
    """
    fields = _decode_object(b"{" + canonical)
    if "prompt" in fields:
        fields["prompt"] = msgspec.Raw(_encode(_before_prompt(_decode_any(fields["prompt"]), line)))
    if "messages" in fields:
        messages = _decode_messages(fields["messages"]) or []
        messages[:1] = [
            msgspec.Raw(_encode(_before_message(_decode_any(first), line))) for first in messages[:1]
        ]
        fields["messages"] = msgspec.Raw(_encode(messages))
    return _encode(fields)[1:]


def _before_prompt(prompt: str | list[str] | None, line: str) -> str | list[str] | None:
    if isinstance(prompt, str):
        return line + prompt
    return prompt and [line + each for each in prompt]


def _before_message(message: dict[str, Any], line: str) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": line}, *content]}
    return {**message, "content": line + (content or "")}
