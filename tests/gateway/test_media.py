"""T44, REPORTS 102: URLs in messages lead nobody inside, and what is fetched from outside is bounded and inlined."""

import asyncio
import base64
import gzip
import ipaddress
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.core.clock import SystemClock
from headrace.core.errors import DeadlineExceeded, HeadraceError, InvalidRequest
from headrace.core.request import Endpoint
from headrace.gateway.media import MediaFetcher
from headrace.gateway.rules import MediaRules
from headrace.protocols import openai
from tests.gateway.plain_server import MODEL, PlainServer, plain_server
from tests.gateway.rig import CHAT, Rig, error_of, read_answer, rig
from tests.support import wire
from tests.support.pictures import data_url, png

PICTURE = png(64, 64)
PUBLIC, PRIVATE = "127.0.0.2", "127.0.0.1"  # the first is named as a network that may be fetched from
FETCH = f"""
[media]
urls = "fetch"
networks = ["{PUBLIC}/32"]
bytes_max = 100000
time_s = 2.0
redirects_max = 2
"""


class Origin:
    """A web server on the "public" address, and what it was asked."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{PUBLIC}:{port}"
        self.port = port
        self.paths: list[str] = []
        self.hosts: list[str] = []
        self.released = threading.Event()


class Spy:
    """A listener on the "private" address that must never hear of anybody."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0


class PatientServer(ThreadingHTTPServer):
    request_queue_size = 128  # or a burst of connections would wait for a second


