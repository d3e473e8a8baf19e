"""A local stand-in for places that serve large files: plain URLs with ranges, and the hub's own protocol in front."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class FileServer:
    """What is served and how badly; tests change it between requests.

    Attributes:
        files: Content by path, for plain URLs.
        hub: Content by (repository, commit, file); GET redirects to `/cdn/<digest>`.
        cut_after_bytes: For each coming GET of content, how much of the body is sent before the connection breaks.
        statuses: Answers to give before doing anything useful.
        ranges: Whether Range is honoured.
        hold: While set, a body stops in the middle until `release` is set.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    hub: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    hub_commit: str | None = None
    hub_etag: str | None = None
    cut_after_bytes: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    ranges: bool = True
    hold: bool = False
    halfway: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    received: list[Received] = field(default_factory=list)

    def of(self, method: str, *, path: str = "") -> list[Received]:
        return [call for call in self.received if call.method == method and path in call.path]


class _Handler(BaseHTTPRequestHandler):
    state: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.state.received.append(Received(self.command, self.path, headers))
        if self.state.statuses:
            self.reply(self.state.statuses.pop(0))
        elif "/resolve/" in self.path:
            self.resolve()
        else:
            content = self.state.files.get(self.path)
            if content is None and self.path.startswith("/cdn/"):
                digest = self.path.removeprefix("/cdn/")
                content = next(c for c in self.state.hub.values() if hashlib.sha256(c).hexdigest() == digest)
            if content is None:
                self.reply(404)
            else:
                self.serve(content, with_body=with_body)

    def resolve(self) -> None:
        repository, _, rest = self.path.lstrip("/").partition("/resolve/")
        commit, _, file = rest.partition("/")
        content = self.state.hub.get((repository, commit, file))
        if content is None:
            self.reply(404, {"X-Error-Code": "EntryNotFound"})
            return
        digest = hashlib.sha256(content).hexdigest()
        facts = {
            "X-Repo-Commit": self.state.hub_commit or commit,
            "X-Linked-Etag": f'"{self.state.hub_etag or digest}"',
            "X-Linked-Size": str(len(content)),
            "ETag": '"of-the-redirect"',
            # Another name for the same machine: what must not be told to the storage is then told to nobody.
            "Location": f"{self.state.url.replace('127.0.0.1', 'localhost')}/cdn/{digest}",
        }
        self.reply(302, facts)

    def reply(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()

    def serve(self, content: bytes, *, with_body: bool) -> None:
        start = 0
        asked = self.headers.get("Range")
        if asked and self.state.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.reply(416, {"Content-Range": f"bytes */{len(content)}"})
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.send_body(body)

    def send_body(self, body: bytes) -> None:
        if self.state.cut_after_bytes:
            self.wfile.write(body[: self.state.cut_after_bytes.pop(0)])
            self.close_connection = True
            return
        middle = len(body) // 2
        self.wfile.write(body[:middle])
        self.wfile.flush()
        if self.state.hold:
            self.state.halfway.set()
            self.state.release.wait(60)
        try:
            self.wfile.write(body[middle:])
        except OSError:
            self.close_connection = True  # the client was killed, as the test wants


@contextmanager
def file_server() -> Iterator[FileServer]:
    state = FileServer()

    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
