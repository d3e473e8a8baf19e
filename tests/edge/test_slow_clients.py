"""T49: who is too slow, silent or one too many is let go at the configured limits; everybody else notices nothing."""

import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.edge.conftest import Edge, running_edge
from tests.support.http_answers import answers, read_answers
from tests.support.provider import wait_until
from tests.support.wire import read

HEADER_TIMEOUT_S = 1.5
IDLE_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 60
WRITE_STALL_LIMIT_S = 2.0
CONFIG = f"""
[request]
write_stall_limit_s = {WRITE_STALL_LIMIT_S}

[server]
header_timeout_s = {HEADER_TIMEOUT_S}
idle_timeout_s = {IDLE_TIMEOUT_S}
body_bytes_per_s_min = 1024
connections_max = {CONNECTIONS_MAX}
"""
BODY = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}]}'


@pytest.fixture(scope="module")
def strict() -> Iterator[Edge]:
    with running_edge(config=CONFIG) as running:
        yield running


def post(edge: Edge, headers: str) -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {edge.key}\r\n{headers}\r\n"
    ).encode()


def drip(connection: socket.socket, piece: bytes, *, every_s: float, limit_s: float = 60.0) -> bytes:
    """Sends a piece again and again until the other side answers or ends; what it said."""
    connection.settimeout(every_s)
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        try:
            connection.sendall(piece)
            return connection.recv(65_536)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return b""
    raise AssertionError(f"still open after {limit_s} s")


@pytest.mark.slow
def test_a_silent_connection_is_closed_at_the_header_limit(strict: Edge) -> None:
    started_s = time.monotonic()
    with strict.service.connect() as connection:
        seen = read(connection, silence_s=20)
    assert (seen.data, seen.end) == (b"", "fin")
    assert time.monotonic() - started_s > HEADER_TIMEOUT_S * 0.9


@pytest.mark.slow
def test_a_head_that_drips_is_refused(strict: Edge) -> None:
    """Progress doesn't extend the limit."""
    with strict.service.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: test\r\n")
        (answer,) = answers(drip(connection, b"X-A: b\r\n", every_s=0.05))
    assert (answer.status, answer.error["code"]) == (408, "body_too_slow")
    assert (answer.headers["connection"], answer.headers["x-should-retry"]) == ("close", "true")


@pytest.mark.slow
@pytest.mark.parametrize("framing", ["Content-Length: 1000000\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_body_slower_than_the_limit_is_refused(strict: Edge, framing: str) -> None:
    before = strict.requests()
    piece = b"a" if "Length" in framing else b"1\r\na\r\n"
    with strict.service.connect() as connection:
        connection.sendall(post(strict, framing))
        (answer,) = answers(drip(connection, piece, every_s=0.05))
    assert (answer.status, answer.error["code"]) == (408, "body_too_slow")
    assert strict.requests() == before


@pytest.mark.slow
def test_a_fast_start_does_not_pay_for_a_long_silence(strict: Edge) -> None:
    """T49: a minute's worth of bytes in one go, and then nothing: the silence counts, not the average."""
    with strict.service.connect() as connection:
        started_s = time.monotonic()
        connection.sendall(post(strict, "Content-Length: 1000000\r\n") + b" " * 61_440)
        (answer,) = answers(read(connection, silence_s=40).data)
        assert (answer.status, answer.error["code"]) == (408, "body_too_slow")
        assert time.monotonic() - started_s < 30


@pytest.mark.slow
def test_a_body_faster_than_the_limit_may_take_its_time(strict: Edge) -> None:
    """Longer than the header limit, on a slow line: 30 KB in three seconds."""
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "a" * 30_000}]}).encode()
    with strict.service.connect() as connection:
        connection.sendall(post(strict, f"Content-Length: {len(body)}\r\n"))
        for start in range(0, len(body), 1000):
            connection.sendall(body[start : start + 1000])
            time.sleep(0.1)  # the stimulus itself
        assert [a.status for a in answers(read_answers(connection, count=1).data)] == [200]


@pytest.mark.slow
def test_a_kept_connection_is_closed_when_it_idles(strict: Edge) -> None:
    """After its answer, without a word, and not before the idle limit."""
    with strict.service.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n")
        started_s = time.monotonic()
        seen = read(connection, silence_s=20)
    assert [a.status for a in answers(seen.data)] == [200]
    assert seen.end == "fin"
    assert time.monotonic() - started_s > IDLE_TIMEOUT_S * 0.9


@pytest.mark.slow
def test_a_request_in_progress_is_no_idle_connection(strict: Edge) -> None:
    """An answer that takes longer than all of these limits arrives."""
    strict.engine.set_faults("ttft:3500@1")
    assert strict.service.chat(strict.key)[0] == 200
    strict.engine.set_faults("")


