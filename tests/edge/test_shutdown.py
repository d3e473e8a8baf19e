"""T61: asked to stop, the service says so at once, ends what it began, and exits 0 within its grace."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.edge.conftest import Edge, running_edge
from tests.support.http_answers import answers
from tests.support.provider import wait_until
from tests.support.wire import Exchange, read

pytestmark = pytest.mark.slow
DONE = b"data: [DONE]\n\n\r\n0\r\n\r\n"


def begin(edge: Edge, **fields: object) -> socket.socket:
    """A chat completion whose answer nobody has read yet."""
    body = json.dumps(
        {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], **fields}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {edge.key}\r\n"
    connection = edge.service.connect()
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


@contextmanager
def streams(edge: Edge, count: int) -> Iterator[list[socket.socket]]:
    """Open streams that have begun to answer."""
    opened = [begin(edge, stream=True) for _ in range(count)]
    try:
        edge.engine.wait_for_stats(lambda stats: stats["running"] == count)
        yield opened
    finally:
        for connection in opened:
            connection.close()


def rest_of(connections: list[socket.socket]) -> list[Exchange]:
    """What each of them gets until its connection ends."""
    with ThreadPoolExecutor(len(connections)) as pool:
        return list(pool.map(lambda connection: read(connection, silence_s=30), connections))


def ask_to_stop(edge: Edge, number: int = signal.SIGTERM) -> None:
    """Sends the signal and waits until it has been heard."""
    edge.service.process.send_signal(number)
    wait_until(lambda: is_draining(edge), what="the signal to be heard")


def is_draining(edge: Edge) -> bool:
    return any(line["event"] == "service.draining" for line in edge.service.log_lines())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_streams_end_whole_and_nothing_new_begins(number: int) -> None:
    with running_edge(itl_ms=150, tokens=20) as edge, streams(edge, 3) as opened:
        idle, fresh = edge.service.connect(), edge.service.connect()
        idle.sendall(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200 ")

        ask_to_stop(edge, number)
        with fresh:  # who came before the signal and asks after it is told, not cut
            fresh.sendall(b"GET /readyz HTTP/1.1\r\nHost: test\r\n\r\n")
            (told,) = answers(read(fresh, silence_s=20).data)
            assert (told.status, told.headers["connection"]) == (503, "close")
        assert edge.service.get("/readyz")[0] == 503
        assert edge.service.get("/livez")[0] == 200
        requests = edge.requests()
        status, headers, body = edge.service.chat(edge.key)
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_ready_replica")
        assert int(headers["retry-after"]) >= 1
        assert headers["x-should-retry"] == "true"
        assert headers["x-request-id"] == json.loads(body)["error"]["request_id"]
        assert edge.requests() == requests
        assert read(idle, silence_s=20).end == "fin"  # nothing is under way on it
        idle.close()

        for seen in rest_of(opened):
            assert seen.data.endswith(DONE)
            assert seen.end == "fin"
        assert edge.service.process.wait(60) == 0
        assert {row["outcome"] for row in edge.service.usage()} == {"delivered"}
        assert len(edge.service.usage()) == 3


def test_what_outlasts_the_grace_is_broken_with_an_error_and_recorded() -> None:
    """One stream that has begun and one request that waits: each is told, neither looks whole."""
    config = "[server]\ndrain_s = 0.5\n"
    with (
        running_edge(config=config, itl_ms=100, tokens=1000, upstream_slots=1) as edge,
        streams(edge, 1) as opened,
    ):
        waiting = begin(edge)
        wait_until(lambda: edge.service.status()["queued"] == 1, what="the second to wait")
        asked_s = time.monotonic()
        ask_to_stop(edge)
        cut, refused = rest_of([*opened, waiting])
        assert edge.service.process.wait(60) == 0
        assert time.monotonic() - asked_s < 25
        assert cut.events[-1]["error"]["code"] == "no_ready_replica"
        assert "[DONE]" not in cut.payloads
        assert not cut.is_complete
        (answer,) = answers(refused.data)
        assert (answer.status, answer.error["code"]) == (503, "no_ready_replica")
        assert int(answer.headers["retry-after"]) >= 1
        waiting.close()
        (row,) = edge.service.usage()
        assert (row["outcome"], row["status"]) == ("broken", 503)
        assert edge.engine.wait_for_stats(lambda stats: stats["running"] == 0)["aborted"] == 1


def test_a_second_signal_ends_at_once() -> None:
    with running_edge(itl_ms=100, tokens=1000) as edge, streams(edge, 2) as opened:
        ask_to_stop(edge)
        asked_s = time.monotonic()
        edge.service.process.send_signal(signal.SIGTERM)
        assert edge.service.process.wait(60) == 0
        assert time.monotonic() - asked_s < 25  # of the 30 s that it would have had
        for seen in rest_of(opened):
            assert "[DONE]" not in seen.payloads


def test_an_answer_on_its_way_to_a_slow_reader_arrives_whole() -> None:
    """The request is over for us when its last byte is written, for its caller when it is read."""
    text_bytes = 6_000_000
    with running_edge(faults=f"json_huge:{text_bytes}") as edge:
        connection = begin(edge)
        edge.engine.wait_for_stats(lambda stats: stats["done"] == 1)
        wait_until(lambda: edge.service.status()["in_flight"] == 0, what="the request to end")
        ask_to_stop(edge)
        (answer,) = answers(read(connection, silence_s=30).data)
        assert len(answer.json["choices"][0]["message"]["content"]) == text_bytes
        assert edge.service.process.wait(60) == 0
        connection.close()


def test_a_second_signal_does_not_wait_for_a_slow_reader() -> None:
    with running_edge(faults="json_huge:6000000") as edge:
        connection = begin(edge)
        edge.engine.wait_for_stats(lambda stats: stats["done"] == 1)
        wait_until(lambda: edge.service.status()["in_flight"] == 0, what="the request to end")
        ask_to_stop(edge)
        asked_s = time.monotonic()
        edge.service.process.send_signal(signal.SIGTERM)
        assert edge.service.process.wait(60) == 0
        assert time.monotonic() - asked_s < 25
        connection.close()


def test_without_work_it_ends_at_once() -> None:
    with running_edge() as edge:
        assert edge.is_healthy()
        asked_s = time.monotonic()
        assert edge.service.stop(limit_s=60) == 0
        assert time.monotonic() - asked_s < 25
        assert edge.service.process.stdout is not None
        assert "stopped, nothing cut" in edge.service.process.stdout.read()
