"""How do we talk to an engine that we start? One line of settings on its standard input, reports on its standard output."""

import os
import sys
from typing import BinaryIO, Literal

import msgspec


class EngineReport(msgspec.Struct, frozen=True):
    """One line from the child: `loading`, then `listening` or `failed`."""

    state: Literal["loading", "listening", "failed"]
    pid: int
    port: int = 0
    reason: str = ""


class Reports:
    """The child's end: standard output for reports alone; what libraries print goes to standard error, the log."""

    def __init__(self) -> None:
        self._stream: BinaryIO = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def loading(self) -> None:
        self._send(EngineReport("loading", os.getpid()))

    def listening(self, port: int) -> None:
        self._send(EngineReport("listening", os.getpid(), port=port))

    def failed(self, reason: str) -> None:
        self._send(EngineReport("failed", os.getpid(), reason=reason))

    def _send(self, report: EngineReport) -> None:
        self._stream.write(msgspec.json.encode(report) + b"\n")
        self._stream.flush()


def settings_line() -> bytes:
    """One line of standard input, and not a byte more of what may follow."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit("standard input ended before the settings")
        line += byte
    return bytes(line)
