"""One bounded exchange: every way in which a server can fail to answer has its own reason, within the time allowed."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from headrace.core.errors import UpstreamError
from headrace.engines.fetch import Response, fetch

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def exchange(script: Script, *, timeout_s: float = 60.0, body: bytes = b"") -> Response:
    """What `fetch` makes of a server that follows the script on its one connection."""

    async def scenario() -> Response:
        served = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await script(reader, writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            served.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            try:
                return await fetch(
                    "127.0.0.1",
                    server.sockets[0].getsockname()[1],
                    "POST" if body else "GET",
                    "/path",
                    body=body,
                    timeout_s=timeout_s,
                    body_bytes_max=1000,
                )
            finally:
                await asyncio.wait_for(served.wait(), 60)

    return asyncio.run(scenario())


def says(raw: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return script


def byte_by_byte(raw: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for index in range(len(raw)):
            writer.write(raw[index : index + 1])
            await writer.drain()

    return script


SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.0 200 OK\r\n\r\nhello"
AFTER_INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED


@pytest.mark.parametrize("raw", [SIZED, CHUNKED, UNTIL_CLOSED, AFTER_INTERIM, SIZED + b"trailing junk"])
@pytest.mark.parametrize("manner", [says, byte_by_byte])
def test_an_answer_is_read_whole_however_it_is_framed_and_cut(
    manner: Callable[[bytes], Script], raw: bytes
) -> None:
    response = exchange(manner(raw))
    assert (response.status, response.body) == (200, b"hello")


def test_header_names_are_in_lower_case_and_an_error_status_is_an_answer() -> None:
    response = exchange(says(b"HTTP/1.1 404 Not Found\r\nX-Reason: none\r\nContent-Length: 0\r\n\r\n"))
    assert (response.status, response.headers["x-reason"], response.body) == (404, "none", b"")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "upstream_lost"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "upstream_lost"),
        (SIZED[:-1], "upstream_lost"),
        (CHUNKED[:-3], "upstream_lost"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "upstream_garbage"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", "upstream_garbage"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001, "upstream_garbage"),
        (b"HTTP/1.1 200 OK\r\nX-Endless: " + b"x" * 100_000, "upstream_garbage"),
    ],
)
def test_each_way_to_fail_has_its_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(UpstreamError) as failure:
        exchange(says(raw))
    assert failure.value.reason == reason


def test_a_refused_connection_is_told_apart_from_a_slow_answer() -> None:
    """The two mean different things for a server's health: nobody there, or busy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UpstreamError) as failure:
        asyncio.run(fetch("127.0.0.1", port, "GET", "/", timeout_s=60, body_bytes_max=10))
    assert failure.value.reason == "upstream_unreachable"


def test_the_whole_exchange_has_one_deadline() -> None:
    """A server that sends a byte now and then doesn't push it back."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in SIZED * 100:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)

    begun_s = time.monotonic()
    with pytest.raises(UpstreamError) as failure:
        exchange(trickle, timeout_s=0.1)
    assert failure.value.reason == "upstream_stalled"
    assert time.monotonic() - begun_s < 30


def test_a_body_is_sent_with_its_length() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await reader.readexactly(4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + body)

    assert exchange(echo, body=b"ping").body == b"ping"
