"""A replica that misbehaves below HTTP, in ways that the scripted engine, which speaks it, can't."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: close by a reset


class RawReplica:
    """Lists one model, and answers each chat with the words of its question; a stream with all its events in one write.

    Attributes:
        resets: A connection is reset as soon as it is accepted.
        answers_twice: Behind each answer comes a second one that nobody asked for, in the same write.
    """

    def __init__(self, *, backlog: int) -> None:
        self.resets = False
        self.answers_twice = False
        self._held: list[socket.socket] = []
        self._accepts = threading.Event()
        self._accepts.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop_accepting(self, connections: int) -> None:
        """Fills the backlog: whoever connects from now on hears nothing at all."""
        self._accepts.clear()
        for _ in range(connections):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._held.append(filler)

    def accept_again(self) -> None:
        for filler in self._held:
            filler.close()
        self._held.clear()
        self._accepts.set()

    def close(self) -> None:
        for connection in (self._listener, *self._held):
            connection.close()
        self._accepts.set()

    def _accept(self) -> None:
        while True:
            self._accepts.wait()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._held.append(connection)
            if self.resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
                connection.close()
            else:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                while line := stream.readline():
                    length = 0
                    while (header := stream.readline().lower()) not in (b"\r\n", b""):
                        if header.startswith(b"content-length:"):
                            length = int(header.partition(b":")[2])
                    body = stream.read(length)
                    connection.sendall(self._answer(line.split()[1], body))
        except OSError:
            pass

    def _answer(self, path: bytes, body: bytes) -> bytes:
        if path == b"/v1/models":
            return _message(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        if not path.startswith(b"/v1/chat"):
            return _message(404, {})
        asked = json.loads(body)
        text = asked["messages"][0]["content"]
        answer = _stream(text) if asked.get("stream") else _chat(text)
        return answer + _chat("nobody asked") if self.answers_twice else answer


def _chat(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return _message(
        200,
        {
            "object": "chat.completion",
            "choices": [choice],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        },
    )


def _stream(text: str) -> bytes:
    choices = [
        {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ]
    chunks = [{"object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    usage = {
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
    events = "".join(f"data: {json.dumps(each)}\n\n" for each in [*chunks, usage]) + "data: [DONE]\n\n"
    return b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (
        len(events),
        events.encode(),
    )


def _message(status: int, body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(data),
        data,
    )


@contextmanager
def raw_replica(*, backlog: int = 64) -> Iterator[RawReplica]:
    running = RawReplica(backlog=backlog)
    try:
        yield running
    finally:
        running.close()
