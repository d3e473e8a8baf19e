"""In which writes does the scripted engine send an answer, and how does it end? No input or output, no clock.

A plan is made whole before anything is sent: the server only plays it, and it can be kept and reused.
"""

from dataclasses import dataclass, replace
from enum import Enum
from http import HTTPStatus

import msgspec

from headrace.engines.scripted_faults import Faults, Kind

_OUT_OF_MEMORY = b"scripted: failed to allocate 1 TB: out of memory\n"
_GARBAGE = b"SSH-2.0-scripted\r\n\x00\x01\x02\xff\xfe not HTTP\r\n"
_HTML = b"<!doctype html><html><body><h1>Welcome</h1><p>This is not an API.</p></body></html>"
_HOSTILE_MESSAGE = (
    'one\r\nset-cookie: a=b\r\n\r\n\x1b[31mred\x1b[0m {"level":"error"} <script>alert(1)</script>'
)
_FORGED = b"x-request-id: forged\r\nx-headrace-model-revision: forged\r\nset-cookie: session=forged\r\n"
_FORGED_LF = b"x-note: one\nx-request-id: forged\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class Ending(Enum):
    """What happens on the connection after the last write."""

    KEEP = "the message is complete, the connection may carry the next"
    HOLD = "nothing, until the client leaves"
    RESET = "a TCP reset"
    CLOSE = "a FIN"
    EXIT = "the process exits with status 137"


