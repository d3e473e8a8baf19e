"""How do the events of a streamed answer become the whole one that the caller asked for?"""

from typing import Any

import msgspec

from headrace.protocols import answers


class AnswerAssembler:
    """Builds the whole answer from the events of a streamed one, unknown fields included.

    Strings of deltas are joined, except names that are sent whole; lists of indexed parts (choices, tool calls) are merged
    by index; other lists (log-probabilities) are extended.
    """

    _WHOLE_NAMES = frozenset(
        {"role", "id", "type", "name", "finish_reason", "object", "model", "system_fingerprint"}
    )

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._answer: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def take(self, payload: bytes) -> None:
        """Adds one forwarded event. Raises BadAnswer."""
        try:
            chunk = answers.decode_any(payload)
        except answers.NOT_JSON as error:
            raise answers.BadAnswer("an event holds what is not JSON") from error
        for choice in chunk.pop("choices", ()):
            target = self._choices.setdefault(choice["index"] if _is_indexed(choice) else 0, {})
            if self._is_chat:
                choice["message"] = choice.pop("delta", None) or {}
            self._merge(target, choice)
        self._answer.update({key: value for key, value in chunk.items() if value is not None})

    def body(self) -> bytes:
        """The JSON of the whole answer."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            if self._is_chat:
                choice["message"].setdefault("content", None)
                for call in choice["message"].get("tool_calls") or ():
                    if isinstance(call, dict):
                        call.pop("index", None)  # only the pieces of a stream have it
        answer = {
            **self._answer,
            "object": "chat.completion" if self._is_chat else "text_completion",
            "choices": choices,
        }
        return _encode_joined(answer)

    def _merge(self, target: dict[str, Any], part: dict[str, Any]) -> None:
        for key, value in part.items():
            known = target.get(key)
            if value is None:
                target.setdefault(key, None)
            elif isinstance(value, str) and isinstance(known, str | _Pieces) and key not in self._WHOLE_NAMES:
                if isinstance(known, str):
                    known = target[key] = _Pieces(known)
                known.pieces.append(value)
            elif isinstance(value, dict) and isinstance(known, dict):
                self._merge(known, value)
            elif isinstance(value, list):
                target[key] = self._merged_list(known if isinstance(known, list) else [], value)
            else:
                target[key] = value

    def _merged_list(self, known: list[Any], parts: list[Any]) -> list[Any]:
        if not (all(map(_is_indexed, parts)) and all(map(_is_indexed, known))):
            known.extend(parts)
            return known
        by_index = {item["index"]: item for item in known}
        for part in parts:
            self._merge(by_index.setdefault(part["index"], {}), part)
        return [by_index[index] for index in sorted(by_index)]


class _Pieces:
    """A text that is still coming; joined once at the end, because joining at every piece would be quadratic."""

    __slots__ = ("pieces",)

    def __init__(self, first: str) -> None:
        self.pieces = [first]


def _joined(text: Any) -> str:
    assert isinstance(text, _Pieces), "everything else came from JSON"
    return "".join(text.pieces)


_encode_joined = msgspec.json.Encoder(enc_hook=_joined).encode


def _is_indexed(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("index"), int)
