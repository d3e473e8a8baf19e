"""What does any client connection do with its transport? Writes are gathered, pauses told on, stuck readers found."""

import asyncio
from typing import Protocol

from headrace.core.clock import Clock
from headrace.engines.outbox import Outbox
from headrace.gateway.call import PauseWatcher

# What is kept for a caller that takes nothing: from the mark on nothing more is read of its answer, and the read that passed
# the mark brought at most what uvloop reads at once.
WRITE_BUFFER_MAX = 256 * 1024
WRITE_BUFFER_MARK = 4 * 1024
READ_BYTES_MAX = 256_000
LINGER_S = 2.0  # how long a caller may take to read our last words before the connection is dropped


class TransportOwner(Protocol):
    """What a transport needs of the gateway."""

    clock: Clock
    outbox: Outbox
    write_stall_limit_s: float


def paced_limit_s(
    limit_s: float, came_bytes: int, *, bytes_per_s_min: int, ahead_max_s: float, now_s: float
) -> float:
    """Until when more must have come from a sender who had until `limit_s`, now that so many bytes came.

    Each buys its share of a second, but nobody is ahead by more than `ahead_max_s`: a fast start can't pay for a long
    silence.
    """
    return min(limit_s + came_bytes / bytes_per_s_min, now_s + ahead_max_s)


class CallerTransport(asyncio.Protocol):
    """The sending half of a client connection. `_untaken_bytes` as of `_untaken_since_s` say whether its reader is stuck."""

    _owner: TransportOwner

    def __init__(self, owner: TransportOwner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._untaken_bytes = 0
        self._untaken_since_s = 0.0
        self.is_paused = False
        self.paused_since_s = 0.0
        self.watcher: PauseWatcher | None = None

    # Called by the event loop.

    def eof_received(self) -> bool:
        return False  # a half-closed connection is a caller that has gone

    def pause_writing(self) -> None:
        self.is_paused = True
        self.paused_since_s = self._owner.clock.now_s()
        if self.watcher is not None:
            self.watcher.paused()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self.watcher is not None:
            self.watcher.resumed()

    # Called by calls, in their turn.

    def write(self, data: bytes) -> None:
        """Sends with all else that is written in this turn of the loop."""
        if not self._unsent:
            self._owner.outbox.add(self)
        self._unsent.append(data)

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None:
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Called by the gateway.

    @property
    def is_gone(self) -> bool:
        return self._transport is None

    @property
    def peer(self) -> str:
        """The address at the other end; "" once it is gone."""
        known = None if self._transport is None else self._transport.get_extra_info("peername")
        return known[0] if known else ""

    @property
    def has_unsent(self) -> bool:
        """Whether bytes of an answer still wait for the caller to take them."""
        transport = self._transport
        # With TLS what is encrypted doesn't count as buffered, but the connection is lost only once it is sent.
        return transport is not None and (
            bool(self._unsent) or transport.is_closing() or transport.get_write_buffer_size() > 0
        )

    def _is_stuck(self, transport: asyncio.Transport, now_s: float) -> bool:
        """Whether the caller leaves answers untaken: WRITE_BUFFER_MAX bytes or all must go in each write stall limit."""
        left_bytes = transport.get_write_buffer_size()
        if left_bytes > self._untaken_bytes or left_bytes <= max(0, self._untaken_bytes - WRITE_BUFFER_MAX):
            self._untaken_bytes, self._untaken_since_s = left_bytes, now_s
        return left_bytes > 0 and now_s - self._untaken_since_s >= self._owner.write_stall_limit_s
