"""What does a caller get? Any request, whole or streamed, left early where that is wanted, and kept for the books."""

import asyncio
import contextlib
import math
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.core.clock import Clock
from headrace.evidence.drill_load import Heard
from headrace.policies.certification import Asked

CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
_READ_BYTES = 64 * 1024
# A little longer than the service was told: what it says at the deadline is heard.
_PATIENCE_S = 2.0
_EVENT = b"data: "
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens, and what stands before its paths."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Leave:
    """When a caller leaves: after so many events, or that long after it has asked."""

    events: int | None = None
    after_s: float | None = None


class Listening(Heard):
    """An answer as it comes, with the moment of its first event or byte of a body."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.first_s: float | None = None

    def on_body(self, piece: bytes) -> None:
        super().on_body(piece)
        # A sign of life before the first event is a comment, and no token.
        if self.first_s is None and (_EVENT in self.body or not self.body.startswith(b":")):
            self.first_s = self._clock.now_s()


@dataclass(slots=True)
class Reply:
    """What came of one request. Times are seconds from when it was sent, None for what never came."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool
    trouble: str
    ttft_s: float | None
    took_s: float
    left_at_s: float | None = None
    events: list[bytes] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.headers.get("x-request-id", "")

    @property
    def is_done(self) -> bool:
        """A stream that says that it is over."""
        return self.is_whole and self.events[-1:] == [DONE]

    @property
    def is_answered(self) -> bool:
        """The whole of what was asked for, and no error in it."""
        if self.status != 200 or not self.is_whole:
            return False
        return self.is_done if self.events else b'"error"' not in self.body[:16]

    @property
    def reason(self) -> str:
        """The service's word for what it is, or the caller's for what it isn't."""
        return self.headers.get("x-headrace-reason") or (
            self.trouble or "cut" if not self.status or self.status == 200 else f"status_{self.status}"
        )

    @property
    def error(self) -> str:
        """The code of the error by which a stream that had begun ended; "" for none."""
        last = self.chunks()[-1:] if self.events and not self.is_done else []
        error = last[0].get("error") if last else None
        return str(error.get("code") or "error") if isinstance(error, dict) else ""

    def json(self) -> Any:
        """None where it is none."""
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(self.body)
        return None

    def chunks(self) -> list[dict[str, Any]]:
        """The objects of a stream; {} for an event that holds none."""
        return [_object(event) for event in self.events if event != DONE]

    def usage(self) -> dict[str, Any]:
        """Of the answer; {} where it says none."""
        said = self.chunks() if self.events else [self.json()]
        found = [each["usage"] for each in said if isinstance(each, dict) and each.get("usage")]
        return found[-1] if found and isinstance(found[-1], dict) else {}

    def text(self) -> str:
        """Of the first choice."""
        said = self.chunks() if self.events else [self.json() or {}]
        parts = []
        for each in said:
            for choice in each.get("choices") or []:
                message = choice.get("delta") or choice.get("message") or {}
                parts.append(message.get("content") or choice.get("text") or "")
        return "".join(parts)


class Caller:
    """Somebody with a key. State: `history`, every request of inference, which several callers may share.

    Args:
        tenant: Whose key it is, for the books.
    """

    def __init__(
        self, address: Address, *, model: str, key: str, tenant: str, clock: Clock, history: list[Asked]
    ) -> None:
        self.model = model
        self.tenant = tenant
        self.key = key
        self.history = history
        self.url = address.url
        self._address = address
        self._clock = clock

    async def chat(
        self,
        text: str,
        *,
        output_tokens_max: int = 16,
        stream: bool = False,
        leave: Leave | None = None,
        deadline_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Reply:
        """One chat completion; a stream is asked for its usage."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": output_tokens_max,
            "temperature": 0,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **fields,
        }
        return await self.ask("POST", CHAT, body, leave=leave, deadline_s=deadline_s, headers=headers)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        leave: Leave | None = None,
        deadline_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own; what goes wrong is in the reply, and nothing is raised.

        Args:
            body: Encoded as JSON unless it is bytes.
            key: Instead of the caller's own; "" sends none.
        """
        content = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        lines = self._head(method, path, content, self.key if key is None else key)
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if not any(name.lower() == "x-headrace-deadline-ms" for name in headers or ()):
            lines.append(f"X-Headrace-Deadline-Ms: {round(deadline_s * 1000)}")
        request = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content
        heard = Listening(self._clock)
        began_s = self._clock.now_s()
        left = False
        try:
            async with asyncio.timeout(deadline_s + _PATIENCE_S):
                left = await self._exchange(request, heard, leave)
        except TimeoutError:
            heard.trouble = heard.trouble or "no_answer"
        except OSError as error:
            heard.trouble = heard.trouble or type(error).__name__
        now_s = self._clock.now_s()
        reply = Reply(
            heard.status,
            heard.headers,
            heard.body,
            heard.is_whole,
            heard.trouble,
            None if heard.first_s is None else heard.first_s - began_s,
            now_s - began_s,
            now_s if left else None,
            [line[len(_EVENT) :] for line in heard.body.split(b"\n") if line.startswith(_EVENT)],
        )
        if method == "POST" and (key is None or key == self.key):
            self._keep(reply)
        return reply

    def _head(self, method: str, path: str, content: bytes, key: str) -> list[str]:
        address = self._address
        lines = [f"{method} {address.prefix}{path} HTTP/1.1", f"Host: {address.host}:{address.port}"]
        lines.append("Connection: close")
        lines += [f"Authorization: Bearer {key}"] if key else []
        if content or method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return lines

    async def _exchange(self, request: bytes, heard: Listening, leave: Leave | None) -> bool:
        """Whether the caller left before the end."""
        address = self._address
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
        try:
            writer.write(request)
            patience_s = None if leave is None else leave.after_s
            async with asyncio.timeout(patience_s):
                while not heard.is_over and (chunk := await reader.read(_READ_BYTES)):
                    heard.feed(chunk)
                    if leave is not None and heard.body.count(_EVENT) >= (leave.events or math.inf):
                        return True
            return False
        except TimeoutError:
            if leave is None or leave.after_s is None:
                raise
            return True
        finally:
            with contextlib.suppress(OSError):
                writer.transport.abort()

    def _keep(self, reply: Reply) -> None:
        usage = reply.usage() if reply.status == 200 else {}
        self.history.append(
            Asked(
                reply.request_id,
                self.tenant,
                reply.is_answered,
                reply.status,
                usage.get("prompt_tokens"),
                usage.get("completion_tokens"),
            )
        )


async def at_once(work: Iterable[Callable[[], Any]], *, most: int) -> list[Any]:
    """What all of it returns, in its order, with at most so much under way."""
    waiting = list(enumerate(work))
    waiting.reverse()
    results: list[Any] = [None] * len(waiting)

    async def go() -> None:
        while waiting:
            number, job = waiting.pop()
            results[number] = await job()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(most, len(waiting))):
            tasks.create_task(go())
    return results


def _object(event: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
