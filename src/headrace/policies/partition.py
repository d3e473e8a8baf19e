"""Which slot of a shared engine, and may its cache be reused? A slot's prefix cache serves only the tenant that used it last.

For engines whose prefix cache is common to all callers but cut into slots that the caller may name (llama.cpp): we assign
the slots ourselves and allow reuse only to the same tenant, so no tenant can see or time another's prompts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """A slot for one request.

    Attributes:
        index: Which slot, from 0.
        may_reuse: Whether what the slot's cache holds came from the same tenant.
    """

    index: int
    may_reuse: bool


class SlotTable:
    """The slots of one replica, `_slots` of them. `_owner[i]` filled the cache of slot i, None if nobody knows who did; it was
    given out last at tick `_used[i]`, and is `_busy[i]` while a request holds it."""

    def __init__(self, slots: int) -> None:
        self._slots = 0
        self._owner: list[str | None] = []
        self._used: list[int] = []
        self._busy: list[bool] = []
        self._tick = 0
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """The replica has more or fewer slots from now on; requests on slots that are no longer given out end there."""
        self._slots = slots
        more = max(0, slots - len(self._busy))
        self._owner += [None] * more
        self._used += [0] * more
        self._busy += [False] * more

    def take(self, partition: str) -> SlotGrant:
        """The free slot that this partition used last, else the one unused for longest. A free slot must exist."""
        free = [index for index in range(self._slots) if not self._busy[index]]
        assert free, "slots are given out only below the replica's bound"
        own = [index for index in free if self._owner[index] == partition]
        index = max(own, key=self._used.__getitem__) if own else min(free, key=self._used.__getitem__)
        self._tick += 1
        self._busy[index], self._owner[index], self._used[index] = True, None, self._tick
        return SlotGrant(index, may_reuse=bool(own))

    def fill(self, grant: SlotGrant, partition: str) -> None:
        """The engine has generated on this slot for the partition. Until then its cache may still be what it was: a request
        that was refused, or cut before the engine read it, has replaced nothing."""
        assert self._busy[grant.index], "only who holds a slot fills it"
        self._owner[grant.index] = partition

    def give_back(self, grant: SlotGrant) -> None:
        assert self._busy[grant.index], "a slot is given back once"
        self._busy[grant.index] = False
