"""The ladder on a real process: short of memory, descriptors or time, it gives up what it can spare and goes on."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from tests.edge.conftest import Edge, running_edge
from tests.support.http_answers import Answer, answers, read_answers
from tests.support.provider import wait_until
from tests.support.websocket import (
    TEXT,
    HandshakeRefused,
    RawSocket,
    ask,
    dial,
    frame,
    handshake,
    hear,
    raw,
    refused,
)
from tests.support.websocket import question as websocket_question
from tests.support.wire import read

pytestmark = pytest.mark.slow
MIB = 1024 * 1024
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"


def question(edge: Edge, **fields: object) -> bytes:
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hi"}], **fields})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {edge.key}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def level(edge: Edge) -> str:
    found: str = edge.service.status()["pressure"]["level"]
    return found


def changes(edge: Edge) -> list[tuple[str, str, str]]:
    """What the log says of the level."""
    return [
        (line["event"], line["pressure"], line["reason"])
        for line in edge.service.log_lines()
        if line["event"].startswith("pressure.")
    ]


def assert_refuses_but_lives(edge: Edge) -> None:
    """T15: new work is turned away with the time to come back, questions about the service are answered."""
    before = edge.requests()
    status, headers, body = edge.service.chat(edge.key)
    assert (status, json.loads(body)["error"]["code"]) == (503, "saturated")
    assert int(headers["retry-after"]) >= 1
    assert headers["connection"] == "close"
    assert headers["x-should-retry"] == "true"
    assert edge.requests() == before
    assert edge.service.get("/livez")[0] == 200
    assert edge.service.get("/v1/models", key=edge.key)[0] == 200


def send_most_of_a_body(edge: Edge, connection: socket.socket, size: int) -> None:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {edge.key}\r\n"
        f"Content-Length: {size + 1}\r\n\r\n"
    ).encode()
    with contextlib.suppress(OSError):  # refused while it was sent
        connection.sendall(head + b" " * size)


@pytest.mark.alone
def test_short_of_memory_it_refuses_and_lets_go_of_bodies_and_recovers() -> None:
    """T15: unfinished bodies up to a limit of 80 MiB more than it needs to live, and beyond; it is not killed."""
    with running_edge() as unloaded:
        base = unloaded.service.resident_bytes
    limit = base + 80 * MIB
    config = f"[pressure]\nmemory_bytes_max = {limit}\nhold_s = 2.0\n"
    with running_edge(config=config, itl_ms=20, tokens=1500) as edge, ExitStack() as stack:
        stream = stack.enter_context(edge.service.connect())
        stream.sendall(question(edge, stream=True))
        assert stream.recv(65_536).startswith(b"HTTP/1.1 200 ")
        begun: list[socket.socket] = []
        while ("pressure.rose", "refuse", "memory") not in changes(edge):
            assert len(begun) < 80, "320 MiB and no pressure"
            begun.append(stack.enter_context(edge.service.connect()))
            send_most_of_a_body(edge, begun[-1], 4 * MIB - 1)
            time.sleep(0.05)  # the callers' pace: the ladder looks four times a second
        assert_refuses_but_lives(edge)
        refused = [answers(read(connection, silence_s=20).data) for connection in begun]
        # Those on their way were told; one that was being sent may have been cut short of its answer.
        assert sum([answer.status for answer in heard] == [503] for heard in refused) >= len(begun) - 2
        assert b"data: " in stream.recv(65_536)  # what runs goes on
        wait_until(lambda: level(edge) == "calm", what="the pressure to be over")
        assert edge.service.resident_bytes < limit
        assert edge.service.chat(edge.key, max_tokens=3)[0] == 200
        assert changes(edge)[-1] == ("pressure.eased", "calm", "memory")


@pytest.mark.alone
def test_short_of_memory_it_lets_go_of_messages_that_are_on_their_way() -> None:
    """T15: over WebSocket, too; requests there are told to come back, and what runs goes on."""
    with running_edge() as unloaded:
        base = unloaded.service.resident_bytes
    config = f"[pressure]\nmemory_bytes_max = {base + 80 * MIB}\nhold_s = 2.0\n"
    with running_edge(config=config, itl_ms=20, tokens=1500) as edge, ExitStack() as stack:
        port, key = edge.service.port, edge.key
        running = stack.enter_context(dial(port, key))
        running.send(websocket_question())
        hear(running, until=["headrace.open"])
        begun: list[RawSocket] = []
        while ("pressure.rose", "refuse", "memory") not in changes(edge):
            assert len(begun) < 80, "320 MiB and no pressure"
            try:
                begun.append(stack.enter_context(raw(port, key)))
            except HandshakeRefused:  # since the log was read
                break
            with contextlib.suppress(OSError):  # let go of while it was sent
                begun[-1].send(frame(TEXT, b" " * (4 * MIB - 1))[:-1])
            time.sleep(0.05)  # the callers' pace: the ladder looks four times a second
        assert ("pressure.rose", "refuse", "memory") in changes(edge)
        hear(running, until=["chat.completion.chunk"])  # what runs goes on
        running.send('{"cancel": true}')
        hear(running)
        end = ask(running).end
        assert (end["status"], end["error"]["code"]) == (503, "saturated")
        assert int(end["headers"]["retry-after"]) >= 1
        assert refused(port, handshake(key=key)).status == 503
        assert [socket.close_code() for socket in begun].count(1013) >= len(begun) - 2
        wait_until(lambda: level(edge) == "calm", what="the pressure to be over")


@contextmanager
def nearly_full() -> Iterator[Edge]:
    """A process between 90 % and 95 % of its limit on memory, of which only its like can tell how much it takes."""
    used = 0
    for _ in range(10):
        config = f"[pressure]\nmemory_bytes_max = {int(used / 0.925)}\n" if used else ""
        with running_edge(config=config) as edge:
            assert edge.service.get("/livez")[0] == 200
            time.sleep(1.0)  # some ticks, of which each reads the memory once
            if level(edge) == "brief":
                yield edge
                return
            used = edge.service.resident_bytes
    raise AssertionError(f"no process like the one before took as much as it: {used} bytes")


def test_near_its_limit_it_answers_but_keeps_no_connection() -> None:
    """T15, the first step; and a connection that idles is closed soon."""
    with nearly_full() as pressed:
        with pressed.service.connect() as connection:
            connection.sendall(LIVEZ)
            (answer,) = answers(read(connection, silence_s=30).data)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        status, headers, _ = pressed.service.chat(pressed.key)
        assert (status, headers["connection"]) == (200, "close")


@contextmanager
def stuttering(pid: int) -> Iterator[None]:
    """The process is stopped for 0.6 s again and again, as a machine without time to spare stops it."""
    ends = threading.Event()

    def stutter() -> None:
        while not ends.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.6)  # the stimulus itself
            os.kill(pid, signal.SIGCONT)
            ends.wait(0.01)

    thread = threading.Thread(target=stutter)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@pytest.mark.alone
def test_an_event_loop_that_is_late_again_and_again_refuses() -> None:
    """Lag is measured where it is felt, whatever causes it."""
    with running_edge(config="[pressure]\nlag_s_max = 0.2\nhold_s = 1.0\n") as edge:
        assert edge.service.get("/livez")[0] == 200
        with stuttering(edge.service.pid):
            wait_until(lambda: ("pressure.rose", "refuse", "lag") in changes(edge), what="the ladder")
            assert edge.service.chat(edge.key)[0] == 503
            assert edge.service.get("/livez")[0] == 200
        wait_until(lambda: level(edge) == "calm", what="the pressure to be over")
        assert edge.is_healthy()


@pytest.mark.alone
def test_one_long_pause_refuses_nobody() -> None:
    """It is over when it is seen."""
    with running_edge(config="[pressure]\nlag_s_max = 1.0\n") as edge:
        os.kill(edge.service.pid, signal.SIGSTOP)
        time.sleep(3.0)  # the stimulus itself
        os.kill(edge.service.pid, signal.SIGCONT)
        assert edge.is_healthy()
        assert changes(edge) == []


DESCRIPTORS = 256
CROWD = 400


@pytest.mark.parametrize("is_held_back", [False, True], ids=["at once", "the last byte later"])
def test_out_of_descriptors_running_streams_live_and_everybody_is_answered(is_held_back: bool) -> None:
    """T16: 400 callers of a process that may open 256 files. None that was taken is lost, the others hear 503 in time, and
    the log stays quiet."""
    config = (
        "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n[server]\nheader_timeout_s = 60.0\n"
    )
    with running_edge(
        config=config, descriptors_max=DESCRIPTORS, upstream_slots=1000, slots=1000, itl_ms=100, tokens=40
    ) as edge:
        started_s = time.monotonic()
        with ExitStack() as stack:
            crowd = [stack.enter_context(edge.service.connect()) for _ in range(CROWD)]
            asked = question(edge, stream=True)
            for connection in crowd:
                connection.sendall(asked[:-1] if is_held_back else asked)
            if is_held_back:
                wait_until(lambda: is_pausing(edge), what="the backlog to be left alone")
                for connection in crowd:
                    connection.sendall(asked[-1:])
            with ThreadPoolExecutor(CROWD) as pool:
                seen = list(pool.map(one_answer, crowd))
        statuses = [answer.status for answer in seen]
        assert set(statuses) == {200, 503}
        streams = [answer for answer in seen if answer.status == 200]
        assert len(streams) >= 40
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in streams)
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in seen if answer.status == 503)
        # 7/16 of what is free, however their bodies came.
        assert edge.engine.stats()["running_max"] <= 80
        elapsed_s = time.monotonic() - started_s
        lines = [
            line
            for line in edge.service.log_lines()
            if line["event"] in ("accept.paused", "pressure.rose", "attempt.failed", "library.warned")
        ]
        assert len(lines) <= max(4, elapsed_s)
        assert not [line for line in lines if line["event"] in ("attempt.failed", "library.warned")]
        wait_until(lambda: level(edge) == "calm", what="the pressure to be over", limit_s=90)
        assert edge.service.chat(edge.key, max_tokens=3)[0] == 200


def is_pausing(edge: Edge) -> bool:
    return any(line["event"] == "accept.paused" for line in edge.service.log_lines())


def one_answer(connection: socket.socket) -> Answer:
    """What a caller hears that leaves as soon as it is told to."""
    connection.settimeout(60)
    (answer,) = answers(read_answers(connection, count=1).data)
    if answer.headers.get("connection") == "close":
        connection.close()
    return answer


def test_idle_callers_beyond_the_descriptors_wait_without_a_busy_loop() -> None:
    """T16: nobody spins over a listening socket that can't be served, and who idles makes room."""
    config = "[server]\nidle_timeout_s = 600.0\nheader_timeout_s = 60.0\n"
    with running_edge(config=config, descriptors_max=DESCRIPTORS) as edge, ExitStack() as stack:
        crowd = [stack.enter_context(edge.service.connect(timeout_s=60)) for _ in range(CROWD)]
        wait_until(lambda: is_pausing(edge), what="the backlog to be left alone")
        before_s, began_s = cpu_s(edge.service.pid), time.monotonic()
        assert edge.service.status()["connections"] < CROWD
        for connection in crowd:
            connection.sendall(LIVEZ)
        for connection in crowd:  # in turn, as those before them are let go
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        spent_s, elapsed_s = cpu_s(edge.service.pid) - before_s, time.monotonic() - began_s
        assert spent_s < 0.5 + 0.5 * elapsed_s


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