@contextmanager
def origin() -> Iterator[Origin]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.paths.append(self.path)
            seen.hosts.append(self.headers["host"])
            try:
                self.answer()
            except (BrokenPipeError, ConnectionResetError):
                pass

        def answer(self) -> None:
            name, _, argument = self.path.partition("?")[0][1:].partition("/")
            match name:
                case "picture":
                    self.send(200, PICTURE, "image/png; charset=binary")
                case "page":
                    self.send(200, b"<html>secret</html>", "text/html")
                case "liar":
                    self.send(200, b"<svg/>", "image/png")
                case "bomb":
                    self.send(200, png(10_000, 10_000), "image/png")
                case "gzip":
                    self.send(200, gzip.compress(PICTURE), "image/png", ("content-encoding", "gzip"))
                case "large":
                    self.send(200, PICTURE + b"x" * 200_000, "image/png")
                case "missing":
                    self.send(404, b"no secret here", "text/plain")
                case "slow":
                    seen.released.wait(60)
                case "loop":
                    self.send(302, b"", "text/plain", ("location", "/loop"))
                case "to":
                    self.send(302, b"", "text/plain", ("location", base64.b64decode(argument).decode()))

        def send(self, status: int, body: bytes, content_type: str, *more: tuple[str, str]) -> None:
            self.send_response(status)
            for key, value in (("content-type", content_type), ("content-length", str(len(body))), *more):
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with PatientServer((PUBLIC, 0), Handler) as server:
        seen = Origin(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield seen
        finally:
            seen.released.set()
            server.shutdown()
            thread.join()


@contextmanager
def spy(port: int = 0) -> Iterator[Spy]:
    with socket.create_server((PRIVATE, port)) as listener:
        listener.settimeout(0.05)
        heard, is_over = Spy(listener.getsockname()[1]), threading.Event()

        def listen() -> None:
            while not is_over.is_set():
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    continue
                heard.connections += 1

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield heard
        finally:
            is_over.set()
            thread.join()


def to(location: str) -> str:
    """The path that redirects there."""
    return "/to/" + base64.b64encode(location.encode()).decode()


def inside(port: int) -> list[str]:
    """Every way to write a private address, and names that lead to one."""
    hosts = [
        "127.0.0.1", "127.1", "127.0.1", "0", "0.0.0.0", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "localhost", "localhost.",
        "LOCALHOST", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "169.254.169.254", "[fe80::1]",
        "[fd00:ec2::254]", "10.0.0.1", "192.168.0.1", "172.16.0.1", "100.64.0.1", "224.0.0.1", "255.255.255.255", "ip6-localhost",
    ]  # fmt: skip
    urls = [f"http://{host}:{port}/x.png" for host in hosts]
    urls += [
        f"http://{PUBLIC}@{PRIVATE}:{port}/",
        f"http://user:pass@{PUBLIC}:{port}/",
        f"http://{PRIVATE}:{port}\\@{PUBLIC}/",
        f"https://{PRIVATE}:{port}/",
    ]
    return [
        *urls,
        "file:///etc/passwd",
        f"ftp://{PRIVATE}:{port}/",
        f"gopher://{PRIVATE}:{port}/",
        f"//{PRIVATE}:{port}/",
        "/etc/passwd",
    ]


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def ask(running: Rig, *parts: dict[str, Any], headers: str = "", **fields: Any) -> wire.Exchange:
    question = {"model": MODEL, "messages": [{"role": "user", "content": list(parts)}], **fields}
    with running.provider.connect() as connection:
        head = f"authorization: Bearer {running.key}\r\n{headers}"
        connection.sendall(wire.post(CHAT, json.dumps(question).encode(), headers=head))
        return read_answer(connection)


@pytest.fixture(scope="module")
def plain() -> Iterator[PlainServer]:
    with plain_server() as running:
        yield running


@pytest.fixture(scope="module")
def web() -> Iterator[Origin]:
    with origin() as running:
        yield running


@pytest.fixture(scope="module")
def fetching(plain: PlainServer) -> Iterator[Rig]:
    with rig(upstreams=[plain.url], config=FETCH) as running:
        yield running


@pytest.fixture(scope="module")
def refusing(plain: PlainServer) -> Iterator[Rig]:
    with rig(upstreams=[plain.url]) as running:
        yield running


AT = "messages[0].content[0].image_url.url"


def test_by_default_every_url_is_refused_and_nobody_is_connected_to(
    refusing: Rig, plain: PlainServer, web: Origin
) -> None:
    """REPORTS 102."""
    before = len(plain.bodies), len(web.paths)
    with spy() as heard:
        for url in [*inside(heard.port), f"{web.url}/picture"]:
            answer = ask(refusing, image(url))
            assert (answer.status, error_of(answer)["param"]) == (400, AT), url
        assert heard.connections == 0
    assert (len(plain.bodies), len(web.paths)) == before


def test_fetching_leads_nobody_inside(fetching: Rig, plain: PlainServer, web: Origin) -> None:
    """T44: straight, and behind a redirect from a place that is allowed; the error tells nothing of what is there."""
    before = len(plain.bodies)
    with spy() as heard:
        for url in inside(heard.port):
            for asked in (url, web.url + to(url)):
                if asked == web.url + to("/etc/passwd"):
                    continue  # a path on the same server
                answer = ask(fetching, image(asked))
                assert (answer.status, error_of(answer)["param"]) == (400, AT), asked
                assert b"refused" not in answer.body
        assert heard.connections == 0
    assert len(plain.bodies) == before


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_fetched_reaches_the_engine_inline(
    fetching: Rig, plain: PlainServer, web: Origin, stream: bool
) -> None:
    """By a redirect, too; text that looks like a URL stays, and the engine never sees one to fetch."""
    text = {"type": "text", "text": f"{web.url}/picture"}
    parts = [
        image(f"{web.url}/picture?a=b#c"),
        text,
        image(web.url + to("/picture")),
        image(data_url(PICTURE)),
    ]
    answer = ask(fetching, *parts, stream=stream)
    assert answer.status == 200
    inline = image(data_url(PICTURE))
    assert plain.bodies[-1]["messages"][0]["content"] == [inline, text, inline, inline]
    assert web.paths[-3:] == ["/picture?a=b", to("/picture"), "/picture"]
    assert set(web.hosts) == {f"{PUBLIC}:{web.port}"}


@pytest.mark.parametrize(
    "path",
    [
        "/page",
        "/liar",
        "/bomb",
        "/gzip",
        "/large",
        "/missing",
        "/slow",
        "/loop",
        to("/loop"),
        "/nothing",
        to(""),
    ],
)
def test_what_is_not_a_picture_within_the_bounds_is_refused(
    fetching: Rig, plain: PlainServer, web: Origin, path: str
) -> None:
    """T44: by content type, by content, by pixels, by bytes, by time, by redirects."""
    before = len(plain.bodies)
    answer = ask(fetching, image(web.url + path))
    assert (answer.status, error_of(answer)["param"]) == (400, AT)
    assert b"secret" not in answer.body
    assert len(plain.bodies) == before


def test_the_bytes_of_one_request_are_counted_together(fetching: Rig, web: Origin) -> None:
    assert ask(fetching, *[image(web.url + "/picture")] * 20).status == 200
    question = [{"type": "file", "file": {"file_url": web.url + "/large"}}, image(web.url + "/picture")]
    assert ask(fetching, *question).status == 400


def test_the_deadline_holds_while_media_is_fetched(fetching: Rig, web: Origin) -> None:
    assert ask(fetching, image(web.url + "/slow"), headers="x-headrace-deadline-ms: 100\r\n").status == 504


def test_other_requests_go_on_while_media_is_fetched(fetching: Rig, web: Origin) -> None:
    """And a caller that leaves stops it."""
    question = {"model": MODEL, "messages": [{"role": "user", "content": [image(web.url + "/slow")]}]}
    waiting = []
    keys = [fetching.provider.key(f"fetcher-{number}", requests_per_minute=0) for number in range(3)]
    for number in range(20):  # more than may fetch at once
        connection = fetching.provider.connect()
        head = f"authorization: Bearer {keys[number % 3]}\r\n"
        connection.sendall(wire.post(CHAT, json.dumps(question).encode(), headers=head))
        waiting.append(connection)
    assert ask(fetching, {"type": "text", "text": "x"}).status == 200
    for connection in waiting:
        connection.close()
    assert ask(fetching, image(web.url + "/picture")).status == 200
    fetching.wait_until_idle()


# Names that change their mind


def parsed(url: str) -> openai.ParsedBody:
    question = {"model": "m", "messages": [{"role": "user", "content": [image(url)]}]}
    return openai.parse_body(Endpoint.CHAT_COMPLETIONS, json.dumps(question).encode())


def fetched(url: str, answers: list[list[str]], *, in_s: float = 10.0) -> tuple[object, list[str]]:
    """What came of it, and the names that were resolved; each look-up gets the next of the answers."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if not answers:
            raise OSError("no such name")
        return answers.pop(0)

    async def run() -> object:
        rules = MediaRules(True, 100_000, 5.0, 2, 4, (ipaddress.ip_network(f"{PUBLIC}/32"),))
        fetcher = MediaFetcher(rules.fetches_max, clock=SystemClock(), resolve=resolve)
        async with asyncio.TaskGroup() as tasks:
            fetcher.open(tasks)
            try:
                return await fetcher.inline(parsed(url), rules=rules, deadline_s=SystemClock().now_s() + in_s)
            except HeadraceError as error:
                return error

    return asyncio.run(run()), asked


def test_a_name_is_resolved_once_and_that_address_is_connected_to(web: Origin) -> None:
    """DNS rebinding: the name is unknown to the system's resolver, so only the checked address can have been used."""
    with spy(web.port) as heard:
        result, asked = fetched(f"http://rebind.invalid:{web.port}/picture", [[PUBLIC], [PRIVATE]])
        assert isinstance(result, openai.ParsedBody)
        assert result.remote_media == ()
        assert data_url(PICTURE).encode() in result.canonical
        assert asked == ["rebind.invalid"]
        assert web.hosts[-1] == f"rebind.invalid:{web.port}"
        assert heard.connections == 0
    web.hosts.clear()


@pytest.mark.parametrize(
    "answers", [[[PRIVATE]], [[PUBLIC, PRIVATE]], [[PRIVATE, PUBLIC]], [[]], [["169.254.169.254"]], []]
)
def test_a_name_that_leads_inside_is_refused_before_a_connection(
    web: Origin, answers: list[list[str]]
) -> None:
    with spy(web.port) as heard:
        result, _ = fetched(f"http://rebind.invalid:{web.port}/picture", answers)
        assert isinstance(result, InvalidRequest)
        assert result.message == f"{AT}: nothing can be fetched from there"
        assert heard.connections == 0


def test_a_redirect_to_the_same_name_is_checked_again(web: Origin) -> None:
    with spy(web.port) as heard:
        url = f"http://rebind.invalid:{web.port}{to('/picture')}"
        result, asked = fetched(url, [[PUBLIC], [PRIVATE]])
        assert isinstance(result, InvalidRequest)
        assert asked == ["rebind.invalid"] * 2
        assert heard.connections == 0
    web.hosts.clear()


def test_a_certificate_that_nobody_vouches_for_is_not_believed(web: Origin) -> None:
    """The origin speaks no TLS at all, which is all the same here: nothing is fetched."""
    result, _ = fetched(f"https://rebind.invalid:{web.port}/picture", [[PUBLIC]])
    assert isinstance(result, InvalidRequest)


def test_a_deadline_that_has_passed_fetches_nothing(web: Origin) -> None:
    result, _ = fetched(f"http://rebind.invalid:{web.port}/slow", [[PUBLIC]], in_s=0.05)
    assert isinstance(result, DeadlineExceeded)
    web.hosts.clear()
