"""What does the scripted engine answer to a question? The same question gets the same bytes; no input or output."""

import array
import base64
import hashlib
import math
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, islice
from typing import Any

import msgspec

from headrace.engines.scripted_faults import NO_FAULTS, Faults, Kind
from headrace.engines.scripted_plan import Plan, Work, error_body, first_error_code, framed, spoilt
from headrace.engines.scripted_question import Endpoint, Question

CREATED_S = 1_700_000_000
"""The `created` of everything: a clock would make the same request give other bytes."""

PLAIN_WORDS = tuple(f"{number:03d} " for number in range(1000))
UNICODE_WORDS = (" 안", " 녕", " 하", " 세", " 요", "🫠", "𠮷")
U2028_WORDS = ("a\u2028", "b00 ")
U0085_WORDS = ("c\u0085d", "e00 ")

_PLANS_KEPT = 512
_KEPT_TOKENS_MAX = 4096

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Content:
    """The text of each choice: pieces with the number of the tool call that each belongs to (0 for plain text)."""

    pieces: tuple[tuple[int, str], ...]
    tokens: int
    finish_reason: str


def plan(question: Question, *, tokens: int, faults: Faults) -> Plan:
    """The answer to a question.

    Args:
        tokens: Natural length of an answer; the caller's bound may cut it.
    """
    if question.endpoint is Endpoint.EMBEDDINGS:
        return spoilt(faults, is_stream=False) or _embeddings(question, faults)
    if faults.rules or tokens * question.choices > _KEPT_TOKENS_MAX:
        is_stream = question.is_stream
        return spoilt(faults, is_stream=is_stream) or _generation(question, tokens, faults)
    return _kept_generation(question, tokens)


@lru_cache(maxsize=_PLANS_KEPT)
def _kept_generation(question: Question, tokens: int) -> Plan:
    return _generation(question, tokens, NO_FAULTS)


# --- the text ---


def _content(question: Question, tokens: int, faults: Faults) -> _Content:
    said = None if question.tool or question.answer is None else _cut_utf8(question.answer, 4)
    natural = 0 if faults.has(Kind.EMPTY) else tokens if said is None else len(said)
    count = natural if question.output_tokens_max is None else min(natural, question.output_tokens_max)
    words = _words(faults)
    if question.tool:
        pieces = _tool_pieces(natural, words, calls=2 if faults.has(Kind.TOOLS) else 1)[:count]
        reason = "tool_calls"
    elif said is not None:
        pieces, reason = [(0, piece) for piece in said[:count]], "stop"
    else:
        first = question.first_word
        pieces = [(0, word) for word in islice(cycle(words), first, first + count)]
        reason = "stop"
    if (step := faults.number(Kind.DELTA)) is not None:
        pieces = _recut(pieces, step)
    if (size := faults.number(Kind.BIG)) is not None and pieces:
        middle = len(pieces) // 2
        pieces[middle] = (pieces[middle][0], "x" * size)
    if "abort" in faults.words(Kind.FINISH):
        reason = "abort"
    return _Content(tuple(pieces), count, "length" if count < natural else reason)


def _words(faults: Faults) -> tuple[str, ...]:
    """Words of exactly four UTF-8 bytes, one token each; the text of an answer repeats them."""
    special: tuple[str, ...] = ()
    for kind, words in (
        (Kind.UNICODE, UNICODE_WORDS),
        (Kind.U2028, U2028_WORDS),
        (Kind.U0085, U0085_WORDS),
    ):
        if faults.has(kind):
            special += words
    return special or PLAIN_WORDS


def _tool_pieces(tokens: int, words: tuple[str, ...], *, calls: int) -> list[tuple[int, str]]:
    """The arguments of each call, a JSON object of four bytes per token, cut into those tokens."""
    pieces = []
    for call in range(calls):
        share = tokens // calls + (call < tokens % calls)
        # {"w":" and "} take eight bytes, two tokens.
        text = '{"w":"' + "".join(islice(cycle(words), share - 2)) + '"}' if share >= 2 else "{}  " * share
        pieces += [(call, piece) for piece in _cut_utf8(text, 4)]
    return pieces


def _recut(pieces: Iterable[tuple[int, str]], step: int) -> list[tuple[int, str]]:
    return [(call, piece) for call, text in _joined(pieces).items() for piece in _cut_utf8(text, step)]