@pytest.mark.slow
def test_a_bad_message_does_not_cut_the_answer_before_it(strict: Edge) -> None:
    """The time that a refused sender gets begins when it is refused, not while an earlier answer still runs."""
    strict.engine.set_faults("ttft:4500@1")
    with strict.service.connect() as connection:
        connection.sendall(post(strict, f"Content-Length: {len(BODY)}\r\n") + BODY + b"not HTTP\r\n\r\n")
        seen = read(connection, silence_s=20)
    assert [answer.status for answer in answers(seen.data)] == [200, 400]
    strict.engine.set_faults("")


@pytest.mark.slow
def test_healthy_callers_notice_nothing_of_slow_ones(strict: Edge) -> None:
    """Thirty connections that are silent, drip a head or drip a body, while others are served."""
    openings = [b"", b"GET /livez HTTP/1.1\r\n", post(strict, "Content-Length: 1000\r\n")]
    crowd = [strict.service.connect() for _ in range(30)]
    try:
        for index, connection in enumerate(crowd):
            connection.sendall(openings[index % 3])
        statuses = {strict.service.chat(strict.key)[0] for _ in range(40)}
        assert statuses == {200}
        for connection in crowd:
            assert read(connection, silence_s=20).end in ("fin", "reset")
    finally:
        for connection in crowd:
            connection.close()
    assert strict.is_healthy()


@pytest.mark.slow
def test_a_connection_too_many_is_closed_and_those_before_it_are_served(strict: Edge) -> None:
    """And there is room again as soon as one leaves."""
    wait_until(lambda: strict.service.status()["connections"] == 0, what="all connections to be gone")
    held: list[socket.socket] = []
    try:
        for _ in range(CONNECTIONS_MAX):
            held.append(connection := strict.service.connect())
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        with strict.service.connect() as extra:
            seen = read(extra, silence_s=20)
        assert (seen.data, seen.end in ("fin", "reset")) == (b"", True)
        held[0].sendall(b"GET /readyz HTTP/1.1\r\nHost: test\r\n\r\n")
        assert held[0].recv(4096).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in held:
            connection.close()
    wait_until(lambda: strict.service.status()["connections"] == 0, what="all connections to be gone")
    assert strict.is_healthy()
    assert any(line["event"] == "connection.rejected" for line in strict.service.log_lines())


@pytest.mark.slow
def test_who_sends_requests_and_never_reads_is_not_answered_without_end(strict: Edge) -> None:
    """T12 without a key: answers that nobody takes would fill our memory; so reading stops, and then the connection ends."""
    requests = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n" * 10_000
    with strict.service.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(requests * 100)
    assert strict.service.get("/livez")[0] == 200


@pytest.mark.slow
def test_a_whole_answer_that_nobody_takes_is_dropped(strict: Edge) -> None:
    """The request is over and its slot is free, but its bytes are not ours to keep for ever."""
    strict.engine.set_faults("json_huge:20000000@1")
    with strict.service.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(post(strict, f"Content-Length: {len(BODY)}\r\n") + BODY)
        strict.engine.wait_for_stats(lambda stats: stats["running"] == 0)
        wait_until(lambda: strict.service.status()["connections"] == 0, what="the connection to be gone")
    strict.engine.set_faults("")


@pytest.mark.slow
def test_a_whole_answer_that_is_taken_slowly_arrives(strict: Edge) -> None:
    """Longer than the limit in all, but never without progress."""
    strict.engine.set_faults("json_huge:6000000@1")
    received = 0
    with strict.service.connect() as connection:
        connection.sendall(post(strict, f"Content-Length: {len(BODY)}\r\n") + BODY)
        started_s = time.monotonic()
        while received < 6_000_000:
            received += len(piece := connection.recv(100_000))
            assert piece, f"cut after {received} bytes"
            time.sleep(0.08)  # the stimulus itself
    assert time.monotonic() - started_s > 2 * WRITE_STALL_LIMIT_S
    strict.engine.set_faults("")


@pytest.mark.slow
def test_a_half_closed_connection_is_a_caller_that_has_gone(strict: Edge) -> None:
    """docs/reference/http.md: the work for it stops."""
    strict.engine.set_faults("ttft:20000@1")
    aborted = strict.engine.stats()["aborted"]
    running = strict.engine.stats()["running"]
    with strict.service.connect() as connection:
        connection.sendall(post(strict, f"Content-Length: {len(BODY)}\r\n") + BODY)
        strict.engine.wait_for_stats(lambda stats: stats["running"] == running + 1)
        connection.shutdown(socket.SHUT_WR)
        strict.engine.wait_for_stats(lambda stats: stats["aborted"] == aborted + 1)
        assert read(connection, silence_s=30).data == b""
    strict.engine.set_faults("")
