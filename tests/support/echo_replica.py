"""A replica that gives away all that it is told: its answers and its errors hold the prompt, and the headers it came with."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "echo"


class _Handler(BaseHTTPRequestHandler):
    """The first word of the prompt is the status of the answer, or `event` for an error inside a stream."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        models = [{"id": MODEL, "object": "model"}]
        self._answer(200, {"object": "list", "data": models} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = asked["messages"][-1]["content"]
        told = f"{said} {self.headers.get('authorization')} {json.dumps(asked)}"
        what = said.partition(" ")[0]
        error = {"error": {"message": told, "type": told, "param": told, "code": told}}
        if what == "200":
            message = {"role": "assistant", "content": told}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._answer(200, {"object": "chat.completion", "choices": [choice]})
        elif what == "event":
            chunk = {"choices": [{"index": 0, "delta": {"content": told}, "finish_reason": None}]}
            events = "".join(f"data: {json.dumps(each)}\n\n" for each in (chunk, error))
            self._answer(200, events.encode(), kind="text/event-stream")
        else:
            self._answer(int(what), error)

    def _answer(self, status: int, body: Any, *, kind: str = "application/json") -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def echo_replica() -> Iterator[str]:
    """Its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
