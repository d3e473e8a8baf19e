"""What of a process's requests survives its sudden death? Marks of work in progress, and records on their way to the ledger.

One file for each process that serves requests, mapped into its memory. What is stored there is in the kernel's page cache
at once, without a system call, and the kernel keeps it whatever becomes of the process: `kill -9` loses nothing. (Power is
another matter: the kernel writes such pages out when it sees fit.) docs/decisions/0014-journal.md has the measurements.

The file, numbers little-endian:

    page 0      MAGIC (32 bytes), nonce (8 bytes), where the segments begin (u64), and at byte 64 the number of the last record
                that the ledger has (u64)
    marks       one place of MARK_BYTES for each request in progress: length (u16, 0: free), msgpack
    segments    of SEGMENT_BYTES, frames one after the other: nonce, number (u64), length (u32), CRC-32 (u32), msgpack

A frame is found by the file's nonce, wherever it is, and believed by its CRC, so damage in one place costs what was there
and nothing else. No request can forge one, because the nonce is random and told to nobody.
"""

import mmap
import os
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgspec

from headrace.core.fleet import Replica
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.request import InferenceRequest
from headrace.core.usage import ExecutionRecord, UsageRecord

MAGIC = b"headrace journal 1\n"
SUFFIX = ".journal"
PAGE_BYTES = 4096
MARK_BYTES = 256  # divides a sector, so that a mark is never half on the disk
SEGMENT_BYTES = 64 * 1024
# What a record takes, about, with one attempt and long names: the room for a number of records is calculated from it.
RECORD_BYTES = 512

_HEAD = struct.Struct("<32s8sQ")
_COMMITTED_AT = 64
# Native and aligned: one store of the processor, so that no reader ever sees a half of it.
_NUMBER = struct.Struct("@Q")
_MARK = struct.Struct("<H")
_FRAME = struct.Struct("<8sQII")
_NAME_CHARACTERS_MAX = 40
_UNREADABLE = 2**64  # above every number: it counts as not committed

Entry = tuple[UsageRecord, Sequence[ExecutionRecord]]

