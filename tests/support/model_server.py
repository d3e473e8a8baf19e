"""A server of OpenAI's protocol whose answers a test makes up, and which keeps what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class ModelServer:
    """One that runs; `asked` has path and body of every request, in order."""

    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def prompts(self) -> list[str]:
        """The whole text of every chat request."""
        return [
            "\n".join(message["content"] for message in body["messages"])
            for path, body in self.asked
            if path.endswith("/chat/completions")
        ]


Answer = Callable[[str, dict[str, Any]], Any]


@contextmanager
def model_server(answer: Answer) -> Iterator[ModelServer]:
    """`answer` gets path and body, and returns a text for a chat, a list of vectors for embeddings, or (status, headers, body)."""
    server = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.asked.append((self.path, body))
            status, headers, content = _framed(answer(self.path, body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_port}/v1"
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown()


def _framed(answered: Any) -> tuple[int, dict[str, str], bytes]:
    if isinstance(answered, tuple):
        status, headers, content = answered
        return status, headers, content
    if isinstance(answered, str):
        body: Any = {"choices": [{"message": {"content": answered}, "finish_reason": "stop"}]}
    else:
        body = {"data": [{"index": i, "embedding": v} for i, v in reversed(list(enumerate(answered)))]}
    return 200, {"x-headrace-model-revision": "sha256:1"}, json.dumps(body).encode()
