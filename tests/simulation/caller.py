"""Simulated callers: patient, hasty, slow, stuck and rude ones, drawn from the seed; each writes down what it saw."""

import asyncio
import json
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import Any

from tests.simulation.answers import Answer, AnswerReader
from tests.simulation.history import History, Violation

HOST, PORT = "gateway", 8000
RESOLUTION_S = 1e-5  # how early a timer may run
SLACK_S = 1.5  # for latency, machine lag and the gateway's looks at the clock


class Reading(Enum):
    """How a caller takes its answer."""

    EAGER = auto()
    SLOW = auto()  # a little now and then
    STUCK = auto()  # for a while nothing at all


class Leaving(Enum):
    """What a caller that loses patience does to its connection."""

    CLOSE = auto()
    RESET = auto()
    HALF_CLOSE = auto()


class Oddity(Enum):
    """What is wrong with a request."""

    NONE = auto()
    BAD_KEY = auto()
    NO_MODEL = auto()
    NOT_JSON = auto()
    NOT_HTTP = auto()
    SLOW_BODY = auto()


@dataclass
class Request:
    """One request to be sent, and what came of it.

    Attributes:
        leaves_after_s: How long the caller stays, or None.
        deadline_s: The time it asks for, or None for the port's own.
        has_left: The caller went away on purpose, so it can't complain.
    """

    nonce: str
    tenant: str
    key: str
    model: str
    path: str
    is_streamed: bool
    is_old: bool
    closes: bool
    deadline_s: float | None
    leaves_after_s: float | None
    leaving: Leaving
    reading: Reading
    oddity: Oddity
    sent_s: float = 0.0
    ended_s: float = 0.0
    has_left: bool = False
    is_pipelined: bool = False
    answer: Answer = field(default_factory=Answer)

    def encode(self) -> bytes:
        if self.oddity is Oddity.NOT_HTTP:
            return b"GIMME ALL \x00\r\n\r\n"
        question = json.dumps({"nonce": self.nonce, "tenant": self.tenant})
        body: dict[str, Any] = {"model": self.model}
        if self.path.endswith("embeddings"):
            body["input"] = question
        else:
            body |= {"messages": [{"role": "user", "content": question}], "stream": self.is_streamed}
        data = json.dumps(body).encode() if self.oddity is not Oddity.NOT_JSON else b'{"model": '
        head = f"POST {self.path} HTTP/1.{0 if self.is_old else 1}\r\nhost: h\r\nauthorization: Bearer {self.key}\r\n"
        if self.deadline_s is not None:
            head += f"x-headrace-deadline-ms: {max(1, round(self.deadline_s * 1000))}\r\n"
        if self.closes:
            head += "connection: close\r\n"
        return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


@dataclass(frozen=True)
class Manners:
    """How the callers of a run behave: what each request is drawn from.

    Attributes:
        tenants: Tenant and key.
        models: Model and path.
        deadline_s: Of the port, when a request names none.
        silence_s: The longest a streaming caller hears nothing, because of heartbeats.
        pace_s: Scale of think times and of impatience.
    """

    tenants: list[tuple[str, str]]
    models: list[tuple[str, str]]
    deadline_s: float
    silence_s: float
    stuck_s: float
    pace_s: float
    leave_share: float
    slow_share: float
    odd_share: float
    hasty_share: float
    pipeline_share: float