@dataclass(frozen=True, slots=True)
class Work:
    """How much is generated for an answer.

    Attributes:
        steps: Tokens of each choice, which take time one after the other.
        completion_tokens: Tokens of all choices.
        token_events: Events of the stream that carry tokens; they come first.
        step_events: Events that come together, one per choice.
    """

    steps: int = 0
    completion_tokens: int = 0
    token_events: int = 0
    step_events: int = 1

    def until(self, events: int) -> "Work":
        """What is generated if only the first `events` events are sent."""
        if events >= self.token_events:
            return (
                self  # also a whole answer: it has no events, and all the work is done before its first byte
            )
        done = -(-self.completion_tokens * events // self.token_events)
        return replace(self, token_events=events, completion_tokens=done)


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class Plan:
    """The bytes of one answer and their pace.

    Attributes:
        writes: In order; of a stream the first is the head, each following one an event.
        needs_slot: False for what the engine answers without work.
        is_fault: The script made this end in another way than a whole answer.
        ttft_s, itl_s: Instead of the engine's own pace, where not None.
        write_bytes_max: Cuts writes further; 0 leaves them whole.
        is_deaf: It is worked off to its end, also when its client has left.
        idle_close_s: Close the connection this long after the answer; None keeps it.
        last_words: What a process that ends at its end writes into its log before.
    """

    writes: tuple[bytes, ...]
    ending: Ending = Ending.KEEP
    work: Work = NO_WORK
    is_stream: bool = False
    needs_slot: bool = True
    is_fault: bool = False
    ttft_s: float | None = None
    itl_s: float | None = None
    write_bytes_max: int = 0
    is_deaf: bool = False
    idle_close_s: float | None = None
    last_words: bytes = b""


def response(status: int, content_type: str, body: bytes, *, extra: bytes = b"") -> bytes:
    """A whole HTTP response; `extra` is further header lines, each with its line ending."""
    return _head(status, content_type, b"%bcontent-length: %d\r\n" % (extra, len(body))) + body


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """An error object in OpenAI's shape."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    fields = {
        "message": message,
        "type": "rate_limit_error" if status == 429 else kind,
        "param": param,
        "code": code or status,
    }
    return msgspec.json.encode({"error": fields})


def spoilt(faults: Faults, *, is_stream: bool) -> Plan | None:
    """The plan of a fault that leaves nothing of the answer, if there is one."""
    if faults.has(Kind.REFUSE):
        return Plan((), Ending.RESET, needs_slot=False, is_fault=True)
    if faults.has(Kind.DIE) and faults.number(Kind.DIE) is None:
        return Plan((), Ending.EXIT, needs_slot=False, is_fault=True)
    if faults.has(Kind.OUT_OF_MEMORY):
        return Plan((), Ending.EXIT, needs_slot=False, is_fault=True, last_words=_OUT_OF_MEMORY)
    if faults.has(Kind.GARBAGE):
        return Plan((_GARBAGE,), Ending.CLOSE, needs_slot=False, is_fault=True)
    whole: bytes | None = None
    if faults.has(Kind.HTML):
        whole = response(200, "text/html; charset=utf-8", _HTML)
    elif faults.has(Kind.ERROR_FIRST) and not is_stream:
        whole = response(200, "application/json", error_body(first_error_code(faults), "scripted error"))
    elif faults.has(Kind.ERROR_HOSTILE):
        whole = response(500, "application/json", error_body(500, _HOSTILE_MESSAGE))
    elif error := faults.get(Kind.ERROR):
        status, *retry_after = error.numbers
        extra = b"retry-after: %d\r\n" % retry_after[0] if retry_after else b""
        whole = response(status, "application/json", error_body(status, "scripted error"), extra=extra)
    return None if whole is None else Plan((whole,), needs_slot=False, is_fault=True)


def first_error_code(faults: Faults) -> int:
    """Code of the error that stands in place of the answer under status 200."""
    return faults.number(Kind.ERROR_FIRST) or 400


def framed(
    bodies: list[bytes], faults: Faults, *, is_stream: bool, work: Work = NO_WORK, is_fault: bool = False
) -> Plan:
    """The plan that sends these events, or this one body, with the faults of the transport worked in."""
    stop = _stop(faults)
    lie = _length_lie(faults)
    is_open = faults.has(Kind.DONE_OPEN)
    is_chunked = not lie and (is_stream or is_open or (stop is not None and stop[0] is Kind.CLOSE))
    length = None if is_chunked else max(0, sum(map(len, bodies)) + lie)
    head = _answer_head(faults, is_stream=is_stream, length=length)
    plan = Plan(
        (),
        Ending.HOLD if is_open else Ending.CLOSE if lie > 0 else Ending.KEEP,
        work,
        is_stream=is_stream,
        is_fault=is_fault,
        ttft_s=_seconds(faults.number(Kind.TTFT)),
        itl_s=_seconds(faults.number(Kind.SLOW)),
        write_bytes_max=1 if faults.words(Kind.UNICODE) else faults.number(Kind.SLICE) or 0,
        is_deaf=faults.has(Kind.DEAF),
        idle_close_s=_seconds(faults.number(Kind.KEEPALIVE_CLOSE)),
    )
    if faults.has(Kind.HEAD_ONLY):
        return replace(plan, writes=(head,), ending=Ending.RESET, work=work.until(0), is_fault=True)
    if stop is not None:
        return _stopped(plan, head, bodies, *stop, is_chunked=is_chunked)
    pieces = [_chunk(body) for body in bodies] if is_chunked else bodies
    if is_chunked and not is_open:
        pieces[-1] += _LAST_CHUNK
    return replace(plan, writes=(head, *pieces) if is_stream else (head + pieces[0],))


_STOPS = {
    Kind.STALL: Ending.HOLD,
    Kind.CUT: Ending.RESET,
    Kind.CLOSE: Ending.KEEP,
    Kind.CLOSE_RAW: Ending.CLOSE,
    Kind.DIE: Ending.EXIT,
}


def _stop(faults: Faults) -> tuple[Kind, int] | None:
    """The fault that ends the answer early, and after how many events."""
    for rule in reversed(faults.rules):
        if rule.kind in _STOPS:
            return rule.kind, rule.number
    return None


def _stopped(
    plan: Plan, head: bytes, bodies: list[bytes], kind: Kind, events: int, *, is_chunked: bool
) -> Plan:
    """The plan cut after that many events; a whole answer is cut at its half, which counts as any number of events."""
    if plan.is_stream:
        sent, rest = bodies[:events], bodies[events : events + 1]
    else:
        half = len(bodies[0]) // 2
        sent, rest = ([bodies[0][:half]], [bodies[0][half:]]) if events else ([], bodies)
    pieces = [head, *(_chunk(body) if is_chunked else body for body in sent)]
    if kind is Kind.CLOSE:
        pieces.append(_LAST_CHUNK)
    elif kind is Kind.CLOSE_RAW and plan.is_stream and rest:
        pieces.append(_chunk(rest[0])[: -len(rest[0]) // 2])
    has_head = events > 0 or kind is Kind.CLOSE
    return replace(
        plan,
        writes=tuple(pieces) if plan.is_stream and has_head else (b"".join(pieces),) if has_head else (),
        ending=_STOPS[kind],
        work=plan.work.until(events) if plan.is_stream else plan.work,
        is_fault=True,
    )


def _length_lie(faults: Faults) -> int:
    """By how many bytes content-length is too long, or too short."""
    if not faults.has(Kind.LENGTH_LIE):
        return 0
    return -10 if "shorter" in faults.words(Kind.LENGTH_LIE) else 100


def _answer_head(faults: Faults, *, is_stream: bool, length: int | None) -> bytes:
    content_type = "text/event-stream; charset=utf-8" if is_stream else "application/json"
    if faults.has(Kind.CONTENT_TYPE):
        content_type = "text/plain"
    extra = b"cache-control: no-cache\r\n" if is_stream else b""
    if faults.has(Kind.HEADER_INJECTION):
        extra += _FORGED_LF if faults.words(Kind.HEADER_INJECTION) else _FORGED
    if (size := faults.number(Kind.HEAD_HUGE)) is not None:
        extra += b"x-filler: %b\r\n" % (b"x" * size)
    extra += b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %d\r\n" % length
    return _head(200, content_type, extra)


def _head(status: int, content_type: str, extra: bytes) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Scripted"
    return f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {content_type}\r\n".encode() + extra + b"\r\n"


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
