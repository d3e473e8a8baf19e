"""Who may hold how much of what all workers share? The authority's decisions: pools lent piece by piece, rates in blocks.

A pool's rule is max-min: nobody keeps an idle piece that another could use, and while all are in use, whoever has fewest is
next. A rate's rule is the bucket of policies/limits.py; what was lent has left it.
"""

from collections import deque

from headrace.core.leases import (
    AskRate,
    Deny,
    Grant,
    GrantRate,
    Lending,
    LentSlot,
    PoolKey,
    PoolKind,
    Recall,
    Sated,
    WorkerId,
)
from headrace.policies.limits import Bucket, LimitView

# What a worker gets of a rate ahead of its requests is at most this part of a minute's, divided among the workers: 5 % for all.
LEASE_PART = 20

Messages = list[tuple[WorkerId, Lending]]


class Pool:
    """`total` equal pieces of something. What nobody holds is free, but for what settles after a worker was lost.

    State, by worker: `_held`; `_wants`, how many more it has a use for, longest waiting first; `_owed`, what was asked back
    although it is in use; `_told`, who knows that others want it; `_unanswered`, who was told and hasn't said yet what it has;
    `_denied`, who knows that there is nothing to be had.

    Args:
        has_caches: The pieces are slots of an engine with a prefix cache in each, so which one is lent matters.
    """

    def __init__(self, key: PoolKey, total: int, *, workers: int, has_caches: bool = False) -> None:
        self.key = key
        self._workers = workers
        self._total = total
        self._held: dict[WorkerId, int] = {}
        self._wants: dict[WorkerId, int] = {}
        self._owed: dict[WorkerId, int] = {}
        self._told: set[WorkerId] = set()
        self._unanswered: set[WorkerId] = set()
        self._denied: set[WorkerId] = set()
        self._settling = 0
        self._slots = _FreeSlots(total) if has_caches else None

    @property
    def is_over(self) -> bool:
        """Whether there is none of it any more, and nobody holds any or may still use what a lost worker held."""
        return not (self._total or self._held or self._settling)

    @property
    def free(self) -> int:
        """Negative while more is held than there is, because there was more."""
        return self._total - self._settling - sum(self._held.values())

    def held(self, worker: WorkerId) -> int:
        return self._held.get(worker, 0)

    def resize(self, total: int) -> Messages:
        """The pool is larger or smaller from now on; what is held beyond it comes back when it is free."""
        if total == self._total:
            return []
        self._total = total
        if self._slots is not None:
            self._slots.resize(total)
        if self._is_withdrawn:
            self._wants.clear()
        return self._settle()

    def offer(self, worker: WorkerId) -> Messages:
        """An even share, as far as it is free, for a worker that has asked for nothing yet."""
        return self._grant(worker, max(1, self._share) - self.held(worker))

    def want(self, worker: WorkerId, count: int) -> Messages:
        """The worker has a use for `count` more; 0: for none."""
        if self._is_withdrawn:
            return []
        self._denied.discard(worker)  # every question has its answer
        if count > 0:
            self._wants[worker] = count  # who waits already keeps its place
        else:
            self._wants.pop(worker, None)
        return self._settle()

    def returned(self, worker: WorkerId, count: int, slots: list[LentSlot]) -> Messages:
        """The worker has given back `count`, perhaps none: it has answered."""
        self._unanswered.discard(worker)
        self._release(worker, count)
        if self._slots is not None:
            self._slots.returned(worker, slots, unknown=count - len(slots))
        self._owe(worker, -count)
        return self._settle()

    def lost(self, worker: WorkerId, *, settles: bool) -> tuple[int, Messages]:
        """The worker is gone. Returns how many pieces need time to settle: all that it held, or none of them."""
        count = self.held(worker)
        self._release(worker, count)
        self._wants.pop(worker, None)
        self._owed.pop(worker, None)
        for marks in (self._told, self._unanswered, self._denied):
            marks.discard(worker)
        if self._slots is not None:
            self._slots.lost(worker)
            self._slots.settled(0 if settles else count)
        settling = count if settles else 0
        self._settling += settling
        return settling, self._settle()

    def settled(self, count: int) -> Messages:
        """What a lost worker held can be used again."""
        self._settling -= count
        if self._slots is not None:
            self._slots.settled(count)
        return self._settle()

    def stop_waiting(self) -> Messages:
        """Whoever hasn't said what it has doesn't hold up the others any longer."""
        self._unanswered.clear()
        return self._settle()

    @property
    def is_waiting(self) -> bool:
        """Whether somebody who waits for an answer gets none before others have answered."""
        return bool(self._wants and self._unanswered) and self.key.kind is not PoolKind.SLOTS

    @property
    def _is_withdrawn(self) -> bool:
        """Its replica is gone. A worker that still wants slots of it is about to hear that; should it come back, they ask anew."""
        return not self._total and self.key.kind is PoolKind.SLOTS

    @property
    def _share(self) -> int:
        return self._total // self._workers

    def _release(self, worker: WorkerId, count: int) -> None:
        left = self.held(worker) - count
        assert left >= 0, "a worker gives back what it holds"
        if left:
            self._held[worker] = left
        else:
            self._held.pop(worker, None)

    def _owe(self, worker: WorkerId, more: int) -> None:
        owed = self._owed.get(worker, 0) + more
        if owed > 0:
            self._owed[worker] = owed
        else:
            self._owed.pop(worker, None)

    def _settle(self) -> Messages:
        """Grants what is free, asks others for what is missing, and tells who waits when there is nothing to be had."""
        messages: Messages = []
        while self._wants and self.free > 0:
            worker = min(self._wants, key=self.held)  # the longest waiting of those who have fewest
            count = min(self._wants[worker], max(1, self.free // len(self._wants)))
            if len(self._wants) == 1:
                count = max(count, self._share - self.held(worker))
            messages += self._grant(worker, count)
        if self._wants or self.free < 0:
            messages += self._recall()
            if not self._unanswered and self.key.kind is not PoolKind.SLOTS:
                messages += self._deny()
        else:
            messages += [(worker, Sated(self.key)) for worker in sorted(self._told)]
            self._told.clear()
            self._unanswered.clear()
            self._owed.clear()
        return messages

    def _grant(self, worker: WorkerId, count: int) -> Messages:
        count = min(count, self.free)
        if count <= 0:
            return []
        self._held[worker] = self.held(worker) + count
        self._denied.discard(worker)
        left = self._wants.get(worker, 0) - count
        if left > 0:
            self._wants[worker] = left
        else:
            self._wants.pop(worker, None)
        slots = [] if self._slots is None else self._slots.lend(worker, count)
        return [(worker, Grant(self.key, count, self._keeps(worker), slots))]

    def _recall(self) -> Messages:
        """Tells every holder once that others want it, and the largest ones what they owe besides what is idle."""
        before = dict(self._owed)
        self._share_out()
        messages: Messages = []
        for worker in self._held:
            is_news = worker not in self._told and bool(self._wants.keys() - {worker})
            if is_news or self._owed.get(worker, 0) > before.get(worker, 0):
                self._told.add(worker)
                self._unanswered.add(worker)
                messages.append((worker, Recall(self.key, self._keeps(worker))))
        return messages

    def _share_out(self) -> None:
        """Lets the largest holders owe a piece each as long as one who waits has two less, or none at all."""
        over = -self.free
        coming = sum(self._owed.values()) - max(0, over)
        needs = dict(self._wants)
        has = {worker: self._keeps(worker) for worker in needs}
        while self._held:
            donor = max(self._held, key=self._keeps)
            keeps = self._keeps(donor)
            if keeps <= 0:
                return
            if sum(self._owed.values()) < over:
                self._owe(donor, 1)
                continue
            if not needs:
                return
            poorest = min(needs, key=has.__getitem__)
            if coming > 0:
                coming -= 1  # it will get what others owe already
            elif poorest != donor and (keeps >= has[poorest] + 2 or has[poorest] <= 0):
                self._owe(donor, 1)
            else:
                return
            has[poorest] += 1
            needs[poorest] -= 1
            if not needs[poorest]:
                del needs[poorest]

    def _keeps(self, worker: WorkerId) -> int:
        return self.held(worker) - self._owed.get(worker, 0)

    def _deny(self) -> Messages:
        """One piece stays wanted, so that the worker hears when there is one again."""
        self._wants = dict.fromkeys(self._wants, 1)
        told = [worker for worker in self._wants if worker not in self._denied]
        self._denied.update(told)
        return [(worker, Deny(self.key)) for worker in told]


class _FreeSlots:
    """Which slots of a partitioned engine are where: `_free` in the order of their return, `_lent` by worker, `_settling`
    after a worker was lost."""

    def __init__(self, total: int) -> None:
        self._total = 0
        self._free: deque[LentSlot] = deque()
        self._settling: deque[LentSlot] = deque()
        self._lent: dict[WorkerId, dict[int, None]] = {}  # in the order in which they were lent
        self.resize(total)

    def resize(self, total: int) -> None:
        known = {slot.number for slot in (*self._free, *self._settling)}.union(*self._lent.values())
        self._free.extend(LentSlot(index, None) for index in range(total) if index not in known)
        self._total = total

    def lend(self, worker: WorkerId, count: int) -> list[LentSlot]:
        lent = [slot for slot in self._free if slot.number < self._total][:count]
        for slot in lent:
            self._free.remove(slot)
        self._lent.setdefault(worker, {}).update((slot.number, None) for slot in lent)
        return lent

    def returned(self, worker: WorkerId, slots: list[LentSlot], *, unknown: int) -> None:
        """`unknown` more, of which nobody knows whose prompts they hold: all that the worker had when it sent this. What
        was lent to it since is still on its way."""
        mine = self._lent.setdefault(worker, {})
        assert all(slot.number in mine for slot in slots), "a worker gives back the slots that it has"
        for slot in slots:
            del mine[slot.number]
        for number in list(mine)[:unknown]:
            del mine[number]
            self._free.append(LentSlot(number, None))
        self._free.extend(slots)

    def lost(self, worker: WorkerId) -> None:
        """Nobody knows whose prompts they hold now, so nobody may reuse them."""
        self._settling.extend(LentSlot(index, None) for index in sorted(self._lent.pop(worker, {})))

    def settled(self, count: int) -> None:
        self._free.extend(self._settling.popleft() for _ in range(count))


class LentRate:
    """One bucket, from which workers get blocks. State: the bucket, and its size as of the newest revision heard of."""

    def __init__(self, asked: AskRate, *, workers: int, now_s: float) -> None:
        self._workers = workers
        self._revision = asked.revision
        self._per_minute, self._burst = asked.per_minute, asked.burst
        self._bucket = Bucket(asked.burst, now_s)

    def ask(self, asked: AskRate, *, now_s: float) -> GrantRate:
        """As much as is waited for now, and some for those who come soon, or nothing, where what is left helps nobody."""
        bucket = self._bucket
        if asked.revision > self._revision:
            self._revision = asked.revision
            self._per_minute, self._burst = asked.per_minute, asked.burst
            bucket.put_back(0, self._burst)  # a smaller bucket holds less
        bucket.refill(self._per_minute, self._burst, now_s)
        ahead = min(asked.ahead, self._per_minute // (LEASE_PART * self._workers))
        count = max(0, min(int(bucket.left), asked.count + ahead))
        if count < asked.least:
            count = 0
        bucket.left -= count
        return GrantRate(asked.key, count, bucket.left)

    def returned(self, count: int, *, now_s: float) -> None:
        """What comes back unused, or, negative, was used while nobody could ask."""
        self._bucket.refill(self._per_minute, self._burst, now_s)
        self._bucket.put_back(count, self._burst)

    def view(self, *, now_s: float) -> LimitView:
        """What nobody holds."""
        self._bucket.refill(self._per_minute, self._burst, now_s)
        return self._bucket.view(self._per_minute, self._burst)
