"""What can be said in a handshake and in frames: each has one answer or one close, and nothing hidden ever runs."""

import os
import re
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from socket import SHUT_WR

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from tests.edge.conftest import Edge, running_edge
from tests.support.provider import wait_until
from tests.support.websocket import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    RawSocket,
    ask,
    dial,
    frame,
    handshake,
    hear,
    question,
    raw,
    refused,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "websocket.md"
ASK = question(max_tokens=3).encode()


def is_served(socket: RawSocket) -> bool:
    """Whether a request on it still gets its answer."""
    socket.send(frame(TEXT, ASK))
    while True:
        opcode, payload = socket.receive()
        if opcode == TEXT and b'"headrace.done"' in payload:
            return True


# The handshake


def test_a_browser_gives_its_key_as_a_subprotocol_and_never_hears_it_again(edge: Edge) -> None:
    """And it is in no log."""
    protocols = ["headrace.v1", f"headrace.key.{edge.key}"]
    with dial(edge.service.port, subprotocols=protocols) as connection:
        assert connection.subprotocol == "headrace.v1"
        assert ask(connection).end["object"] == "headrace.done"
        assert connection.response is not None
        assert edge.key not in str(connection.response.headers)
    assert edge.key not in (edge.service.data / "logs" / "headrace.log").read_text()


@pytest.mark.parametrize(
    ("lines", "status", "code"),
    [
        pytest.param([], 401, "unauthenticated", id="no key"),
        pytest.param(["authorization: Bearer hr_x"], 401, "unauthenticated", id="no key of ours"),
        pytest.param(["authorization: Basic $KEY"], 401, "unauthenticated", id="another scheme"),
        pytest.param(["sec-websocket-protocol: headrace.key.$KEY"], 400, "invalid_request", id="only the key"),
        pytest.param(["sec-websocket-protocol: headrace.v1, headrace.key.x"], 401, "unauthenticated", id="bad key"),
        pytest.param(
            ["sec-websocket-protocol: headrace.v1, headrace.key.$KEY", "authorization: Bearer $KEY"],
            *(400, "invalid_request"),
            id="two keys",
        ),
        pytest.param(["authorization: Bearer $KEY", "sec-websocket-version: 8"], 400, "invalid_request", id="version"),
        pytest.param(["authorization: Bearer $KEY", "sec-websocket-key: a"], 400, "invalid_request", id="key"),
        pytest.param(["authorization: Bearer $KEY", "idempotency-key: a"], 400, "invalid_request", id="idempotency"),
        pytest.param(["authorization: Bearer $KEY", "origin: https://evil.example"], 403, "forbidden", id="origin"),
        pytest.param(["authorization: Bearer $KEY", "origin: null"], 403, "forbidden", id="no origin to name"),
        pytest.param(["authorization: Bearer $KEY", "host: a/b"], 400, "invalid_request", id="host"),
        pytest.param(["authorization: Bearer $KEY", "content-length: 3"], 413, "payload_too_large", id="a body"),
    ],
)  # fmt: skip
def test_a_handshake_that_fails_gets_the_error_of_http(
    edge: Edge, lines: list[str], status: int, code: str
) -> None:
    """T40, T43."""
    answer = refused(edge.service.port, handshake(*(line.replace("$KEY", edge.key) for line in lines)))
    assert (answer.status, answer.error["code"]) == (status, code)
    if any(line.startswith("sec-websocket-version") for line in lines):
        assert answer.headers["sec-websocket-version"] == "13"


def test_a_key_in_the_address_is_none(edge: Edge) -> None:
    """It would end up in every log on the way."""
    for path in (
        f"/v1/chat/completions?api_key={edge.key}",
        f"/v1/chat/completions?authorization={edge.key}",
    ):
        assert refused(edge.service.port, handshake(path=path)).status == 401


