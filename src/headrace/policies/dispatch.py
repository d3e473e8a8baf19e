"""Who runs where, and when? The state machine that sequences routing, admission, balancing, health and retries; it does no I/O.

The gateway drives it with sockets; a simulator can drive the same code with an event heap. Every method takes the time and
returns what the driver must do: `Start` a ticket on a replica, `Expire` one whose deadline passed in the queue, or `Shed` one
whose place went to another.
"""

from collections.abc import ItemsView, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from headrace.core.chance import Chance
from headrace.core.errors import DeadlineExceeded, ModelNotFound, NoReadyReplica
from headrace.core.fleet import Deployment, FleetSnapshot, Replica
from headrace.core.ids import ReplicaId, TargetKey, TenantId
from headrace.core.outcome import AttemptOutcome
from headrace.policies import admission, balancing, locations
from headrace.policies.admission import QueueBounds
from headrace.policies.deployment import DeploymentState, QueueView
from headrace.policies.health import Circuit, HealthRules
from headrace.policies.replica_books import ReplicaBooks
from headrace.policies.routing import RoutingTable
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

# Control hears of the end of an engine's process within milliseconds.
DOUBT_S = 0.5
_CONNECTION_LOST = (AttemptOutcome.LOST, AttemptOutcome.UNREACHABLE)


