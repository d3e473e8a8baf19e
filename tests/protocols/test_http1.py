"""Does the reader read requests the same however they are cut, and refuse the rest, within its bounds?"""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import HeadraceError, InvalidRequest, NotFound, PayloadTooLarge
from headrace.protocols import http1
from headrace.protocols.http1 import RequestHead, RequestReader


class Sink:
    """Keeps what it is told; accepts bodies of `body_bytes_max`."""

    def __init__(self, body_bytes_max: int = 1000, refusal: HeadraceError | None = None) -> None:
        self.body_bytes_max = body_bytes_max
        self.refusal = refusal
        self.seen: list[object] = []
        self.head: RequestHead | None = None

    def head_received(self, head: RequestHead) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.head = head
        self.seen.append((head.method, head.path, head.version, head.headers, head.keeps_alive))
        return self.body_bytes_max

    def body_awaited(self) -> None:
        self.seen.append("awaited")

    def request_received(self, body: bytes) -> None:
        self.seen.append(body)


def read(*pieces: bytes, body_bytes_max: int = 1000) -> list[Any]:
    sink = Sink(body_bytes_max)
    reader = RequestReader(sink)
    for piece in pieces:
        reader.feed(piece)
    return sink.seen


def feed_all(reader: RequestReader, pieces: list[bytes]) -> None:
    for piece in pieces:
        reader.feed(piece)


GET = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-One: 1\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n3;e=f\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: 1\r\n\r\n"
OLD = b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
ALL = GET + POST + CHUNKED + OLD + GET


def test_a_request_is_read() -> None:
    assert read(GET) == [(b"GET", b"/a", "1.1", {b"host": b"x", b"x-one": b"1"}, True), b""]
    assert read(POST)[1] == b"hello"
    assert read(CHUNKED)[1] == b"hello"


@given(cuts=st.lists(st.integers(0, len(ALL)), max_size=12))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    """T6a: any cutting of five requests on one connection."""
    ends = [*sorted(cuts), len(ALL)]
    assert read(*(ALL[a:b] for a, b in zip([0, *ends], ends, strict=False))) == read(ALL)


def test_each_cut_in_two_changes_nothing() -> None:
    """T6a: every offset, and byte by byte."""
    whole = read(ALL)
    assert len(whole) == 10
    for cut in range(len(ALL) + 1):
        assert read(ALL[:cut], ALL[cut:]) == whole
    assert read(*(bytes([byte]) for byte in ALL)) == whole


@given(data=st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_refusal(data: bytes) -> None:
    """T33: nor do they after a valid start."""
    for start in (b"", GET, POST[:-5], CHUNKED[:70], b"GET / HTTP/1.1\r\n"):
        try:
            read(start + data)
        except (InvalidRequest, PayloadTooLarge):
            pass


def test_it_is_idle_between_messages_only() -> None:
    reader = RequestReader(Sink())
    assert reader.is_idle
    assert reader.is_fresh
    reader.feed(POST[:10])
    assert not reader.is_idle
    assert not reader.is_reading_body
    reader.feed(POST[10:-3])
    assert reader.is_reading_body
    assert reader.body_bytes == 2
    reader.feed(POST[-3:])
    assert reader.is_idle
    assert not reader.is_reading_body
    assert not reader.is_fresh


def test_what_it_lets_go_of_is_gone() -> None:
    """T15: a refused body takes no memory while its sender lingers."""
    reader = RequestReader(Sink())
    reader.feed(POST[:-1])
    assert reader.body_bytes == 4
    reader.abandon()
    assert reader.body_bytes == 0


def test_the_first_of_repeated_harmless_headers_counts() -> None:
    (head, _) = read(GET.replace(b"X-One: 1", b"X-One: 1\r\nx-one: 2"))
    assert head[3][b"x-one"] == b"1"


def test_lines_of_whom_a_call_was_forwarded_for_are_one_list() -> None:
    """A proxy may add its line behind one that a caller made up."""
    (head, _) = read(
        GET.replace(b"X-One: 1", b"X-Forwarded-For: 8.8.8.8\r\nx-forwarded-for: 10.0.0.1, 10.0.0.2")
    )
    assert head[3][b"x-forwarded-for"] == b"8.8.8.8,10.0.0.1, 10.0.0.2"


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "Authorization", "Content-Type", "Content-Encoding", "Content-Length", "Transfer-Encoding"),
        *("Upgrade", "Origin", "Sec-WebSocket-Key", "Sec-WebSocket-Protocol", "Sec-WebSocket-Version"),
    ],
)
def test_a_header_that_decides_something_may_not_be_said_twice(name: str) -> None:
    """T50."""
    line = f"{name}: 0\r\n".encode()
    with pytest.raises(InvalidRequest):
        read(GET.replace(b"Host: x\r\n", b"Host: x\r\n" + line + line))