class Caller:
    """One caller with its own stream of chance. `requests` are all that it sent."""

    def __init__(
        self,
        name: str,
        manners: Manners,
        chance: Random,
        history: History,
        *,
        left_s: dict[str, float],
        visits: int,
    ) -> None:
        self.name = name
        self.requests: list[Request] = []
        self._manners = manners
        self._chance = chance
        self._history = history
        self._left_s = left_s
        self._visits = visits
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        for _ in range(self._visits):
            await asyncio.sleep(self._manners.pace_s * self._chance.expovariate(0.5))
            if not await self._visit():
                return

    async def _visit(self) -> bool:
        """One connection; False if the port is closed."""
        try:
            reader, writer = await asyncio.open_connection(HOST, PORT, limit=2048)
        except ConnectionRefusedError:
            return False
        answers = AnswerReader()
        self._waiting: list[Request] = []
        try:
            for _ in range(self._chance.randint(1, 4)):
                if not await self._ask(reader, writer, answers):
                    break
                if self._chance.random() < 0.5:
                    await asyncio.sleep(self._manners.pace_s * self._chance.random())
        except (ConnectionError, EOFError):
            pass
        finally:
            self._close_book(answers)
            writer.transport.abort()
        return True

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: AnswerReader
    ) -> bool:
        """One request, or two at once; whether the connection can take another."""
        chance = self._chance
        asked = [self._draw()]
        if chance.random() < self._manners.pipeline_share:
            asked.append(self._draw())
            for request in asked:
                request.is_pipelined = True
        self.requests.extend(asked)
        self._waiting.extend(asked)
        answers.expected = len(asked)
        for request in asked:
            request.sent_s = self._loop.time()
            self._history.add("ask", request.nonce, request.tenant, request.model, request.oddity.name)
            if request.oddity is Oddity.SLOW_BODY:
                await self._dribble(writer, request.encode())
            else:
                writer.write(request.encode())
        try:
            await self._read(reader, writer, answers, asked)
        finally:
            self._match(answers)
        return not self._waiting and not answers.must_close and not any(each.has_left for each in asked)

    async def _dribble(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Sends the end of the request in a few late pieces."""
        cut = len(data) - 20
        writer.write(data[:cut])
        for start in range(cut, len(data), 10):
            await asyncio.sleep(self._chance.random() * 8.0)
            writer.write(data[start : start + 10])

    async def _read(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: AnswerReader,
        asked: list[Request],
    ) -> None:
        first = asked[0]
        leaves_at_s = None if first.leaves_after_s is None else self._loop.time() + first.leaves_after_s
        has_been_stuck = False
        while answers.expected:
            if first.reading is Reading.SLOW:
                await asyncio.sleep(self._chance.random() * 0.2)
            elif first.reading is Reading.STUCK and answers.current.status and not has_been_stuck:
                has_been_stuck = True
                await asyncio.sleep(self._manners.stuck_s)
            limit_s = self._patience_s(first, answers)
            if leaves_at_s is not None:
                limit_s = min(limit_s, leaves_at_s - self._loop.time())
            try:
                async with asyncio.timeout(limit_s):
                    data = await reader.read(self._chance.choice((7, 300, 65536)))
            except TimeoutError:
                if leaves_at_s is None or self._loop.time() < leaves_at_s - RESOLUTION_S:
                    raise Violation(
                        f"{first.nonce} hears nothing for {limit_s:.1f} s; asked {self._loop.time() - first.sent_s:.1f} s ago"
                    ) from None
                await self._leave(writer, asked)
                return
            if not data:
                raise EOFError
            answers.feed(data)
            self._match(answers)

    def _patience_s(self, request: Request, answers: AnswerReader) -> float:
        """How long the next bytes may take before something is wrong: a stream has heartbeats, all else its deadline."""
        manners = self._manners
        deadline_s = request.deadline_s if request.deadline_s is not None else manners.deadline_s
        if request.is_pipelined or request.oddity is Oddity.SLOW_BODY:
            return 2 * manners.deadline_s + 60.0
        left_s = request.sent_s + deadline_s - self._loop.time()
        if request.reading is not Reading.EAGER:
            return max(0.0, left_s) + manners.stuck_s + 10.0
        if request.is_streamed:
            return min(max(0.0, left_s), manners.silence_s) + SLACK_S
        return max(0.0, left_s) + SLACK_S

    async def _leave(self, writer: asyncio.StreamWriter, asked: list[Request]) -> None:
        for request in asked:
            request.has_left = True
            if not request.is_pipelined:
                self._left_s[request.nonce] = self._loop.time()
        self._history.add("leave", asked[0].nonce, asked[0].leaving.name)
        match asked[0].leaving:
            case Leaving.CLOSE:
                writer.close()
            case Leaving.RESET:
                writer.transport.reset()  # type: ignore[attr-defined]
            case Leaving.HALF_CLOSE:
                writer.write_eof()
                await asyncio.sleep(1.0)

    def _match(self, answers: AnswerReader) -> None:
        """Gives each whole answer to the request that it belongs to: the oldest without one."""
        while answers.finished:
            request = self._waiting.pop(0)
            request.answer = answers.finished.pop(0)
            request.ended_s = self._loop.time()
            self._history.add("answer", request.nonce, request.answer.status, request.answer.ended)

    def _close_book(self, answers: AnswerReader) -> None:
        answers.end()
        self._match(answers)
        for request in self._waiting:
            request.ended_s = self._loop.time()
            self._history.add("answer", request.nonce, 0, "nothing")

    def _draw(self) -> Request:
        chance, manners = self._chance, self._manners
        tenant, key = chance.choice(manners.tenants)
        model, path = chance.choice(manners.models)
        is_odd = chance.random() < manners.odd_share
        oddity = (
            chance.choice([each for each in Oddity if each is not Oddity.NONE]) if is_odd else Oddity.NONE
        )
        is_slow = chance.random() < manners.slow_share
        leaves = chance.random() < manners.leave_share
        is_hasty = chance.random() < manners.hasty_share
        return Request(
            nonce=f"{self.name}.{len(self.requests)}.{chance.getrandbits(32):x}",
            tenant=tenant,
            key="hr_wrong" if oddity is Oddity.BAD_KEY else key,
            model="unknown" if oddity is Oddity.NO_MODEL else model,
            path=path,
            is_streamed=path.endswith("chat/completions") and chance.random() < 0.7,
            is_old=chance.random() < 0.05,
            closes=chance.random() < 0.2,
            deadline_s=chance.choice((0.001, 0.3, 2.0, 10.0)) * chance.random() if is_hasty else None,
            leaves_after_s=manners.pace_s * chance.expovariate(0.3) if leaves else None,
            leaving=chance.choice(list(Leaving)),
            reading=chance.choice((Reading.SLOW, Reading.STUCK)) if is_slow else Reading.EAGER,
            oddity=oddity,
        )