class Dispatcher:
    """All targets' queues and loads.

    State: `_states` by target; `_replicas`, all that are offered or have work; `_turn`, the starts out of queues so far. A
    target may come back before its work ends, and so `_running`, the slots of tenants with reserved ones, is kept by target.

    Attributes:
        routing: The routes of the snapshot that was published last, whose version is `version`.

    Args:
        workers: So many share the same replicas and queues.
        is_lent: Somebody lends them: there are no slots before `set_slots`, and no places before `set_queue_length_max`.
    """

    def __init__(
        self,
        *,
        bounds: QueueBounds,
        health: HealthRules,
        chance: Chance,
        is_adaptive: bool = True,
        workers: int = 1,
        is_lent: bool = False,
    ) -> None:
        self._bounds = replace(bounds, length_max=0) if is_lent else bounds
        self._health = health
        self._chance = chance
        self._replicas = ReplicaBooks(health, is_adaptive=is_adaptive, workers=workers, is_lent=is_lent)
        self.version = 0
        self.routing = RoutingTable(FleetSnapshot())
        self._states: dict[TargetKey, DeploymentState] = {}
        self._running: dict[TargetKey, dict[TenantId, int]] = {}
        self._turn = 0

    def publish(self, snapshot: FleetSnapshot, *, now_s: float) -> list[Action]:
        """Takes over a new picture of the fleet. Running tickets stay where they are; waiting ones may start. Those whose
        target gets nothing any more wait for the accepted one of their model; where there is none, they expire."""
        self.version = snapshot.version
        self.routing = RoutingTable(snapshot)
        gone = [
            self._states.pop(key) for key in [key for key in self._states if key not in snapshot.deployments]
        ]
        for key, deployment in snapshot.deployments.items():
            if key not in self._states:
                running = self._running.setdefault(key, {})
                self._states[key] = DeploymentState(deployment, self._bounds, running)
            state = self._states[key]
            known = {load.key: load for load in state.loads}
            if state.served_since_s is None and deployment.replicas:
                state.served_since_s = now_s
            # Those that are found as the service starts are all equally new.
            since_s = state.served_since_s if known else None
            is_late = since_s is not None and now_s - since_s > self._health.slow_start_s
            state.deployment = deployment
            state.loads = [
                self._replicas.load_of(key, replica, known, slowly_from_s=now_s if is_late else None)
                for replica in deployment.replicas
            ]
            self._replicas.retire(key, known.values())
        actions: list[Action] = []
        for state in gone:
            self._replicas.retire(state.key, state.loads)
            actions += self._clear_out(state, now_s)
        for key, state in self._states.items():
            if len(state.queue) and not self.routing.is_served(key):
                self._hand_over(state, now_s)
        self._replicas.offered(self.loads())
        return actions + self._start_waiting(self._states.values(), now_s)

    def deployment(self, target: TargetKey) -> Deployment:
        """The deployment of that key, or ModelNotFound."""
        state = self._states.get(target)
        if state is None:
            raise ModelNotFound.of(target)
        return state.deployment

    def arrive(self, ticket: Ticket, *, now_s: float) -> bool:
        """True: it starts now. False: no slot is free for it, and `wait` is next.

        Raises NoReadyReplica, DeadlineExceeded, Forbidden where the model runs nowhere that the ticket may go, or Saturated
        where every replica rests.
        """
        state = self._states.get(ticket.target)
        if state is None or not state.loads:
            state = self._taking_over(ticket) or state
        if state is None:  # it was offered, when the request was read
            raise NoReadyReplica("the model is no longer offered", retry_after_s=admission.RETRY_AFTER_MIN_S)
        _refuse_late(ticket, now_s)
        loads = state.loads
        if not loads and state.deployment.waiting_room_max:
            locations.check(ticket.locations, state.deployment)
            return False
        if ticket.locations:
            locations.check(ticket.locations, state.deployment)
            loads = locations.allowed(ticket.locations, loads)
        if not loads:
            raise NoReadyReplica(
                "no replica of this model is ready", retry_after_s=state.deployment.retry_after_s
            )
        chosen = self._choose(state, ticket, now_s)
        if chosen is None:
            admission.refuse_rest(balancing.rest_s(loads, now_s=now_s))
        # Those who wait for a replica that has not failed them leave others free, so a queue alone stops nobody.
        if chosen is not None and not (len(state.queue) and self._is_anyone_due(state, now_s)):
            self._start(state, ticket, chosen, now_s)
            return True
        return False

    def wait(self, ticket: Ticket, *, now_s: float) -> list[Action]:
        """Takes a ticket that has just arrived into the queue; another may lose its place for it.

        Raises Saturated where the queue has no place for it, or it could not end in time, and then it is not kept.
        """
        state = self._states[ticket.target]
        ticket.cost_s = state.cost_s(ticket)
        shed: list[Ticket] = []
        if not state.loads:
            shed = state.enter_waiting_room(ticket, now_s)
        # Who waits for a slot of its own was promised one, whatever others have sent.
        elif not state.queue.is_owed(ticket):
            state.refuse_infeasible(ticket, now_s)
            shed = state.make_room(ticket, now_s)
        self._enqueue(state, ticket, now_s)
        actions: list[Action] = []
        for victim in shed:
            victim.waited_s += now_s - victim.enqueued_s
            actions.append(Shed(victim, state.retry_after_s(now_s)))
        return actions

    def fall_back(self, ticket: Ticket, *, now_s: float) -> bool:
        """The accepted target for a ticket that another one has failed, and whose slot was given back: it starts there now
        (True), or waits there as after `retry`. Asked only where `can_fall_back`."""
        state = self._taking_over(ticket)
        assert state is not None, "it was asked whether there is one"
        if self._try_start(state, ticket, now_s):
            return True
        self._enqueue(state, ticket, now_s)
        return False

    def can_fall_back(self, ticket: Ticket) -> bool:
        """Whether the ticket's target isn't the accepted one of its model, and that has a replica for it."""
        if ticket.is_pinned:
            return False
        accepted = self.routing.takes_over(ticket.model, ticket.target)
        return accepted is not None and bool(
            locations.allowed(ticket.locations, self._states[accepted.key].loads)
        )

    def take_over(self, ticket: Ticket) -> bool:
        """Whether the ticket, which has just arrived and has no place at its target, is the accepted one's from now on."""
        return self.can_fall_back(ticket) and self._taking_over(ticket) is not None

    def retry(self, ticket: Ticket, *, now_s: float) -> bool:
        """Another replica for a ticket whose slot was given back: now (True), or it waits again, ahead of later deadlines
        of its tenant and whatever the bounds: its place was paid for.

        Raises NoReadyReplica if no replica is left that has not failed this ticket already, unless it awaits the restart
        of one, and DeadlineExceeded.
        """
        state = self._states.get(ticket.target)
        _refuse_late(ticket, now_s)
        if state is None or not self.has_alternative(ticket, now_s=now_s):
            raise NoReadyReplica(
                "no other replica of this model is ready", retry_after_s=admission.RETRY_AFTER_MIN_S
            )
        if self._try_start(state, ticket, now_s):
            return True
        self._enqueue(state, ticket, now_s)
        return False

    def has_alternative(self, ticket: Ticket, *, now_s: float) -> bool:
        """Whether a replica is left that has not failed this ticket and didn't ask to be left alone, or whether it awaits
        the restart of one."""
        state = self._states.get(ticket.target)
        return state is not None and (
            ticket.awaits_restart
            or any(
                load.key not in ticket.tried and load.health.rest_until_s <= now_s
                for load in locations.allowed(ticket.locations, state.loads)
            )
        )

    def give_back(
        self,
        ticket: Ticket,
        outcome: AttemptOutcome,
        *,
        now_s: float,
        retry_after_s: float | None = None,
        ttft_s: float | None = None,
        output_tokens: int = 0,
    ) -> tuple[Circuit | None, list[Action]]:
        """The attempt has ended: frees its slot, judges the replica, starts who waits.

        Args:
            retry_after_s: What a busy replica asked for.
            ttft_s: Time to the first token of a streamed answer; None for others.

        Returns OPEN if the replica was ejected by this, SLOW_START if it came back, and the actions. The ticket may
        `retry` after it.
        """
        load = ticket.load
        assert load is not None, "only a running ticket has a slot to give back"
        ticket.load = None
        shared = load.shared
        if (
            ttft_s is not None
            and (limit := shared.limit) is not None
            and limit.observe(
                ttft_s,
                model=ticket.target,
                prompt_bytes=ticket.prompt_bytes,
                in_flight=shared.outstanding,
                started_s=ticket.started_s,
                now_s=now_s,
            )
        ):
            shared.set_slots()
        shared.outstanding -= 1
        load.outstanding -= 1
        if not load.outstanding:
            self._replicas.idle(ticket.target, load)
        if ticket.grant is not None and shared.slot_table is not None:
            shared.slot_table.give_back(ticket.grant)
            ticket.grant = None
        if ticket.share.reserved_slots:
            self._running[ticket.target][ticket.tenant] -= 1
        health = load.health
        circuit = health.ended(outcome, started_s=ticket.started_s, is_idle=not load.outstanding, now_s=now_s)
        state = self._states.get(ticket.target)
        if state is not None:
            state.measure(ticket, outcome, output_tokens, now_s)
        if outcome.is_replica_fault:
            if load.replica.traits.is_ours and outcome in _CONNECTION_LOST:
                health.rest(until_s=now_s + DOUBT_S)
                ticket.awaits_restart = True
            else:
                ticket.tried = (*ticket.tried, load.key)
        elif outcome is AttemptOutcome.BUSY:
            ticket.tried = (*ticket.tried, load.key)
            health.rest(until_s=now_s + (self._health.rest_s if retry_after_s is None else retry_after_s))
        for target in shared.targets:
            if len(self._states[target].queue):
                return circuit, self._start_waiting(self._users(shared), now_s)
        return circuit, []

    def leave(self, ticket: Ticket, *, now_s: float) -> None:
        """A waiting ticket gives up: its caller left, or its time in the queue is over."""
        state = self._states.get(ticket.target)
        if state is not None and state.queue.remove(ticket):
            ticket.waited_s += now_s - ticket.enqueued_s

    def wake(self, *, now_s: float) -> list[Action]:
        """Called on a timer: starts work that waits only because its replicas were ejected, and whose time out is over."""
        return self._start_waiting(self._states.values(), now_s)

    def look(self, *, now_s: float) -> list[Replica]:
        """Called on a timer: judges the silence of every replica. Returns those that it ejected."""
        return [
            load.replica
            for state in self._states.values()
            for load in state.loads
            if load.health.look(has_work=load.outstanding > 0, now_s=now_s) is Circuit.OPEN
        ]

    def found(self, replica: ReplicaId, *, now_s: float) -> None:
        """A probe has found it after it had not answered one."""
        for _, load in self.loads():
            if load.replica.id == replica:
                load.health.found(now_s=now_s)

    def has_room_to_spare(self, target: TargetKey) -> bool:
        """Whether so little runs and waits there that what nobody waits for may run too: for a target that callers' requests
        come to, only while half of the slots stay free for them."""
        state = self._states.get(target)
        if state is None or len(state.queue):
            return False
        slots = sum(load.shared.slots for load in state.loads)
        taken = sum(load.shared.outstanding for load in state.loads)
        return taken < (slots // 2 if self.routing.is_served(target) else slots)

    def queue_length(self, target: TargetKey) -> int:
        state = self._states.get(target)
        return len(state.queue) if state else 0

    def loads(self) -> Iterator[tuple[TargetKey, ReplicaLoad]]:
        """Every (target, replica load), for status and gauges."""
        for key, state in self._states.items():
            for load in state.loads:
                yield key, load

    def in_flight(self) -> dict[TargetKey, int]:
        """What runs for each target, also on replicas that serve it no longer."""
        counts: dict[TargetKey, int] = {}
        for target, load in chain(self.loads(), self._replicas.retired()):
            counts[target] = counts.get(target, 0) + load.outstanding
        return counts

    def deployments(self) -> Iterator[Deployment]:
        for state in self._states.values():
            yield state.deployment

    def queue(self, target: TargetKey, *, now_s: float) -> QueueView:
        """The queue of a deployment that is offered."""
        return self._states[target].view(now_s)

    def expected_wait_s(self, target: TargetKey, *, now_s: float) -> float:
        """How long this deployment's queue takes as it stands; 0.0 for one that is not offered."""
        state = self._states.get(target)
        return 0.0 if state is None else state.drain_s(now_s)

    def wakes_s(self, target: TargetKey, *, now_s: float) -> float | None:
        """How long until the first replica of a deployment that has a waiting room and none; None for all others."""
        state = self._states.get(target)
        return None if state is None else state.wakes_s(now_s)

    def set_slots(self, key: ReplicaKey, slots: int | None, *, now_s: float) -> list[Action]:
        """This process may use that many slots of a replica from now on; more than that run to their end. None: as many
        as it had before any such call.

        It holds until the next call, also while the replica is not offered.
        """
        shared = self._replicas.lend(key, slots)
        return [] if shared is None else self._start_waiting(self._users(shared), now_s)

    def set_rules(self, bounds: QueueBounds, health: HealthRules, *, is_adaptive: bool) -> None:
        """What all queues and replicas go by from now on; what waits beyond the bounds stays."""
        self._bounds, self._health = bounds, health
        for state in self._states.values():
            state.bounds = bounds
        self._replicas.set_rules(health, [load for _, load in self.loads()], is_adaptive=is_adaptive)

    def set_queue_length_max(self, target: TargetKey, length_max: int) -> None:
        """That deployment's queue has so many places from now on, until it is no longer offered."""
        state = self._states.get(target)
        if state is not None:
            state.bounds = replace(state.bounds, length_max=length_max)

    def all_slots(self) -> ItemsView[ReplicaKey, ReplicaSlots]:
        """Of every replica that is offered, or has left the fleet and still works."""
        return self._replicas.slots.items()

    def slots(self, key: ReplicaKey) -> ReplicaSlots | None:
        """The slots of that replica, also of one that has left the fleet and still works; None when it is gone."""
        return self._replicas.slots.get(key)

    def _taking_over(self, ticket: Ticket) -> DeploymentState | None:
        """The accepted target of the ticket's model, which is its target from now on; None if there is no other."""
        if ticket.is_pinned:
            return None
        accepted = self.routing.takes_over(ticket.model, ticket.target)
        if accepted is None:
            return None
        ticket.target, ticket.moved_to = accepted.key, accepted
        return self._states[accepted.key]

    def _hand_over(self, state: DeploymentState, now_s: float) -> None:
        """Who waits for it, and may wait for the accepted target of its model as well, does so, whatever the bounds: its
        place was paid for."""
        for ticket in list(state.queue):
            accepted = self.routing.takes_over(ticket.model, ticket.target)
            if (
                accepted is not None
                and not ticket.is_pinned
                and locations.runs_in(ticket.locations, accepted)
                and state.queue.remove(ticket)
            ):
                ticket.waited_s += now_s - ticket.enqueued_s
                taking_over = self._taking_over(ticket)
                assert taking_over is not None, "it was just there"
                self._enqueue(taking_over, ticket, now_s)

    def _clear_out(self, state: DeploymentState, now_s: float) -> list[Action]:
        """The same for one that is gone: who can't wait elsewhere expires."""
        self._hand_over(state, now_s)
        actions: list[Action] = []
        while (ticket := state.queue.pop(lambda _: True)) is not None:
            ticket.waited_s += now_s - ticket.enqueued_s
            actions.append(Expire(ticket, is_withdrawn=True))
        return actions

    def _enqueue(self, state: DeploymentState, ticket: Ticket, now_s: float) -> None:
        ticket.enqueued_s = now_s
        ticket.cost_s = state.cost_s(ticket)
        state.queue.push(ticket)

    def _is_anyone_due(self, state: DeploymentState, now_s: float) -> bool:
        """Whether a waiting ticket could start now, because of a replica whose ejection has just ended."""
        return any(
            waiting.deadline_s > now_s and self._choose(state, waiting, now_s) is not None
            for waiting in state.queue
        )

    def _choose(self, state: DeploymentState, ticket: Ticket, now_s: float) -> ReplicaLoad | None:
        loads = state.loads
        if ticket.locations:
            loads = locations.allowed(ticket.locations, loads)
        if ticket.tried:
            loads = [load for load in loads if load.key not in ticket.tried]
        return balancing.choose(loads, now_s=now_s, chance=self._chance)

    def _try_start(self, state: DeploymentState, ticket: Ticket, now_s: float) -> bool:
        chosen = self._choose(state, ticket, now_s)
        if chosen is None:
            return False
        self._start(state, ticket, chosen, now_s)
        return True

    def _start(self, state: DeploymentState, ticket: Ticket, chosen: ReplicaLoad, now_s: float) -> None:
        shared = chosen.shared
        shared.outstanding += 1
        chosen.outstanding += 1
        chosen.health.asked(now_s=now_s)
        ticket.load = chosen
        ticket.started_s = now_s
        if shared.slot_table is not None:
            ticket.grant = shared.slot_table.take(ticket.partition)
        if ticket.share.reserved_slots:
            state.running[ticket.tenant] = state.running.get(ticket.tenant, 0) + 1
        state.started[ticket] = None

    def _users(self, shared: ReplicaSlots) -> list[DeploymentState]:
        return [self._states[target] for target in shared.targets]

    def _start_waiting(self, states: Iterable[DeploymentState], now_s: float) -> list[Action]:
        """Starts waiting tickets of these targets as long as one of them finds a slot, in the order of each queue.

        Targets that wait for the same replicas take turns, but who waits for a slot of its own goes first.
        """
        actions: list[Action] = []
        waiting = [state for state in states if len(state.queue)]
        for state in waiting:
            # What has less time left than it needs would only be begun for nobody.
            while (ticket := state.queue.pop_late(now_s, state.needs_s)) is not None:
                ticket.waited_s += now_s - ticket.enqueued_s
                actions.append(Expire(ticket))
        while waiting:
            state = waiting[0] if len(waiting) == 1 else min(waiting, key=_turn)
            next_one = self._start_next(state, now_s)
            if next_one is None:  # and what others start leaves it no more
                waiting.remove(state)
                continue
            self._turn = state.turn = self._turn + 1
            next_one.waited_s += now_s - next_one.enqueued_s
            actions.append(Start(next_one))
        return actions

    def _start_next(self, state: DeploymentState, now_s: float) -> Ticket | None:
        """The first of a queue that finds a slot, if there is one."""
        if not len(state.queue) or not state.has_free_slot:
            return None
        return state.queue.pop(lambda ticket: self._try_start(state, ticket, now_s))


def _turn(state: DeploymentState) -> tuple[bool, int]:
    return not state.queue.owes, state.turn


def _refuse_late(ticket: Ticket, now_s: float) -> None:
    if ticket.deadline_s <= now_s:
        raise DeadlineExceeded("the deadline passed before the request could start")
