"""What do callers get while something is broken? Steady requests, each due at its moment whatever became of those before."""

import asyncio
import contextlib
from collections.abc import Iterable
from enum import StrEnum

import httptools
import msgspec

from headrace.core.clock import Clock

# More than any drill's load has open; beyond that a request counts as lost, and isn't sent.
OPEN_MAX = 512
_READ_BYTES = 64 * 1024
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_PATH = "/v1/chat/completions"
QUESTION = "Is this a drill?"


class Fate(StrEnum):
    """What became of a request, as its caller sees it.

    OK: The whole answer. REFUSED: told to come back later (429, 503). FAILED: told that there is none. BROKEN: the answer had
    begun, and ended with an error that says so. LOST: no word at all, or an end that looks like none.
    """

    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    BROKEN = "broken"
    LOST = "lost"


class Answer(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        due_s: When it was to be sent, of the drill's clock.
        took_s: From then to its end, so that a driver that is late hides nothing.
        reason: The service's word for what it isn't OK for; ours where it said nothing.
    """

    due_s: float
    took_s: float
    fate: Fate
    reason: str = ""
    request_id: str = ""


class SteadyLoad:
    """Chat requests at a steady rate, every other one streamed.

    State: `answers` grows; `_open` counts those that are under way.
    """

    def __init__(
        self,
        port: int,
        *,
        model: str,
        key: str,
        output_tokens_max: int,
        rate_per_s: float,
        deadline_s: float,
        clock: Clock,
    ) -> None:
        self.answers: list[Answer] = []
        self._port = port
        self._model = model
        self._key = key
        self._output_tokens_max = output_tokens_max
        self._rate_per_s = rate_per_s
        self._deadline_s = deadline_s
        self._clock = clock
        self._open = 0
        self._is_over = False

    def stop(self) -> None:
        """No further request; `run` ends with those that are under way."""
        self._is_over = True

    async def run(self) -> None:
        begun_s = self._clock.now_s()
        async with asyncio.TaskGroup() as tasks:
            number = 0
            while not self._is_over:
                due_s = begun_s + number / self._rate_per_s
                await asyncio.sleep(max(0.0, due_s - self._clock.now_s()))
                if self._open < OPEN_MAX:
                    self._open += 1
                    tasks.create_task(self._ask(due_s, is_streamed=number % 2 == 1))
                else:
                    self.answers.append(Answer(due_s, 0.0, Fate.LOST, "not_sent"))
                number += 1

    async def _ask(self, due_s: float, *, is_streamed: bool) -> None:
        body = msgspec.json.encode(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": QUESTION}],
                "max_tokens": self._output_tokens_max,
                "stream": is_streamed,
            }
        )
        head = (
            f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            f"X-Headrace-Deadline-Ms: {round(self._deadline_s * 1000)}\r\n\r\n"
        )
        heard = Heard()
        try:
            # A little longer than the service was told: what it says at the deadline is heard.
            async with asyncio.timeout(self._deadline_s + 2.0):
                await _exchange(self._port, head.encode() + body, heard)
        except TimeoutError:
            heard.trouble = heard.trouble or "no_answer"
        except OSError as error:
            heard.trouble = heard.trouble or type(error).__name__
        finally:
            self._open -= 1
        fate, reason = judge(heard, is_streamed=is_streamed)
        took_s = self._clock.now_s() - due_s
        self.answers.append(Answer(due_s, took_s, fate, reason, heard.headers.get("x-request-id", "")))


async def _exchange(port: int, request: bytes, heard: "Heard") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        while not heard.is_over and (chunk := await reader.read(_READ_BYTES)):
            heard.feed(chunk)
    finally:
        with contextlib.suppress(OSError):
            writer.transport.abort()


class Heard:
    """What came of one answer, however far it got; its `on_...` methods are called by llhttp."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.trouble = ""
        self.is_over = False
        self.is_whole = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, chunk: bytes) -> None:
        try:
            self._parser.feed_data(chunk)
        except httptools.HttpParserError:
            self.trouble, self.is_over = "not_http", True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        if len(self.body) < _ANSWER_BYTES_MAX:
            self.body += piece

    def on_message_complete(self) -> None:
        self.is_over = self.is_whole = True


def judge(heard: Heard, *, is_streamed: bool) -> tuple[Fate, str]:
    """What that answer is to its caller, and why."""
    if heard.status == 0:
        return Fate.LOST, heard.trouble or "closed"
    if heard.status != 200:
        reason = heard.headers.get("x-headrace-reason") or f"status_{heard.status}"
        return (Fate.REFUSED if heard.status in (429, 503) else Fate.FAILED), reason
    if is_streamed:
        events = [line[6:] for line in heard.body.split(b"\n") if line.startswith(b"data: ")]
        if code := _error_code(events):
            return Fate.BROKEN, code
        is_ok = heard.is_whole and events[-1:] == [b"[DONE]"]
    else:
        is_ok = heard.is_whole and b'"choices"' in heard.body
    return (Fate.OK, "") if is_ok else (Fate.LOST, heard.trouble or "cut")


def _error_code(events: Iterable[bytes]) -> str:
    for event in events:
        if event.startswith(b'{"error"'):
            try:
                return str(msgspec.json.decode(event)["error"].get("code") or "error")
            except (msgspec.DecodeError, TypeError, KeyError, AttributeError):
                return "error"
    return ""
