"""A local stand-in for places that serve large files: plain URLs with ranges, and the hub's own protocol in front."""

import hashlib
import json
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
        hub_small_bytes: Files up to this size lie in the repository itself, known by the id that Git gives them.
        hub_page: How many files one page of a listing holds.
        cut_after_bytes: For each coming GET of content, how much of the body is sent before the connection breaks.
        statuses: Answers to give before doing anything useful.
        ranges: Whether Range is honoured.
        hold: While set, a body stops in the middle until `release` is set.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    hub: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    hub_small_bytes: int = 0
    hub_page: int = 1000
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
            self.resolve(with_body=with_body)
        elif self.path.startswith("/api/models/"):
            self.list_tree()
        else:
            content = self.state.files.get(self.path)
            if content is None and self.path.startswith("/cdn/"):
                digest = self.path.removeprefix("/cdn/")
                content = next(c for c in self.state.hub.values() if hashlib.sha256(c).hexdigest() == digest)
            if content is None:
                self.reply(404)
            else:
                self.serve(content, with_body=with_body)

    def resolve(self, *, with_body: bool) -> None:
        repository, _, rest = self.path.lstrip("/").partition("/resolve/")
        commit, _, file = rest.partition("/")
        content = self.state.hub.get((repository, commit, file))
        if content is None:
            self.reply(404, {"X-Error-Code": "EntryNotFound"})
            return
        if len(content) <= self.state.hub_small_bytes:
            etag = self.state.hub_etag if self.state.hub_etag is not None else git_id(content)
            self.serve(content, with_body=with_body, headers={"X-Repo-Commit": commit, "ETag": f'"{etag}"'})
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

    def list_tree(self) -> None:
        place, _, query = self.path.removeprefix("/api/models/").partition("?")
        repository, _, rest = place.partition("/tree/")
        commit, _, below = rest.partition("/")
        start = int(query.partition("cursor=")[2] or 0)
        entries: list[dict[str, object]] = [{"type": "directory", "path": "sub", "size": 0, "oid": "d" * 40}]
        for (of, at, path), content in self.state.hub.items():
            if (of, at) == (repository, commit) and path.startswith(below):
                entry: dict[str, object] = {
                    "type": "file",
                    "path": path,
                    "size": len(content),
                    "oid": git_id(content),
                }
                if len(content) > self.state.hub_small_bytes:
                    entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
                entries.append(entry)
        end = start + self.state.hub_page
        page = json.dumps(entries[start:end]).encode()
        following = f'<{self.state.url}/api/models/{place}?recursive=true&cursor={end}>; rel="next"'
        self.serve(page, with_body=True, headers={"Link": following} if end < len(entries) else {})

    def reply(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()

    def serve(self, content: bytes, *, with_body: bool, headers: dict[str, str] | None = None) -> None:
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
        for key, value in (headers or {}).items():
            self.send_header(key, value)
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


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


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
