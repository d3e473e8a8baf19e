"""HTTP/1.1 from bytes: requests read by llhttp under our own bounds, and the lines that we write.

llhttp is strict on framing (Content-Length with Transfer-Encoding, repeated lengths, bare LF, chunk syntax); what it doesn't
check is checked here: sizes and counts of headers, Host, bodies.

A request that asks to change protocols (RFC 9110, section 7.8) is read like any other, and it is the last: whoever reads
this connection differently, as if the change had happened, must find nothing here that we would run as a request.
"""

import re
from typing import Any, Protocol

import httptools

from headrace.core.errors import HeadraceError, InvalidRequest, PayloadTooLarge

HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
# What chunk sizes, extensions and trailers may add to a body: a chunk of one byte costs five, the rest has a fixed sum.
CHUNK_OVERHEAD = 6
FRAMING_BYTES_MAX = 64 * 1024
# Pieces of a body below this are gathered, up to that size each: kept one by one, pieces of two bytes would take twenty times
# the memory of the body.
PIECE_BYTES_MIN = 1024
GATHERED_BYTES_MAX = 64 * 1024

_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,10})\r\n", re.IGNORECASE)
_ASKS_FIRST = re.compile(rb"\r\n(?:expect|upgrade):", re.IGNORECASE)
_LENGTH_DIGITS_MAX = 10
# Headers that decide something and may not be said twice.
_SINGLE = frozenset(
    {
        b"host",
        b"authorization",
        b"content-length",
        b"transfer-encoding",
        b"content-type",
        b"content-encoding",
        b"upgrade",
        b"origin",
        b"sec-websocket-key",
        b"sec-websocket-protocol",
        b"sec-websocket-version",
    }
)


class RequestHead:
    """A request line and its headers. Names are lower-case; of repeated harmless headers the first counts.

    Attributes:
        upgrade: The protocol to which the sender asks to change, in lower case; empty if it doesn't.
    """

    __slots__ = ("headers", "keeps_alive", "method", "path", "upgrade", "version")

    def __init__(
        self,
        method: bytes,
        path: bytes,
        version: str,
        headers: dict[bytes, bytes],
        *,
        keeps_alive: bool,
        upgrade: bytes = b"",
    ) -> None:
        self.method = method
        self.path = path
        self.version = version
        self.headers = headers
        self.keeps_alive = keeps_alive
        self.upgrade = upgrade

    @property
    def expects_continue(self) -> bool:
        return self.version == "1.1" and self.headers.get(b"expect", b"").lower() == b"100-continue"


