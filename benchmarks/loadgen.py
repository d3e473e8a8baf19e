"""Loads for the benchmarks: one event loop with bare protocols, so that the client costs little next to what it measures.

Every load is bounded in count and in time. Its measured part runs inside the `window` that it is given; what comes
before only warms connections and caches.
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

ANSWER_LIMIT_S = 10.0

# What a caller's conversation looks like on the wire: with its headers about 1 KB.
_MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant. " * 8},
    {"role": "user", "content": "Summarise the following text in two sentences. " * 12},
]
_EVENT = b"data: "
_DONE = b"[DONE]"
_LAST_CHUNK = b"0\r\n\r\n"
_TAIL_BYTES = 5  # one less than an event's mark, so that a mark cut in two is seen once


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and as whom."""

    port: int
    model: str
    key: str = field(repr=False)
    host: str = "127.0.0.1"

    def body(self, *, stream: bool, messages: list[dict[str, str]] = _MESSAGES, **fields: Any) -> bytes:
        return json.dumps(
            {"model": self.model, "messages": messages, "stream": stream, "temperature": 0, **fields}
        ).encode()

    def request(self, body: bytes) -> bytes:
        """A chat completion with its HTTP head; the same bytes for every target but for port, model and key."""
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of the values lies; NaN for none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))] if ranked else float("nan")


# Whole answers.


@dataclass(slots=True)
class Answers:
    """What came of a load of single requests; latencies of the measured part only.

    Attributes:
        refused_s: Latencies of the answers 429 and 503. They are among `latencies_s` and `failures`, too.
    """

    latencies_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    failures: int = 0