_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(tuple[UsageRecord, list[ExecutionRecord]]).decode


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A request that a replica has, or had: the last attempt that was begun.

    Attributes:
        started_s: Unix seconds of the request's arrival.
    """

    request_id: RequestId
    tenant: TenantId
    key_id: KeyId
    model: str
    replica: ReplicaId
    generation: int
    attempt: int
    started_s: float


_decode_mark = msgspec.msgpack.Decoder(Mark).decode


class Journal:
    """The writing side. `begin` and `append` belong to the event loop; `committed` to one other thread, or the same.

    State: `_marked`, the places of marks in use, and `_free`, the others; `_filling` up to `_filled_to`, the segment that
    takes the next record; `_number` of the last record; `_full`, segments with records that wait, oldest first, each with
    the number of its last one; `_empty`, the others, the one used last on top, so that few pages are touched; `_unwritten`,
    marks that stay until their record is committed, because there was no room for it here.

    Args:
        records_max: Records that find room while they wait for their commit, of requests that have ended.
        marks_max: Requests in progress that find room, for their marks and then for their records.
    """

    def __init__(self, path: Path, *, records_max: int, marks_max: int) -> None:
        """Makes the file, with all its room taken on the disk: a page that isn't there would end the process when it is
        written to. Raises OSError where that can't be done."""
        self.path = path
        segments_at = PAGE_BYTES + marks_max * MARK_BYTES
        segments_at += -segments_at % PAGE_BYTES
        self._reserve = 1 + marks_max * RECORD_BYTES // SEGMENT_BYTES
        count = self._reserve + 2 + records_max * RECORD_BYTES // SEGMENT_BYTES
        size = segments_at + count * SEGMENT_BYTES
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        self._nonce = os.urandom(8)
        _HEAD.pack_into(self._map, 0, MAGIC, self._nonce, segments_at)
        self._marked: dict[RequestId, int] = {}
        self._free = [PAGE_BYTES + place * MARK_BYTES for place in reversed(range(marks_max))]
        self._empty = [segments_at + place * SEGMENT_BYTES for place in reversed(range(count))]
        self._filling = self._filled_to = self._empty.pop()
        self._full: deque[tuple[int, int]] = deque()
        self._number = self._committed = 0
        self._unwritten: deque[tuple[int, int]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the record of new work might find no room, since those in progress need what there is."""
        return len(self._empty) < self._reserve

    def begin(self, request: InferenceRequest, replica: Replica, attempt: int) -> None:
        """A replica gets the request: until its record is here, a mark says so."""
        place = self._marked.get(request.id)
        if place is None:
            if not self._free:
                return
            place = self._marked[request.id] = self._free.pop()
        else:
            _MARK.pack_into(self._map, place, 0)
        principal = request.principal
        mark = (
            request.id, principal.tenant, principal.key_id, request.model,
            replica.id, replica.generation, attempt, request.arrived_wall_s,
        )  # fmt: skip
        payload = _encode(mark)
        if len(payload) > MARK_BYTES - _MARK.size:
            payload = _encode(
                [each[:_NAME_CHARACTERS_MAX] if isinstance(each, str) else each for each in mark]
            )
        # The length comes last: a mark that is half written is none.
        start = place + _MARK.size
        self._map[start : start + len(payload)] = payload
        _MARK.pack_into(self._map, place, len(payload))

    def append(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> bytes:
        """Keeps the records of an ended request until as many as have come with it are committed. Returns them as msgpack."""
        payload = _encode((usage, executions))
        number = self._number = self._number + 1
        place = self._marked.pop(usage.request_id, None)
        start = self._filled_to + _FRAME.size
        end = start + len(payload)
        if end > self._filling + SEGMENT_BYTES:
            if not self._empty or len(payload) > SEGMENT_BYTES - _FRAME.size:
                if place is not None:
                    self._unwritten.append((number, place))
                return payload
            self._full.append((number - 1, self._filling))
            self._filling = self._empty.pop()
            start = self._filling + _FRAME.size
            end = start + len(payload)
        # What makes a frame of it comes last, and only then the mark goes: at every moment one of the two can be found.
        self._map[start:end] = payload
        _FRAME.pack_into(
            self._map,
            start - _FRAME.size,
            self._nonce,
            number,
            len(payload),
            crc32(payload, number & 0xFFFFFFFF),
        )
        self._filled_to = end
        if place is not None:
            _MARK.pack_into(self._map, place, 0)
            self._free.append(place)
        return payload

    def committed(self, number: int) -> None:
        """The first so many records are in the ledger for good."""
        self._committed = number
        _NUMBER.pack_into(self._map, _COMMITTED_AT, number)
        while self._full and self._full[0][0] <= number:
            self._empty.append(self._full.popleft()[1])
        while self._unwritten and self._unwritten[0][0] <= number:
            place = self._unwritten.popleft()[1]
            _MARK.pack_into(self._map, place, 0)
            self._free.append(place)

    def close(self) -> None:
        """Ends the journal; the file goes too, unless there is something in it that the ledger hasn't got."""
        self._map.close()
        if self._committed == self._number and not self._marked:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Salvage:
    """What a journal holds whose process is no more.

    Attributes:
        entries: Records that may not be committed, in the order in which they came; of one request only the last.
        marks: Requests in progress that have no record here.
        torn: Pieces that are no whole record or mark: a write that was under way, or damage.
    """

    entries: list[Entry]
    marks: list[Mark]
    torn: int


def read(path: Path) -> Salvage:
    """What the file holds. Raises OSError."""
    return salvage(path.read_bytes())


def salvage(content: bytes) -> Salvage:
    """Reads what is whole, and counts what isn't."""
    if len(content) < PAGE_BYTES or not content.startswith(MAGIC):
        # All zeros: it died before it had written anything.
        return Salvage([], [], 1 if content.strip(b"\0") else 0)
    _, nonce, segments_at = _HEAD.unpack_from(content)
    (committed,) = _NUMBER.unpack_from(content, _COMMITTED_AT)
    marks, torn = _read_marks(content[PAGE_BYTES:segments_at])
    found: dict[int, Entry] = {}
    place = content.find(nonce, segments_at)
    while place >= 0:
        number, length, entry = _read_frame(content, place)
        if entry is not None and number > committed:
            found[number] = entry
        elif number > committed:
            torn += 1
        place = content.find(nonce, place + len(nonce) + length)
    last = {found[number][0].request_id: found[number] for number in sorted(found)}
    return Salvage(list(last.values()), [mark for mark in marks if mark.request_id not in last], torn)


def _read_frame(content: bytes, place: int) -> tuple[int, int, Entry | None]:
    """Its number, how much of what follows belongs to it, and what is in it: None where it isn't whole."""
    if place + _FRAME.size > len(content):
        return _UNREADABLE, 0, None
    _, number, length, checksum = _FRAME.unpack_from(content, place)
    start = place + _FRAME.size
    payload = content[start : start + length]
    if len(payload) != length or crc32(payload, number & 0xFFFFFFFF) != checksum:
        return number, 0, None
    try:
        return number, length, _decode_entry(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return number, length, None


def _read_marks(area: bytes) -> tuple[list[Mark], int]:
    """The marks there, and how many are none."""
    marks = []
    torn = 0
    for place in range(0, len(area) - 1, MARK_BYTES):
        (length,) = _MARK.unpack_from(area, place)
        if length:
            try:
                marks.append(_decode_mark(area[place + _MARK.size : place + _MARK.size + length]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                torn += 1
    return marks, torn
