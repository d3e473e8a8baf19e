"""Is this JSON that everyone reads alike, and how much of it is there? Strict parsing within bounds on what it costs."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.core.errors import InvalidRequest

# A body of this size costs little to parse whatever is in it.
LIGHT_BYTES = 32 * 1024
# Above either of these a body is read off the event loop: text is cheap by the byte, everything else by the piece.
INLINE_BYTES_MAX = 256 * 1024
INLINE_PIECES_MAX = 4096
# What an honest body stays below: thousands of messages, 128 tools, a batch of prompts as token ids.
STRINGS_MAX = 200_000
BRACKETS_MAX = 200_000
COMMAS_MAX = 2_500_000

_decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def is_heavy(body: bytes) -> bool:
    """Whether parsing it would hold an event loop for more than about a millisecond."""
    if len(body) <= LIGHT_BYTES:
        return False
    return (
        len(body) > INLINE_BYTES_MAX
        or body.count(b"{") + body.count(b"[") > INLINE_PIECES_MAX
        or body.count(b",") > INLINE_PIECES_MAX
        or body.count(b'"') > 2 * INLINE_PIECES_MAX
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises InvalidRequest.

    NaN, lone surrogates, a byte order mark and invalid UTF-8 are refused; of duplicate keys the last counts.
    """
    if len(body) > LIGHT_BYTES:
        _refuse_dense(body)
    try:
        fields = _decode(body)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {_describe(error)}") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object")
    return fields


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def _refuse_dense(body: bytes) -> None:
    """Counts before it parses: a few megabytes of `{},` or of tiny keys would take seconds and hundreds of megabytes.

    Brackets and commas inside text look like structure, so where there are too many, text is taken out and counted anew.
    """
    if _is_dense(body) and _is_dense(_STRING.sub(b'""', body)):
        raise InvalidRequest(
            f"the body has more than {STRINGS_MAX} strings, {BRACKETS_MAX} objects and lists, or {COMMAS_MAX} commas"
        )


def _is_dense(body: bytes) -> bool:
    strings = (body.count(b'"') - body.count(b'\\"')) // 2
    return (
        strings > STRINGS_MAX
        or body.count(b"{") + body.count(b"[") > BRACKETS_MAX
        or body.count(b",") > COMMAS_MAX
    )


# An integer of fewer digits fits in 64 bits. To look for one this way costs about a microsecond in a usual body; the
# encoder itself takes integers of any size.
_MANY_DIGITS = b"0" * 19
# Every run of 19 digits shows two neighbours in a sample of each ninth byte, so most bodies need no more than that.
_STRIDE = 9
_DIGITS_AS_ZERO = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))


def canonical(fields: dict[str, Any]) -> bytes:
    """The object serialised again. Raises InvalidRequest for integers beyond 64 bits: JSON allows them, engines differ in
    how they fail on them, and a failure would speak against a healthy replica."""
    text = encode(fields)
    sample = text[::_STRIDE].translate(_DIGITS_AS_ZERO)
    if b"00" in sample and _MANY_DIGITS in text.translate(_DIGITS_AS_ZERO):
        refuse_large_integers(fields)
    return text


_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1


def refuse_large_integers(fields: dict[str, Any]) -> None:
    """Raises InvalidRequest naming the field that holds an integer beyond 64 bits."""
    for name, field in fields.items():
        inside: list[Iterable[Any]] = [(field,)]
        while inside:
            for value in inside.pop():
                kind = type(
                    value
                )  # exact types, as the decoder makes them: millions of these must pass quickly
                if kind is int:
                    if not _INTEGER_MIN <= value <= _INTEGER_MAX:
                        raise InvalidRequest(
                            f"{name[:100]}: an integer does not fit in 64 bits", param=name[:100]
                        )
                elif kind is list:
                    inside.append(value)
                elif kind is dict:
                    inside.append(value.values())


def _describe(error: Exception) -> str:
    return "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)[:200]
