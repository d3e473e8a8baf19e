"""dispatch.py for one worker of several: slots and places in queues are leased, and a request may wait for a lease."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.core.clock import Clock
from headrace.core.fleet import FleetSnapshot, Replica
from headrace.core.ids import TargetKey
from headrace.core.leases import (
    ANSWER_LIMIT_S,
    Asking,
    EscrowLending,
    GrantRate,
    Lending,
    LentSlot,
    PoolKey,
    PoolKind,
    Shadowed,
    slots_of,
)
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import InferenceRequest
from headrace.core.tenant import Principal
from headrace.gateway.dispatch import Dispatch, Slot
from headrace.gateway.leased_budgets import LeasedReservations
from headrace.gateway.leased_limits import LeasedLimiter, SubjectStock
from headrace.gateway.leases import Lacking, Leases, Stock
from headrace.gateway.shadow import SentShadow
from headrace.policies import admission
from headrace.policies.admission import QueueBounds
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import Circuit, HealthRules
from headrace.policies.tickets import ReplicaKey, ReplicaSlots, Ticket


class LeasedDispatch(Dispatch):
    """Owner of the leases of this worker. `send` carries questions to the authority; `received` gets what it says.

    Args:
        dispatcher: One whose replicas begin without slots and whose queues begin without places.
        sharers: How many workers share the limits, over all hosts.
        queue_length_max: The bound of each queue, over all workers.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        reservations: LeasedReservations,
        *,
        send: Callable[[Asking | Shadowed], None],
        sharers: int,
        queue_length_max: int,
        queue_wait_max_s: float,
        on_circuit: Callable[[Replica, Circuit], None],
        clock: Clock,
    ) -> None:
        self._queue_length_max = queue_length_max
        self._leased_reservations = reservations
        self._leases = Leases(send, make=self._make_stock, clock=clock)
        self._leased_limiter = LeasedLimiter(self._leases, send, sharers=sharers, clock=clock)
        self._sent_shadow = SentShadow(send)
        super().__init__(
            dispatcher,
            self._leased_limiter,
            reservations,
            shadow=self._sent_shadow,
            clock=clock,
            queue_wait_max_s=queue_wait_max_s,
            on_circuit=on_circuit,
        )

    def received(self, message: Lending) -> None:
        """The authority has said something."""
        if isinstance(message, GrantRate):
            self._leased_limiter.received(message)
            return
        if isinstance(message, EscrowLending):
            self._leases.heard()
            self._leased_reservations.received(message)
            return
        self._leases.received(message)
        self._drop_if_gone(self._leases.stock(message.key))

    def busy_subjects(self) -> dict[str, int]:
        """Requests in progress here, of every limit's subject that has any."""
        return self._leased_limiter.busy_subjects()

    def limits_changed(self, principals: list[Principal], *, revision: int) -> None:
        """Tenants and their limits as they are now."""
        self._leased_limiter.changed(principals, revision=revision)

    def slot(self, request: InferenceRequest) -> Slot:
        return LeasedSlot(self, request)

    def publish(self, snapshot: FleetSnapshot) -> None:
        super().publish(snapshot)
        offered = {slots_of(load.replica) for _, load in self.loads()}
        for stock in self._leases:
            stock.changed(())  # a model that came back begins without places, as everyone new
            if isinstance(stock, _SlotStock) and stock.key not in offered:
                stock.wanted = 0  # the authority has heard it too
            elif isinstance(stock, _QueueStock):
                self._resize(stock)
            self._drop_if_gone(stock)
        self._ask_for_slots()

    def go_by(self, bounds: QueueBounds, health: HealthRules, *, is_adaptive: bool) -> None:
        super().go_by(replace(bounds, length_max=0), health, is_adaptive=is_adaptive)
        self._queue_length_max = bounds.length_max
        for stock in self._leases:
            if isinstance(stock, _QueueStock):
                stock.changed(())  # places are lent, by the new bound as by the old
                self._resize(stock)

    def wake(self) -> None:
        self._leased_limiter.tick(self._clock.now_s())
        self._leased_reservations.tick(self._clock.wall_s())
        self._sent_shadow.flush()
        super().wake()
        self._ask_for_slots()

    def give_back(
        self,
        ticket: Ticket,
        outcome: AttemptOutcome,
        *,
        retry_after_s: float | None = None,
        ttft_s: float | None = None,
        output_tokens: int = 0,
    ) -> None:
        load = ticket.load
        super().give_back(
            ticket, outcome, retry_after_s=retry_after_s, ttft_s=ttft_s, output_tokens=output_tokens
        )
        if self._leases.pressed and load is not None:
            self._freed(slots_of(load.replica))
            self._freed(PoolKey(PoolKind.QUEUE, ticket.target))

    def enter_if_idle(self, ticket: Ticket, request: InferenceRequest) -> bool:
        if super().enter_if_idle(ticket, request):
            return True
        for target, load in self.loads():
            if target == ticket.target:  # nobody waits for them here, so nothing else would ask
                stock = self._leases.stock(slots_of(load.replica))
                assert isinstance(stock, _SlotStock), "that is what it is the key of"
                stock.is_wished = True
                self._leases.ask(stock)
        return False

    async def wait(self, ticket: Ticket) -> None:
        self._ask_for_slots()
        try:
            await super().wait(ticket)
        finally:
            self._freed(PoolKey(PoolKind.QUEUE, ticket.target))

    def _reserve(self, ticket: Ticket, request: InferenceRequest) -> None:
        try:
            super()._reserve(ticket, request)
        except Lacking:
            self._leased_limiter.refund(ticket)
            raise

    def _check_place(self, ticket: Ticket) -> None:
        """Raises Lacking if the queue is full here, and perhaps not elsewhere."""
        stock = self._leases.stock(PoolKey(PoolKind.QUEUE, ticket.target))
        queued = stock.in_use()
        if queued < stock.usable or stock.is_denied or not self._queue_length_max:
            return
        self._leased_limiter.refund(ticket)
        wait_s = self._dispatcher.expected_wait_s(ticket.target, now_s=self._clock.now_s())
        refusal = admission.full(queued=queued, wait_s=wait_s)
        raise Lacking(refusal, lambda: self._leases.ask(stock))

    async def obtain(self, lacking: Lacking, *, until_s: float) -> None:
        await self._leases.obtain(lacking, until_s=until_s)

    def obtain_until_s(self, ticket: Ticket) -> float:
        """How long a request that comes now may wait for leases."""
        return min(self._clock.now_s() + ANSWER_LIMIT_S, ticket.deadline_s)

    def _drop_if_gone(self, stock: Stock) -> None:
        """Slots of a replica that has left the fleet, without work of ours, are of no use to us."""
        if isinstance(stock, _SlotStock) and stock.slots is None:
            self._leases.drop(stock)
            self.set_slots((stock.key.replica, stock.key.generation), None)

    def _places(self, target: TargetKey) -> int:
        """Of a queue, over all workers."""
        deployment = self._dispatcher.routing.find(target)
        if deployment is None or deployment.replicas or not deployment.waiting_room_max:
            return self._queue_length_max
        return min(self._queue_length_max, deployment.waiting_room_max)

    def _resize(self, stock: Stock) -> None:
        """A queue may have become a waiting room, or be one no longer; and who waited may have been handed over."""
        total = self._places(stock.key.name)
        if total != stock.total:
            stock.total = total
            self._leases.tell_limit(stock)
        self._freed(stock.key)

    def _ask_for_slots(self) -> None:
        """Of every replica that somebody waits for, also of one that is new, or that may run more than it could."""
        for target, load in self.loads():
            if self.queue_length(target):
                self._leases.ask(self._leases.stock(slots_of(load.replica)))

    def _freed(self, key: PoolKey) -> None:
        if key in self._leases.pressed:
            self._leases.freed(key)
            self._drop_if_gone(self._leases.stock(key))

    def _make_stock(self, key: PoolKey) -> Stock:
        match key.kind:
            case PoolKind.CONCURRENCY:
                return SubjectStock(key)
            case PoolKind.QUEUE:
                return _QueueStock(key, self._dispatcher, total=self._places(key.name))
            case PoolKind.SLOTS:
                return _SlotStock(key, self._dispatcher, self.set_slots)


