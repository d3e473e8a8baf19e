"""What does that server say? One bounded HTTP exchange on a fresh connection, for probes and scrapes.

Separate from the gateway's pooled client on purpose: a probe must not wait for, use up, or warm anything that requests use.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

import httptools

from headrace.core.errors import UpstreamError
from headrace.core.outcome import AttemptOutcome
from headrace.engines.tls import explain

READ_BYTES = 64 * 1024
OVERHEAD_BYTES_MAX = 32 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. Header names are in lower case; the last of several equal ones wins."""

    status: int
    headers: dict[str, str]
    body: bytes


async def fetch(
    host: str,
    port: int,
    method: str,
    path: str,
    *,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    timeout_s: float,
    body_bytes_max: int,
    address: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> Response:
    """Sends one request and reads its whole answer within `timeout_s`, name resolution and connecting included.

    With `address` that is where it connects, and `host` is only what it says there; nothing is resolved.

    Raises UpstreamError; its reason is `upstream_unreachable` (no connection), `upstream_stalled` (no complete answer
    in time), `upstream_lost` (the connection ended inside it) or `upstream_garbage` (not HTTP, or too large).
    """
    authority = f"[{host}]" if ":" in host else host
    if port != (443 if tls else 80):
        authority += f":{port}"
    request = _request_bytes(authority, method, path, headers=headers, body=body)
    is_connected = False
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _connect(address or host, port, tls, name=host)
            is_connected = True
            return await _exchange(reader, writer, request, body_bytes_max=body_bytes_max)
    except TimeoutError as error:
        if not is_connected:
            raise _failure(f"no connection within {timeout_s:g} s", AttemptOutcome.UNREACHABLE) from error
        raise _failure(f"no answer within {timeout_s:g} s", AttemptOutcome.STALLED) from error


async def _connect(
    host: str, port: int, tls: ssl.SSLContext | None, *, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(
            host, port, limit=READ_BYTES, ssl=tls, server_hostname=name if tls else None
        )
    except OSError as error:
        # A TimeoutError of the kernel is an OSError too; our own deadline arrives as a cancellation.
        raise _failure(explain(error), AttemptOutcome.UNREACHABLE) from error


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, *, body_bytes_max: int
) -> Response:
    answer = _Answer(body_bytes_max)
    try:
        writer.write(request)
        while not answer.is_complete:
            chunk = await reader.read(READ_BYTES)
            if not chunk:
                answer.end()
                break
            answer.feed(chunk)
    except OSError as error:
        raise _failure(f"connection lost: {error}", AttemptOutcome.LOST) from error
    finally:
        # Aborted, not closed: the answer is complete or useless, and a peer that doesn't close must not hold us.
        with contextlib.suppress(OSError):
            writer.transport.abort()
    return Response(status=answer.status, headers=answer.headers, body=bytes(answer.body))


def _request_bytes(
    authority: str, method: str, path: str, *, headers: Iterable[tuple[str, str]], body: bytes
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {authority}", "Connection: close"]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers if value]
    assert not any("\r" in line or "\n" in line for line in lines), "a header line holds a line break"
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class _Answer:
    """The state of one answer being parsed; its `on_...` methods are called by llhttp."""

    def __init__(self, body_bytes_max: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_complete = False
        self._body_bytes_max = body_bytes_max
        self._bytes_left = body_bytes_max + OVERHEAD_BYTES_MAX  # headers and chunk framing on top of the body
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, chunk: bytes) -> None:
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            raise _failure("answer too large", AttemptOutcome.GARBAGE)
        try:
            self._parser.feed_data(chunk)
        except httptools.HttpParserError as error:
            if not self.is_complete:  # bytes behind a complete answer don't matter
                raise _failure(f"not an HTTP answer: {error}", AttemptOutcome.GARBAGE) from error
        if len(self.body) > self._body_bytes_max:
            raise _failure("answer too large", AttemptOutcome.GARBAGE)

    def end(self) -> None:
        """The peer closed: the regular end of an answer without a stated length, a loss otherwise."""
        if not self.status or {"content-length", "transfer-encoding"} & self.headers.keys():
            raise _failure("connection closed inside the answer", AttemptOutcome.LOST)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, chunk: bytes) -> None:
        self.body += chunk

    def on_message_complete(self) -> None:
        if self.status < 200:  # an interim answer; the real one follows
            self.status = 0
            self.headers.clear()
        else:
            self.is_complete = True


def _failure(message: str, outcome: AttemptOutcome) -> UpstreamError:
    return UpstreamError(message, reason=outcome.value)
