"""What do engines get wrong in the form of their answers, and how is it put right without touching anything else?

Tool calls of a stream are told apart by their index alone, but some engines give the same to all, or none; and some send
an empty finish_reason with every piece, where clients expect null.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

Fields = dict[str, msgspec.Raw]

_NULL = msgspec.Raw(b"null")

_decode_answer = msgspec.json.Decoder(Fields).decode
_decode_choices = msgspec.json.Decoder(list[Fields]).decode
_decode_delta = msgspec.json.Decoder(Fields).decode
_decode_calls = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class Mend(msgspec.Struct, frozen=True, gc=False):
    """One thing to put right: the index of a call, or else an empty finish_reason that becomes null.

    Attributes:
        choice, call: Their places in the event, from 0.
    """

    choice: int
    call: int = -1
    index: int = -1


class CallNumbers:
    """The indexes of the tool calls in one choice of a stream, each call with its own.

    A call goes on until another id comes under its index; an id that was there before goes on with its own call. State:
    `_current` is the call that each of the engine's indexes stands for, with its id; `_by_id` are all that had one.
    """

    def __init__(self) -> None:
        self._current: dict[int | None, tuple[int, str]] = {}
        self._by_id: dict[tuple[int | None, str], int] = {}
        self._next = 0

    def mends(self, choice: int, calls: list[Any]) -> list[Mend]:
        """What is wrong with these pieces of calls, at that place in the event."""
        found = []
        for place, call in enumerate(calls):
            if not isinstance(call, dict):
                continue
            given = call.get("index")
            if given is not None and type(given) is not int:
                continue  # of another shape than ours: passed on as it came
            id_ = call.get("id")
            number = self._number(given, id_ if isinstance(id_, str) else "")
            if number != given:
                found.append(Mend(choice, place, number))
        return found

    def _number(self, given: int | None, id_: str) -> int:
        known = self._current.get(given)
        if known is not None and (not id_ or id_ == known[1]):
            return known[0]
        if known is not None and not known[1]:
            number = known[0]  # its id comes late
        else:
            number = self._by_id.get((given, id_), -1) if id_ else -1
            if number < 0:
                number = self._next if given is None or given < self._next else given
                self._next = number + 1
        self._current[given] = (number, id_)
        if id_:
            self._by_id[given, id_] = number
        return number


def mended(data: bytes, mends: Iterable[Mend]) -> bytes:
    """The JSON of an answer, or of one event of it, put right; all else stays byte for byte. Raises what msgspec's decoders do."""
    answer = _decode_answer(data)
    choices = _decode_choices(answer["choices"])
    for mend in mends:
        choice = choices[mend.choice]
        if mend.call < 0:
            choice["finish_reason"] = _NULL
            continue
        delta = _decode_delta(choice["delta"])
        calls = _decode_calls(delta["tool_calls"])
        call = _decode_delta(calls[mend.call])
        call = {"index": msgspec.Raw(b"%d" % mend.index)} | {k: v for k, v in call.items() if k != "index"}
        calls[mend.call] = msgspec.Raw(_encode(call))
        delta["tool_calls"] = msgspec.Raw(_encode(calls))
        choice["delta"] = msgspec.Raw(_encode(delta))
    answer["choices"] = msgspec.Raw(_encode(choices))
    return _encode(answer)
