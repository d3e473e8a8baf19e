"""Claims about the admin port: who may ask, what it says, and that it answers when the gateway can't."""

import http.client
import io
import json
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.control import api
from headrace.control.api import AdminServer, admin_token
from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics
from tests.support.provider import wait_until

TOKEN = "hr_admin_0123456789abcdef"


class Running:
    """An admin server on a free port, with what it was given."""

    def __init__(
        self,
        *,
        status: Callable[[], dict[str, Any]] = lambda: {"ready": True},
        heartbeat: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.metrics = Metrics()
        self.log = io.StringIO()
        self.server = AdminServer(
            "127.0.0.1",
            0,
            TOKEN,
            metrics=self.metrics,
            status=status,
            heartbeat=heartbeat,
            log=Log(self.log, ManualClock()),
        )
        self.port = self.server.start()

    def ask(
        self, path: str, *, method: str = "GET", authorization: str | None = f"Bearer {TOKEN}"
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {} if authorization is None else {"Authorization": authorization}
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@contextmanager
def admin(**kwargs: Any) -> Iterator[Running]:
    running = Running(**kwargs)
    try:
        yield running
    finally:
        running.server.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with admin() as running:
        yield running


PATHS = [
    "/",
    "/metrics",
    "/metrics/",
    "/livez/",
    "/livezz",
    "/LIVEZ",
    "//livez",
    "/readyz",
    "/admin/v1/status",
    "/admin",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/v1/models",
    "/favicon.ico",
    "/livez/../metrics",
    "/livez%2f..%2fmetrics",
    "/%00",
]


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_every_path_but_livez_is_401(shared: Running, path: str) -> None:
    """T46: known and unknown paths can't be told apart, and the answer says nothing else."""
    status, headers, body = shared.ask(path, authorization=None)
    assert status == 401
    assert headers["www-authenticate"] == "Bearer"
    error = json.loads(body)["error"]
    assert error["code"] == "unauthenticated"
    assert error["type"] == "authentication_error"
    assert error["request_id"].startswith("req_")
    assert set(error) == {"message", "type", "param", "code", "request_id"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_without_the_token_livez_answers_only_what_a_probe_sends(shared: Running, method: str) -> None:
    """T46"""
    assert shared.ask("/livez", method=method, authorization=None)[0] == 401


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        "Bearer ' OR 1=1 --",
        "Bearer t\xf6ken",
    ],
)
def test_a_wrong_token_is_401_and_not_repeated_anywhere(shared: Running, authorization: str) -> None:
    """T40, T47: the value that was tried stands neither in the answer nor in the log."""
    status, _, body = shared.ask("/metrics", authorization=authorization)
    assert status == 401
    assert "OR 1=1" not in body.decode() + shared.log.getvalue()


def test_two_authorization_headers_are_401_even_if_one_is_right(shared: Running) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as connection:
        right = f"Authorization: Bearer {TOKEN}\r\n"
        connection.sendall(
            f"GET /metrics HTTP/1.1\r\nHost: x\r\n{right}{right}Connection: close\r\n\r\n".encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 401"


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/openapi.json", "/metrics/", "/readyz", "/v1/models", "/admin/v1"]
)
def test_with_the_token_an_unknown_path_is_404(shared: Running, path: str) -> None:
    status, headers, body = shared.ask(path)
    assert status == 404
    assert json.loads(body)["error"]["code"] == "not_found"
    assert "server" not in headers


def test_with_the_token_a_wrong_method_is_404(shared: Running) -> None:
    status, _, body = shared.ask("/admin/v1/status", method="DELETE")
    assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")


def test_metrics_are_a_scrape_that_parses(shared: Running) -> None:
    shared.metrics.requests.labels("/v1/chat/completions", "m", "delivered", "ok").add()
    status, headers, body = shared.ask("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"headrace_requests", "headrace_build_info", "process_open_fds"} <= names


def test_status_is_what_the_service_says() -> None:
    said = {"version": "1", "deployments": [{"model": "m", "replicas": []}], "uptime_s": 1.5}
    with admin(status=lambda: said) as running:
        status, headers, body = running.ask("/admin/v1/status")
    assert (status, headers["content-type"], json.loads(body)) == (200, "application/json", said)


@pytest.mark.parametrize(("silence_s", "expected"), [(0.0, 200), (29.9, 200), (30.0, 503), (1e9, 503)])
def test_livez_needs_no_token_and_tells_a_turning_loop_from_a_stuck_one(
    silence_s: float, expected: int
) -> None:
    with admin(heartbeat=lambda: silence_s) as running:
        status, _, body = running.ask("/livez", authorization=None)
    assert status == expected
    assert json.loads(body) == {"status": "alive" if expected == 200 else "stalled"}


def test_the_port_answers_while_the_thread_that_started_it_is_busy() -> None:
    """A stuck gateway loop, here this very thread, doesn't take the admin port with it."""
    answers: list[int] = []
    with admin() as running:
        asker = threading.Thread(target=lambda: answers.append(running.ask("/livez")[0]), daemon=True)
        asker.start()
        give_up_s = time.monotonic() + 30
        while not answers and time.monotonic() < give_up_s:
            pass  # no wait and no sleep: the interpreter has to take the turn away from us
    assert answers == [200]


def test_livez_answers_at_once_while_the_gateway_keeps_a_status_waiting() -> None:
    """What asks the gateway's loop waits for it; a probe must not wait along."""
    asked, go_on = threading.Event(), threading.Event()

    def status() -> dict[str, Any]:
        asked.set()
        assert go_on.wait(60)
        return {"ready": True}

    with admin(status=status) as running:
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(running.ask("/admin/v1/status")[0]))
        asking.start()
        assert asked.wait(60)
        assert running.ask("/livez", authorization=None)[0] == 200
        assert answers == []
        go_on.set()
        asking.join()
        assert answers == [200]


@pytest.mark.slow
def test_a_request_that_does_not_come_to_its_end_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """T49 on this port: silence, a head that drips, and one that drips after an answer."""
    monkeypatch.setattr(api, "REQUEST_LIMIT_S", 0.5)
    with admin() as running:
        crowd = [socket.create_connection(("127.0.0.1", running.port), timeout=60) for _ in range(3)]
        crowd[1].sendall(b"GET /livez HTTP/1.1\r\n")
        crowd[2].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert crowd[2].recv(65_536).startswith(b"HTTP/1.1 200 ")
        until_s = time.monotonic() + 20
        open_still = set(crowd)
        while open_still:
            assert time.monotonic() < until_s, "still open"
            for connection in list(open_still):
                try:
                    connection.settimeout(0.05)
                    if connection is not crowd[0]:
                        connection.sendall(b"X-A: b\r\n" if connection is crowd[1] else b"G")
                    if not connection.recv(65_536):
                        open_still.discard(connection)
                except TimeoutError:
                    continue
                except OSError:
                    open_still.discard(connection)
        for connection in crowd:
            connection.close()
        assert running.ask("/livez")[0] == 200


def test_connections_are_bounded_and_room_returns() -> None:
    with admin() as running:
        crowd = [
            socket.create_connection(("127.0.0.1", running.port), timeout=60)
            for _ in range(api.CONNECTIONS_MAX)
        ]
        wait_until(lambda: is_dropped(running.port), what="one too many to be dropped")
        for connection in crowd:
            connection.close()
        wait_until(lambda: not is_dropped(running.port), what="room")
        assert running.ask("/livez")[0] == 200


def is_dropped(port: int) -> bool:
    """Whether a new connection is closed before it says anything."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.settimeout(0.2)
        try:
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True


def test_a_status_that_fails_is_a_500_without_its_text_and_leaves_a_trace() -> None:
    """T47: the answer and the log name the bug's place; the exception's text stays out of both."""

    def broken() -> dict[str, Any]:
        raise RuntimeError("canary")

    with admin(status=broken) as running:
        status, _, body = running.ask("/admin/v1/status")
        assert running.ask("/livez")[0] == 200
    assert status == 500
    error = json.loads(body)["error"]
    assert error["code"] == "internal_error"
    logged = json.loads(running.log.getvalue())
    assert (logged["event"], logged["error"]) == ("internal.error", "RuntimeError")
    assert logged["request_id"] == error["request_id"]
    assert "canary" not in body.decode() + running.log.getvalue()
    assert running.metrics.internal_errors.labels("admin").value == 1


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with admin() as running, pytest.raises(ConfigError, match=f"127.0.0.1:{running.port}"):
        AdminServer(
            "127.0.0.1",
            running.port,
            TOKEN,
            metrics=Metrics(),
            status=dict,
            heartbeat=lambda: 0.0,
            log=Log(io.StringIO(), ManualClock()),
        ).start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_ours_is_an_error_that_names_it(host: str) -> None:
    server = AdminServer(
        host,
        0,
        TOKEN,
        metrics=Metrics(),
        status=dict,
        heartbeat=lambda: 0.0,
        log=Log(io.StringIO(), ManualClock()),
    )
    with pytest.raises(ConfigError, match=host):
        server.start()
    server.stop()


def test_after_stop_the_port_is_free_and_stopping_twice_is_fine() -> None:
    with admin() as running:
        held = socket.create_connection(("127.0.0.1", running.port), timeout=60)
        running.server.stop()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", running.port), timeout=60)
        held.close()


def test_the_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    run = tmp_path / "data" / "run"
    token = admin_token(run)
    assert admin_token(run) == token
    assert len(token) >= 40
    assert token.isascii()
    assert stat.S_IMODE((run / "admin.token").stat().st_mode) == 0o600
    assert [file.name for file in run.iterdir()] == ["admin.token"]


def test_processes_that_start_together_agree_on_one_token(tmp_path: Path) -> None:
    barrier, tokens = threading.Barrier(8), list[str]()

    def start() -> None:
        barrier.wait()
        tokens.append(admin_token(tmp_path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"short\n", b"\xff\xfe" * 20])
def test_a_token_file_that_would_open_the_door_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "admin.token").write_bytes(content)
    with pytest.raises(ConfigError, match=r"admin\.token"):
        admin_token(tmp_path)