def test_only_the_paths_of_generation_become_a_websocket(edge: Edge) -> None:
    """T46: others answer as if nobody had asked."""
    for path, status in (("/v1/embeddings", 404), ("/v1/models", 200), ("/livez", 200), ("/v1/nothing", 404)):
        assert refused(edge.service.port, handshake(path=path, key=edge.key)).status == status
    assert refused(edge.service.port, handshake(key=edge.key).replace(b"GET", b"PUT")).status == 404


@pytest.mark.parametrize(
    "behind", [frame(TEXT, ASK), b"GET /v1/models HTTP/1.1\r\nhost: test\r\n\r\n", b"\0" * 100]
)
def test_what_comes_before_the_answer_to_a_handshake_makes_it_ambiguous(edge: Edge, behind: bytes) -> None:
    """T50: a proxy that takes the change for granted is no way around it."""
    before = edge.requests()
    assert refused(edge.service.port, handshake(key=edge.key) + behind).status == 400
    assert edge.requests() == before


def test_requests_before_a_handshake_are_answered_before_it(edge: Edge) -> None:
    first = f"GET /v1/models HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {edge.key}\r\n\r\n".encode()
    with edge.service.connect() as connection:
        connection.sendall(first + handshake(key=edge.key))
        data = b""
        while b"HTTP/1.1 101 " not in data or not data.endswith(b"\r\n\r\n"):
            data += connection.recv(1)
        assert data.startswith(b"HTTP/1.1 200 ")
        assert is_served(RawSocket(connection))


def test_no_compression_is_agreed_on(edge: Edge) -> None:
    """T34: nothing small becomes large in here. The official client offers it."""
    with dial(edge.service.port, edge.key) as connection:
        assert connection.request is not None
        assert "permessage-deflate" in connection.request.headers["Sec-WebSocket-Extensions"]
        assert connection.response is not None
        assert "Sec-WebSocket-Extensions" not in connection.response.headers
        assert ask(connection).end["object"] == "headrace.done"


@pytest.mark.slow
def test_pages_connect_from_listed_origins_and_from_the_address_itself() -> None:
    with running_edge(config='[server]\nwebsocket_origins = ["https://app.example"]\n') as running:
        port, key = running.service.port, running.key
        for origin in ("https://app.example", f"http://127.0.0.1:{port}"):
            with dial(port, key, origin=origin) as connection:
                assert ask(connection).end["object"] == "headrace.done"
        assert refused(port, handshake("origin: https://app.example.evil", key=key)).status == 403


# Frames


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param([frame(TEXT, ASK, mask=False)], 1002, id="unmasked"),
        pytest.param([frame(TEXT, ASK, rsv=4)], 1002, id="as if compressed"),
        pytest.param([frame(0x3, ASK)], 1002, id="unknown opcode"),
        pytest.param([frame(CONT, ASK)], 1002, id="fragment of nothing"),
        pytest.param([frame(TEXT, ASK[:9], fin=False), frame(TEXT, ASK)], 1002, id="message in a message"),
        pytest.param([frame(PING, b"", fin=False)], 1002, id="fragmented ping"),
        pytest.param([frame(PING, b"a" * 126)], 1002, id="long ping"),
        pytest.param([frame(BINARY, ASK)], 1003, id="binary"),
        pytest.param([frame(TEXT, b'{"model":"\xff"}')], 1007, id="no UTF-8"),
        pytest.param([frame(TEXT, b"\xe2", fin=False), frame(CONT, b"(")], 1007, id="no UTF-8 in two"),
        pytest.param([frame(TEXT, b" " * 5_000_000)], 1009, id="too large"),
        pytest.param([b"\x81\xff" + (2**62).to_bytes(8, "big")], 1009, id="announced too large"),
        pytest.param(
            [frame(TEXT, b" " * 1_500_000, fin=False), *[frame(CONT, b" " * 1_500_000, fin=False)] * 3],
            *(1009,),
            id="too large in fragments",
        ),
    ],
)
def test_what_breaks_the_protocol_closes_with_its_code_and_runs_nothing(
    edge: Edge, frames: list[bytes], code: int
) -> None:
    """T33, T34."""
    before = edge.requests()
    with raw(edge.service.port, edge.key) as socket:
        try:
            socket.send(*frames)
        except ConnectionError:
            pass  # it was closed before all was sent
        assert socket.close_code() == code
    assert edge.requests() == before


