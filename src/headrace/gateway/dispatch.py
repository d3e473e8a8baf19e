"""Awaits the dispatcher's verdict and holds the slot: limits, admission and balancing before the work, release after it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

from headrace.core.clock import Clock
from headrace.core.errors import DeadlineExceeded, NoReadyReplica, OverloadError, RequestError, Saturated
from headrace.core.fleet import Deployment, FleetSnapshot, Replica
from headrace.core.ids import ReplicaId, TargetKey, TenantId
from headrace.core.outcome import AttemptOutcome, Reason
from headrace.core.request import InferenceRequest
from headrace.core.tenant import Principal
from headrace.core.usage import TokenUsage
from headrace.gateway.budgets import Reservations
from headrace.gateway.shadow import OwnShadow, Shadow
from headrace.policies.admission import QueueBounds, retry_after_s
from headrace.policies.deployment import QueueView
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import Circuit, HealthRules, ReplicaHealth
from headrace.policies.levels import Demand, Level, Receipt, demand_of
from headrace.policies.limits import LevelUse, LimitView, TenantLimiter
from headrace.policies.routing import RoutingTable
from headrace.policies.shadow import ShadowView
from headrace.policies.tickets import (
    Action,
    Expire,
    ReplicaKey,
    ReplicaLoad,
    ReplicaSlots,
    Shed,
    Start,
    Ticket,
)


class Limiter(Protocol):
    """Who counts the tenants' requests: policies.limits.TenantLimiter, or what leases from one that others share."""

    def take(self, principal: Principal, *, now_s: float) -> None:
        """Counts one request in of a tenant without `has_levels`, or raises RateLimited or ConcurrencyLimited and counts
        nothing."""
        ...

    def release(self, tenant: TenantId) -> None:
        """The request that `take` counted in has ended."""
        ...

    def take_levels(self, principal: Principal, demand: Demand, *, now_s: float) -> Receipt:
        """As `take`, of every level that applies; raises InvalidRequest too."""
        ...

    def release_levels(self, receipt: Receipt) -> None:
        """The request that `take_levels` counted in has ended; `settle` follows."""
        ...

    def settle(self, receipt: Receipt, usage: TokenUsage, *, now_s: float) -> None:
        """Takes for a request the tokens that it really used."""
        ...

    def in_progress(self, subject: str) -> int:
        """Requests that count for one limit's subject."""
        ...

    def view(self, principal: Principal, *, now_s: float) -> LimitView | None:
        """The tenant's requests for the rate-limit headers; None without a rate limit."""
        ...

    def view_levels(
        self, principal: Principal, model: str, *, now_s: float
    ) -> tuple[LimitView | None, LimitView | None]:
        """Requests and tokens of the tightest levels."""
        ...


