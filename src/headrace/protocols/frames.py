"""Messages between two processes of ours: each one its length in four bytes, then itself."""

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 64 * 1024 * 1024


class FrameTooLarge(ValueError):
    """A length that nobody of ours sends: the two ends don't speak the same language."""


def frame(message: bytes) -> bytes:
    """The message as it is sent."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


class FrameParser:
    """Cuts what arrives into messages, however it was cut on the way. State: what has come of the next message."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with this. Raises FrameTooLarge."""
        data = self._rest + data if self._rest else data
        start, messages = 0, []
        while len(data) - start >= LENGTH_BYTES:
            length = int.from_bytes(data[start : start + LENGTH_BYTES], "big")
            if length > FRAME_BYTES_MAX:
                raise FrameTooLarge(f"a message of {length} bytes")
            end = start + LENGTH_BYTES + length
            if end > len(data):
                break
            messages.append(data[start + LENGTH_BYTES : end])
            start = end
        self._rest = data[start:]
        return messages
