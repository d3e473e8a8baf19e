"""The load generator counts what it gets, however a server cuts it."""

import asyncio
import contextlib
import json

import pytest

from benchmarks.loadgen import Target, closed_loop, streams

PIECE_BYTES = 65_535  # the third byte of a character is on the other side
TEXT = "漢" * 40_000


def answer(*, is_stream: bool) -> bytes:
    if is_stream:
        event = json.dumps({"choices": [{"delta": {"content": TEXT}}]}, ensure_ascii=False).encode()
        body = b"data: " + event + b"\n\ndata: [DONE]\n\n"
        head = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % len(body)
        return b"HTTP/1.1 200 OK\r\n" + head + body + b"\r\n0\r\n\r\n"
    body = json.dumps({"choices": [{"message": {"content": TEXT}}]}, ensure_ascii=False).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: list[int]) -> None:
    """Each answer in two writes, the second when the first has left; its cut is inside a character."""
    with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            data = answer(is_stream=asked["stream"])
            start = data.index("漢".encode())
            cut = start + (PIECE_BYTES - start) // 3 * 3 + 1
            writer.write(data[:cut])
            await writer.drain()
            await asyncio.sleep(0.001)
            served.append(1)
            writer.write(data[cut:])
            await writer.drain()


async def load(*, is_stream: bool) -> tuple[int, int, int]:
    """Answers counted, failures, and answers served."""
    served: list[int] = []
    server = await asyncio.start_server(lambda r, w: serve(r, w, served), "127.0.0.1", 0)
    async with server:
        target = Target(server.sockets[0].getsockname()[1], "m", "k")
        window = contextlib.nullcontext()
        if is_stream:
            seen = await streams(target, count=2, spread_s=0.0, seconds=0.5, warm_s=0.0, window=window)
            counted, failures = seen.streams, seen.failures
        else:
            found = await closed_loop(target, connections=2, seconds=0.5, warm_s=0.0, window=window)
            counted, failures = len(found.latencies_s), found.failures
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 -- the tasks are of asyncio.start_server
            await asyncio.sleep(0.01)  # until the server has heard that each connection has ended
        return counted, failures, len(served)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_character_cut_at_64_kilobytes_is_no_failure_and_counts_once(is_stream: bool) -> None:
    """REPORTS 16."""
    counted, failures, served = asyncio.run(load(is_stream=is_stream))
    assert failures == 0
    assert 0 < counted <= served <= counted + 4  # at either end of the window one of each connection is open