class _Exchange(asyncio.Protocol):
    """One kept-alive connection with at most one request on it; `answered` is told each status, 0 for a lost one.

    Attributes:
        first_s: When the first byte of the body came.
    """

    transport: asyncio.Transport
    first_s = 0.0

    def __init__(self, answered: "Callable[[_Exchange, int], None]") -> None:
        self.due_s = 0.0
        self._answered = answered
        self._is_waiting = False
        self._parser = httptools.HttpResponseParser(self)

    def send(self, request: bytes, *, due_s: float) -> None:
        self.due_s = due_s
        self._is_waiting = True
        self.first_s = 0.0
        self.transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if not self.first_s:
            self.first_s = time.perf_counter()

    def on_message_complete(self) -> None:
        self._is_waiting = False
        self._answered(self, self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._answered(self, 0)


async def closed_loop(
    target: Target,
    *,
    connections: int,
    seconds: float,
    warm_s: float,
    window: contextlib.AbstractContextManager[Any],
) -> Answers:
    """Every connection asks again as soon as it has its answer."""
    request = target.request(target.body(stream=False))
    answers = Answers()
    is_running = True
    in_flight = 0
    all_answered = asyncio.Event()

    def answered(exchange: _Exchange, status: int) -> None:
        nonlocal in_flight
        now_s = time.perf_counter()
        if status == 200:
            answers.latencies_s.append(now_s - exchange.due_s)
        else:
            answers.failures += 1
        if is_running and status == 200:
            exchange.send(request, due_s=now_s)
            return
        in_flight -= 1
        if not in_flight:
            all_answered.set()

    exchanges = await _connected(target, connections, lambda: _Exchange(answered))
    in_flight = len(exchanges)
    for exchange in exchanges:
        exchange.send(request, due_s=time.perf_counter())
    await asyncio.sleep(warm_s)
    with window:
        answers.latencies_s.clear()
        await asyncio.sleep(seconds)
        measured = list(answers.latencies_s)
    is_running = False
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(all_answered.wait(), ANSWER_LIMIT_S)
    _hang_up(exchanges)
    answers.latencies_s[:] = measured
    return answers


async def open_loop(
    target: Target, *, rate_per_s: float, connections: int, seconds: float, warm_s: float,
    window: contextlib.AbstractContextManager[Any], stream: bool = False,
) -> Answers:  # fmt: skip
    """A request at every 1/rate, whatever became of those before.

    Latency counts from the moment it was due: to the end of a whole answer, to the first byte of a streamed one.
    """
    request = target.request(target.body(stream=stream))
    answers = Answers()
    waiting: deque[float] = deque()  # due times of requests for which no connection is free yet
    missing = 0
    all_answered = asyncio.Event()

    def send(due_s: float) -> None:
        if idle:
            idle.pop().send(request, due_s=due_s)
        else:
            waiting.append(due_s)

    def answered(exchange: _Exchange, status: int) -> None:
        nonlocal missing
        latency_s = (exchange.first_s if stream else time.perf_counter()) - exchange.due_s
        answers.latencies_s.append(latency_s)
        answers.failures += status != 200
        if status in (429, 503):
            answers.refused_s.append(latency_s)
        missing -= 1
        if not missing:
            all_answered.set()
        if not status:
            return
        if waiting:
            exchange.send(request, due_s=waiting.popleft())
        else:
            idle.append(exchange)

    exchanges = await _connected(target, connections, lambda: _Exchange(answered))
    idle = list(exchanges)
    for duration_s, measured in ((warm_s, contextlib.nullcontext()), (seconds, window)):
        count = missing = max(1, round(duration_s * rate_per_s))
        answers.latencies_s.clear()
        answers.refused_s.clear()
        answers.failures = 0
        all_answered.clear()
        with measured:
            await asyncio.to_thread(_pace, send, count, 1 / rate_per_s, asyncio.get_running_loop())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(all_answered.wait(), ANSWER_LIMIT_S)
        answers.failures += missing
    _hang_up(exchanges)
    return answers


def _pace(send: Callable[[float], None], count: int, gap_s: float, loop: asyncio.AbstractEventLoop) -> None:
    """Calls `send` on the loop at every gap; a thread, as the loop's own timers have a grain of a millisecond."""
    due_s = time.perf_counter()
    for _ in range(count):
        due_s += gap_s
        time.sleep(max(0.0, due_s - time.perf_counter()))
        loop.call_soon_threadsafe(send, due_s)


# Streams.


@dataclass(slots=True)
class Streamed:
    """What came of a load of streams; all counts are of the measured part only.

    Attributes:
        events: SSE events, `[DONE]` included.
        reads: Reads of a socket that held an event: a proxy that gathers events has fewer of them.
        gaps_s: Between two such reads of one stream.
    """

    first_event_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    events: int = 0
    reads: int = 0
    streams: int = 0
    failures: int = 0
    is_open: bool = False


class Stream(asyncio.Protocol):
    """One kept-alive connection that asks for a stream, reads it to its end, and asks again.

    The bytes are searched, not parsed: a parser would cost the client more than some proxies cost.
    """

    transport: asyncio.Transport

    def __init__(self, request: bytes, seen: Streamed) -> None:
        self._request = request
        self._seen = seen
        self._sent_s = self._read_s = 0.0
        self._is_answered = self._is_first = self._is_done = False
        self._is_ended = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def begin(self) -> None:
        if self.transport.is_closing():
            return  # counted as a failure when it was lost
        self._is_answered = self._is_done = self._is_ended = False
        self._is_first = True
        self._tail = b""
        self._read_s = 0.0
        self._sent_s = time.perf_counter()
        self.transport.write(self._request)

    def stop(self) -> None:
        self._is_ended = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        seen = self._seen
        if not self._is_answered:
            self._is_answered = True
            if not data.startswith(b"HTTP/1.1 200 "):
                self.transport.abort()
                return
        text = self._tail + data
        events = text.count(_EVENT)
        if events:
            if seen.is_open:
                seen.events += events
                seen.reads += 1
                now_s = time.perf_counter()
                if self._is_first:
                    seen.first_event_s.append(now_s - self._sent_s)
                elif self._read_s:
                    seen.gaps_s.append(now_s - self._read_s)
                self._read_s = now_s
            self._is_first = False
        if _DONE in text:
            self._is_done = True
        if self._is_done and text.endswith(_LAST_CHUNK):
            seen.streams += seen.is_open
            self.begin()
        else:
            self._tail = text[-_TAIL_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._seen.failures += 1


async def streams(
    target: Target, *, count: int, spread_s: float, seconds: float, warm_s: float,
    window: contextlib.AbstractContextManager[Any],
) -> Streamed:  # fmt: skip
    """That many streams at any time; `spread_s`, best the length of one, keeps them from starting in step."""
    seen = Streamed()
    request = target.request(target.body(stream=True))
    connections = await _connected(target, count, lambda: Stream(request, seen))
    for connection in connections:
        connection.begin()
        await asyncio.sleep(spread_s / count)
    await asyncio.sleep(warm_s)
    with window:
        seen.is_open = True
        await asyncio.sleep(seconds)
        seen.is_open = False
    for connection in connections:
        connection.stop()
    await asyncio.sleep(0.05)  # the far end notices before the next load begins
    return seen


async def _connected(target: Target, count: int, protocol: Callable[[], Any]) -> list[Any]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(protocol, target.host, target.port))[1] for _ in range(count)]


def _hang_up(exchanges: Iterable[_Exchange]) -> None:
    for exchange in exchanges:
        exchange.transport.abort()
