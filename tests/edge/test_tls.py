"""The public port with TLS: official clients, certificates that change under it, and those who don't speak it."""

import contextlib
import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.certificates import Authority, Issued
from tests.support.http_answers import answers
from tests.support.provider import HEADRACE, Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.websocket import ask, dial, hear, question
from tests.support.wire import post, read

pytestmark = pytest.mark.slow
HANDSHAKE_S = 0.6
CONFIG = f"[server]\nheader_timeout_s = {HANDSHAKE_S}\ndrain_s = 20.0\n[tenant_defaults]\nrequests_per_minute = 0\n"
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


class Secured:
    """A provider with TLS in front of a scripted engine."""

    def __init__(
        self, authority: Authority, issued: Issued, engine: ScriptedEngine, service: Provider
    ) -> None:
        self.authority = authority
        self.issued = issued
        self.engine = engine
        self.service = service
        self.key = service.key()

    @contextmanager
    def connect(self, context: ssl.SSLContext | None = None) -> Iterator[ssl.SSLSocket]:
        context = context or self.authority.client_context()
        with (
            self.service.connect() as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            yield secured

    def serial(self) -> str:
        """Which certificate a new connection is shown."""
        with self.connect() as connection:
            facts: dict[str, Any] = connection.getpeercert() or {}
        return str(facts["serialNumber"])

    def ask(self, **fields: Any) -> bytes:
        body = json.dumps({"model": "scripted", "messages": HELLO, **fields}).encode()
        return post("/v1/chat/completions", body, headers=f"authorization: Bearer {self.key}\r\n")

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.service.log_lines() if line["event"] == name]


@contextmanager
def secured(folder: Path, **engine: Any) -> Iterator[Secured]:
    authority = Authority(folder)
    issued = authority.issue()
    flags = ["--tls-certificate", str(issued.certificate), "--tls-key", str(issued.key)]
    with (
        scripted_engine(**engine) as running,
        provider(
            upstreams=[running.url], config=CONFIG, arguments=flags, trust=authority.client_context()
        ) as service,
    ):
        yield Secured(authority, issued, running, service)
        assert [
            line for line in service.log_lines() if line["event"] in ("internal.error", "library.warned")
        ] == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("tls"), slots=8) as running:
        yield running


def test_the_official_client_streams_over_tls(shared: Secured) -> None:
    """Whole and streamed, on one kept-alive connection, with a certificate that it verifies."""
    assert shared.service.url.startswith("https://")
    with (
        httpx2.Client(verify=shared.authority.client_context()) as transport,
        openai.OpenAI(
            base_url=shared.service.url, api_key=shared.key, http_client=transport, max_retries=0
        ) as client,
    ):
        whole = client.chat.completions.create(model="scripted", messages=HELLO)
        assert whole.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == whole.choices[0].message.content


def test_events_come_one_by_one_over_tls(tmp_path: Path) -> None:
    """TLS holds nothing back: the first event is read while the engine still generates."""
    with secured(tmp_path, itl_ms=50, tokens=400) as running, running.connect() as connection:
        connection.sendall(running.ask(stream=True))
        data = b""
        while data.count(b"data: ") < 3:
            data += connection.recv(65_536)
        assert running.engine.stats()["running"] == 1


def test_the_port_says_where_it_is(shared: Secured) -> None:
    """The printed address, service.json and `headrace status`."""
    assert f"public port  https://127.0.0.1:{shared.service.port}/v1" in shared.service.started
    assert "(https)" in shared.service.cli("status").stdout
    assert 0 < shared.service.metric("headrace_tls_expiry_days") <= 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_12_and_13_are_spoken(shared: Secured, version: ssl.TLSVersion) -> None:
    context = shared.authority.client_context()
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with shared.connect(context) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert connection.selected_alpn_protocol() == "http/1.1"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_older_versions_are_not(shared: Secured) -> None:
    context = shared.authority.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError), shared.connect(context):
        pass


def test_plain_http_on_the_tls_port_is_closed_and_counted(shared: Secured) -> None:
    before = shared.service.metric("headrace_tls_handshake_failures_total")
    with shared.service.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n")
        seen = read(connection, silence_s=30)
    assert b"HTTP/1.1 200" not in seen.data
    assert seen.end in ("fin", "reset")
    assert shared.service.metric("headrace_tls_handshake_failures_total") == before + 1
    assert shared.service.chat(shared.key)[0] == 200


def test_a_slow_handshake_is_cut_at_the_header_limit(shared: Secured) -> None:
    """T49: silence and a hello that drips, from thirty callers, while others are served."""
    before = shared.service.metric("headrace_tls_handshake_failures_total")
    crowd = [shared.service.connect() for _ in range(30)]
    try:
        started_s = time.monotonic()
        for connection in crowd[::2]:
            connection.sendall(b"\x16\x03\x01")
        assert shared.service.chat(shared.key)[0] == 200
        for connection in crowd:
            seen = read(connection, silence_s=20)
            assert seen.end in ("fin", "reset")
        assert time.monotonic() - started_s > HANDSHAKE_S * 0.9
    finally:
        for connection in crowd:
            connection.close()
    wait_until(
        lambda: shared.service.metric("headrace_tls_handshake_failures_total") >= before + 30,
        what="all of them to be counted",
    )


def test_a_caller_that_closes_its_half_of_tls_has_gone(shared: Secured) -> None:
    """Its work stops, as it does without TLS."""
    shared.engine.set_faults("ttft:20000@1")
    before = shared.engine.stats()
    with shared.connect() as connection:
        connection.sendall(shared.ask())
        shared.engine.wait_for_stats(lambda stats: stats["running"] == before["running"] + 1)
        with contextlib.suppress(OSError):
            connection.unwrap()  # sends the end of our half, and hears the end of theirs
        shared.engine.wait_for_stats(lambda stats: stats["aborted"] == before["aborted"] + 1)
    shared.engine.set_faults("")


