"""A stand-in for llama-server: the options that we give it, and nothing that it wouldn't understand. Run as a program."""

import argparse
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model", "alias", "host", "spec-draft-model", "spec-type", "cache-type-k", "cache-type-v"):
        parser.add_argument(f"--{name}")
    for name in ("port", "parallel", "ctx-size", "cache-ram", "threads", "batch-size", "ubatch-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--fit", choices=("on", "off"))
    for name in ("no-kv-unified", "metrics", "no-slots", "no-ui", "embeddings", "no-cache-prompt"):
        parser.add_argument(f"--{name}", action="store_true")
    # Of this stand-in alone, behind the others.
    parser.add_argument("--loads-s", type=float, default=0.0)
    parser.add_argument("--logs-every-s", type=float, default=0.0)
    parser.add_argument("--warms-s", type=float, default=0.0)
    return parser.parse_args()


class Server(BaseHTTPRequestHandler):
    given: argparse.Namespace
    ready_s: float
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if time.monotonic() < self.ready_s:
            self.answer(503, {"error": {"code": 503, "message": "Loading model"}})
        elif self.path == "/health":
            self.answer(200, {"status": "ok"})
        elif not self.is_known():
            self.answer(401, {"error": {"code": 401}})
        elif self.path == "/v1/models":
            meta = {"n_ctx": self.given.ctx_size // self.given.parallel, "n_vocab": 1000}
            self.answer(200, {"data": [{"id": self.given.alias, "owned_by": "llamacpp", "meta": meta}]})
        else:
            self.answer(200, None)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_known():
            self.answer(401, {"error": {"code": 401}})
        elif asked.get("stream"):
            self.stream()
        else:
            message = {"role": "assistant", "content": "pong"}
            self.answer(200, {"model": self.given.alias, "choices": [{"message": message}]})

    def stream(self) -> None:
        first = {
            "choices": [
                {"index": 0, "delta": {"role": "assistant", "content": "pong"}, "finish_reason": None}
            ]
        }
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        about = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.given.alias,
        }
        events = [f"data: {json.dumps({**about, **event})}\n\n" for event in (first, last, usage)]
        body = "".join([*events, "data: [DONE]\n\n"]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def is_known(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {os.environ['LLAMA_API_KEY']}"

    def answer(self, status: int, body: Any) -> None:
        text = b"llamacpp:requests_processing 0\n" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    given = options()
    with open(given.model, "rb"):
        pass
    end_s = time.monotonic() + given.loads_s
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, given.logs_every_s or left_s))
        print("loading tensors", file=sys.stderr, flush=True)
    Server.given, Server.ready_s = given, time.monotonic() + given.warms_s
    ThreadingHTTPServer((given.host, given.port), Server).serve_forever()


if __name__ == "__main__":
    main()
