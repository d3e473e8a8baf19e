"""WebSockets in tests: the official client for what clients do, and raw frames for what they must not do."""

import base64
import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.http_answers import Answer, answers
from tests.support.wire import read

CHAT = "/v1/chat/completions"
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
MASK = b"\x37\xfa\x21\x3d"  # The example of RFC 6455, section 5.7; the same in every run, as are the names of tests.
LIMIT_S = 60.0
ENDS = ("headrace.done", "headrace.error", "headrace.cancelled")


def question(**fields: Any) -> str:
    """A chat request; it needs no `stream`."""
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": "scripted", "messages": messages, **fields})


def dial(port: int, key: str = "", *, path: str = CHAT, **options: Any) -> ClientConnection:
    """The official client, with the key in its Authorization header."""
    headers = {**({"authorization": f"Bearer {key}"} if key else {}), **options.pop("headers", {})}
    options = {"max_size": None, "open_timeout": LIMIT_S, "ping_interval": None, "proxy": None, **options}
    scheme = "wss" if "ssl" in options else "ws"
    return connect(f"{scheme}://127.0.0.1:{port}{path}", additional_headers=headers, **options)


@dataclass(frozen=True)
class Told:
    """Every message of one answer.

    Attributes:
        texts: As they came, the end included.
    """

    texts: list[str]

    @property
    def opening(self) -> dict[str, Any]:
        first: dict[str, Any] = json.loads(self.texts[0])
        assert first["object"] == "headrace.open"
        return first

    @property
    def end(self) -> dict[str, Any]:
        last: dict[str, Any] = json.loads(self.texts[-1])
        return last

    @property
    def events(self) -> list[str]:
        """The chunks of the answer, byte by byte as they came."""
        return [text for text in self.texts if not text.startswith('{"object":"headrace.')]

    @property
    def text(self) -> str:
        choices = [choice for event in self.events for choice in json.loads(event)["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


def hear(connection: ClientConnection, *, until: Sequence[str] = ENDS) -> Told:
    """Reads until a message whose `object` is one of these."""
    texts: list[str] = []
    while not (texts and json.loads(texts[-1]).get("object") in until):
        text = connection.recv(timeout=LIMIT_S)
        assert isinstance(text, str)
        texts.append(text)
    return Told(texts)


def ask(connection: ClientConnection, **fields: Any) -> Told:
    connection.send(question(**fields))
    return hear(connection)


def handshake(*lines: str, path: str = CHAT, key: str = "", version: str = "HTTP/1.1") -> bytes:
    """The bytes of a handshake; `lines` replace header lines of the same name, and add others."""
    headers = {
        "host": "test",
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
        **({"authorization": f"Bearer {key}"} if key else {}),
    }
    for line in lines:
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} {version}\r\n{head}\r\n".encode()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, mask: bool = True) -> bytes:
    """One frame of a client, which masks it unless told not to."""
    length = len(payload)
    bits = 0x80 if mask else 0
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    if length < 126:
        head += bytes([bits | length])
    elif length < 65536:
        head += bytes([bits | 126]) + struct.pack("!H", length)
    else:
        head += bytes([bits | 127]) + struct.pack("!Q", length)
    if not mask:
        return head + payload
    masked = int.from_bytes(payload, "big") ^ int.from_bytes((MASK * (length // 4 + 1))[:length], "big")
    return head + MASK + masked.to_bytes(length, "big")


class RawSocket:
    """A connection after its handshake, in frames."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._data = b""

    def send(self, *frames: bytes) -> None:
        self.connection.sendall(b"".join(frames))

    def _exactly(self, count: int) -> bytes:
        while len(self._data) < count:
            piece = self.connection.recv(1 << 16)
            if not piece:
                raise EOFError(f"the connection ended; {self._data!r} was left")
            self._data += piece
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame. Raises EOFError at the end of the connection."""
        first, second = self._exactly(2)
        assert first & 0x70 == 0, "no extension was agreed on"
        assert first & 0x80, "a whole message is one frame"
        assert second < 128, "a server does not mask"
        length = second
        if second == 126:
            (length,) = struct.unpack("!H", self._exactly(2))
        elif second == 127:
            (length,) = struct.unpack("!Q", self._exactly(8))
        return first & 0x0F, self._exactly(length)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Until the connection ends, however it does."""
        try:
            while True:
                yield self.receive()
        except (EOFError, ConnectionError):
            return

    def close_code(self) -> int:
        """Reads to the end; the code of the close frame that came last, 0 if none did."""
        code = 0
        for opcode, payload in self.frames():
            assert code == 0, "nothing follows a close"
            if opcode == CLOSE:
                code = int.from_bytes(payload[:2], "big")
        return code

    def message(self) -> dict[str, Any]:
        """The next message."""
        opcode, payload = self.receive()
        assert opcode == TEXT, (opcode, payload)
        told: dict[str, Any] = json.loads(payload)
        return told


class HandshakeRefused(Exception):
    """It was answered with another status than 101."""

    def __init__(self, head: bytes) -> None:
        super().__init__(head)
        self.status = int(head.split()[1])


@contextmanager
def raw(port: int, key: str, *lines: str) -> Iterator[RawSocket]:
    """A connection whose handshake was accepted. Raises HandshakeRefused."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
        connection.sendall(handshake(*lines, key=key))
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            data += connection.recv(1)
        if not data.startswith(b"HTTP/1.1 101 "):
            raise HandshakeRefused(data)
        yield RawSocket(connection)


def refused(port: int, request: bytes) -> Answer:
    """The answer to a handshake that must not succeed; the connection must end after it."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
        connection.sendall(request)
        seen = read(connection, silence_s=30)
    (answer,) = answers(seen.data)
    assert (answer.headers["connection"], seen.end) == ("close", "fin")
    return answer
