"""How does a simulated replica answer one request? A list of steps, drawn from the seed; no input or output."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from random import Random
from typing import Any


class Fault(Enum):
    """What can be wrong with one answer."""

    NONE = auto()
    SLOW = auto()
    HANG_BEFORE = auto()  # nothing ever comes
    HANG_INSIDE = auto()
    RESET_BEFORE = auto()
    CLOSE_BEFORE = auto()
    RESET_INSIDE = auto()
    CLOSE_INSIDE = auto()  # a chunked body without its end
    TRUNCATED = auto()  # a clean end of the message, but not of the answer
    NOT_HTTP = auto()
    NOT_JSON = auto()
    WRONG_TYPE = auto()  # a whole answer instead of a stream
    ERROR_FIRST = auto()  # an error event under a status of 200
    ERROR_INSIDE = auto()
    BUSY = auto()  # 429 or 503, often with Retry-After
    ERRED = auto()  # 500
    REJECTED = auto()  # 400
    OPEN_END = auto()  # [DONE], and then neither the end of the message nor a close
    DOUBLE = auto()  # a second answer that nobody asked for
    CLOSES = auto()  # a good answer that ends with its connection
    FAT = auto()  # a good answer of many kilobytes


class End(Enum):
    """What follows the last bytes."""

    KEEP = auto()
    CLOSE = auto()
    RESET = auto()
    HANG = auto()


@dataclass(frozen=True)
class Step:
    """After `wait_s`, sends `data`; `token` is the text in it, and `is_last` says that nothing of the answer follows.

    Attributes:
        more: What is sent with `data` and doesn't belong to the answer. Whoever reads the one has some of the other: after
            exactly one answer nobody could know that the connection is not to be trusted.
    """

    wait_s: float
    data: bytes
    token: str = ""
    is_last: bool = False
    more: bytes = b""


@dataclass
class Plan:
    """One answer to be given; `text` is what all of it would say."""

    fault: Fault
    steps: list[Step] = field(default_factory=list)
    end: End = End.KEEP
    text: str = ""


@dataclass(frozen=True)
class Question:
    """What the replica was asked, as far as the plan needs it."""

    is_streamed: bool
    wants_usage: bool
    prompt: str
    is_embedding: bool


HEAD_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def make(question: Question, name: str, chance: Random, *, fault: Fault, pace_s: float) -> Plan:
    """The plan of the execution `name`, whose every token carries that name."""
    match fault:
        case Fault.HANG_BEFORE:
            return Plan(fault, [], End.HANG)
        case Fault.RESET_BEFORE:
            return Plan(fault, [Step(chance.random() * pace_s, b"")], End.RESET)
        case Fault.CLOSE_BEFORE:
            return Plan(fault, [Step(chance.random() * pace_s, b"")], End.CLOSE)
        case Fault.NOT_HTTP:
            return Plan(fault, [Step(chance.random() * pace_s, chance.randbytes(40))], End.CLOSE)
        case Fault.BUSY | Fault.ERRED | Fault.REJECTED:
            return _refused(fault, chance, pace_s)
        case _:
            tokens = _tokens(name, chance, fault)
            answer = _streamed if question.is_streamed else _whole
            plan = answer(question, tokens, name, chance, fault, pace_s)
            plan.text = "".join(tokens)
            return plan


def _refused(fault: Fault, chance: Random, pace_s: float) -> Plan:
    status = {Fault.BUSY: chance.choice((429, 503)), Fault.ERRED: 500, Fault.REJECTED: 400}[fault]
    extra = b""
    if fault is Fault.BUSY and chance.random() < 0.7:
        extra = b"retry-after: %s\r\n" % chance.choice((b"0", b"1", b"3", b"soon", b"99999999999"))
    body = chance.choice((b'{"error": {"message": "no"}}', b"<html>no</html>", b""))
    return Plan(fault, [Step(chance.random() * pace_s, _message(status, body, extra), is_last=True)])


def _message(status: int, body: bytes, extra: bytes = b"", *, length: int | None = None) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        extra,
        len(body) if length is None else length,
        body,
    )


def _tokens(name: str, chance: Random, fault: Fault) -> list[str]:
    if fault is Fault.FAT:
        return [
            f"{name}.{number} " + "x" * chance.randint(1000, 30_000)
            for number in range(chance.randint(10, 30))
        ]
    return [f"{name}.{number}é " for number in range(chance.randint(1, 12))]


def _usage(question: Question, tokens: list[str]) -> dict[str, Any]:
    return {"prompt_tokens": len(question.prompt), "completion_tokens": len(tokens)}


def _whole(
    question: Question, tokens: list[str], name: str, chance: Random, fault: Fault, pace_s: float
) -> Plan:
    wait_s = pace_s * (30 if fault is Fault.SLOW else 3) * chance.random()
    if fault in (Fault.ERROR_FIRST, Fault.ERROR_INSIDE):
        body: dict[str, Any] = {"error": {"message": "overloaded", "code": chance.choice((500, 503, "429"))}}
    elif question.is_embedding:
        body = {
            "object": "list",
            "data": [{"index": 0, "embedding": [0.5]}],
            "usage": _usage(question, tokens),
            "name": name,
        }
    else:
        message = {"role": "assistant", "content": "".join(tokens)}
        body = {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": _usage(question, tokens),
        }
    data = json.dumps(body, ensure_ascii=False).encode()
    half = len(data) // 2
    head = _message(200, b"", length=len(data))
    last = Step(wait_s, head + data, "".join(tokens), is_last=True)
    match fault:
        case Fault.RESET_INSIDE | Fault.CLOSE_INSIDE | Fault.HANG_INSIDE:
            end = {Fault.RESET_INSIDE: End.RESET, Fault.CLOSE_INSIDE: End.CLOSE, Fault.HANG_INSIDE: End.HANG}[
                fault
            ]
            return Plan(fault, [Step(wait_s, head + data[:half])], end)
        case Fault.TRUNCATED | Fault.NOT_JSON | Fault.WRONG_TYPE:
            wrong = data[:half] if fault is Fault.TRUNCATED else b"<html>" * 9
            return Plan(fault, [Step(wait_s, _message(200, wrong), is_last=True)])
        case Fault.DOUBLE:
            return Plan(fault, [replace(last, more=_message(200, b'{"choices": []}'))])
        case Fault.CLOSES:
            closing = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
            return Plan(fault, [Step(wait_s, closing + data, last.token, is_last=True)], End.CLOSE)
        case _:
            return Plan(fault, [last])


def _streamed(
    question: Question, tokens: list[str], name: str, chance: Random, fault: Fault, pace_s: float
) -> Plan:
    if fault is Fault.WRONG_TYPE:
        return Plan(fault, [Step(pace_s, _message(200, b'{"choices": []}'), is_last=True)])
    steps = [Step(pace_s * chance.random() * (30 if fault is Fault.SLOW else 3), HEAD_STREAM)]
    steps.extend(_events(question, tokens, chance, pace_s))
    inside = chance.randint(1, max(1, len(tokens)))  # how many tokens come before the fault
    match fault:
        case Fault.RESET_INSIDE | Fault.CLOSE_INSIDE | Fault.HANG_INSIDE:
            end = {Fault.RESET_INSIDE: End.RESET, Fault.CLOSE_INSIDE: End.CLOSE, Fault.HANG_INSIDE: End.HANG}[
                fault
            ]
            return Plan(fault, steps[: 1 + inside], end)
        case Fault.TRUNCATED:
            return Plan(fault, [*steps[: 1 + inside], Step(0.0, LAST_CHUNK, is_last=True)])
        case Fault.NOT_JSON:
            return Plan(fault, [*steps[:inside], Step(0.0, _event(b"<html>"), is_last=True)], End.HANG)
        case Fault.ERROR_FIRST | Fault.ERROR_INSIDE:
            kept = 1 if fault is Fault.ERROR_FIRST else 1 + inside
            error = _event(
                b'{"error": {"message": "overloaded", "code": %d}}' % chance.choice((400, 429, 500))
            )
            trail = _event(b"[DONE]") + LAST_CHUNK if chance.random() < 0.5 else LAST_CHUNK
            return Plan(fault, [*steps[:kept], Step(0.0, error + trail, is_last=True)])
        case Fault.OPEN_END:
            return Plan(fault, [*steps, Step(0.0, _event(b"[DONE]"), is_last=True)], End.HANG)
        case Fault.DOUBLE:
            end_of_answer = _event(b"[DONE]") + LAST_CHUNK
            return Plan(fault, [*steps, Step(0.0, end_of_answer, is_last=True, more=_message(200, b"{}"))])
        case _:
            done = (
                _event(b"[DONE]") if chance.random() < 0.8 else b""
            )  # some say it by the finish_reason alone
            end = End.CLOSE if fault is Fault.CLOSES else End.KEEP
            return Plan(fault, [*steps, Step(0.0, done + LAST_CHUNK, is_last=True)], end)


def _events(question: Question, tokens: list[str], chance: Random, pace_s: float) -> Iterator[Step]:
    """The answer's content: its tokens, its finish_reason, and its usage where asked for."""
    for number, token in enumerate(tokens):
        wait_s = 0.0 if chance.random() < 0.3 else pace_s * chance.random()
        finish = "stop" if number == len(tokens) - 1 else None
        choice = {"index": 0, "delta": {"content": token}, "finish_reason": finish}
        yield Step(wait_s, _event(json.dumps({"choices": [choice]}, ensure_ascii=False).encode()), token)
    if question.wants_usage:
        yield Step(0.0, _event(json.dumps({"choices": [], "usage": _usage(question, tokens)}).encode()))


def _event(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)
