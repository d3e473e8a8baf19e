"""Whose waiting work starts next? Reserved slots, then bands of priority, then fair shares of the tenants in a band.

Inside a band tenants share device time: whoever has been given the least of it for its weight goes next, and pays what its
request is predicted to need; the difference is settled when the request ends. That is deficit round robin with rounds of no
length (start-time fair queueing: Goyal, Vin, Cheng 1996). While two tenants wait, what they were given, each divided by its
weight, differs by no more than one request of each. A tenant that comes anew starts level with the one that is served,
so it is next, and no more than that: it can't save up what it didn't use.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from headrace.core.ids import TenantId
from headrace.core.tenant import Priority, TenantShare
from headrace.policies.deadlines import DeadlineQueue

PASSED_OVER_MAX = 8


class Waiting(Protocol):
    """What the queue must know of an entry; `cost_s` and the rest stay as they are while it waits.

    Attributes:
        cost_s: Predicted seconds on a slot.
        body_bytes: What it holds of memory.
        account: Its tenant's account, set by the queue when it starts, until it is settled.
    """

    account: "TenantAccount | None"

    @property
    def deadline_s(self) -> float: ...
    @property
    def tenant(self) -> TenantId: ...
    @property
    def share(self) -> TenantShare: ...
    @property
    def priority(self) -> Priority: ...
    @property
    def cost_s(self) -> float: ...
    @property
    def body_bytes(self) -> int: ...


T = TypeVar("T", bound=Waiting)


class TenantAccount:
    """What one tenant was given in one band while others waited: `served_s` is slot time divided by its weight."""

    __slots__ = ("served_s", "share", "tenant")

    def __init__(self, tenant: TenantId, share: TenantShare) -> None:
        self.tenant = tenant
        self.share = share
        self.served_s = 0.0

    def charge(self, seconds: float) -> None:
        self.served_s += seconds / self.share.weight


class _Flow(TenantAccount, Generic[T]):
    """An account and the work that waits on it."""

    __slots__ = ("body_bytes", "cost_s", "queue")

    def __init__(self, tenant: TenantId, share: TenantShare) -> None:
        super().__init__(tenant, share)
        self.queue: DeadlineQueue[T] = DeadlineQueue()
        self.cost_s = 0.0
        self.body_bytes = 0


class _Band(Generic[T]):
    """One priority: `flows` of all tenants that waited since anybody began to, `waiting` of those who wait now.

    `level_s` is what the one served last had been given before; `passed_over` counts the starts of other bands since.
    """

    __slots__ = ("flows", "level_s", "passed_over", "waiting")

    def __init__(self) -> None:
        self.flows: dict[TenantId, _Flow[T]] = {}
        self.waiting: dict[TenantId, _Flow[T]] = {}
        self.level_s = 0.0
        self.passed_over = 0


class FairQueue(Generic[T]):
    """The queue of one deployment. While nobody waits it holds nothing, and what was given before is forgotten.

    Order: tenants that use less than their reserved slots; then the highest band, but a lower one that was passed over
    PASSED_OVER_MAX times in a row goes first; then the tenant with the least; then the earliest deadline.

    Args:
        running: How many slots each tenant with reserved ones uses now; kept by the caller.
    """

    def __init__(self, running: Mapping[TenantId, int]) -> None:
        self._running = running
        self._bands: tuple[_Band[T], ...] = tuple(_Band() for _ in Priority)
        self._length = 0
        self._owners = 0  # entries of tenants with reserved slots
        self.body_bytes = 0
        self.cost_s = 0.0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        """Those who wait, in no particular order."""
        return (entry for band in self._bands for flow in band.waiting.values() for entry in flow.queue)

    def push(self, entry: T) -> None:
        """Adds an entry, whatever the bounds say: they are the caller's."""
        band = self._bands[entry.priority]
        flow = band.flows.get(entry.tenant)
        if flow is None:
            flow = band.flows[entry.tenant] = _Flow(entry.tenant, entry.share)
        if not flow.queue:
            flow.served_s = max(flow.served_s, band.level_s)
            band.waiting[entry.tenant] = flow
        flow.share = entry.share
        flow.queue.push(entry)
        flow.cost_s += entry.cost_s
        flow.body_bytes += entry.body_bytes
        self._length += 1
        self._owners += entry.share.reserved_slots > 0
        self.body_bytes += entry.body_bytes
        self.cost_s += entry.cost_s

    def remove(self, entry: T) -> bool:
        """Takes an entry out wherever it stands; False if it wasn't waiting."""
        band = self._bands[entry.priority]
        flow = band.waiting.get(entry.tenant)
        if flow is None or not flow.queue.remove(entry):
            return False
        self._left(band, flow, entry)
        return True

    def pop(self, accepts: Callable[[T], bool]) -> T | None:
        """The next entry that `accepts`, charged to its tenant; None if there is none."""
        for band, flow, is_owner in self._in_order():
            entry = flow.queue.pop(accepts)
            if entry is not None:
                self._charge(band, flow, entry)
                if not is_owner:
                    self._count_passing(band)
                self._left(band, flow, entry)
                return entry
        return None

    def pop_late(self, now_s: float, needs_s: Callable[[T], float]) -> T | None:
        """An entry that is the next of its tenant and has no more time left than it needs, or None; nobody is charged for it."""
        for band in self._bands:
            for flow in band.waiting.values():
                entry = flow.queue.pop_late(now_s, needs_s)
                if entry is not None:
                    self._left(band, flow, entry)
                    return entry
        return None

    def settle(self, entry: T, held_s: float) -> None:
        """An entry that was popped has given its slot back: what it took more or less than predicted is charged."""
        account, entry.account = entry.account, None
        if account is not None:
            account.charge(held_s - entry.cost_s)

    def displace_for(self, entry: T, *, by_bytes: bool) -> T | None:
        """Takes out the entry that must make room for this one, or None if this one must go.

        From a lower band, or else from a tenant of its own band that would still hold more of the queue for its weight
        than this one's tenant: the one that holds the most loses the last of its entries. What waits for a slot of its
        tenant's own is never displaced.

        Args:
            by_bytes: What the queue lacks, bytes or places.
        """

        def held(flow: _Flow[T] | None) -> float:
            return 0.0 if flow is None else float(flow.body_bytes if by_bytes else len(flow.queue))

        for band in self._bands[: entry.priority + 1]:
            flows = [flow for flow in band.waiting.values() if len(flow.queue) > self._owed(flow)]
            if not flows:
                continue
            longest = max(flows, key=lambda flow: held(flow) / flow.share.weight)
            if band is self._bands[entry.priority]:
                grown = held(band.waiting.get(entry.tenant)) + (entry.body_bytes if by_bytes else 1)
                if grown / entry.share.weight >= held(longest) / longest.share.weight:
                    return None
            victim = longest.queue.last()
            longest.queue.remove(victim)
            self._left(band, longest, victim)
            return victim
        return None

    def ahead_s(self, entry: T, *, typical_s: float) -> float:
        """Device-seconds of what would start before this entry, were it to join now.

        Its tenant's own work with earlier deadlines; of each other tenant what it is given until this one's turn; of
        higher bands everything, but no more than may pass this band over meanwhile.

        Args:
            typical_s: What one request needs.
        """
        band = self._bands[entry.priority]
        own = band.flows.get(entry.tenant)
        own_s = served_s = 0.0
        if own is not None:
            served_s = own.served_s
            own_s = sum(other.cost_s for other in own.queue if other.deadline_s <= entry.deadline_s)
        turn_s = max(served_s, band.level_s) + own_s / entry.share.weight
        ahead_s = own_s
        for flow in band.waiting.values():
            if flow is not own and flow.served_s < turn_s:
                ahead_s += min(flow.cost_s, (turn_s - flow.served_s) * flow.share.weight)
        higher_s = sum(
            flow.cost_s for above in self._bands[entry.priority + 1 :] for flow in above.waiting.values()
        )
        return ahead_s + min(higher_s, PASSED_OVER_MAX * (ahead_s + typical_s))

    @property
    def owes(self) -> bool:
        """Whether somebody waits for a slot of its tenant's own."""
        return self._owners > 0 and any(
            self._owed(flow) for band in self._bands for flow in band.waiting.values()
        )

    def is_owed(self, entry: T) -> bool:
        """Whether this entry, were it to join now, would wait for a slot of its tenant's own."""
        reserved = entry.share.reserved_slots
        if not reserved:
            return False
        waiting = sum(
            len(band.waiting[entry.tenant].queue) for band in self._bands if entry.tenant in band.waiting
        )
        return self._running.get(entry.tenant, 0) + waiting < reserved

    def _in_order(self) -> Iterator[tuple[_Band[T], _Flow[T], bool]]:
        if self._owners:
            owners = [
                (self._running.get(flow.tenant, 0) / flow.share.reserved_slots, index, band, flow)
                for band in reversed(self._bands)
                for index, flow in enumerate(band.waiting.values())
                if self._owed(flow)
            ]
            for _, _, band, flow in sorted(owners, key=lambda owner: owner[:2]):
                yield band, flow, True
        for band in self._bands_in_order():
            flows = list(band.waiting.values())
            if len(flows) > 1:
                flows.sort(key=_served_s)
            for flow in flows:
                yield band, flow, False

    def _bands_in_order(self) -> list[_Band[T]]:
        waiting = [band for band in reversed(self._bands) if band.waiting]
        if len(waiting) > 1:
            waiting.sort(key=lambda band: band.passed_over < PASSED_OVER_MAX)  # stable: else the higher first
        return waiting

    def _owed(self, flow: _Flow[T]) -> int:
        """Slots of its own that the tenant doesn't use."""
        reserved = flow.share.reserved_slots
        return reserved and max(0, reserved - self._running.get(flow.tenant, 0))

    def _charge(self, band: _Band[T], flow: _Flow[T], entry: T) -> None:
        band.level_s = max(band.level_s, flow.served_s)
        flow.charge(entry.cost_s)
        entry.account = flow

    def _count_passing(self, served: _Band[T]) -> None:
        for band in self._bands:
            if band.waiting and band is not served:
                band.passed_over += 1
        served.passed_over = 0

    def _left(self, band: _Band[T], flow: _Flow[T], entry: T) -> None:
        flow.cost_s -= entry.cost_s
        flow.body_bytes -= entry.body_bytes
        self._length -= 1
        self._owners -= entry.share.reserved_slots > 0
        self.body_bytes -= entry.body_bytes
        self.cost_s -= entry.cost_s
        if not flow.queue:
            flow.cost_s = 0.0  # what rounding left
            del band.waiting[flow.tenant]
            if not band.waiting:
                band.passed_over = 0
        if not self._length:
            self.cost_s = 0.0
            for each in self._bands:
                each.flows.clear()
                each.level_s = 0.0


def _served_s(flow: TenantAccount) -> float:
    return flow.served_s
