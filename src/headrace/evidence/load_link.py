"""What do the processes of a load generator say to each other? Messages over a socket pair, whose end is the end of the other side."""

import asyncio
from typing import Any

import msgspec

from headrace.core.load_records import LoadRecord
from headrace.core.workload import Workload
from headrace.evidence.load_terms import LoadTerms, Part, Progress
from headrace.protocols import frames

MESSAGE_BYTES_MAX = frames.FRAME_BYTES_MAX


class Setup(msgspec.Struct, frozen=True, tag=True):
    """To a child, first: what to prepare. The key is in it, so it goes over the pair, and never on a command line.

    Attributes:
        measure: How many tokens the model makes of words; see prompts.Measure.
    """

    url: str
    model: str
    key: str
    ca_file: str
    certificate: str
    workload: Workload
    terms: LoadTerms
    measure: tuple[float, float, int]
    process: int
    processes: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To a child that is ready. `at_s` is by the monotonic clock of the machine."""

    at_s: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To a child: send nothing more, and report what there is."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a child that has prepared."""


class Kept(msgspec.Struct, frozen=True, tag=True):
    """From a child, from time to time, so that what it has found outlives it."""

    progress: Progress
    records: list[LoadRecord]


class Done(msgspec.Struct, frozen=True, tag=True):
    """From a child, last."""

    part: Part


Down = Setup | Begin | Stop
Up = Ready | Kept | Done

_encode = msgspec.msgpack.Encoder().encode


class Ear:
    """Reads messages from a stream."""

    def __init__(self, reader: asyncio.StreamReader, kinds: Any) -> None:
        self._reader = reader
        self._decode = msgspec.msgpack.Decoder(kinds).decode

    async def hear(self) -> Any:
        """The next message; None where the other side has ended. Raises ValueError for what is none."""
        try:
            length = int.from_bytes(await self._reader.readexactly(frames.LENGTH_BYTES), "big")
            if length > MESSAGE_BYTES_MAX:
                raise frames.FrameTooLarge(f"a message of {length} bytes")
            return self._decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


def say(writer: asyncio.StreamWriter, message: Down | Up) -> None:
    """Sends it, or nothing where the other side is gone."""
    if not writer.is_closing():
        writer.write(frames.frame(_encode(message)))