def test_the_body_of_a_refusal_arrives_over_tls(shared: Secured) -> None:
    with shared.connect() as connection:
        connection.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n")
        data = b""
        while piece := connection.recv(65_536):
            data += piece
    assert [answer.status for answer in answers(data)] == [401]


def test_a_slow_reader_of_a_whole_answer_gets_all_of_it_before_we_end(tmp_path: Path) -> None:
    """What is encrypted and unsent when we are asked to stop is sent."""
    size = 3_000_000
    with secured(tmp_path, faults=f"json_huge:{size}") as running, running.connect() as connection:
        connection.sendall(running.ask())
        running.engine.wait_for_stats(lambda stats: stats["done"] == 1)
        wait_until(lambda: running.service.status()["in_flight"] == 0, what="the request to end")
        running.service.process.terminate()
        wait_until(lambda: running.events("service.draining"), what="the signal to be heard")
        data = b""
        while piece := connection.recv(65_536):
            data += piece
        (answer,) = answers(data)
        assert len(answer.json["choices"][0]["message"]["content"]) == size
        assert running.service.process.wait(60) == 0


def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_live_on(tmp_path: Path) -> None:
    with secured(tmp_path, itl_ms=20, tokens=1000) as running, running.connect() as stream:
        stream.sendall(running.ask(stream=True))
        assert stream.recv(65_536).startswith(b"HTTP/1.1 200 ")
        first = running.serial()
        running.authority.issue()  # the same files
        wait_until(lambda: running.serial() != first, what="the new certificate")
        (event,) = wait_until(lambda: running.events("tls.reloaded"), what="the log to say so")
        assert 0.9 < event["days_left"] < 1.1
        stream.settimeout(10)
        assert b"data: " in stream.recv(65_536)
        assert running.service.metric("headrace_tls_reload_failures_total") == 0


@pytest.mark.parametrize("what", ["garbage", "other key", "expired", "gone"])
def test_a_bad_new_certificate_changes_nothing_but_the_log(tmp_path: Path, what: str) -> None:
    """And a good one after it is taken."""
    with secured(tmp_path) as running:
        first = running.serial()
        if what == "garbage":
            running.issued.certificate.write_text("not a certificate")
        elif what == "other key":
            other = running.authority.issue("other")
            running.issued.key.write_bytes(other.key.read_bytes())
        elif what == "expired":
            running.authority.issue(valid_for=timedelta(days=-1))
        else:
            running.issued.key.unlink()
        (event,) = wait_until(lambda: running.events("tls.failing"), what="the log to say so")
        assert "server.tls_" in event["error"]
        assert event["days_left"] > 0.9
        assert running.service.metric("headrace_tls_reload_failures_total") == 1
        assert running.serial() == first
        assert running.service.chat(running.key)[0] == 200
        running.authority.issue()
        wait_until(lambda: running.serial() != first, what="the good one")


@pytest.mark.parametrize(
    ("certificate", "key", "named"),
    [
        ("server.pem", "", "server.tls_key"),
        ("", "server.key", "server.tls_certificate"),
        ("server.pem", "other.key", "server.tls_key"),
    ],
)
def test_wrong_files_are_refused_before_a_port_opens(
    tmp_path: Path, certificate: str, key: str, named: str
) -> None:
    """With status 2 and the name of the key in the configuration; here the environment gives the options."""
    authority = Authority(tmp_path)
    authority.issue("server")
    authority.issue("other")
    environment = {
        **os.environ,
        "HEADRACE_TLS_CERTIFICATE": certificate and str(tmp_path / certificate),
        "HEADRACE_TLS_KEY": key and str(tmp_path / key),
    }
    ended = subprocess.run(
        [
            *HEADRACE,
            "up",
            "--data",
            str(tmp_path / "data"),
            "--port",
            "0",
            "--upstream",
            "http://127.0.0.1:9",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert ended.returncode == 2
    assert "public port" not in ended.stdout
    assert named in ended.stderr


def test_a_certificate_that_has_expired_serves_and_says_so(tmp_path: Path) -> None:
    """A restart must not turn a late renewal into an outage for those who don't verify."""
    authority = Authority(tmp_path)
    issued = authority.issue(valid_for=timedelta(days=-2))
    lenient = ssl.create_default_context()
    lenient.check_hostname = False
    lenient.verify_mode = ssl.CERT_NONE
    flags = ["--tls-certificate", str(issued.certificate), "--tls-key", str(issued.key)]
    with (
        scripted_engine() as engine,
        provider(upstreams=[engine.url], arguments=flags, trust=lenient) as service,
    ):
        assert service.get("/livez")[0] == 200
        assert service.metric("headrace_tls_expiry_days") < -1.9
        assert [line["event"] for line in service.log_lines()].count("tls.expired") == 1


def test_a_websocket_takes_over_a_connection_with_tls(shared: Secured) -> None:
    """Answers, a cancel, and a close with its code, which TLS could lose."""
    context = shared.authority.client_context()
    with dial(shared.service.port, shared.key, ssl=context) as connection:
        assert ask(connection).end["object"] == "headrace.done"
        shared.engine.set_faults("stall:1")
        connection.send(question())
        hear(connection, until=["headrace.open"])
        connection.send('{"cancel": true}')
        assert hear(connection).end["object"] == "headrace.cancelled"
        shared.engine.set_faults("")
        connection.send(b"binary")
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003
