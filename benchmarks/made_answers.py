"""A server whose answers are bytes made beforehand, and who knows when it sent each: the truth that load generators are held against.

    python -m benchmarks.made_answers --port P [--tokens N] [--ttft-ms X] [--itl-ms Y]

The scripted engine of headrace would take a core for some thousand answers a second, in which the clients that are compared would wait
for it. This one understands just enough of HTTP to count requests; it answers whole or as a stream, as asked, and has any number of
slots. `GET /truth` has, by request id, when a request had been read and when the first of its answer was written, in microseconds
by the machine's monotonic clock.
"""

import argparse
import asyncio
import json
import re
from collections.abc import Callable
from heapq import heappop, heappush
from typing import cast

import msgspec
import uvloop

from headrace.core.clock import SystemClock
from headrace.evidence.load_pacer import Alarm

MODEL = "made"
TRUTHS_MAX = 2_000_000

_HEAD_END = b"\r\n\r\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: %d\r\ntransfer-encoding: chunked\r\n\r\n"
_length = re.compile(rb"content-length: *(\d+)", re.IGNORECASE).search
_streams = re.compile(rb'"stream": *true').search
_now_s = SystemClock.now_s


class Script:
    """What every request gets.

    Attributes:
        first, middle, last: Of a stream, the bytes behind its head: with the first token and a place for the number of the request,
            with each other token, and with the end.
    """

    def __init__(self, *, tokens: int, ttft_s: float, itl_s: float) -> None:
        self.tokens = tokens
        self.ttft_s = ttft_s
        self.itl_s = itl_s
        usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
        told = {"id": "chatcmpl-made", "created": 1_700_000_000, "model": MODEL}
        message = {"role": "assistant", "content": "word " * tokens}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        self.whole = _json({**told, "object": "chat.completion", "choices": [choice], "usage": usage})
        delta = {"index": 0, "delta": {"content": "word "}, "logprobs": None, "finish_reason": None}
        token = {**told, "object": "chat.completion.chunk", "choices": [delta]}
        self.middle = _chunk(_event(token))
        # As wide as it will be, so that the length of the chunk is right.
        self.first = _chunk(_event({**token, "id": "chatcmpl-" + "0" * 10})).replace(b"0" * 10, b"%010d")
        stop = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
        end = _event({**told, "object": "chat.completion.chunk", "choices": [stop]})
        counted = _event({**told, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.last = _chunk(end) + _chunk(counted) + _chunk(b"data: [DONE]\n\n") + _chunk(b"")


def _json(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def _event(said: object) -> bytes:
    return b"data: " + _json(said) + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Stage:
    """What is due, and what was done. State: `_due`, the next first; `truths` in the order in which requests came."""

    def __init__(self, script: Script, loop: asyncio.AbstractEventLoop) -> None:
        self.script = script
        self.truths: list[tuple[int, int, int]] = []
        self.count = 0
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._alarm = Alarm(self._ring, loop)

    def at(self, moment_s: float, act: Callable[[float], None]) -> None:
        self._order += 1
        heappush(self._due, (moment_s, self._order, act))
        if self._due[0][1] == self._order:
            self._alarm.set(moment_s - _now_s())

    def wrote(self, number: int, read_s: float, first_s: float) -> None:
        if len(self.truths) < TRUTHS_MAX:
            self.truths.append((number, round(read_s * 1e6), round(first_s * 1e6)))

    def _ring(self) -> None:
        due = self._due
        while due:
            moment_s = due[0][0]
            if moment_s > _now_s():
                self._alarm.set(moment_s - _now_s())
                return
            _, _, act = heappop(due)
            act(moment_s)


class Answering(asyncio.Protocol):
    """One connection. State: what is still to be said of a stream, and since when."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._script = stage.script
        self._read = b""
        self._left = 0
        self._number = 0
        self._read_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        read_s = _now_s()
        self._read = data = self._read + data if self._read else data
        head_end = data.find(_HEAD_END)
        if head_end < 0:
            return
        length = _length(data, 0, head_end)
        if length is None:
            self._read = b""
            self._look_up(data[:head_end])
            return
        body_at = head_end + len(_HEAD_END)
        if len(data) < body_at + int(length[1]):
            return
        self._read = b""
        self._read_s = read_s
        self._number = self._stage.count = self._stage.count + 1
        begin = self._begin_stream if _streams(data, body_at) else self._answer
        if self._script.ttft_s:
            self._stage.at(read_s + self._script.ttft_s, begin)
        else:
            begin(read_s)

    def _answer(self, due_s: float) -> None:
        whole = self._script.whole
        self._stage.wrote(self._number, self._read_s, _now_s())
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: %d\r\ncontent-length: %d\r\n\r\n%b"
            % (self._number, len(whole), whole)
        )

    def _begin_stream(self, due_s: float) -> None:
        head = _STREAM_HEAD % self._number + self._script.first % self._number
        self._stage.wrote(self._number, self._read_s, _now_s())
        self._transport.write(head)
        self._left = self._script.tokens - 1
        self._stage.at(due_s + self._script.itl_s, self._go_on)

    def _go_on(self, due_s: float) -> None:
        """The next token, by the schedule of the stream's begin: a token that is late puts off none behind it."""
        if self._transport.is_closing():
            return
        if not self._left:
            self._transport.write(self._script.last)
            return
        self._left -= 1
        if not self._left:
            self._transport.write(self._script.middle + self._script.last)
            return
        self._transport.write(self._script.middle)
        self._stage.at(due_s + self._script.itl_s, self._go_on)

    def _look_up(self, head: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/truth":
            body = msgspec.json.encode(self._stage.truths)
            self._stage.truths = []
        else:
            body = _json(
                {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "benchmark"}]}
            )
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )


async def serve(port: int, script: Script) -> None:
    loop = asyncio.get_running_loop()
    stage = Stage(script, loop)
    server = await loop.create_server(lambda: Answering(stage), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    script = Script(tokens=arguments.tokens, ttft_s=arguments.ttft_ms / 1000, itl_s=arguments.itl_ms / 1000)
    uvloop.run(serve(arguments.port, script))


if __name__ == "__main__":
    main()