@pytest.mark.parametrize(
    "host",
    ["x", "x:80", "a.b-c_d.example", "x.", "127.0.0.1:8000", "[::1]", "[::1]:80", "[::ffff:127.0.0.1]"],
)
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert read(GET.replace(b"Host: x", f"Host: {host}".encode()))


@pytest.mark.parametrize(
    "host", ["", "a b", "a/b", "a?b", "a#b", "a@b", "a,b", "a:b", "a:", "a:123456", "[", "[x]", "::1", "a\\b", "é", "a%2fb"]
)  # fmt: skip
def test_a_host_is_nothing_else(host: str) -> None:
    """T43."""
    with pytest.raises(InvalidRequest, match="Host"):
        read(GET.replace(b"Host: x", f"Host: {host}".encode()))


def test_the_head_is_bounded_by_bytes_and_by_count() -> None:
    """T50: exactly HEADERS_MAX are accepted, and one more is not."""
    most = b"".join(b"X-%d: a\r\n" % i for i in range(http1.HEADERS_MAX - 2))
    assert read(GET.replace(b"Host: x\r\n", b"Host: x\r\n" + most))
    with pytest.raises(InvalidRequest):
        read(GET.replace(b"Host: x\r\n", b"Host: x\r\nX-More: a\r\n" + most))
    with pytest.raises(InvalidRequest):
        read(GET.replace(b"X-One: 1", b"X-One: " + b"a" * http1.HEAD_BYTES_MAX))


