"""Load in an open loop: requests leave at their time, whatever became of those before them."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

ANSWER_LIMIT_S = 60.0


@dataclass(frozen=True)
class Seen:
    """One answer: its status, its headers with lower-case names, and the id by which the service knows it."""

    status: int
    headers: dict[str, str]

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]


@dataclass
class History:
    """What the callers saw."""

    answers: list[Seen] = field(default_factory=list)

    def statuses(self) -> Counter[int]:
        return Counter(answer.status for answer in self.answers)

    def with_status(self, status: int) -> list[Seen]:
        return [answer for answer in self.answers if answer.status == status]


def offer(
    port: int,
    key: str,
    *,
    rate: float,
    seconds: float,
    retries: int = 0,
    headers: str = "",
    **fields: Any,
) -> History:
    """Sends `rate` whole chat requests a second; each that is refused comes again at once, up to `retries` times."""
    question = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], **fields}
    body = json.dumps(question).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    )
    return asyncio.run(_offer(port, head.encode() + body, rate=rate, seconds=seconds, retries=retries))


async def _offer(port: int, request: bytes, *, rate: float, seconds: float, retries: int) -> History:
    history, loop = History(), asyncio.get_running_loop()
    start_s = loop.time()

    async def call() -> None:
        for _ in range(1 + retries):
            seen = await _ask(port, request)
            history.answers.append(seen)
            if seen.status not in (429, 503):
                return

    async with asyncio.TaskGroup() as tasks:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start_s + number / rate - loop.time()))
            tasks.create_task(call())
    return history


async def _ask(port: int, request: bytes) -> Seen:
    async with asyncio.timeout(ANSWER_LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            data = await reader.read(-1)
        finally:
            writer.close()
            await writer.wait_closed()
    head = data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
    return Seen(int(head[0].split(" ")[1]), headers)
