"""WebSocket (RFC 6455) from bytes: the handshake, the messages of one connection, and the JSON that we exchange in them.

Frames are read by the sans-IO half of the `websockets` library, which is strict on masks, reserved bits, fragments and
control frames; sizes of whole messages, UTF-8 and the kind of message are checked here. No extension is ever agreed on, so
nothing small becomes large in here. Docs: docs/reference/websocket.md.
"""

import base64
import binascii
import hashlib

import msgspec
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from headrace.core.errors import Forbidden, InvalidRequest
from headrace.protocols.http1 import RequestHead

SUBPROTOCOL = b"headrace.v1"
KEY_PREFIX = b"headrace.key."
VERSION = b"13"
VERSION_LINE = b"sec-websocket-version: " + VERSION + b"\r\n"
CONTROL_FRAME_BYTES_MAX = 125
CONTROL_MESSAGE_BYTES_MAX = 4096  # a larger message can only be a request
# What a client may say of a single request although a message has no headers.
REQUEST_HEADERS = frozenset({"idempotency-key", "x-headrace-deadline-ms", "x-headrace-priority"})

_ACCEPT_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


# The handshake.


def adopt_key(head: RequestHead) -> None:
    """Moves a key that came as a subprotocol to where all other keys are. Raises InvalidRequest if there are two.

    A browser's WebSocket can set no header but this one.
    """
    headers = head.headers
    offered = [part.strip() for part in headers.get(b"sec-websocket-protocol", b"").split(b",")]
    keys = [part[len(KEY_PREFIX) :] for part in offered if part.startswith(KEY_PREFIX)]
    if not keys:
        return
    if len(keys) > 1 or b"authorization" in headers:
        raise InvalidRequest("the API key is given twice")
    if SUBPROTOCOL not in offered:
        raise InvalidRequest(f"offer the subprotocol {SUBPROTOCOL.decode()} beside the key")
    headers[b"authorization"] = b"Bearer " + keys[0]
    headers[b"sec-websocket-protocol"] = SUBPROTOCOL


def check_origin(head: RequestHead, allowed: frozenset[bytes]) -> None:
    """Raises Forbidden for a page that is not allowed here: browsers let any page open a WebSocket to anywhere.

    Programs send no Origin, or that of the server which they call.
    """
    origin = head.headers.get(b"origin")
    if origin is None or origin.lower() in allowed or b"*" in allowed:
        return
    authority = origin.partition(b"://")[2]
    if authority and authority.lower() == head.headers.get(b"host", b"").lower():
        return
    raise Forbidden(
        "pages of this origin may not connect; the operator can list it in `server.websocket_origins`"
    )


def accept(head: RequestHead) -> bytes:
    """The header lines that complete the handshake. Raises InvalidRequest."""
    headers = head.headers
    if b"idempotency-key" in headers:
        raise InvalidRequest("an Idempotency-Key names one request: give it in a message before that request")
    if headers.get(b"sec-websocket-version") != VERSION:
        raise InvalidRequest("Sec-WebSocket-Version must be 13")
    key = headers.get(b"sec-websocket-key", b"")
    try:
        is_sound = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        is_sound = False
    if not is_sound:
        raise InvalidRequest("Sec-WebSocket-Key must be 16 bytes in Base64")
    digest = base64.b64encode(hashlib.sha1(key + _ACCEPT_SALT, usedforsecurity=False).digest())
    offered = [part.strip() for part in headers.get(b"sec-websocket-protocol", b"").split(b",")]
    chosen = b"sec-websocket-protocol: " + SUBPROTOCOL + b"\r\n" if SUBPROTOCOL in offered else b""
    return b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: " + digest + b"\r\n" + chosen


# The messages.