def test_an_unfinished_head_is_bounded() -> None:
    """T50: before its end is seen, however slowly it comes."""
    reader = RequestReader(Sink())
    reader.feed(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
    with pytest.raises(InvalidRequest, match="head"):
        feed_all(reader, [b"aa"] * http1.HEAD_BYTES_MAX)


def test_pipelined_bytes_count_for_their_own_message() -> None:
    """A large body and the start of the next head may come in one read."""
    body = b"a" * 200_000
    large = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert len(read(large + GET[:10], GET[10:], body_bytes_max=len(body))) == 4
    assert len(read(large + CHUNKED[:70], CHUNKED[70:], body_bytes_max=len(body))) == 4


@pytest.mark.parametrize("piece", [b"a" * 1000, b"a"])
def test_framing_is_bounded(piece: bytes) -> None:
    """T50: chunk extensions and trailers that never end."""
    for start in (b"1;x=", b"0\r\nX-T: "):
        reader = RequestReader(Sink(10**9))
        reader.feed(CHUNKED[: CHUNKED.index(b"3;e")] + start)
        with pytest.raises(InvalidRequest):
            feed_all(reader, [piece] * (2 * http1.FRAMING_BYTES_MAX // len(piece)))


def test_chunks_of_one_byte_are_fine() -> None:
    body = b"1\r\na\r\n" * 50_000
    head = CHUNKED[: CHUNKED.index(b"3;e")]
    pieces = [body[start : start + 997] for start in range(0, len(body), 997)]
    assert read(head, *pieces, b"0\r\n\r\n", body_bytes_max=50_000)[1] == b"a" * 50_000


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 1000, 100_000])
def test_a_body_takes_no_more_memory_than_it_has_bytes_however_it_is_cut(piece_bytes: int) -> None:
    """T34: the limit of a body is that of its memory; pieces kept one by one would take twenty times as much."""
    size = 400_000
    pieces = [http1.chunk(bytes(piece_bytes))] * (size // piece_bytes)
    reader = RequestReader(Sink(size))
    head = CHUNKED[: CHUNKED.index(b"3;e")]
    tracemalloc.start()
    try:
        feed_all(reader, [head, *pieces])
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert reader.body_bytes == size // piece_bytes * piece_bytes
    assert held_bytes < 1.5 * size


@given(sizes=st.lists(st.sampled_from([1, 2, 1023, 1024, 1025, 70_000]), max_size=20))
def test_pieces_of_every_size_are_joined_in_their_order(sizes: list[int]) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    head = CHUNKED[: CHUNKED.index(b"3;e")]
    seen = read(head, *map(http1.chunk, pieces), http1.LAST_CHUNK, body_bytes_max=2_000_000)
    assert seen[1] == b"".join(pieces)


@pytest.mark.parametrize("request_bytes", [POST, CHUNKED])
def test_a_body_at_the_limit_is_accepted_and_one_byte_more_is_not(request_bytes: bytes) -> None:
    """T34."""
    assert read(request_bytes, body_bytes_max=5)[1] == b"hello"
    with pytest.raises(PayloadTooLarge):
        read(request_bytes, body_bytes_max=4)


def test_a_declared_length_over_the_limit_is_refused_on_the_head_alone() -> None:
    """T34."""
    with pytest.raises(PayloadTooLarge):
        read(POST[:-5], body_bytes_max=4)


def test_a_sink_refuses_on_the_head_alone() -> None:
    sink = Sink(refusal=NotFound("no"))
    with pytest.raises(NotFound):
        RequestReader(sink).feed(POST[:-5])
    assert sink.seen == []


def test_a_waiting_sender_is_told_only_where_its_body_is_wanted() -> None:
    """RFC 9110, section 10.1.1."""
    waiting = POST.replace(b"Host", b"Expect: 100-Continue\r\nHost")
    assert read(waiting)[1:] == ["awaited", b"hello"]
    assert "awaited" not in read(waiting.replace(b"HTTP/1.1", b"HTTP/1.0"))
    sink = Sink(body_bytes_max=4)
    with pytest.raises(PayloadTooLarge):
        RequestReader(sink).feed(waiting)
    assert "awaited" not in sink.seen


@given(data=st.binary(min_size=1, max_size=100))
def test_a_chunk_is_read_back(data: bytes) -> None:
    head = CHUNKED[: CHUNKED.index(b"3;e")]
    assert read(head + http1.chunk(data) + http1.LAST_CHUNK)[1] == data


# A head that is repeated

HEADS = [
    b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /p HTTP/1.1\r\nHost: x\r\ncontent-LENGTH:\t 5\r\nAuthorization: Bearer k\r\n\r\nhello",
    b"\r\nPOST /p?content-length:5 HTTP/1.1\r\nHost: x\r\nX: content-length: 9\r\nContent-Length: 5\r\n\r\n\r\n\r\n1",
]


def repeated(request: bytes) -> http1.RepeatedHead:
    found = http1.repeated_head(request)
    assert found is not None
    return found


@pytest.mark.parametrize("request_bytes", HEADS)
@pytest.mark.parametrize("body", [b"", b"a", b"hello" * 1000, b"\r\n\r\n"])
def test_a_repeated_head_gives_up_its_body_whatever_its_length(request_bytes: bytes, body: bytes) -> None:
    head, _, _ = request_bytes.partition(b"\r\n\r\n")
    again = (
        head.replace(b" 5\r", b" %d\r" % len(body))
        if b" 5\r" in head
        else head.replace(b" 5", b" %d" % len(body))
    )
    assert repeated(request_bytes).body_of(again + b"\r\n\r\n" + body) == body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        POST[:-1],
        POST + b"!",
        POST + POST,
        POST.replace(b"x", b"y"),
        POST.replace(b": 5", b": 5 "),
        POST.replace(b": 5", b": +5"),
        POST.replace(b": 5", b": "),
        POST.replace(b": 5", b": 00000000005"),
        POST.replace(b": 5\r\n", b": 5\r\nX: 1\r\n"),
        POST.replace(b": 5\r\n", b": 5\r\nContent-Length: 5\r\n"),
        b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5",
    ],
)
def test_whatever_is_not_that_head_with_a_whole_body_is_left_to_the_reader(data: bytes) -> None:
    assert repeated(POST).body_of(data) is None


