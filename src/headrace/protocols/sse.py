"""Server-sent events as bytes: an incremental parser and an encoder (WHATWG HTML, section 9.2).

Works on bytes throughout: U+2028, U+0085 and cut UTF-8 sequences are ordinary data here, and only CR, LF and CRLF end a line.
"""

EVENT_BYTES_MAX = 8 * 1024 * 1024

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """One event is larger than the parser's bound."""


class EventParser:
    """Turns pieces of a stream, cut anywhere, into the data of complete events. Comments and other fields are dropped.

    State: `_pieces` hold the bytes of the event that is not complete yet, with CR and CRLF already turned into LF.
    """

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended_in_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that these bytes complete. Raises EventTooLarge."""
        if self._is_plain(data):
            return [data[6:-2]]
        data = self._with_line_feeds(data)
        if not data:
            return []
        pieces = self._pieces
        if pieces:
            if b"\n\n" not in data and not (data[0] == 10 and pieces[-1][-1] == 10):
                self._keep(data)
                return []
            pieces.append(data)
            data = b"".join(pieces)
            pieces.clear()
            self._size = 0
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            self._keep(rest)
        events = []
        for block in blocks:
            if len(block) > self._event_bytes_max:
                raise EventTooLarge(
                    f"an event of {len(block)} bytes; at most {self._event_bytes_max} are accepted"
                )
            if self._at_start:
                self._at_start = False
                block = block.removeprefix(_BYTE_ORDER_MARK)
            payload = block[6:] if block.startswith(b"data: ") and b"\n" not in block else _data_of(block)
            if payload is not None:
                events.append(payload)
        return events

    def _is_plain(self, data: bytes) -> bool:
        """Whether this is one whole event of one line, as most reads of a stream are; the rest of `feed` agrees."""
        return (
            not self._pieces
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and data.count(b"\n") == 2
            and b"\r" not in data
            and not self._ended_in_cr
            and not self._at_start
            and len(data) - 2 <= self._event_bytes_max
        )

    def _with_line_feeds(self, data: bytes) -> bytes:
        if self._ended_in_cr and data:
            self._ended_in_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._ended_in_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        # The line feed after the last line is not yet known to end the event, and not part of it when it does.
        if self._size - data.endswith(b"\n") > self._event_bytes_max:
            raise EventTooLarge(f"an event of more than {self._event_bytes_max} bytes")
        self._pieces.append(data)


def _data_of(block: bytes) -> bytes | None:
    """The data of one block of lines, or None if it has no data line."""
    lines = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None


def encode(data: bytes) -> bytes:
    """One event; data with line feeds becomes several data lines, as the standard asks."""
    if b"\n" in data:
        data = data.replace(b"\n", b"\ndata: ")
    return b"data: " + data + b"\n\n"


DONE = b"[DONE]"
DONE_EVENT = encode(DONE)
HEARTBEAT = b": keep-alive\n\n"