class Dialogue:
    """One connection after its handshake: bytes in, whole text messages out, control frames answered.

    State: `_message` is the fragmented message that is coming; `_pending_bytes` came after the last whole frame.
    """

    def __init__(self, *, message_bytes_max: int) -> None:
        # A control frame between two fragments counts against what the library leaves for the rest of the message.
        self._protocol = ServerProtocol(
            state=State.OPEN, max_size=message_bytes_max + CONTROL_FRAME_BYTES_MAX
        )
        self._message_bytes_max = message_bytes_max
        self._message: bytearray | None = None
        self._pending_bytes = 0

    def set_message_bytes_max(self, message_bytes_max: int) -> None:
        """Of the messages that are not whole yet, and all later ones."""
        self._message_bytes_max = message_bytes_max
        self._protocol.max_message_size = message_bytes_max + CONTROL_FRAME_BYTES_MAX

    @property
    def is_open(self) -> bool:
        """Whether neither side has begun to close."""
        return self._protocol.state is State.OPEN

    @property
    def is_closed(self) -> bool:
        """Whether the closing handshake is over: only the end of the connection may follow."""
        return self._protocol.eof_sent

    @property
    def is_receiving(self) -> bool:
        """Whether a message or frame has begun and not ended."""
        return self._message is not None or self._pending_bytes > 0

    @property
    def received_bytes(self) -> int:
        """How much there is of what `is_receiving`."""
        return len(self._message or b"") + self._pending_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete. What must be answered or refused is ready in `to_send` afterwards."""
        self._pending_bytes += len(data)
        self._protocol.receive_data(data)
        messages = []
        for frame in self._protocol.events_received():
            assert isinstance(frame, Frame), "the handshake is behind us"
            self._pending_bytes -= _wire_bytes(frame)
            if frame.opcode is Opcode.BINARY:
                self.fail(CloseCode.UNSUPPORTED_DATA, "messages are JSON in text frames")
                break
            if frame.opcode in (Opcode.TEXT, Opcode.CONT):
                message = self._collect(frame)
                if message is None:
                    continue
                if not _is_utf8(message):
                    self.fail(CloseCode.INVALID_DATA, "a text frame must hold UTF-8")
                    break
                messages.append(message)
        return messages

    def _collect(self, frame: Frame) -> bytes | None:
        """The whole message, if this frame is the last of it and it is within its bound."""
        is_whole = frame.fin and self._message is None
        message = frame.data if is_whole else self._joined(frame)
        if len(message) > self._message_bytes_max:
            self.fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {self._message_bytes_max} bytes")
            return None
        if not frame.fin:
            return None
        self._message = None
        return bytes(message)

    def _joined(self, frame: Frame) -> bytearray:
        if self._message is None:
            self._message = bytearray()
        self._message += frame.data
        return self._message

    def close(self, code: int, reason: str) -> None:
        """Begins to close; the other side answers, and may still send what it sent before it knew."""
        if self.is_open:
            self._protocol.send_close(code, _shortened(reason))

    def fail(self, code: int, reason: str) -> None:
        """Closes and reads no more."""
        self._message = None
        self._pending_bytes = 0
        self._protocol.fail(code, _shortened(reason))

    def to_send(self) -> bytes:
        """Answers to control frames, and the close."""
        return b"".join(self._protocol.data_to_send())


def _shortened(reason: str) -> str:
    """What fits beside the code."""
    return reason.encode()[: CONTROL_FRAME_BYTES_MAX - 2].decode(errors="ignore")


def _wire_bytes(frame: Frame) -> int:
    """How long it was on its way here: header, mask, payload."""
    length = len(frame.data)
    return length + (6 if length < 126 else 8 if length < 65536 else 14)


def _is_utf8(message: bytes) -> bool:
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True


# What clients say.


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that is no request.

    Attributes:
        cancel: End the request in progress.
        headers: What the next request would say in its headers.
    """

    cancel: bool = False
    headers: dict[str, str] | None = None


_decode_control = msgspec.json.Decoder(Control).decode


def read_control(message: bytes) -> Control | None:
    """None for a request: any message that says more than a Control, or something else."""
    if len(message) > CONTROL_MESSAGE_BYTES_MAX:
        return None
    try:
        control = _decode_control(message)
    except (msgspec.DecodeError, RecursionError):
        return None
    return control if control.cancel or control.headers is not None else None


def request_head(handshake: RequestHead, given: dict[str, str] | None) -> RequestHead:
    """The head that a request would have had over HTTP: that of the handshake and what was given for this one.

    Raises InvalidRequest.
    """
    if given is None:
        return handshake
    headers = dict(handshake.headers)
    for name, value in given.items():
        if name.lower() not in REQUEST_HEADERS:
            raise InvalidRequest(
                f"headers: only {', '.join(sorted(REQUEST_HEADERS))} may be given for a request"
            )
        if not (value.isascii() and value.isprintable()):
            raise InvalidRequest(f"headers: {name.lower()} must be printable ASCII")
        headers[name.lower().encode()] = value.strip().encode()
    return RequestHead(handshake.method, handshake.path, handshake.version, headers, keeps_alive=True)


# What we say. All of it is JSON; what isn't part of the answer has an `object` of its own.

PING = b"\x89\x00"


def text_frame(payload: bytes) -> bytes:
    """One unmasked frame with one whole message, which must be UTF-8."""
    length = len(payload)
    if length < 126:
        return b"\x81%c%b" % (length, payload)
    if length < 65536:
        return b"\x81\x7e%b%b" % (length.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), payload)


def event_frame(event: bytes) -> bytes:
    """One event of an answer. What an engine sends in fields that nobody reads may be no UTF-8, and would cost the client
    its connection."""
    is_text = event.isascii() or _is_utf8(event)
    return text_frame(event if is_text else event.decode(errors="replace").encode())


_encode = msgspec.json.Encoder().encode


def open_message(request_id: str, headers: bytes) -> bytes:
    """The answer begins."""
    return _encode({"object": "headrace.open", "request_id": request_id, "headers": _by_name(headers)})


def done_message(request_id: str) -> bytes:
    """The answer is complete."""
    return _encode({"object": "headrace.done", "request_id": request_id})


def cancelled_message(request_id: str) -> bytes:
    """The client wanted no more of it."""
    return _encode({"object": "headrace.cancelled", "request_id": request_id})


def error_message(status: int, body: bytes, headers: bytes) -> bytes:
    """There is no answer, or no more of it; `body` is the error as HTTP has it."""
    return b'{"object":"headrace.error","status":%d,"headers":%b,%b' % (
        status,
        _encode(_by_name(headers)),
        body[1:],
    )


def busy_message(status: int, body: bytes) -> bytes:
    """A message came that can't be taken now; the request in progress goes on."""
    return b'{"object":"headrace.busy","status":%d,%b' % (status, body[1:])


def _by_name(headers: bytes) -> dict[str, str]:
    lines = (line.partition(": ") for line in headers.decode("ascii").split("\r\n") if line)
    return {name: value for name, _, value in lines}
