"""TLS in front of any server: what many put before an engine that speaks plain HTTP."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.certificates import Issued, server_context

PIECE_BYTES = 1 << 16


class TlsFront:
    """Passes bytes on, in both directions. Made by `tls_front`.

    Attributes:
        names: The names that clients asked for (SNI), None for those that named nobody.
    """

    def __init__(self, port: int, names: list[str | None]) -> None:
        self.port = port
        self.names = names


@contextmanager
def tls_front(target_port: int, issued: Issued) -> Iterator[TlsFront]:
    names: list[str | None] = []
    context = server_context(issued)

    def note(_: ssl.SSLObject | ssl.SSLSocket, name: str | None, __: ssl.SSLContext) -> None:
        names.append(name)

    context.sni_callback = note
    started: asyncio.Future[int] | None = None
    ready = threading.Event()
    ports: list[int] = []
    loop = asyncio.new_event_loop()

    async def serve(client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", target_port)
        except OSError:
            client_writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(client_reader, writer))
                both.create_task(_pass_on(reader, client_writer))
        finally:
            for each in (writer, client_writer):
                each.transport.abort()

    async def run() -> None:
        nonlocal started
        started = loop.create_future()
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
            ports.append(server.sockets[0].getsockname()[1])
            ready.set()
            with contextlib.suppress(asyncio.CancelledError):
                await started

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    try:
        assert ready.wait(60), "the TLS front did not start"
        yield TlsFront(ports[0], names)
    finally:
        assert started is not None
        loop.call_soon_threadsafe(started.cancel)
        thread.join(10.0)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends; then so does the other."""
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()
