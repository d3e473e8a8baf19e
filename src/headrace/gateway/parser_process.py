"""How is a large body parsed without holding the gateway's event loop? In this process, one body after the other.

    python -m headrace.gateway.parser_process     requests and answers on the socket that is standard input

The parser holds the interpreter's lock for as long as it works, so a thread would stop the loop just the same. The end of
the socket ends the process, and so does a body that takes more than its share of CPU time. gateway/bodies.py is the other
end; only it may speak to this one.
"""

import contextlib
import gc
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.request import Endpoint
from headrace.protocols import openai

CPU_S_MAX = 5.0
MEMORY_BYTES_MAX = (
    3 * 1024 * 1024 * 1024
)  # of address space: a body that wants more is refused, and the machine goes on
IDLE_S = (
    60.0  # then the process ends, and with it the memory that it kept; the next large body starts another
)
NICENESS = 5  # streams that are under way come first

# What is sent: the endpoint's index and the length of the body, then the body.
QUESTION = struct.Struct("<BQ")
# What comes back: lengths of the description and of the canonical JSON, then both.
ANSWER = struct.Struct("<LQ")
ENDPOINTS = tuple(Endpoint)


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The body is not what it must be."""

    message: str
    param: str | None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A bug of ours; the exception's type, never its text."""

    error: str


class Parsed(msgspec.Struct, frozen=True, tag=True):
    """The body is good; `body` is without its canonical JSON, which travels beside it."""

    body: openai.ParsedBody


Result = Refused | Failed | Parsed
encode_result = msgspec.msgpack.Encoder().encode
decode_result = msgspec.msgpack.Decoder(Result).decode


def main() -> int:
    """Serves until the other end is gone, or nothing has come for IDLE_S."""
    gc.disable()  # what a parser builds is a tree
    with contextlib.suppress(OSError, ValueError):  # a lower limit is in force already
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    os.nice(NICENESS)
    with socket.socket(fileno=0) as connection:
        connection.settimeout(IDLE_S)
        with contextlib.suppress(EOFError, OSError):  # TimeoutError is an OSError: idle for long enough
            while True:
                _serve_one(connection)
    return 0


def _serve_one(connection: socket.socket) -> None:
    endpoint, length = QUESTION.unpack(_receive(connection, QUESTION.size))
    body = _receive(connection, length)
    # Of the process's CPU time, so that a busy machine is not held against a body. The signal's default ends the process.
    signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
    result, canonical = _parse(ENDPOINTS[endpoint], body)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    description = encode_result(result)
    connection.sendall(ANSWER.pack(len(description), len(canonical)))
    connection.sendall(description)
    connection.sendall(canonical)


def _parse(endpoint: Endpoint, body: bytes) -> tuple[Result, bytes]:
    try:
        parsed = openai.parse_body(endpoint, body)
    except InvalidRequest as refusal:
        return Refused(refusal.message, refusal.param), b""
    except MemoryError:
        return Refused("the body has more values than memory allows", None), b""
    except Exception as bug:  # noqa: BLE001 -- the outermost edge of one body: the next one is not to blame
        return Failed(type(bug).__name__), b""
    return Parsed(msgspec.structs.replace(parsed, canonical=b"")), parsed.canonical


def _receive(connection: socket.socket, length: int) -> bytes:
    """Exactly that many bytes. Raises EOFError when the other end is gone."""
    buffer = bytearray(length)
    view: Any = memoryview(buffer)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    return bytes(buffer)


if __name__ == "__main__":
    sys.exit(main())