class RepeatedHead:
    """Recognises a request whose head says what an accepted one said, byte for byte but for the length of its body.

    A caller that keeps its connection repeats its head; what was found out about it (framing, Host, path, key) needs no
    second look. State: the bytes before and after the digits of Content-Length.
    """

    __slots__ = ("_after", "_before", "_digits_at", "_rest_bytes")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after
        self._digits_at = len(before)
        self._rest_bytes = len(after)

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if `data` is one whole request with this head and nothing more; else None, and the reader must look."""
        if not data.startswith(self._before):
            return None
        start = self._digits_at
        end = data.find(b"\r", start, start + _LENGTH_DIGITS_MAX + 1)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return None
        body = data[end + self._rest_bytes :]
        return body if len(body) == int(digits) else None


def repeated_head(data: bytes) -> RepeatedHead | None:
    """From a request that the reader has accepted whole; None if it has no body or one in chunks, or asks for more than that it be read."""
    length = _CONTENT_LENGTH.search(data, 0, data.find(b"\r\n\r\n") + 2)
    if length is None or _ASKS_FIRST.search(data, 0, length.endpos) is not None:
        return None
    return RepeatedHead(data[: length.start(1)], data[length.end(1) : length.endpos + 2])


class RequestSink(Protocol):
    """Who receives what the reader reads. Either method may raise HeadraceError to refuse the message."""

    def head_received(self, head: RequestHead) -> int:
        """The head is complete and sound; returns how many body bytes are accepted."""
        ...

    def body_awaited(self) -> None:
        """The sender holds its body back until it hears that the head was accepted, which it is."""
        ...

    def request_received(self, body: bytes) -> None:
        """The message is complete."""
        ...


class RequestReader:
    """Reads the requests of one connection, one after another, pipelined or not.

    State: of the message being read only; `is_idle` between messages, `messages` counts those read whole.
    """

    __slots__ = (
        "_body_bytes_max",
        "_failure",
        "_fed_bytes",
        "_framing",
        "_head_done",
        "_is_last",
        "_pairs",
        "_parser",
        "_parts",
        "_sink",
        "_sound_host",
        "_url",
        "body_bytes",
        "is_idle",
        "messages",
    )

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._parser: Any = httptools.HttpRequestParser(self)
        self._failure: HeadraceError | None = None
        self.messages = 0
        self._sound_host: bytes | None = None
        self._framing = b""
        self.body_bytes = 0
        self.is_idle = True
        self._reset()

    @property
    def is_fresh(self) -> bool:
        """Whether no message has ended yet."""
        return self.messages == 0

    @property
    def is_reading_body(self) -> bool:
        return self._head_done and not self.is_idle

    def feed(self, data: bytes) -> None:
        """Reads on. Raises the error to answer with; after that the connection can't be read any further."""
        messages = self.messages
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            self._parser = _LastBody(self, self._framing)
            self.feed(data[pause.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            if self._failure is not None:
                raise self._failure from None
            raise error.__context__ or error from None
        except httptools.HttpParserError:
            raise InvalidRequest("the request is not well-formed HTTP/1.1") from None
        if not self.is_idle and self.messages == messages:
            self._fed_bytes += len(data)  # all of it is of this message
            self._check_unfinished()

    def abandon(self) -> None:
        """Lets go of the message being read; nothing more is fed after this."""
        self._reset()

    def _check_unfinished(self) -> None:
        """llhttp keeps an unfinished header to itself and passes over chunk extensions, so what was fed is what counts."""
        if not self._head_done:
            if self._fed_bytes > HEAD_BYTES_MAX:
                raise InvalidRequest(f"the request head is larger than {HEAD_BYTES_MAX} bytes")
        elif self._fed_bytes > FRAMING_BYTES_MAX + CHUNK_OVERHEAD * self.body_bytes:
            raise InvalidRequest("the body has more framing than content")

    # The rest is called by llhttp.

    def on_message_begin(self) -> None:
        self._reset()
        self.is_idle = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Only collects: the commonest callback of all. Trailers come here too; they are counted, never read."""
        self._pairs.append((name, value))
        if len(self._pairs) > HEADERS_MAX:
            self._fail(InvalidRequest(f"more than {HEADERS_MAX} headers"))

    def on_headers_complete(self) -> None:
        self._head_done = True
        parser, headers = self._parser, self._read_headers()
        version: str = parser.get_http_version()
        path = self._url.partition(b"?")[0]
        host = headers.get(b"host")
        if version not in ("1.1", "1.0"):
            self._fail(InvalidRequest("only HTTP/1.1 and HTTP/1.0 are spoken here"))
        if (host is None and version == "1.1") or (
            host is not None and host != self._sound_host and not self._is_sound_host(host)
        ):
            self._fail(InvalidRequest("exactly one valid Host header is required"))
        encoding = headers.get(b"transfer-encoding")
        if encoding is not None and (encoding.lower() != b"chunked" or version == "1.0"):
            self._fail(InvalidRequest("chunked is the only transfer encoding accepted, and only in HTTP/1.1"))
        if not path.startswith(b"/"):
            self._fail(InvalidRequest("the request target must be an absolute path"))
        method = parser.get_method()
        head = RequestHead(method, path, version, headers, keeps_alive=parser.should_keep_alive())
        if parser.should_upgrade():
            self._is_last = True
            head.keeps_alive = False
            head.upgrade = headers.get(b"upgrade", b"").lower() if version == "1.1" else b""
            self._framing = (
                b"transfer-encoding: chunked"
                if encoding is not None
                else b"content-length: " + headers.get(b"content-length", b"0")
            )
        try:
            self._body_bytes_max = self._sink.head_received(head)
        except HeadraceError as error:
            self._fail(error)
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._body_bytes_max:
            self._fail_too_large()
        if b"expect" in headers and head.expects_continue:
            self._sink.body_awaited()

    def on_body(self, data: bytes) -> None:
        self.body_bytes += len(data)
        if self.body_bytes > self._body_bytes_max:
            self._fail_too_large()
        parts = self._parts
        if len(data) >= PIECE_BYTES_MIN or not parts:
            parts.append(data)
            return
        last = parts[-1]
        if type(last) is bytearray and len(last) < GATHERED_BYTES_MAX:
            last += data
        else:
            parts.append(bytearray(data))

    def on_message_complete(self) -> None:
        if self._is_last:
            return  # llhttp leaves the body, if there is one, to the other protocol
        self.complete()

    # The rest is ours.

    def complete(self) -> None:
        """The message is complete."""
        self.is_idle = True
        self.messages += 1
        parts = self._parts
        self._sink.request_received(bytes(parts[0]) if len(parts) == 1 else b"".join(parts))

    def _is_sound_host(self, host: bytes) -> bool:
        if _HOST.fullmatch(host) is None:
            return False
        self._sound_host = host  # the next request of the connection says the same
        return True

    def _read_headers(self) -> dict[bytes, bytes]:
        """The headers by lower-case name; of repeated harmless ones the first counts."""
        headers: dict[bytes, bytes] = {}
        head_bytes = len(self._url)
        for name, value in self._pairs:
            head_bytes += len(name) + len(value) + 4
            name = name.lower()
            if name not in headers:
                headers[name] = value
            elif name == b"x-forwarded-for":
                # A list: the nearest proxy may have added a line, and not to the line that a caller made up.
                headers[name] += b"," + value
            elif name in _SINGLE:
                self._fail(InvalidRequest(f"the header {name.decode('ascii', 'replace')} is given twice"))
        if head_bytes > HEAD_BYTES_MAX:
            self._fail(InvalidRequest(f"the request head is larger than {HEAD_BYTES_MAX} bytes"))
        self._pairs.clear()
        return headers

    def _fail(self, error: HeadraceError) -> None:
        self._failure = error
        raise error

    def _fail_too_large(self) -> None:
        self._fail(PayloadTooLarge(f"the body is larger than {self._body_bytes_max} bytes"))

    def fail_behind_last(self) -> None:
        """Bytes of who knows which protocol."""
        self._fail(InvalidRequest("nothing may follow a request to change protocols before its answer"))

    def _reset(self) -> None:
        self._url = b""
        self._pairs: list[tuple[bytes, bytes]] = []
        self._head_done = False
        self._is_last = False
        self._fed_bytes = 0
        self._parts: list[bytes | bytearray] = []
        self._body_bytes_max = 0
        self.body_bytes = 0


class _LastBody:
    """In the parser's place behind the head of a request to change protocols: reads the body, then refuses all.

    The body has a parser of its own, under a head that says nothing but how it is framed. The request is complete only when
    all that came with it has been read: what came too early for an answer makes it ambiguous, and then it isn't run.
    """

    def __init__(self, reader: RequestReader, framing: bytes) -> None:
        self._reader = reader
        self._is_complete = False
        self._is_told = False
        self.on_body = reader.on_body
        self.on_header = reader.on_header
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")

    def feed_data(self, data: bytes) -> None:
        if self._is_told:
            self._reader.fail_behind_last()
        self._parser.feed_data(data)
        if self._is_complete:
            self._is_told = True
            self._reader.complete()

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._reader.fail_behind_last()

    def on_message_complete(self) -> None:
        self._is_complete = True


_PLAIN_HEAD = re.compile(
    rb"HTTP/1\.1 200 [\t -~]*(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*)*\r\n\r\n"
)
_PLAIN_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,10})[ \t]*\r\n")


def plain_answer(data: bytes) -> bytes | None:
    """The body, if `data` is one whole answer 200 of a plain length, on a connection that lives on; else None, and a parser
    must look. Most answers that aren't streamed are like that, and eight calls back from a parser are saved."""
    head = _PLAIN_HEAD.match(data)
    if head is None:
        return None
    text = head[0].lower()
    length = _PLAIN_LENGTH.search(text)
    if (
        length is None
        or text.count(b"\r\ncontent-length:") > 1
        or b"\r\ntransfer-encoding:" in text
        or b"close" in text
        or b"upgrade" in text
    ):
        return None
    body = data[head.end() :]
    return body if len(body) == int(length[1]) else None


_REASONS = {
    101: "Switching Protocols",
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    408: "Request Timeout",
    413: "Content Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
STATUS_LINES = {status: f"HTTP/1.1 {status} {reason}\r\n".encode() for status, reason in _REASONS.items()}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; data must not be empty, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def retry_after_s(value: bytes | None) -> float | None:
    """A Retry-After in seconds, at most an hour; dates and nonsense count as absent."""
    if value is None or not value.strip().isdigit() or len(value) > 6:
        return None
    return min(3600.0, float(value))
