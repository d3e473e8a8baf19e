"""Which slot of a shared engine, and may its cache be reused? A slot's prefix cache serves only the partition that used it last.

For engines whose prefix cache is common to all callers but cut into slots that the caller may name (llama.cpp): we assign
the slots ourselves and allow reuse only to the same partition (core/isolation.py: a tenant, or what is finer), so nobody can
see or time another's prompts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """A slot for one request.

    Attributes:
        index: Which slot, from 0.
        may_reuse: Whether what the slot's cache holds came from the same partition.
    """

    index: int
    may_reuse: bool


class SlotTable:
    """The slots of one replica that we may give out, `_ours`. `_owner[i]` filled the cache of slot i, None if nobody knows who
    did; it was given out last at tick `_used[i]`, and is in `_busy` while a request holds it."""

    def __init__(self, slots: int) -> None:
        self._ours: set[int] = set()
        self._owner: dict[int, str | None] = {}
        self._used: dict[int, int] = {}
        self._busy: set[int] = set()
        self._tick = 0
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """The replica has more or fewer slots from now on; requests on slots that are no longer given out end there."""
        self._ours = set(range(slots))

    def lend(self, index: int, owner: str | None) -> None:
        """One more slot is ours, and that partition filled its cache."""
        self._ours.add(index)
        self._owner[index] = owner
        self._used.pop(index, None)

    def withdraw(self) -> tuple[int, str | None]:
        """The free slot that was unused for longest is no longer ours; which one, and who filled its cache."""
        index = min(self._free(), key=self._used_at)
        self._ours.remove(index)
        return index, self._owner.get(index)

    def take(self, partition: str) -> SlotGrant:
        """The free slot that this partition used last, else the one unused for longest. A free slot must exist."""
        free = self._free()
        assert free, "slots are given out only below the replica's bound"
        own = [index for index in free if self._owner.get(index) == partition]
        index = max(own, key=self._used_at) if own else min(free, key=self._used_at)
        self._tick += 1
        self._busy.add(index)
        self._owner[index], self._used[index] = None, self._tick
        return SlotGrant(index, may_reuse=bool(own))

    def fill(self, grant: SlotGrant, partition: str) -> None:
        """The engine has generated on this slot for the partition. Until then its cache may still be what it was: a request
        that was refused, or cut before the engine read it, has replaced nothing."""
        assert grant.index in self._busy, "only who holds a slot fills it"
        self._owner[grant.index] = partition

    def give_back(self, grant: SlotGrant) -> None:
        assert grant.index in self._busy, "a slot is given back once"
        self._busy.discard(grant.index)

    def _free(self) -> list[int]:
        return sorted(self._ours - self._busy)

    def _used_at(self, index: int) -> int:
        return self._used.get(index, 0)
