"""Bytes from a connection as HTTP answers: as many as there are, and nothing left over."""

import json
import re
import socket
from dataclasses import dataclass
from typing import Any

from tests.support.wire import Exchange


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; header names are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def answers(data: bytes) -> list[Answer]:
    """Every answer in `data`, framed by Content-Length or chunks; fails on a byte that belongs to none."""
    found = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, f"an answer without an end of its head: {head[:200]!r}"
        match = re.match(rb"HTTP/1\.1 (\d{3}) [^\r\n]*", head)
        assert match, f"not the start of an answer: {head[:200]!r}"
        status = int(match[1])
        lines = [line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:]]
        headers = {name.lower(): value for name, _, value in lines}
        if status == 100:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body, data = _chunks(data)
        else:
            length = int(headers["content-length"])
            assert len(data) >= length, "the body is cut"
            body, data = data[:length], data[length:]
        found.append(Answer(status, headers, body))
    return found


def read_answers(connection: socket.socket, *, count: int, silence_s: float = 0.1) -> Exchange:
    """Waits up to half a minute for each piece of `count` whole answers; then takes what else comes within `silence_s`."""
    data, end = b"", ""
    while not end:
        connection.settimeout(silence_s if _holds(data, count) else 30)
        try:
            piece = connection.recv(1 << 20)
        except TimeoutError:
            end = "open"
        except ConnectionResetError:
            end = "reset"
        else:
            data += piece
            end = "" if piece else "fin"
    return Exchange(data, end)


def _holds(data: bytes, count: int) -> bool:
    try:
        return len(answers(data)) >= count
    except (AssertionError, ValueError):
        return False


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        piece, data = data[:length], data[length + 2 :]
        if not length:
            return body, data
        body += piece
