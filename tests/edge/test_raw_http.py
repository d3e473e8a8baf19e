"""T50: what can be said on a raw connection gets exactly one answer for each message, and nothing hidden ever runs."""

import json
import socket
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.edge.conftest import Edge, running_edge
from tests.support.http_answers import answers, read_answers
from tests.support.wire import read

BODY = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}]}'
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n$AUTH"
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: test\r\n$AUTH"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
HIDDEN = CHAT + LENGTH + b"\r\n" + BODY


@dataclass(frozen=True)
class Case:
    """Bytes that must be refused with one 400 and a closed connection; $AUTH stands for a valid Authorization line."""

    name: str
    request: bytes


AMBIGUOUS = [
    Case("length and chunked", CHAT + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN),
    Case("chunked and length", CHAT + CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n" + HIDDEN),
    Case("two equal lengths", CHAT + LENGTH + LENGTH + b"\r\n" + BODY),
    Case("two different lengths", CHAT + b"Content-Length: 0\r\n" + LENGTH + b"\r\n" + BODY + HIDDEN),
    Case("a list of lengths", CHAT + b"Content-Length: 0, 0\r\n\r\n" + HIDDEN),
    Case("length with a sign", CHAT + b"Content-Length: +0\r\n\r\n" + HIDDEN),
    Case("negative length", CHAT + b"Content-Length: -1\r\n\r\n" + HIDDEN),
    Case("length with an underscore", CHAT + b"Content-Length: 6_5\r\n\r\n" + BODY + HIDDEN),
    Case("hexadecimal length", CHAT + b"Content-Length: 0x0\r\n\r\n" + HIDDEN),
    Case("length beyond 64 bits", CHAT + b"Content-Length: 18446744073709551617\r\n\r\n" + HIDDEN),
    Case("empty length", CHAT + b"Content-Length: \r\n\r\n" + HIDDEN),
    Case("folded Transfer-Encoding", CHAT + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS + HIDDEN),
    Case("folded header", MODELS + b"X-A: b\r\n c: d\r\n\r\n" + HIDDEN),
    Case("bare line feeds", (MODELS + b"\r\n").replace(b"\r\n", b"\n")),
    Case("bare line feed after a header", MODELS + b"X-A: b\n\r\n" + HIDDEN),
    Case("bare carriage return in a value", MODELS + b"X-A: b\rX-B: c\r\n\r\n" + HIDDEN),
    Case("bad end of a chunk", CHAT + CHUNKED + b"\r\n5\r\nhelloXX0\r\n\r\n" + HIDDEN),
    Case("chunk size 0x5", CHAT + CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    Case("chunk size -1", CHAT + CHUNKED + b"\r\n-1\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    Case("chunk size beyond 64 bits", CHAT + CHUNKED + b"\r\n10000000000000000\r\n" + HIDDEN),
    Case("empty chunk size", CHAT + CHUNKED + b"\r\n\r\n" + HIDDEN),
    Case("space before a chunk size", CHAT + CHUNKED + b"\r\n 0\r\n\r\n" + HIDDEN),
    Case("line feed in a chunk extension", CHAT + CHUNKED + b"\r\n0;a=b\nc\r\n\r\n" + HIDDEN),
    Case("line feed ends a chunk size", CHAT + CHUNKED + b"\r\n0\n\r\n" + HIDDEN),
    Case("Transfer-Encoding: gzip", CHAT + b"Transfer-Encoding: gzip\r\n\r\n" + HIDDEN),
    Case("gzip, chunked", CHAT + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS + HIDDEN),
    Case("chunked, chunked", CHAT + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKS + HIDDEN),
    Case("chunked, identity", CHAT + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS + HIDDEN),
    Case("identity", CHAT + b"Transfer-Encoding: identity\r\n\r\n" + HIDDEN),
    Case("xchunked", CHAT + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS + HIDDEN),
    Case("quoted chunked", CHAT + b'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKS + HIDDEN),
    Case("chunked twice", CHAT + CHUNKED + CHUNKED + b"\r\n" + CHUNKS + HIDDEN),
    Case("chunked with a vertical tab", CHAT + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS + HIDDEN),
    Case("chunked in HTTP/1.0", CHAT.replace(b"/1.1", b"/1.0") + CHUNKED + b"\r\n" + CHUNKS + HIDDEN),
    Case("space before a colon", CHAT + b"Content-Length : 0\r\n\r\n" + HIDDEN),
    Case("space before the first header", CHAT.replace(b"Host", b" Host") + b"\r\n" + HIDDEN),
    Case("header without a colon", MODELS + b"Content-Length\r\n\r\n" + HIDDEN),
    Case("header without a name", MODELS + b": value\r\n\r\n" + HIDDEN),
    Case("NUL in a header value", MODELS + b"X-A: a\0b\r\n\r\n" + HIDDEN),
    Case("NUL in a header name", MODELS + b"X-\0A: b\r\n\r\n" + HIDDEN),
    Case("NUL in the path", MODELS.replace(b"models", b"mod\0els") + b"\r\n" + HIDDEN),
    Case("no Host", MODELS.replace(b"Host: test\r\n", b"") + b"\r\n" + HIDDEN),
    Case("two Hosts", MODELS + b"Host: test\r\n\r\n" + HIDDEN),
    Case("empty Host", MODELS.replace(b"test", b"") + b"\r\n" + HIDDEN),
    Case("Host with a slash", MODELS.replace(b"test", b"test/livez") + b"\r\n" + HIDDEN),
    Case("Host with a question mark", MODELS.replace(b"test", b"test?x") + b"\r\n" + HIDDEN),
    Case("Host with a space", MODELS.replace(b"test", b"a test") + b"\r\n" + HIDDEN),
    Case("Host with credentials", MODELS.replace(b"test", b"a@test") + b"\r\n" + HIDDEN),
    Case("Host with a bad port", MODELS.replace(b"test", b"test:port") + b"\r\n" + HIDDEN),
    Case("absolute target", MODELS.replace(b"/v1", b"http://test/v1") + b"\r\n" + HIDDEN),
    Case("target without a slash", MODELS.replace(b"/v1", b"v1") + b"\r\n" + HIDDEN),
    Case("asterisk", b"OPTIONS * HTTP/1.1\r\nHost: test\r\n$AUTH\r\n" + HIDDEN),
    Case("CONNECT", b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n$AUTH\r\n" + HIDDEN),
    Case("upgrade to h2c", MODELS + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + HIDDEN),
    Case("upgrade to websocket", MODELS + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + HIDDEN),
    Case("one header of 200 KB", MODELS + b"X-A: " + b"a" * 200_000 + b"\r\n\r\n"),
    Case("200 KB of headers", MODELS + b"".join(b"X-%d: %b\r\n" % (i, b"a" * 4000) for i in range(50)) + b"\r\n"),
    Case("2,000 headers", MODELS + b"".join(b"X-%d: a\r\n" % i for i in range(2000)) + b"\r\n"),
    Case("a header name of 40 KB", MODELS + b"X" * 40_000 + b": a\r\n\r\n"),
    Case("a path of 40 KB", b"GET /v1/models?" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: test\r\n$AUTH\r\n"),
    Case("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN),
    Case("HTTP/2.0", MODELS.replace(b"/1.1", b"/2.0") + b"\r\n" + HIDDEN),
    Case("HTTP/1.2", MODELS.replace(b"/1.1", b"/1.2") + b"\r\n" + HIDDEN),
    Case("HTTP/0.9", b"GET /v1/models\r\n\r\n" + HIDDEN),
    Case("lower-case method", MODELS.replace(b"GET", b"get") + b"\r\n" + HIDDEN),
    Case("unknown method", MODELS.replace(b"GET", b"SMUGGLE") + b"\r\n" + HIDDEN),
    Case("tabs in the request line", MODELS.replace(b"GET /v1/models ", b"GET\t/v1/models\t") + b"\r\n" + HIDDEN),
    Case("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)),
    Case("two Authorizations", MODELS + b"$AUTH\r\n" + HIDDEN),
    Case("a wrong Authorization first", MODELS.replace(b"$AUTH", b"Authorization: Bearer x\r\n$AUTH") + b"\r\n"),
    Case("a wrong Authorization last", MODELS + b"Authorization: Bearer x\r\n\r\n" + HIDDEN),
    Case("two Content-Types", CHAT + b"Content-Type: a/b\r\nContent-Type: c/d\r\n" + LENGTH + b"\r\n" + BODY),
]  # fmt: skip


def as_caller(edge: Edge, request: bytes) -> bytes:
    return request.replace(b"$AUTH", b"Authorization: Bearer %b\r\n" % edge.key.encode())


@pytest.mark.parametrize("case", AMBIGUOUS, ids=lambda case: case.name)
def test_what_is_ambiguous_gets_one_400_and_the_connection_closes(edge: Edge, case: Case) -> None:
    """T50: and no request that hides behind it reaches the engine."""
    before = edge.requests()
    found, end = edge.send(as_caller(edge, case.request))
    assert [(answer.status, answer.headers["connection"]) for answer in found] == [(400, "close")]
    assert found[0].error["code"] == "invalid_request"
    assert end in ("fin", "reset")
    assert edge.requests() == before


@pytest.mark.parametrize("case", AMBIGUOUS[:20], ids=lambda case: case.name)
def test_an_ambiguous_message_takes_nothing_from_the_valid_one_before_it(edge: Edge, case: Case) -> None:
    """T50: answered in order, 200 and then 400; one execution."""
    before = edge.requests()
    found, _ = edge.send(as_caller(edge, HIDDEN + case.request))
    assert [answer.status for answer in found] == [200, 400]
    assert edge.requests() == before + 1


def test_a_body_that_looks_like_a_request_is_only_a_body(edge: Edge) -> None:
    """T50: one message, one answer, although its JSON text holds a whole request."""
    inner = as_caller(edge, HIDDEN).decode()
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": inner}]}).encode()
    before = edge.requests()
    request = CHAT + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    found, end = edge.send(as_caller(edge, request), count=1)
    assert ([answer.status for answer in found], end) == ([200], "open")
    assert edge.requests() == before + 1


def test_a_body_on_a_get_is_refused_and_never_read_as_a_request(edge: Edge) -> None:
    """T50."""
    hidden = as_caller(edge, HIDDEN)
    before = edge.requests()
    request = as_caller(edge, MODELS) + b"Content-Length: %d\r\n\r\n%b" % (len(hidden), hidden)
    found, end = edge.send(request)
    assert ([answer.status for answer in found], end) == ([413], "fin")
    assert edge.requests() == before


def test_what_follows_connection_close_is_never_run(edge: Edge) -> None:
    """T50."""
    before = edge.requests()
    request = CHAT + b"Connection: close\r\n" + LENGTH + b"\r\n" + BODY + HIDDEN
    found, end = edge.send(as_caller(edge, request))
    assert [(answer.status, answer.headers["connection"]) for answer in found] == [(200, "close")]
    assert end in ("fin", "reset")
    assert edge.requests() == before + 1


def test_trailers_set_no_header(edge: Edge) -> None:
    """T50: an Authorization after the body makes nobody a caller, and takes nothing from one who is."""
    chunks = b"%x\r\n%b\r\n0\r\nAuthorization: Bearer x\r\nHost: other\r\nX-A: b\r\n\r\n" % (len(BODY), BODY)
    found, _ = edge.send(as_caller(edge, CHAT + CHUNKED + b"\r\n" + chunks), count=1)
    assert [answer.status for answer in found] == [200]

    chunks = b"%x\r\n%b\r\n0\r\n$AUTH\r\n" % (len(BODY), BODY)
    anonymous = CHAT.replace(b"$AUTH", b"") + CHUNKED + b"\r\n"
    found, end = edge.send(anonymous + as_caller(edge, chunks))
    assert ([answer.status for answer in found], end) == ([401], "fin")


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"0\r\nX-A: " + b"a" * 400_000, id="one trailer"),
        pytest.param(b"0\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(2000)), id="2,000 trailers"),
        pytest.param(b"5;x=" + b"a" * 400_000, id="chunk extension"),
        pytest.param(b"00000000000000000000000000000000005;" * 20_000, id="chunk extension of sizes"),
    ],
)
def test_framing_without_end_is_refused(edge: Edge, tail: bytes) -> None:
    """T50: trailers and chunk extensions are bounded like headers."""
    before = edge.requests()
    with edge.service.connect() as connection:
        try:
            connection.sendall(as_caller(edge, CHAT + CHUNKED) + b"\r\n")
            for start in range(0, len(tail), 16_384):
                connection.sendall(tail[start : start + 16_384])
        except (BrokenPipeError, ConnectionResetError):
            pass
        seen = read(connection, silence_s=30)
    assert [answer.status for answer in answers(seen.data)] == [400]
    assert edge.requests() == before


def test_fifty_pipelined_requests_are_answered_in_order(edge: Edge) -> None:
    """T50: each answer belongs to its request, although together they are larger than any read."""
    request = b""
    for index in range(50):
        messages = [{"role": "user", "content": "x" * 9000}]
        body = json.dumps({"model": "scripted", "max_tokens": index % 20 + 1, "messages": messages}).encode()
        request += CHAT + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    request += MODELS + b"Connection: close\r\n\r\n"
    before = edge.requests()
    found, end = edge.send(as_caller(edge, request))
    assert [answer.status for answer in found] == [200] * 51
    assert [answer.json["usage"]["completion_tokens"] for answer in found[:50]] == [
        index % 20 + 1 for index in range(50)
    ]
    assert len({answer.headers["x-request-id"] for answer in found}) == 51
    assert end == "fin"
    assert edge.requests() == before + 50


def test_pipelined_streams_are_answered_in_order(edge: Edge) -> None:
    """T50: a stream ends before the next answer begins."""
    request = b""
    for tokens in (3, 7, 5):
        messages = [{"role": "user", "content": "x"}]
        fields = {"model": "scripted", "stream": True, "max_tokens": tokens, "messages": messages}
        body = json.dumps(fields).encode()
        request += CHAT + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    found, _ = edge.send(as_caller(edge, request), count=3)
    assert [answer.body.count(b'"content":"0') for answer in found] == [3, 7, 5]
    assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in found)


def test_http_1_0_closes_unless_asked_to_keep_alive(edge: Edge) -> None:
    old = as_caller(edge, MODELS.replace(b"/1.1", b"/1.0"))
    found, end = edge.send(old + b"\r\n" + old + b"\r\n")
    assert [(answer.status, answer.headers["connection"]) for answer in found] == [(200, "close")]
    assert end in ("fin", "reset")

    kept = old + b"Connection: keep-alive\r\n\r\n"
    found, end = edge.send(kept + kept, count=2)
    assert [(answer.status, answer.headers["connection"]) for answer in found] == [(200, "keep-alive")] * 2
    assert end == "open"

    hostless = old.replace(b"Host: test\r\n", b"")
    assert [answer.status for answer in edge.send(hostless + b"\r\n")[0]] == [200]


def test_a_stream_to_http_1_0_ends_with_the_connection(edge: Edge) -> None:
    body = BODY.replace(b"{", b'{"stream":true,', 1)
    request = CHAT.replace(b"/1.1", b"/1.0") + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with edge.service.connect() as connection:
        connection.sendall(as_caller(edge, request))
        seen = read(connection, silence_s=30)
    assert seen.end == "fin"
    assert b"transfer-encoding" not in seen.head
    assert seen.data.endswith(b"data: [DONE]\n\n")


def test_empty_lines_before_a_request_are_ignored(edge: Edge) -> None:
    found, _ = edge.send(b"\r\n\r\n" + as_caller(edge, MODELS) + b"\r\n", count=1)
    assert [answer.status for answer in found] == [200]


# Requests to change protocols

TO_H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"


@pytest.mark.parametrize(
    ("request_", "executions"),
    [
        pytest.param(MODELS + TO_H2C + b"\r\n", 0, id="GET"),
        pytest.param(CHAT + TO_H2C + LENGTH + b"\r\n" + BODY, 1, id="POST with a length"),
        pytest.param(CHAT + TO_H2C + CHUNKED + b"\r\n" + CHUNKS, 1, id="POST with chunks"),
        pytest.param(
            MODELS + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 0, id="WebSocket elsewhere"
        ),
    ],
)
def test_a_request_to_change_protocols_is_answered_as_if_it_had_not_asked(
    edge: Edge, request_: bytes, executions: int
) -> None:
    """RFC 9110, section 7.8: Java's client asks for h2c with each first request and gets its answer, then a close."""
    before = edge.requests()
    found, end = edge.send(as_caller(edge, request_))
    assert [(answer.status, answer.headers["connection"]) for answer in found] == [(200, "close")]
    assert end == "fin"
    assert edge.requests() == before + executions


@pytest.mark.parametrize("hidden", [HIDDEN, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 1000])
def test_what_follows_a_request_to_change_protocols_is_never_run(edge: Edge, hidden: bytes) -> None:
    """T50: a front proxy that takes the change for granted is no way around it, whenever the bytes come."""
    request, hidden = as_caller(edge, MODELS + TO_H2C + b"\r\n"), as_caller(edge, hidden)
    before = edge.requests()
    found, end = edge.send(request + hidden)
    assert ([answer.status for answer in found], end) == ([400], "fin")
    with edge.service.connect() as connection:
        connection.sendall(request)
        seen = read(connection, until=b"}]}")
        assert [answer.status for answer in answers(seen.data)] == [200]
        try:
            connection.sendall(hidden)
            assert read(connection, silence_s=30).data == b""
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert edge.requests() == before


def test_what_is_pipelined_before_a_request_to_change_protocols_is_answered_before_it(edge: Edge) -> None:
    """T50."""
    found, end = edge.send(as_caller(edge, HIDDEN + MODELS + TO_H2C + b"\r\n"))
    assert ([answer.status for answer in found], end) == ([200, 200], "fin")


# Expect: 100-continue


def test_a_body_held_back_behind_another_answer_is_asked_for_in_its_turn() -> None:
    """The word to go on may not stand inside the answer before it, and must not be forgotten either."""
    with running_edge(faults="ttft:300@1") as edge, edge.service.connect() as connection:
        first = as_caller(edge, CHAT) + LENGTH + b"\r\n" + BODY
        second = as_caller(edge, CHAT) + LENGTH + b"Expect: 100-continue\r\n\r\n"
        connection.sendall(first + second)
        seen = read(connection, until=b"100 Continue\r\n\r\n").data
        whole, _, after = seen.partition(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert [answer.status for answer in answers(whole)] == [200]
        assert after == b""
        connection.sendall(BODY)
        assert [answer.status for answer in answers(read_answers(connection, count=1).data)] == [200]


def test_a_sender_that_waits_is_told_to_go_on(edge: Edge) -> None:
    with edge.service.connect() as connection:
        connection.sendall(as_caller(edge, CHAT) + LENGTH + b"Expect: 100-continue\r\n\r\n")
        assert read(connection, until=b"\r\n\r\n").data == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert [a.status for a in answers(read_answers(connection, count=1).data)] == [200]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param(b"$AUTHContent-Length: 9000000\r\n", 413, id="too large"),
        pytest.param(b"Content-Length: 10\r\n", 401, id="no key"),
        pytest.param(b"$AUTHContent-Length: 10\r\nContent-Encoding: gzip\r\n", 400, id="compressed"),
    ],
)
def test_a_sender_that_waits_is_refused_without_its_body(edge: Edge, headers: bytes, status: int) -> None:
    """T34: never told to go on with a body that is not wanted."""
    request = CHAT.replace(b"$AUTH", headers) + b"Expect: 100-continue\r\n\r\n"
    found, end = edge.send(as_caller(edge, request))
    assert ([answer.status for answer in found], end) == ([status], "fin")


def test_http_1_0_is_never_told_to_go_on(edge: Edge) -> None:
    request = CHAT.replace(b"/1.1", b"/1.0") + LENGTH + b"Expect: 100-continue\r\n\r\n" + BODY
    assert [answer.status for answer in edge.send(as_caller(edge, request))[0]] == [200]


# The same request, however it is cut


def pieces(request: bytes, cuts: list[int]) -> list[bytes]:
    ends = [*sorted(set(cuts)), len(request)]
    return [request[a:b] for a, b in zip([0, *ends], ends, strict=False) if a != b]


def answer_in_pieces(edge: Edge, parts: list[bytes]) -> bytes:
    """The answer's bytes without what differs each time."""
    with edge.service.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        seen = read_answers(connection, count=1, silence_s=0.02)
    (answer,) = answers(seen.data)
    assert answer.status == 200
    return answer.body


REQUESTS = {
    "length": HIDDEN,
    "chunked": CHAT + CHUNKED + b"\r\n" + b"".join(b"%x;e=f\r\n%c\r\n" % (1, c) for c in BODY) + b"0\r\nX: y\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 400), max_size=6))
def test_a_request_is_the_same_however_it_is_cut(edge: Edge, name: str, cuts: list[int]) -> None:
    """T50, T6a: hypothesis chooses the cuts."""
    request = as_caller(edge, REQUESTS[name])
    assert answer_in_pieces(edge, pieces(request, cuts)) == answer_in_pieces(edge, [request])


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_sent_byte_by_byte_gets_the_same_answer(edge: Edge, name: str) -> None:
    """T50."""
    request = as_caller(edge, REQUESTS[name])
    byte_by_byte = [bytes([byte]) for byte in request]
    assert answer_in_pieces(edge, byte_by_byte) == answer_in_pieces(edge, [request])


def test_the_service_is_well_after_all_this(edge: Edge) -> None:
    assert edge.is_healthy()
    assert edge.service.metric("headrace_internal_errors_total") == 0