def _joined(pieces: Iterable[tuple[int, str]]) -> dict[int, str]:
    """The whole text of each call."""
    parts: dict[int, list[str]] = {}
    for call, text in pieces:
        parts.setdefault(call, []).append(text)
    return {call: "".join(texts) for call, texts in parts.items()}


def _cut_utf8(text: str, step: int) -> list[str]:
    """Pieces of `step` UTF-8 bytes; a character that would be cut goes whole into the earlier piece."""
    if text.isascii():
        return [text[start : start + step] for start in range(0, len(text), step)]
    pieces, piece, size = [], "", 0
    for character in text:
        piece += character
        size += len(character.encode())
        if size >= step:
            pieces.append(piece)
            piece, size = "", 0
    return [*pieces, piece] if piece else pieces


# --- generated answers ---


def _generation(question: Question, tokens: int, faults: Faults) -> Plan:
    content = _content(question, tokens, faults)
    return _streamed(question, content, faults) if question.is_stream else _whole(question, content, faults)


def _whole(question: Question, content: _Content, faults: Faults) -> Plan:
    choices = [_whole_choice(question, content, index, faults) for index in range(question.choices)]
    answer = _envelope(
        question, "chat.completion" if question.endpoint is Endpoint.CHAT else "text_completion"
    )
    answer["choices"] = choices
    if "none" not in faults.words(Kind.USAGE):
        answer["usage"] = _usage(question, content.tokens * question.choices, faults)
    work = Work(steps=content.tokens, completion_tokens=content.tokens * question.choices)
    return framed([_encode(answer)], faults, is_stream=False, work=work)


def _whole_choice(question: Question, content: _Content, index: int, faults: Faults) -> dict[str, Any]:
    texts = _joined(content.pieces)
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": content.finish_reason}
    if question.top_logprobs is not None and not question.tool:
        choice["logprobs"] = _logprobs(question, [piece for _, piece in content.pieces])
    text = texts.get(0, "")
    if (size := faults.number(Kind.JSON_HUGE)) is not None:
        text += "x" * (size - len(text))
    if question.endpoint is Endpoint.COMPLETIONS:
        choice["text"] = text
    elif question.tool:
        calls = [
            _tool_call(question, call, {"arguments": arguments}, faults) for call, arguments in texts.items()
        ]
        # Only deltas number their calls.
        choice["message"] = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{key: value for key, value in call.items() if key != "index"} for call in calls],
        }
    elif field := _reasoning_field(question, faults):
        said = [piece for _, piece in content.pieces]
        half = len(said) // 2
        choice["message"] = {
            "role": "assistant",
            field: "".join(said[:half]),
            "content": "".join(said[half:]),
        }
    else:
        choice["message"] = {"role": "assistant", "content": text}
    return choice


def _reasoning_field(question: Question, faults: Faults) -> str | None:
    """The field in which the first half of the text comes, if the script has it so."""
    if question.endpoint is not Endpoint.CHAT or question.tool:
        return None
    return next(iter(faults.words(Kind.REASONING)), None)


def _streamed(question: Question, content: _Content, faults: Faults) -> Plan:
    if faults.has(Kind.ERROR_FIRST):
        payloads = [error_body(first_error_code(faults), "scripted error"), b"[DONE]"]
        return framed(_sse(payloads, faults), faults, is_stream=True, is_fault=True)
    payloads = _token_payloads(question, content, faults)
    work = Work(
        steps=content.tokens,
        completion_tokens=content.tokens * question.choices,
        token_events=len(payloads),
        step_events=question.choices,
    )
    after = faults.number(Kind.ERROR_EVENT)
    if after is not None:
        error = faults.get(Kind.ERROR_EVENT)
        code = error.numbers[1] if error is not None and len(error.numbers) > 1 else 500
        payloads = [*payloads[:after], error_body(code, "scripted error"), b"[DONE]"]
        return framed(_sse(payloads, faults), faults, is_stream=True, work=work.until(after), is_fault=True)
    if (before := faults.number(Kind.BAD_EVENT)) is not None:
        payloads = [*payloads[:before], b'{"choices": [', b"[DONE]"]
        return framed(_sse(payloads, faults), faults, is_stream=True, work=work.until(before), is_fault=True)
    payloads += _closing_payloads(question, content, faults)
    return framed(_sse(payloads, faults), faults, is_stream=True, work=work)


