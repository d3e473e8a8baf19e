"""A server that answers chat requests with whatever bytes a test wants, at its own pace, and ends connections as it likes."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Piece = bytes | float
"""Bytes to send, or seconds to wait; after the last piece the connection stays, unless the answer is a `Cut`."""


class Cut(list[Piece]):
    """Pieces after which the connection is closed."""


Answer = Callable[[int, bytes], Sequence[Piece]]

CHUNK = b'{"choices":[{"index":0,"delta":{"content":"word "}}]}'
USAGE = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}'


def head(status: str, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def whole(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    return head(status, "content-type: application/json", f"content-length: {len(body)}", *lines) + body


STREAM_HEAD = head(
    "200 OK", "content-type: text/event-stream", "transfer-encoding: chunked", "x-request-id: theirs"
)


def event(data: bytes) -> bytes:
    text = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


END = b"0\r\n\r\n"


class CrookedServer:
    """Attributes:
    requests: What came, heads and bodies, in order.
    hung_up: Set when a caller has closed a connection before its answer was complete.
    """

    def __init__(self, answer: Answer) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.hung_up = threading.Event()
        self._answer = answer
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        # Shut down first: closing alone doesn't wake a thread that waits in accept.
        for each in (self._listener, *self._held):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            self._held.append(connection)
            self._start(lambda connection=connection: self._serve(connection))  # type: ignore[misc]

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (request := _request(connection)) is not None:
                with self._lock:
                    number = len(self.requests)
                    self.requests.append(request)
                pieces = self._answer(number, request)
                for piece in pieces:
                    if isinstance(piece, bytes):
                        connection.sendall(piece)
                    else:
                        _wait(connection, piece)
                if isinstance(pieces, Cut):
                    break
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            self.hung_up.set()
        finally:
            connection.close()


def _request(connection: socket.socket) -> bytes | None:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := connection.recv(65536)):
            return None
        data += piece
    before, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", before)
    assert length is not None
    while len(body) < int(length[1]):
        body += connection.recv(65536)
    return before + b"\r\n\r\n" + body


def _wait(connection: socket.socket, seconds: float) -> None:
    """That long, or until the caller has gone, which raises OSError."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            if not connection.recv(1):
                raise ConnectionResetError
        except TimeoutError:
            pass
    connection.settimeout(None)


@contextmanager
def crooked_server(answer: Answer) -> Iterator[CrookedServer]:
    server = CrookedServer(answer)
    try:
        yield server
    finally:
        server.close()