def test_what_breaks_the_protocol_ends_the_request_in_progress(edge: Edge) -> None:
    """T5: like a caller who left."""
    edge.engine.set_faults("stall:1")
    aborted = edge.engine.stats()["aborted"]
    try:
        with raw(edge.service.port, edge.key) as socket:
            socket.send(frame(TEXT, ASK))
            assert socket.message()["object"] == "headrace.open"
            socket.send(frame(BINARY))
            assert socket.close_code() == 1003
        edge.engine.wait_for_stats(lambda stats: stats["aborted"] == aborted + 1)
    finally:
        edge.engine.set_faults("")


def test_a_request_in_fragments_is_one_request_and_pings_between_them_are_answered(edge: Edge) -> None:
    before = edge.requests()
    with raw(edge.service.port, edge.key) as socket:
        parts = [ASK[start : start + 7] for start in range(0, len(ASK), 7)]
        for index, part in enumerate(parts):
            opcode, fin = TEXT if index == 0 else CONT, index == len(parts) - 1
            socket.send(frame(opcode, part, fin=fin), frame(CONT if not fin else PONG, b"", fin=fin))
            if not fin:
                socket.send(frame(PING, b"%d" % index))
                assert socket.receive() == (PONG, b"%d" % index)
        assert socket.message()["object"] == "headrace.open"
    wait_until(lambda: edge.requests() == before + 1, what="one execution")


def test_a_request_sent_byte_by_byte_is_answered(edge: Edge) -> None:
    with raw(edge.service.port, edge.key) as socket:
        for byte in frame(TEXT, ASK):
            socket.send(bytes([byte]))
        assert socket.message()["object"] == "headrace.open"


def test_a_large_request_is_within_the_bound_of_a_body(edge: Edge) -> None:
    """T14: four megabytes less a little, as over HTTP."""
    large = question(max_tokens=1, messages=[{"role": "user", "content": "x" * 4_000_000}])
    with dial(edge.service.port, edge.key) as connection:
        connection.send(large)
        assert hear(connection).end["object"] == "headrace.done"


def test_a_close_is_answered_with_its_own_code(edge: Edge) -> None:
    for code in (1000, 1001, 3333):
        with raw(edge.service.port, edge.key) as socket:
            socket.send(frame(CLOSE, code.to_bytes(2, "big") + b"bye"))
            assert socket.close_code() == code


@pytest.mark.slow
def test_whoever_sends_without_reading_fills_no_memory_and_is_cut() -> None:
    """T12: refusals of requests wait like answers do, and pongs are not owed for ever."""
    config = "[request]\nwrite_stall_limit_s = 1.0\n"
    with running_edge(config=config) as running:
        for flood in (frame(TEXT, b"{}") * 4000, frame(PING, b"p" * 125) * 4000):
            sent = 0
            with raw(running.service.port, running.key) as socket:
                socket.connection.settimeout(5)
                until_s = time.monotonic() + 30
                try:
                    while time.monotonic() < until_s:
                        sent += socket.connection.send(flood)
                    raise AssertionError("it went on for ever")
                except OSError:
                    pass  # held back, then cut
            # What the kernel takes is megabytes; what we keep beyond that would show in the resident size.
            assert sent < 100_000_000
        status = Path(f"/proc/{running.service.pid}/status").read_text()
        resident_kib = re.search(r"VmRSS:\s+(\d+)", status)
        assert resident_kib is not None
        assert int(resident_kib[1]) < 300_000
        assert running.is_healthy()