def _sse(payloads: Iterable[bytes], faults: Faults) -> list[bytes]:
    end = b"\r\n" if faults.has(Kind.CRLF) else b"\r" if faults.has(Kind.CR) else b"\n"
    comment = b": ping" + end + end if faults.has(Kind.COMMENTS) else b""
    return [b"%bdata: %b%b%b" % (comment, payload, end, end) for payload in payloads]


def _token_payloads(question: Question, content: _Content, faults: Faults) -> list[bytes]:
    """An event per piece and choice, the choices taking turns."""
    is_running = "cumulative" in faults.words(Kind.USAGE)
    reasoning = _reasoning_field(question, faults)
    started: set[int] = set()
    payloads: list[bytes] = []
    for position, (call, piece) in enumerate(content.pieces):
        is_first_of_call = call not in started
        started.add(call)
        for index in range(question.choices):
            if question.tool:
                delta = _tool_delta(question, call, piece, is_first_of_call, faults)
                if position == 0:
                    delta = {"role": "assistant", "content": None, **delta}
                payload = _chunk_payload(question, index, delta)
            elif reasoning is not None and position < len(content.pieces) // 2:
                payload = _chunk_payload(question, index, {reasoning: piece})
            else:
                payload = _text_payload(
                    question.endpoint, question.model, index, piece, position == 0, question.top_logprobs
                )
            if is_running or question.wants_timings:
                done = min(len(payloads) + 1, content.tokens * question.choices)
                payload = _with_counts(payload, question, done, faults, is_running=is_running)
            if "empty" in faults.words(Kind.FINISH):
                payload = payload.replace(b'"finish_reason":null', b'"finish_reason":""')
            payloads.append(payload)
    return payloads


def _with_counts(payload: bytes, question: Question, done: int, faults: Faults, *, is_running: bool) -> bytes:
    extra: dict[str, Any] = {}
    if is_running:
        extra["usage"] = _usage(question, done, faults)
    if question.wants_timings:
        cached = question.cached_tokens
        extra["timings"] = {
            "cache_n": cached,
            "prompt_n": question.prompt_tokens - cached,
            "predicted_n": done,
        }
    return payload[:-1] + b"," + _encode(extra)[1:]


def _closing_payloads(question: Question, content: _Content, faults: Faults) -> list[bytes]:
    """finish_reason, usage and [DONE], as asked for or as the script has it."""
    modes = faults.words(Kind.USAGE)
    usage = _usage(question, content.tokens * question.choices, faults)
    closing = [
        _chunk_payload(question, index, {}, finish_reason=content.finish_reason)
        for index in range(1 if "first_only" in faults.words(Kind.FINISH) else question.choices)
    ]
    if "cumulative" in modes or question.wants_timings:
        closing = [
            _with_counts(
                payload,
                question,
                content.tokens * question.choices,
                faults,
                is_running="cumulative" in modes,
            )
            for payload in closing
        ]
    apart = _encode({**_chunk_envelope(question), "choices": [], "usage": usage})
    if "with_choices" in modes:
        closing.append(_chunk_payload(question, 0, {})[:-1] + b"," + _encode({"usage": usage})[1:])
    elif "after_finish" in modes or (question.wants_usage and not modes & {"none", "after_done"}):
        closing.append(apart)
    if not faults.has(Kind.NO_DONE):
        closing.append(b"[DONE]")
    if "after_done" in modes:
        closing.append(apart)
    return closing


@lru_cache(maxsize=8192)
def _text_payload(
    endpoint: Endpoint, model: str, index: int, piece: str, is_first: bool, top_logprobs: int | None
) -> bytes:
    question = Question(endpoint, model, 0, top_logprobs=top_logprobs)
    delta = {"role": "assistant", "content": piece} if is_first else {"content": piece}
    logprobs = None if top_logprobs is None else _logprobs(question, [piece])
    return _chunk_payload(question, index, delta, logprobs=logprobs)


