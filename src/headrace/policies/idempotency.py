"""Was this request made before? Answers kept by tenant and Idempotency-Key, so that work is not done twice."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Generic, TypeVar

from headrace.core.ids import TenantId

Answer = TypeVar("Answer")
KeyOf = tuple[TenantId, bytes]


class Known(Enum):
    """What is known of a key, if its answer is not at hand.

    NEW: nothing; the request is to be done, and `keep` or `drop` follows.
    RUNNING: a request with it is in progress.
    OTHER: it was used for another request.
    TOO_LARGE: its answer was complete, and larger than what is kept.
    PAST: its answer was complete, and is kept no longer, as was agreed with its tenant.
    """

    NEW = "new"
    RUNNING = "running"
    OTHER = "other"
    TOO_LARGE = "too_large"
    PAST = "past"


@dataclass(slots=True)
class _Entry(Generic[Answer]):
    """Owner: the table. `answer` holds once `is_done`; None then means that it was too large, or `is_past`.

    `retention_s` is how long the answer may be kept, where that is less than the key is.
    """

    digest: bytes
    ends_s: float
    retention_s: float | None = None
    answer_ends_s: float = 0.0
    is_past: bool = False
    is_done: bool = False
    answer: Answer | None = None
    size: int = 0


class IdempotencyTable(Generic[Answer]):
    """What has been asked with a key, for `ttl_s` each, and as long as it is in progress. State: `_entries` in the order in
    which they end; `_retained`, by retention, those whose answer has to go sooner, in the order in which it has to.

    Bounded: beyond `entries_max`, or `bytes_max` for all answers, those that end first are forgotten, except those that
    are in progress, of which there are no more than requests in progress.
    """

    def __init__(
        self,
        *,
        ttl_s: float,
        entries_max: int,
        bytes_max: int,
        answer_bytes_max: int,
        size_of: Callable[[Answer], int],
    ) -> None:
        self._size_of = size_of
        self._entries: dict[KeyOf, _Entry[Answer]] = {}
        self._retained: dict[float, dict[KeyOf, None]] = {}
        self._bytes = 0
        self.set_bounds(
            ttl_s=ttl_s,
            entries_max=entries_max,
            bytes_max=bytes_max,
            answer_bytes_max=answer_bytes_max,
            now_s=0.0,
        )

    def set_bounds(
        self, *, ttl_s: float, entries_max: int, bytes_max: int, answer_bytes_max: int, now_s: float
    ) -> None:
        """From now on. What is known already stays no longer than it would if it had come now, and while there is room."""
        assert answer_bytes_max <= bytes_max
        for entry in self._entries.values():  # in the order in which they end, before and after
            entry.ends_s = min(entry.ends_s, now_s + ttl_s)
        self._ttl_s = ttl_s
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self.answer_bytes_max = answer_bytes_max
        self._make_room(0)

    def begin(
        self, tenant: TenantId, key: bytes, *, digest: bytes, now_s: float, retention_s: float | None = None
    ) -> Known | Answer:
        """The answer that was kept for this very request, or what is known of its key. NEW holds the key.

        Args:
            retention_s: The answer may be kept for so long from now; None for as long as the key.
        """
        self.forget_ended(now_s=now_s)
        entry = self._entries.get((tenant, key))
        if entry is None:
            self._make_room(0)
            entry = self._entries[tenant, key] = _Entry(digest, now_s + self._ttl_s)
            if retention_s is not None and retention_s < self._ttl_s:
                entry.retention_s, entry.answer_ends_s = retention_s, now_s + retention_s
                entry.is_past = not retention_s
                self._retained.setdefault(retention_s, {})[tenant, key] = None
            return Known.NEW
        if entry.digest != digest:
            return Known.OTHER
        if not entry.is_done:
            return Known.RUNNING
        if entry.answer is None:
            return Known.PAST if entry.is_past else Known.TOO_LARGE
        return entry.answer

    def keep(self, tenant: TenantId, key: bytes, answer: Answer | None) -> None:
        """The request that `begin` called new was answered; None for an answer that is too large to be kept."""
        entry = self._entries.get((tenant, key))
        if entry is None or entry.is_done:
            return  # it was begun by nobody
        size = 0 if answer is None else self._size_of(answer)
        if size > self.answer_bytes_max or entry.is_past:
            answer, size = None, 0
        self._make_room(size)
        entry.is_done, entry.answer, entry.size = True, answer, size
        self._bytes += size

    def drop(self, tenant: TenantId, key: bytes) -> None:
        """It was not answered: whoever asks again starts anew."""
        entry = self._entries.get((tenant, key))
        if entry is not None and not entry.is_done:
            self._forget((tenant, key), entry)

    def forget(self, tenant: TenantId) -> None:
        """All that is known of a tenant that is gone; what it has in progress will not be kept."""
        for name in [name for name in self._entries if name[0] == tenant]:
            self._forget(name, self._entries[name])

    @property
    def size(self) -> tuple[int, int]:
        """Keys, and bytes of answers."""
        return len(self._entries), self._bytes

    def forget_ended(self, *, now_s: float) -> None:
        """Whose time is over goes; called on a timer as well, so that it goes though nobody asks."""
        for retention_s, names in list(self._retained.items()):
            for name in list(islice(names, 64)):
                entry = self._entries[name]
                if entry.answer_ends_s > now_s:
                    break
                del names[name]
                self._bytes -= entry.size
                entry.is_past, entry.answer, entry.size = True, None, 0
            if not names:
                del self._retained[retention_s]
        for name, entry in list(islice(self._entries.items(), 64)):
            if entry.ends_s > now_s:
                return
            if entry.is_done:
                self._forget(name, entry)
            else:  # forgotten, its work would be done twice
                del self._entries[name]
                entry.ends_s = now_s + self._ttl_s
                self._entries[name] = entry

    def _make_room(self, size: int) -> None:
        while len(self._entries) >= self._entries_max or self._bytes + size > self._bytes_max:
            done = next(((name, entry) for name, entry in self._entries.items() if entry.is_done), None)
            if done is None:
                return
            self._forget(*done)

    def _forget(self, name: KeyOf, entry: _Entry[Answer]) -> None:
        del self._entries[name]
        self._bytes -= entry.size
        if entry.retention_s is not None:
            self._retained.get(entry.retention_s, {}).pop(name, None)
