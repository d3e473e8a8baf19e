"""How do two processes of ours talk? Messages over a socket pair, whose end is the end of the other side."""

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar, cast

import msgspec

import headrace
from headrace.protocols.frames import FrameParser, FrameTooLarge, frame

# A service may outlive the files that it was started from; a process of another version must not join it.
VERSION = f"1 {headrace.__version__}"
UNSENT_BYTES_MAX = 1024 * 1024

Sent = TypeVar("Sent")


class Line(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """To the service, which owns the file: a line for the log."""

    text: str


def path_of(kind: type, value: Any) -> Any:
    """For decoders of messages that hold paths: msgspec knows none."""
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)


def _text_of(value: Any) -> str:
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(type(value))


_encoder = msgspec.msgpack.Encoder(enc_hook=_text_of)


class Link(asyncio.Protocol, Generic[Sent]):
    """One end of the pair. `lost` is called once, when the other end is gone, or doesn't make sense: then `fault` says why.

    Args:
        decoder: Of what the other end sends.
    """

    def __init__(
        self, decoder: "msgspec.msgpack.Decoder[Any]", received: Callable[..., None], lost: Callable[[], None]
    ) -> None:
        self._decoder = decoder
        self._received = received
        self._lost = lost
        self._frames = FrameParser()
        self.fault = ""
        self._transport: asyncio.Transport | None = None

    def send(self, message: Sent) -> None:
        """Sends it, or drops it when the other end is gone, which is told by `lost`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(_encoder.encode(message)))

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Sends what is still to be sent, and ends."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        try:
            messages = [self._decoder.decode(each) for each in self._frames.feed(data)]
        except (FrameTooLarge, msgspec.DecodeError) as error:
            self.fault = f"sent what makes no sense: {error}"
            self.close()
            return
        for message in messages:
            self._received(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()


AnyLink = TypeVar("AnyLink", bound=Link[Any])


async def linked(end: socket.socket, link: AnyLink) -> AnyLink:
    """The link, once it is on that end of a pair."""
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=end)
    return link


class LinkLines:
    """A log's stream whose lines go to the service, which owns the file. Safe from any thread of this process."""

    def __init__(self, link: Link[Any]) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def write(self, text: str) -> None:
        if threading.get_ident() == self._thread:
            self._send(text)
        else:
            self._loop.call_soon_threadsafe(self._send, text)

    def flush(self) -> None:
        """Every line is sent at once."""

    def _send(self, text: str) -> None:
        if self._link.unsent_bytes < UNSENT_BYTES_MAX:  # a service that doesn't read must not fill our memory
            self._link.send(Line(text))