@pytest.fixture(scope="module")
def hasty() -> Iterator[Edge]:
    """A provider with little patience."""
    with running_edge(config="[server]\nheader_timeout_s = 1.0\n") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        frame(TEXT, ASK)[:1],
        frame(TEXT, ASK)[:20],
        frame(TEXT, b"", fin=False),
        frame(TEXT, b" " * 500_000)[:400_000],
    ],
    ids=len,
)
def test_a_message_that_drips_is_closed_with_1008(hasty: Edge, start: bytes) -> None:
    """T49: also one in endless empty fragments; and a fast start pays for no silence."""
    with raw(hasty.service.port, hasty.key) as socket:
        socket.send(start)
        code = 0
        socket.connection.settimeout(0.2)
        until_s = time.monotonic() + 30
        while not code and time.monotonic() < until_s:
            try:
                opcode, payload = socket.receive()
                code = int.from_bytes(payload[:2], "big") if opcode == CLOSE else 0
            except TimeoutError:
                if len(start) == 6:
                    socket.send(frame(CONT, b"", fin=False))
        assert code == 1008


FRAMES = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.builds(frame, st.sampled_from([TEXT, CONT, PING, PONG]), st.binary(max_size=130), fin=st.booleans()),
    st.sampled_from(
        [
            frame(TEXT, ASK),
            frame(TEXT, b'{"cancel": true}'),
            frame(TEXT, b'{"headers": {"x-headrace-deadline-ms": "1"}}'),
            frame(TEXT, ASK[:20], fin=False),
            frame(CONT, ASK[20:]),
            frame(PING),
            frame(CLOSE),
            frame(BINARY),
        ]
    ),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(FRAMES, max_size=6), cuts=st.lists(st.integers(1, 300), max_size=3))
def test_no_frames_whatever_they_are_meet_a_bug_of_ours(
    edge: Edge, frames: list[bytes], cuts: list[int]
) -> None:
    """T37: and our half of the connection ends, whatever was left open; hypothesis chooses frames and cuts."""
    data = b"".join(frames)
    with raw(edge.service.port, edge.key) as socket:
        try:
            for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
                socket.send(data[start:end])
            socket.connection.shutdown(SHUT_WR)
        except OSError:
            pass  # it was closed before all was sent
        assert 0 <= socket.close_code() < 5000
    assert edge.service.get("/livez")[0] == 200


def test_the_service_is_well_after_all_this(edge: Edge) -> None:
    assert edge.is_healthy()
    assert edge.service.metric("headrace_internal_errors_total") == 0
    wait_until(lambda: edge.service.metric("headrace_streams_open") == 0, what="every stream to end")


# The page


def test_the_example_of_the_page_prints_the_answer(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    script = tmp_path / "example.py"
    script.write_text(
        example.replace("127.0.0.1:8000", f"127.0.0.1:{edge.service.port}").replace(
            "smollm2-135m-instruct", "scripted"
        )
    )
    monkeypatch.setitem(os.environ, "HEADRACE_API_KEY", edge.key)
    runpy.run_path(str(script))
    assert capsys.readouterr().out.startswith("000 001 002 ")


def test_every_close_code_that_is_seen_here_is_on_the_page() -> None:
    documented = set(re.findall(r"^\| (\d{4}) \|", PAGE.read_text(), re.MULTILINE))
    assert documented >= {"1000", "1001", "1002", "1003", "1007", "1008", "1009", "1013"}


def test_a_client_that_waits_for_nothing_is_closed_by_nobody(edge: Edge) -> None:
    """An idle connection stays for its idle time: nothing comes, not even a ping."""
    with dial(edge.service.port, edge.key) as connection:
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0.5)
        try:
            assert ask(connection).end["object"] == "headrace.done"
        except ConnectionClosed as closed:
            raise AssertionError("it was closed") from closed