def _chunk_payload(
    question: Question,
    index: int,
    delta: dict[str, Any],
    *,
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> bytes:
    choice: dict[str, Any] = {"index": index}
    if question.endpoint is Endpoint.CHAT:
        choice["delta"] = delta
    else:
        choice["text"] = delta.get("content", "")
    choice |= {"logprobs": logprobs, "finish_reason": finish_reason}
    return _encode({**_chunk_envelope(question), "choices": [choice]})


def _tool_delta(question: Question, call: int, piece: str, is_first: bool, faults: Faults) -> dict[str, Any]:
    if is_first:
        return {"tool_calls": [_tool_call(question, call, {"arguments": piece}, faults)]}
    return {"tool_calls": [{"index": _tool_index(call, faults), "function": {"arguments": piece}}]}


def _tool_call(question: Question, call: int, function: dict[str, str], faults: Faults) -> dict[str, Any]:
    return {
        "index": _tool_index(call, faults),
        "id": f"call_scripted_{call}",
        "type": "function",
        "function": {"name": question.tool, **function},
    }


def _tool_index(call: int, faults: Faults) -> int:
    return 0 if "same_index" in faults.words(Kind.TOOLS) else call


def _envelope(question: Question, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if question.endpoint is Endpoint.CHAT else "cmpl"
    return {"id": f"{prefix}-scripted", "object": kind, "created": CREATED_S, "model": question.model}


def _chunk_envelope(question: Question) -> dict[str, Any]:
    is_chat = question.endpoint is Endpoint.CHAT
    return _envelope(question, "chat.completion.chunk" if is_chat else "text_completion")


def _usage(question: Question, completion_tokens: int, faults: Faults) -> dict[str, Any]:
    modes = faults.words(Kind.USAGE)
    prompt_tokens = question.prompt_tokens
    if "zero" in modes:
        prompt_tokens = completion_tokens = 0
    if "negative" in modes:
        completion_tokens = -1
    cached = max(
        (int(mode.partition("=")[2]) for mode in modes if mode.startswith("cached=")),
        default=question.cached_tokens,
    )
    prompt_tokens = max(prompt_tokens, cached)
    reasoning = completion_tokens // 2 if _reasoning_field(question, faults) else 0
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        **({"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}),
    }


def _logprobs(question: Question, tokens: Sequence[str]) -> dict[str, Any]:
    """Plausible numbers that depend on the token alone."""
    top = question.top_logprobs or 0
    values = [-(sum(token.encode()) % 16) / 16 for token in tokens]
    if question.endpoint is Endpoint.COMPLETIONS:
        alternatives = [dict(_alternatives(t, v, top)) for t, v in zip(tokens, values, strict=True)]
        offsets = [0]
        for token in tokens[:-1]:
            offsets.append(offsets[-1] + len(token))
        return {
            "tokens": list(tokens),
            "token_logprobs": values,
            "top_logprobs": alternatives if top else None,
            "text_offset": offsets[: len(tokens)],
        }
    return {
        "content": [
            {
                **_logprob(token, value),
                "top_logprobs": [_logprob(*alternative) for alternative in _alternatives(token, value, top)],
            }
            for token, value in zip(tokens, values, strict=True)
        ]
    }


def _alternatives(token: str, value: float, top: int) -> list[tuple[str, float]]:
    return [(token if rank == 0 else f"~{rank:02d} ", value - rank) for rank in range(top)]


def _logprob(token: str, value: float) -> dict[str, Any]:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}


# --- embeddings ---


def _embeddings(question: Question, faults: Faults) -> Plan:
    vectors = [vector(text, question.dimensions) for text in question.inputs]
    items = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64_of(numbers) if question.wants_base64 else numbers.tolist(),
        }
        for index, numbers in enumerate(vectors)
    ]
    answer: dict[str, Any] = {"object": "list", "model": question.model, "data": items}
    if "none" not in faults.words(Kind.USAGE):
        usage = _usage(question, 0, faults)
        answer["usage"] = {key: usage[key] for key in ("prompt_tokens", "total_tokens")}
    return framed([_encode(answer)], faults, is_stream=False)


def vector(text: str, dimensions: int) -> "array.array[float]":
    """A unit vector, float32 [dimensions], that depends on the text alone: SHAKE-256 read as uint32 little-endian."""
    digest = hashlib.shake_256(text.encode()).digest(4 * dimensions)
    raw = [number / 2**31 - 1 for number in struct.unpack(f"<{dimensions}I", digest)]
    norm = math.sqrt(sum(number * number for number in raw)) or 1.0
    return array.array("f", [number / norm for number in raw])


def _base64_of(numbers: "array.array[float]") -> str:
    if sys.byteorder == "big":
        numbers = array.array("f", numbers)
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