class Dispatch:
    """Drives the state machine in policies/dispatch.py with futures. Owner of `_waiters`, one for each waiting ticket."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        limiter: Limiter,
        reservations: Reservations[Any],
        *,
        shadow: Shadow,
        clock: Clock,
        queue_wait_max_s: float,
        on_circuit: Callable[[Replica, Circuit], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._limiter = limiter
        self._shadow = shadow
        self._reservations = reservations
        self._clock = clock
        self._queue_wait_max_s = queue_wait_max_s
        self._on_circuit = on_circuit
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}

    def slot(self, request: InferenceRequest) -> "Slot":
        """`with`: counts the request in and holds a slot of a replica, or a place in the queue. Raises OverloadError."""
        return Slot(self, request)

    def publish(self, snapshot: FleetSnapshot) -> None:
        self._perform(self._dispatcher.publish(snapshot, now_s=self._clock.now_s()))

    def wake(self) -> None:
        """Called a few times a second; see Dispatcher.look and Dispatcher.wake."""
        for replica in self._dispatcher.look(now_s=self._clock.now_s()):
            self._on_circuit(replica, Circuit.OPEN)
        self._perform(self._dispatcher.wake(now_s=self._clock.now_s()))

    def found(self, replica: ReplicaId) -> None:
        """A probe has found a replica after it had not answered one."""
        self._dispatcher.found(replica, now_s=self._clock.now_s())

    def set_slots(self, key: ReplicaKey, slots: int | None) -> None:
        """This process may use that many slots of a replica from now on; see Dispatcher.set_slots."""
        self._perform(self._dispatcher.set_slots(key, slots, now_s=self._clock.now_s()))

    def go_by(self, bounds: QueueBounds, health: HealthRules, *, is_adaptive: bool) -> None:
        """Other bounds and rules for everybody who comes to a queue or a replica from now on."""
        self._queue_wait_max_s = bounds.wait_max_s
        self._dispatcher.set_rules(bounds, health, is_adaptive=is_adaptive)

    @property
    def routing(self) -> RoutingTable:
        return self._dispatcher.routing

    @property
    def version(self) -> int:
        """Of the snapshot that is served from."""
        return self._dispatcher.version

    def deployments(self) -> list[Deployment]:
        """Every target."""
        return list(self._dispatcher.deployments())

    def loads(self) -> Iterator[tuple[TargetKey, ReplicaLoad]]:
        return self._dispatcher.loads()

    def in_flight(self) -> Mapping[TargetKey, int]:
        """What runs for each target, also on replicas that serve it no longer."""
        return self._dispatcher.in_flight()

    def all_slots(self) -> Iterable[tuple[ReplicaKey, ReplicaSlots]]:
        return self._dispatcher.all_slots()

    def queue_length(self, target: TargetKey) -> int:
        return self._dispatcher.queue_length(target)

    def queue(self, target: TargetKey) -> QueueView:
        return self._dispatcher.queue(target, now_s=self._clock.now_s())

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def in_progress(self, subject: str) -> int:
        """Requests that count for one limit's subject, such as a tenant."""
        return self._limiter.in_progress(subject)

    def use(self, level: Level) -> LevelUse:
        """Of a limit that nobody else keeps."""
        assert isinstance(self._limiter, TenantLimiter), "what workers share is known to the service"
        return self._limiter.use(level, now_s=self._clock.now_s())

    def shadow_view(self, tenant: TenantId) -> ShadowView:
        """What shadow limits would have refused, where nobody else judges."""
        assert isinstance(self._shadow, OwnShadow), "what workers send is judged by the service"
        return self._shadow.view(tenant, now_s=self._clock.now_s())

    def limit_view(self, principal: Principal) -> LimitView | None:
        return self._limiter.view(principal, now_s=self._clock.now_s())

    def limit_views(self, principal: Principal, model: str) -> tuple[LimitView | None, LimitView | None]:
        """Requests and tokens, for callers with `has_levels`."""
        return self._limiter.view_levels(principal, model, now_s=self._clock.now_s())

    def settle(self, receipt: Receipt, usage: TokenUsage) -> None:
        """A request that took tokens has ended, and this is what it used."""
        now_s = self._clock.now_s()
        self._limiter.settle(receipt, usage, now_s=now_s)
        if receipt.shadow:
            self._shadow.end(receipt.shadow, usage, now_s=now_s)

    # Called by slots.

    def enter(self, ticket: Ticket, request: InferenceRequest) -> bool:
        """True: the ticket runs. False: it waits, and `wait` is next. Raises OverloadError, and then nothing is held."""
        now_s, principal = self._clock.now_s(), request.principal
        has_levels = principal.has_levels
        if has_levels:
            ticket.receipt = self._limiter.take_levels(principal, demand_of(request), now_s=now_s)
        else:
            self._limiter.take(principal, now_s=now_s)
        try:
            if self._reservations.has_quota(principal.tenant):
                self._reserve(ticket, request)
            try:
                starts = self._placed(ticket, now_s=now_s)
            except Saturated:
                if not self._dispatcher.take_over(ticket):
                    raise
                starts = self._placed(ticket, now_s=now_s)
        except Exception:  # whatever refuses it, what it took is given back
            self._release(ticket)
            raise
        if has_levels and principal.shadow is not None and ticket.receipt is not None:
            ticket.receipt.shadow = self._shadow.begin(principal.shadow, ticket.receipt.demand, now_s=now_s)
        return starts

    def _placed(self, ticket: Ticket, *, now_s: float) -> bool:
        """Whether it starts at its target, or has a place in the queue there. Raises OverloadError where it has neither."""
        starts = self._dispatcher.arrive(ticket, now_s=now_s)
        if not starts:
            self._check_place(ticket)
            self._perform(self._dispatcher.wait(ticket, now_s=now_s))
        return starts

    def enter_if_idle(self, ticket: Ticket, request: InferenceRequest) -> bool:
        """Lets a request run that nobody waits for, if its target has slots to spare and nobody waits for one; else nothing is
        held."""
        if not self._dispatcher.has_room_to_spare(ticket.target):
            return False
        now_s = self._clock.now_s()
        self._limiter.take(request.principal, now_s=now_s)
        try:
            starts = self._dispatcher.arrive(ticket, now_s=now_s)
        except (OverloadError, RequestError, DeadlineExceeded):
            starts = False
        if not starts:
            self._release(ticket)
        return starts

    def has_alternative(self, ticket: Ticket) -> bool:
        return self._dispatcher.has_alternative(ticket, now_s=self._clock.now_s())

    def _reserve(self, ticket: Ticket, request: InferenceRequest) -> None:
        """What the request may use of its budgets is its own until its record says what it has used."""
        self._reservations.reserve(request, self._dispatcher.deployment(ticket.target))

    def _check_place(self, ticket: Ticket) -> None:
        """For those who share their queues with others: raises what keeps this ticket from queueing at the moment."""

    def can_fall_back(self, ticket: Ticket) -> bool:
        return self._dispatcher.can_fall_back(ticket)

    async def fall_back(self, ticket: Ticket) -> None:
        """The accepted target for a ticket that another one has failed; waits if it must. Raises as `move` does."""
        if not self._dispatcher.fall_back(ticket, now_s=self._clock.now_s()):
            try:
                await self.wait(ticket)
            except (OverloadError, DeadlineExceeded):
                ticket.moved_to = None  # it never got there
                raise

    async def move(self, ticket: Ticket) -> None:
        """Another replica for a ticket whose attempt failed; waits if it must. Raises OverloadError or DeadlineExceeded."""
        if not self._dispatcher.retry(ticket, now_s=self._clock.now_s()):
            await self.wait(ticket)

    def give_back(
        self,
        ticket: Ticket,
        outcome: AttemptOutcome,
        *,
        retry_after_s: float | None = None,
        ttft_s: float | None = None,
        output_tokens: int = 0,
    ) -> None:
        """The attempt has ended; its slot is free for whoever waits. The rest is as in Dispatcher.give_back."""
        load = ticket.load
        circuit, actions = self._dispatcher.give_back(
            ticket,
            outcome,
            now_s=self._clock.now_s(),
            retry_after_s=retry_after_s,
            ttft_s=ttft_s,
            output_tokens=output_tokens,
        )
        if circuit is not None and load is not None:
            self._on_circuit(load.replica, circuit)
        if actions:
            self._perform(actions)

    def leave(self, ticket: Ticket) -> None:
        """The request is over."""
        if ticket.load is not None:
            self.give_back(ticket, AttemptOutcome.CANCELLED)
        self._release(ticket)

    def _release(self, ticket: Ticket) -> None:
        if ticket.receipt is None:
            self._limiter.release(ticket.tenant)
        else:
            self._limiter.release_levels(ticket.receipt)

    async def wait(self, ticket: Ticket) -> None:
        """Waits until the ticket runs. Raises when its time in the queue or its deadline is over, or its model is gone."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[ticket] = waiter
        now_s = self._clock.now_s()
        time_left_s = ticket.deadline_s - now_s
        wait_max_s = self._queue_wait_max_s + (self._dispatcher.wakes_s(ticket.target, now_s=now_s) or 0.0)
        timer = loop.call_later(min(wait_max_s, time_left_s), _time_out, waiter)
        try:
            await waiter
        except TimeoutError:
            # A slot may have come in the very moment that the time ran out: then it counts as in time.
            if ticket.load is None:
                self._dispatcher.leave(ticket, now_s=self._clock.now_s())
                if time_left_s <= wait_max_s:
                    raise DeadlineExceeded(
                        "the deadline passed while the request waited for a free slot"
                    ) from None
                raise self._waited_too_long(ticket, wait_max_s) from None
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # looked at, or asyncio would report what nobody awaits any more
            if ticket.load is not None:
                self.give_back(ticket, AttemptOutcome.CANCELLED)
            else:
                self._dispatcher.leave(ticket, now_s=self._clock.now_s())
            raise
        finally:
            timer.cancel()
            del self._waiters[ticket]

    def _waited_too_long(self, ticket: Ticket, wait_max_s: float) -> NoReadyReplica | Saturated:
        now_s = self._clock.now_s()
        wakes_s = self._dispatcher.wakes_s(ticket.target, now_s=now_s)
        if wakes_s is not None:
            return NoReadyReplica(
                "no replica of this model became ready in time", retry_after_s=retry_after_s(wakes_s)
            )
        return Saturated(
            f"no slot became free within {wait_max_s:.0f} s",
            retry_after_s=retry_after_s(self._dispatcher.expected_wait_s(ticket.target, now_s=now_s)),
            reason=Reason.QUEUE_TIME_OVER,
        )

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            waiter = self._waiters.get(action.ticket)
            assert waiter is not None, "only waiting tickets are acted on"
            match action:
                case Start():
                    if not waiter.done():
                        waiter.set_result(None)
                case Expire(_, is_withdrawn):
                    if not waiter.done():
                        waiter.set_exception(_expired(is_withdrawn=is_withdrawn))
                case Shed(_, come_back_s):
                    if not waiter.done():
                        waiter.set_exception(
                            Saturated(
                                "the queue is full, and others have more right to its places",
                                retry_after_s=come_back_s,
                                reason=Reason.DISPLACED,
                            )
                        )


def _expired(*, is_withdrawn: bool) -> DeadlineExceeded | NoReadyReplica:
    if is_withdrawn:
        return NoReadyReplica("the model is no longer offered", retry_after_s=5.0)
    return DeadlineExceeded(
        "the request waited for a free slot until its deadline was too near for any answer"
    )


def _time_out(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class Slot:
    """A place on a replica for one request, given back exactly once however the request ends.

    Attributes:
        is_held: Whether a replica is ours; if not, `wait` is next.
    """

    __slots__ = ("_dispatch", "_request", "is_held", "ticket")

    def __init__(self, dispatch: Dispatch, request: InferenceRequest) -> None:
        self._dispatch = dispatch
        self._request = request
        self.is_held = False
        principal = request.principal
        self.ticket = Ticket(
            model=request.model,
            target=request.target,
            is_pinned=request.is_pinned,
            tenant=principal.tenant,
            partition=principal.cache_partition,
            locations=principal.terms.locations,
            deadline_s=request.deadline_s,
            share=principal.share,
            priority=request.priority,
            prompt_bytes=request.prompt_bytes,
            output_tokens_max=request.output_tokens_max,
            body_bytes=len(request.canonical),
        )

    def __enter__(self) -> "Slot":
        self.is_held = self._dispatch.enter(self.ticket, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dispatch.leave(self.ticket)

    async def wait(self) -> None:
        """Waits in the queue for a replica. Raises OverloadError or DeadlineExceeded."""
        await self._dispatch.wait(self.ticket)
        self.is_held = True

    @property
    def replica(self) -> Replica:
        load = self.ticket.load
        assert load is not None, "the slot was given back"
        return load.replica

    @property
    def health(self) -> ReplicaHealth:
        load = self.ticket.load
        assert load is not None, "the slot was given back"
        return load.health

    def fill(self) -> None:
        """The replica has generated for this request: where caches are partitioned, its slot's is its partition's now."""
        load, grant = self.ticket.load, self.ticket.grant
        if grant is not None and load is not None and load.shared.slot_table is not None:
            load.shared.slot_table.fill(grant, self.ticket.partition)

    def give_back(
        self,
        outcome: AttemptOutcome,
        *,
        retry_after_s: float | None = None,
        ttft_s: float | None = None,
        output_tokens: int = 0,
    ) -> None:
        """The attempt on this replica has ended; `move` may follow. The rest is as in Dispatcher.give_back."""
        self._dispatch.give_back(
            self.ticket, outcome, retry_after_s=retry_after_s, ttft_s=ttft_s, output_tokens=output_tokens
        )

    @property
    def has_alternative(self) -> bool:
        """Whether `move` has somewhere to go, now or after a wait."""
        return self._dispatch.has_alternative(self.ticket)

    async def move(self) -> None:
        """Takes a slot on another replica."""
        await self._dispatch.move(self.ticket)

    @property
    def can_fall_back(self) -> bool:
        """Whether `fall_back` has somewhere to go."""
        return self._dispatch.can_fall_back(self.ticket)

    async def fall_back(self) -> None:
        """Takes a slot of the accepted target, after another has failed."""
        await self._dispatch.fall_back(self.ticket)
