"""Raw exchanges with an HTTP server: every byte that came, and how the connection ended."""

import json
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exchange:
    """What a client saw.

    Attributes:
        data: All bytes of the answer.
        end: "fin", "reset", or "open" if the connection was still there when we stopped reading.
    """

    data: bytes
    end: str

    @property
    def head(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[0]

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def body(self) -> bytes:
        """The body without its chunk framing; of a broken one what can be read."""
        body = self.data.partition(b"\r\n\r\n")[2]
        if b"transfer-encoding: chunked" not in self.head:
            return body
        return _unchunked(body)[0]

    @property
    def is_complete(self) -> bool:
        """Whether a chunked body has its last chunk."""
        return _unchunked(self.data.partition(b"\r\n\r\n")[2])[1]

    @property
    def payloads(self) -> list[str]:
        """What follows `data: ` in each event, for streams with LF line endings."""
        lines = self.body.decode().split("\n")
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The payloads as JSON, without [DONE]."""
        return [json.loads(payload) for payload in self.payloads if payload != "[DONE]"]

    @property
    def text(self) -> str:
        """The text of choice 0 of a chat stream."""
        return "".join(
            choice["delta"].get("content") or ""
            for event in self.events
            for choice in event.get("choices", [])
            if choice["index"] == 0
        )


def post(path: str, body: bytes, *, headers: str = "") -> bytes:
    """The bytes of a POST; `headers` are further header lines, each with CRLF."""
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def exchange(port: int, request: bytes, *, until: bytes | None = None, silence_s: float = 0.3) -> Exchange:
    """Sends the bytes and reads until the connection ends, `until` has come, or nothing came for `silence_s`.

    With `until` it waits up to half a minute for it.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        return read(connection, until=until, silence_s=silence_s)


def read(connection: socket.socket, *, until: bytes | None = None, silence_s: float = 0.3) -> Exchange:
    """Reads as `exchange` does, on a connection that is already there."""
    data = bytearray()
    connection.settimeout(30 if until is not None else silence_s)
    while True:
        try:
            piece = connection.recv(1 << 20)
        except TimeoutError:
            return Exchange(bytes(data), "open")
        except ConnectionResetError:
            return Exchange(bytes(data), "reset")
        if not piece:
            return Exchange(bytes(data), "fin")
        data += piece
        if until is not None and until in data[-len(piece) - len(until) :]:
            return Exchange(bytes(data), "open")


def _unchunked(body: bytes) -> tuple[bytes, bool]:
    joined = b""
    while b"\r\n" in body:
        size_line, _, rest = body.partition(b"\r\n")
        size = int(size_line, 16)
        if size == 0:
            return joined, True
        if len(rest) < size + 2:
            break
        joined += rest[:size]
        body = rest[size + 2 :]
    return joined, False