class LeasedSlot(Slot):
    """A slot of a request that may have to wait for a lease before it is counted in."""

    __slots__ = ("_is_in", "_lacking", "_leased")

    def __init__(self, dispatch: LeasedDispatch, request: InferenceRequest) -> None:
        super().__init__(dispatch, request)
        self._leased = dispatch
        self._lacking: Lacking | None = None
        self._is_in = False

    def __enter__(self) -> "LeasedSlot":
        self._enter()
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_in:
            self._dispatch.leave(self.ticket)

    async def wait(self) -> None:
        if self._lacking is not None:
            until_s = self._leased.obtain_until_s(self.ticket)
            while self._lacking is not None:
                await self._leased.obtain(self._lacking, until_s=until_s)
                self._enter()
            if self.is_held:
                return
        await super().wait()

    def _enter(self) -> None:
        try:
            self.is_held = self._dispatch.enter(self.ticket, self._request)
            self._lacking = None
            self._is_in = True
        except Lacking as lacking:
            self._lacking = lacking
            self.ticket.receipt = None  # given back, if it was counted in already


class _QueueStock(Stock):
    """Places in the queue of one model."""

    def __init__(self, key: PoolKey, dispatcher: Dispatcher, *, total: int) -> None:
        super().__init__(key, total=total)
        self._dispatcher = dispatcher

    def in_use(self) -> int:
        return self._dispatcher.queue_length(self.key.name)

    def changed(self, lent: Sequence[LentSlot]) -> None:
        self._dispatcher.set_queue_length_max(self.key.name, self.usable)


class _SlotStock(Stock):
    """Slots of one replica, for all of its models. State: `is_wished`, one is of use to who waits in no queue."""

    def __init__(
        self, key: PoolKey, dispatcher: Dispatcher, set_slots: Callable[[ReplicaKey, int], None]
    ) -> None:
        super().__init__(key)
        self._dispatcher = dispatcher
        self._set_slots = set_slots
        self._replica: ReplicaKey = (key.replica, key.generation)
        self.is_wished = False

    @property
    def slots(self) -> ReplicaSlots | None:
        return self._dispatcher.slots(self._replica)

    def in_use(self) -> int:
        slots = self.slots
        return 0 if slots is None else slots.outstanding

    def wish(self) -> int:
        slots = self.slots
        if slots is None or slots.slots < slots.slots_max:  # it is not for the lease that we have too few
            return 0
        return sum(self._dispatcher.queue_length(target) for target in slots.targets) or int(self.is_wished)

    def changed(self, lent: Sequence[LentSlot]) -> None:
        self.is_wished = False
        slots = self.slots
        if slots is not None and slots.slot_table is not None:
            for index, last_partition in lent:
                slots.slot_table.lend(index, last_partition)
        self._set_slots(self._replica, self.usable)

    def withdraw(self, count: int) -> list[LentSlot]:
        slots = self.slots
        if slots is None or slots.slot_table is None:
            return []
        return [LentSlot(*slots.slot_table.withdraw()) for _ in range(count)]
