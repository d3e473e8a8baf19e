"""What a simulated caller reads: HTTP answers from bytes, strictly, and the laws that hold for bytes alone."""

import json
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from tests.simulation.history import Violation


class Part(Enum):
    """What comes next on the connection."""

    HEAD = auto()
    LENGTH = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TO_THE_END = auto()
    NOTHING = auto()


@dataclass
class Answer:
    """One answer, as far as it came.

    Attributes:
        text: Of choice 0.
        is_done: `[DONE]` came.
        error: The error object of an error body or an error event.
        is_complete: By its own framing.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    text: str = ""
    tokens: int = 0
    is_done: bool = False
    has_finish: bool = False
    error: dict[str, Any] | None = None
    is_complete: bool = False

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def ended(self) -> str:
        """In one word: nothing, refused, delivered, broken or cut."""
        if not self.status:
            return "nothing"
        if self.status != 200:
            return "refused" if self.is_complete else "cut"
        if self.error is not None:
            return "broken"
        return "delivered" if self.is_complete and (self.is_done or not self.is_stream) else "cut"


class AnswerReader:
    """The answers on one connection, in order. `expected` is how many requests still have none."""

    def __init__(self) -> None:
        self.expected = 0
        self.finished: list[Answer] = []
        self.current = Answer()
        self._part = Part.HEAD
        self._left = 0
        self._data = b""
        self._event = b""

    def feed(self, data: bytes) -> None:
        self._data += data
        while self._data and self._read():
            pass

    @property
    def must_close(self) -> bool:
        """Whether the last answer said that the connection ends."""
        return self._part is Part.NOTHING

    def _read(self) -> bool:
        """Reads one part; False if it is not all there."""
        answer = self.current
        match self._part:
            case Part.NOTHING:
                raise Violation(f"bytes after the end: {self._data[:80]!r}")
            case Part.HEAD:
                return self._read_head()
            case Part.LENGTH:
                piece, self._data = self._data[: self._left], self._data[self._left :]
                answer.body += piece
                self._left -= len(piece)
                if not self._left:
                    self._complete()
            case Part.TO_THE_END:
                piece, self._data = self._data, b""
                self._take(piece)
            case Part.CHUNK_SIZE:
                line, end, rest = self._data.partition(b"\r\n")
                if not end:
                    return False
                self._left, self._data = int(line, 16), rest
                self._part = Part.CHUNK if self._left else Part.CHUNK_END
            case Part.CHUNK:
                piece, self._data = self._data[: self._left], self._data[self._left :]
                self._left -= len(piece)
                self._take(piece)
                if not self._left:
                    self._left = -1
                    self._part = Part.CHUNK_END
            case Part.CHUNK_END:
                if len(self._data) < 2:
                    return False
                if self._data[:2] != b"\r\n":
                    raise Violation(f"a chunk without its end: {self._data[:20]!r}")
                self._data = self._data[2:]
                if self._left == 0:
                    self._complete()
                else:
                    self._part = Part.CHUNK_SIZE
        return True

    def _read_head(self) -> bool:
        if not self.expected:
            raise Violation(f"an answer to no question: {self._data[:80]!r}")
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return False
        self._data = rest
        line, *headers = head.decode("latin-1").split("\r\n")
        answer = self.current
        answer.status = int(line.split(" ")[1])
        if answer.status == 100:
            answer.status = 0
            return True
        answer.headers = dict(header.lower().split(": ", 1) for header in headers)
        if answer.headers.get("transfer-encoding") == "chunked":
            self._part = Part.CHUNK_SIZE
        elif "content-length" in answer.headers:
            self._left = int(answer.headers["content-length"])
            self._part = Part.LENGTH
        else:
            self._part = Part.TO_THE_END
        return True

    def _take(self, piece: bytes) -> None:
        """Bytes of an event stream."""
        answer = self.current
        if not answer.is_stream:
            raise Violation("only streams come in chunks")
        self._event += piece
        *events, self._event = self._event.split(b"\n\n")
        for event in events:
            if answer.is_done or answer.error is not None:
                raise Violation(f"an event after the terminal one: {event[:80]!r}")
            self._take_event(event)

    def _take_event(self, event: bytes) -> None:
        answer = self.current
        if event.startswith(b":"):
            return
        if not event.startswith(b"data: "):
            raise Violation(f"not an event of ours: {event[:80]!r}")
        data = event[6:]
        if data == b"[DONE]":
            answer.is_done = True
            return
        parsed = json.loads(data)
        if "error" in parsed:
            answer.error = parsed["error"]
            return
        for choice in parsed["choices"]:
            answer.text += choice["delta"]["content"]
            answer.tokens += 1
            answer.has_finish = answer.has_finish or choice["finish_reason"] is not None

    def _complete(self) -> None:
        answer = self.current
        if answer.is_stream:
            if answer.error is not None:
                raise Violation("a stream that broke may not end as a whole one does")
            if not answer.is_done or self._event:
                raise Violation("a stream that ends whole ends with [DONE]")
        elif answer.status == 200:
            body = json.loads(answer.body)
            answer.text = _text(body)
        else:
            answer.error = json.loads(answer.body)["error"]
        answer.is_complete = True
        self._hand_over()
        self._part = Part.NOTHING if answer.headers.get("connection") == "close" else Part.HEAD

    def _hand_over(self) -> None:
        self.finished.append(self.current)
        self.expected -= 1
        self.current = Answer()
        self._event = b""

    def end(self) -> None:
        """The connection has ended: what was being read is all there will be."""
        if self.current.status or self.expected:
            if self._part is Part.TO_THE_END and self.current.is_done:
                self.current.is_complete = True
            self._hand_over()
        self._part = Part.NOTHING


def _text(body: dict[str, Any]) -> str:
    choices = body.get("choices")
    return "".join(choice["message"]["content"] for choice in choices) if choices else ""
