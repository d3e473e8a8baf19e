"""A server that speaks just enough of the protocol to show what reaches it, and to answer with fields nobody knows."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "plain"
MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "somebody"}]}
UNKNOWN = {"service_tier": "blue", "x_engine": {"temperature_c": 61.5, "list": [1, None, "two"]}}
BIG_NUMBER = 12345678901234567890  # fits in 64 bits, not in a float


class PlainServer:
    """What it was asked, oldest first: the headers (names in lower case) and the parsed body of each POST.

    Attributes:
        more: Further fields of its answers; of a stream in the last event.
    """

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}
        self.url = ""


@contextmanager
def plain_server() -> Iterator[PlainServer]:
    seen = PlainServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("application/json", json.dumps(MODELS).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            seen.bodies.append(body)
            if body.get("stream"):
                last = json.dumps({**_answer("delta", "stop"), **seen.more})
                events = [json.dumps(_answer("delta", None)), last, "[DONE]"]
                self._answer("text/event-stream", "".join(f"data: {event}\n\n" for event in events).encode())
            else:
                self._answer(
                    "application/json", json.dumps({**_answer("message", "stop"), **seen.more}).encode()
                )

        def _answer(self, content_type: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        seen.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


def _answer(part: str, finish_reason: str | None) -> dict[str, Any]:
    text = {"role": "assistant", "content": "hi", "annotations": [{"kind": "unknown"}]}
    choice = {"index": 0, part: text, "finish_reason": finish_reason, "token_ids": [1, 2], "seed": BIG_NUMBER}
    return {"id": "one", "object": "chat.completion", "model": "its-own-name", "choices": [choice], **UNKNOWN}