@pytest.mark.parametrize(
    "request_bytes",
    [
        *(GET, CHUNKED, POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")),
        POST.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
    ],
)
def test_a_head_without_a_plain_length_is_not_remembered(request_bytes: bytes) -> None:
    assert http1.repeated_head(request_bytes) is None


@given(
    request_bytes=st.sampled_from(HEADS),
    edits=st.lists(
        st.tuples(
            st.integers(0, 200), st.sampled_from([b"", b"\r", b"\n", b":", b" ", b"0", b"5", b"6", b"a"])
        ),
        max_size=4,
    ),
)
def test_what_is_taken_as_repeated_is_what_the_reader_would_have_read(
    request_bytes: bytes, edits: list[tuple[int, bytes]]
) -> None:
    """T50: no edit of a request is read in two ways."""
    data = request_bytes
    for at, piece in edits:
        at %= len(data) + 1
        data = data[:at] + piece + data[at + len(piece) :] if piece else data[:at] + data[at + 1 :]
    body = repeated(request_bytes).body_of(data)
    if body is None:
        return
    first, second = read(request_bytes), read(data)
    assert second[1:] == [body]
    *others, headers, keeps_alive = first[0]
    *others_again, headers_again, keeps_alive_again = second[0]
    assert others_again == others
    assert keeps_alive_again == keeps_alive
    assert {**headers_again, b"content-length": b""} == {**headers, b"content-length": b""}


# Requests to change protocols

UPGRADE = b"Host: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: H2C\r\n"
ASKS = {
    "without a body": (b"GET /a HTTP/1.1\r\n" + UPGRADE + b"\r\n", b""),
    "with a length": (b"POST /a HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 5\r\n\r\nhello", b"hello"),
    "with chunks": (
        b"POST /a HTTP/1.1\r\n" + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX: 1\r\n\r\n",
        b"hello",
    ),
    "with no content": (b"POST /a HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 0\r\n\r\n", b""),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKS)
def test_a_request_to_change_protocols_is_read_like_any_other(name: str) -> None:
    """However it is cut, with its body, and as the last one of its connection."""
    request, body = ASKS[name]
    for cut in range(len(request)):
        sink = Sink()
        reader = RequestReader(sink)
        feed_all(reader, [GET, request[:cut], request[cut:]])
        assert sink.seen[3:] == [body]
        assert sink.head is not None
        assert (sink.head.upgrade, sink.head.keeps_alive) == (b"h2c", False)
        assert reader.is_idle


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("behind", [GET, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x81\x00", b"x"])
def test_what_comes_with_a_request_to_change_protocols_makes_it_ambiguous(name: str, behind: bytes) -> None:
    """T50: neither it nor what hides behind it is run."""
    request, body = ASKS[name]
    sink = Sink()
    with pytest.raises(InvalidRequest):
        RequestReader(sink).feed(request + behind)
    assert len(sink.seen) == 1, "the head"

    sink = Sink()
    reader = RequestReader(sink)
    reader.feed(request)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="change protocols"):
            reader.feed(behind)
    assert sink.seen[1:] == [body]


def test_the_body_of_a_request_to_change_protocols_has_the_usual_bounds() -> None:
    """T34."""
    head = b"POST /a HTTP/1.1\r\n" + UPGRADE
    with pytest.raises(PayloadTooLarge):
        read(head + b"Content-Length: 1001\r\n\r\n")
    with pytest.raises(PayloadTooLarge):
        read(head + b"Transfer-Encoding: chunked\r\n\r\n", b"3e9\r\n" + b"x" * 1001)
    with pytest.raises(InvalidRequest, match="framing"):
        read(head + b"Transfer-Encoding: chunked\r\n\r\n", b"5;" + b"x" * 100_000)
    with pytest.raises(InvalidRequest, match="headers"):
        read(head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: 1\r\n" * 200)
    with pytest.raises(InvalidRequest):
        read(head + b"Transfer-Encoding: chunked\r\n\r\n", b"xyz\r\n")
    with pytest.raises(InvalidRequest):
        read(head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")


@pytest.mark.parametrize("line", [b"Upgrade: websocket\r\n", b"Connection: Upgrade\r\n"])
def test_half_a_wish_to_change_protocols_is_none(line: bytes) -> None:
    sink = Sink()
    feed_all(RequestReader(sink), [GET.replace(b"Host: x\r\n", b"Host: x\r\n" + line), GET])
    assert len(sink.seen) == 4


def test_http_1_0_cannot_ask_to_change_protocols() -> None:
    """RFC 9110, section 7.8: ignored there; and still nothing may follow."""
    sink = Sink()
    RequestReader(sink).feed(b"GET / HTTP/1.0\r\n" + UPGRADE + b"\r\n")
    assert sink.head is not None
    assert (sink.head.upgrade, sink.seen[1]) == (b"", b"")


def test_a_tunnel_through_us_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        read(b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0.0),
        (b" 7 ", 7.0),
        (b"86400", 3600.0),
        (b"9999999", None),
        (b"soon", None),
        (b"-1", None),
        (None, None),
    ],
)
def test_a_wait_is_whole_seconds_up_to_an_hour_or_nothing(value: bytes | None, seconds: float | None) -> None:
    """T26."""
    assert http1.retry_after_s(value) == seconds


# A plain answer

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}"


@pytest.mark.parametrize("body", [b"", b"{}", b"\r\n\r\n", b"a" * 100_000])
def test_a_plain_answer_is_its_body(body: bytes) -> None:
    assert http1.plain_answer(ANSWER.replace(b"h: 2", b"h: %d" % len(body))[:-2] + body) == body
    assert http1.plain_answer(b"HTTP/1.1 200 \r\ncontent-length:%d\r\n\r\n%b" % (len(body), body)) == body


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"200 OK", b"201 Created"),
        (b"200 OK", b"503 Busy"),
        (b"1.1", b"1.0"),
        (b"{}", b"{"),
        (b"{}", b"{} "),
        (b"h: 2", b"h: +2"),
        (b"h: 2", b"h: 2, 2"),
        (b"h: 2\r\n", b"h: 2\r\nContent-Length: 2\r\n"),
        (b"h: 2\r\n", b"h: 2\r\nTransfer-Encoding: chunked\r\n"),
        (b"Content-Length", b"X-Length"),
        (b"keep-alive", b"close"),
        (b"keep-alive", b"Upgrade"),
        (b"\r\nConnection", b"\nConnection"),
        (b"\r\nConnection", b"\r\n Connection"),
        (b"Connection:", b"Connection :"),
        (b"Connection", b"Conn\0ection"),
        (b"application", b"appli\0cation"),
        (b"HTTP", b"\r\nHTTP"),
        (b"\r\n\r\n", b"\r\n"),
    ],
)
def test_any_other_answer_is_left_to_a_parser(old: bytes, new: bytes) -> None:
    """T36: what llhttp would refuse, or frame otherwise, is never taken here."""
    assert http1.plain_answer(ANSWER.replace(old, new)) is None
