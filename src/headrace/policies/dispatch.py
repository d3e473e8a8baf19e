"""Who runs where, and when? The state machine that sequences admission, balancing, health and retries; it does no I/O.

The gateway drives it with sockets; a simulator can drive the same code with an event heap. Every method takes the time and
returns what the driver must do: `Start` a ticket on a replica, or `Expire` a ticket whose deadline passed in the queue.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.core.chance import Chance
from headrace.core.errors import DeadlineExceeded, ModelNotFound, NoReadyReplica, Saturated
from headrace.core.fleet import Deployment, FleetSnapshot, Replica
from headrace.core.ids import ReplicaId
from headrace.core.outcome import AttemptOutcome, Reason
from headrace.policies import admission, balancing
from headrace.policies.health import Circuit, HealthRules, ReplicaHealth
from headrace.policies.partition import SlotGrant, SlotTable

ReplicaKey = tuple[ReplicaId, int]

# Control hears of the end of an engine's process within milliseconds.
DOUBT_S = 0.5
_CONNECTION_LOST = (AttemptOutcome.LOST, AttemptOutcome.UNREACHABLE)


class Ticket:
    """One admitted request on its way. Owner: the Dispatcher, until it has left.

    Attributes:
        model: Which deployment.
        partition: Whose prefix cache it may use: the tenant.
        deadline_s: Monotonic; never started after it.
        load: The replica that runs it now, or None while it waits.
        grant: The slot of that replica, where slots are partitioned.
        tried: Replicas that failed it.
        awaits_restart: Its replica is an engine of ours that has probably ended: worth waiting for the next generation.
        waited_s: Time spent in the queue so far.
    """

    __slots__ = (
        "awaits_restart",
        "deadline_s",
        "enqueued_s",
        "grant",
        "load",
        "model",
        "partition",
        "started_s",
        "tried",
        "waited_s",
    )

    def __init__(self, *, model: str, partition: str, deadline_s: float) -> None:
        self.model = model
        self.partition = partition
        self.deadline_s = deadline_s
        self.load: ReplicaLoad | None = None
        self.grant: SlotGrant | None = None
        self.tried: tuple[ReplicaKey, ...] = ()
        self.awaits_restart = False
        self.enqueued_s = 0.0
        self.started_s = 0.0
        self.waited_s = 0.0


class ReplicaLoad:
    """What runs on one replica. `outstanding` is raised and lowered only by the Dispatcher, never by probes."""

    __slots__ = (
        "health",
        "key",
        "outstanding",
        "replica",
        "slot_table",
        "slots",
    )

    def __init__(self, replica: Replica, rules: HealthRules) -> None:
        self.replica = replica
        self.key: ReplicaKey = (replica.id, replica.generation)
        self.slots = replica.slots
        self.outstanding = 0
        self.health = ReplicaHealth(rules)
        self.slot_table = SlotTable(replica.slots) if replica.traits.partitions_slots else None


class _DeploymentState:
    """One deployment's replicas, since when it has had any, its queue and measured service time."""

    __slots__ = ("deployment", "drain", "loads", "queue", "served_since_s")

    def __init__(self, deployment: Deployment, *, queue_length_max: int) -> None:
        self.deployment = deployment
        self.loads: list[ReplicaLoad] = []
        self.served_since_s: float | None = None
        self.queue: admission.AdmissionQueue[Ticket] = admission.AdmissionQueue(length_max=queue_length_max)
        self.drain = admission.DrainRate()


@dataclass(frozen=True, slots=True)
class Start:
    """Run the ticket on `ticket.load.replica` now; the slot is already taken."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Expire:
    """The ticket's deadline passed while it waited; it has left the queue."""

    ticket: Ticket


Action = Start | Expire


class Dispatcher:
    """All deployments' queues and loads.

    State: `_states` by model name; `_retired` holds the loads of replicas that left the fleet while they had work. Such a
    replica may come back before that work ends (a probe that failed once), and its slots are not free only because of it.
    """

    def __init__(self, *, queue_length_max: int, health: HealthRules, chance: Chance) -> None:
        self._queue_length_max = queue_length_max
        self._health = health
        self._chance = chance
        self._states: dict[str, _DeploymentState] = {}
        self._retired: dict[tuple[str, ReplicaKey], ReplicaLoad] = {}

    def publish(self, snapshot: FleetSnapshot, *, now_s: float) -> list[Action]:
        """Takes over a new picture of the fleet. Running tickets stay where they are; waiting ones may start or,
        where their deployment is no longer offered, expire."""
        actions: list[Action] = []
        for name in [name for name in self._states if name not in snapshot.deployments]:
            state = self._states.pop(name)
            self._retire(name, state.loads)
            while (ticket := state.queue.pop(lambda _: True)) is not None:
                ticket.waited_s += now_s - ticket.enqueued_s
                actions.append(Expire(ticket))
        for name, deployment in snapshot.deployments.items():
            if name not in self._states:
                self._states[name] = _DeploymentState(deployment, queue_length_max=self._queue_length_max)
            state = self._states[name]
            known = {load.key: load for load in state.loads}
            if state.served_since_s is None and deployment.replicas:
                state.served_since_s = now_s
            # Those that are found as the service starts are all equally new.
            since_s = state.served_since_s if known else None
            is_late = since_s is not None and now_s - since_s > self._health.slow_start_s
            state.deployment = deployment
            state.loads = [
                self._load_of(name, replica, known, slowly_from_s=now_s if is_late else None)
                for replica in deployment.replicas
            ]
            self._retire(name, known.values())
            actions.extend(self._start_waiting(state, now_s))
        return actions

    def deployment(self, model: str) -> Deployment:
        """The deployment of that name, or ModelNotFound."""
        state = self._states.get(model)
        if state is None:
            raise ModelNotFound(
                f"the model `{model[:100]}` does not exist; GET /v1/models lists those that do", param="model"
            )
        return state.deployment

    def arrive(self, ticket: Ticket, *, now_s: float) -> bool:
        """True: it starts now. False: it waits. Raises NoReadyReplica, Saturated or DeadlineExceeded, and then the ticket is
        not kept."""
        state = self._states[ticket.model]
        _refuse_late(ticket, now_s)
        if not state.loads:
            raise NoReadyReplica(
                "no replica of this model is ready", retry_after_s=state.deployment.retry_after_s
            )
        chosen = self._choose(state, ticket, now_s)
        if chosen is None:
            _refuse_rest(state.loads, now_s)
        # Those who wait for a replica that has not failed them leave others free, so a queue alone stops nobody.
        if chosen is not None and not (len(state.queue) and self._is_anyone_due(state, now_s)):
            self._start(ticket, chosen, now_s)
            return True
        self._check(state, ticket, now_s)
        self._wait(state, ticket, now_s)
        return False

    def retry(self, ticket: Ticket, *, now_s: float) -> bool:
        """Another replica for a ticket whose slot was given back: now (True), or it waits again, ahead of later deadlines.

        Raises NoReadyReplica if no replica is left that has not failed this ticket already, unless it awaits the restart
        of one, and DeadlineExceeded.
        """
        state = self._states.get(ticket.model)
        _refuse_late(ticket, now_s)
        if state is None or not self.has_alternative(ticket, now_s=now_s):
            raise NoReadyReplica(
                "no other replica of this model is ready", retry_after_s=admission.RETRY_AFTER_MIN_S
            )
        if self._try_start(state, ticket, now_s):
            return True
        self._wait(state, ticket, now_s)
        return False

    def has_alternative(self, ticket: Ticket, *, now_s: float) -> bool:
        """Whether a replica is left that has not failed this ticket and didn't ask to be left alone, or whether it awaits
        the restart of one."""
        state = self._states.get(ticket.model)
        return state is not None and (
            ticket.awaits_restart
            or any(load.key not in ticket.tried and load.health.rest_until_s <= now_s for load in state.loads)
        )

    def give_back(
        self,
        ticket: Ticket,
        outcome: AttemptOutcome,
        *,
        now_s: float,
        retry_after_s: float | None = None,
    ) -> tuple[Circuit | None, list[Action]]:
        """The attempt has ended: frees its slot, judges the replica, starts who waits.

        Args:
            retry_after_s: What a busy replica asked for.
        Returns OPEN if the replica was ejected by this, SLOW_START if it came back, and the actions. The ticket may
        `retry` after it.
        """
        load = ticket.load
        assert load is not None, "only a running ticket has a slot to give back"
        ticket.load = None
        load.outstanding -= 1
        if not load.outstanding:
            self._retired.pop((ticket.model, load.key), None)
        if ticket.grant is not None and load.slot_table is not None:
            load.slot_table.give_back(ticket.grant)
            ticket.grant = None
        health = load.health
        circuit = health.ended(outcome, started_s=ticket.started_s, is_idle=not load.outstanding, now_s=now_s)
        state = self._states.get(ticket.model)
        if outcome is AttemptOutcome.COMPLETED:
            if state is not None:
                state.drain.observe(now_s - ticket.started_s)
        elif outcome.is_replica_fault:
            if load.replica.traits.is_ours and outcome in _CONNECTION_LOST:
                health.rest(until_s=now_s + DOUBT_S)
                ticket.awaits_restart = True
            else:
                ticket.tried = (*ticket.tried, load.key)
        elif outcome is AttemptOutcome.BUSY:
            ticket.tried = (*ticket.tried, load.key)
            health.rest(until_s=now_s + (self._health.rest_s if retry_after_s is None else retry_after_s))
        return circuit, (self._start_waiting(state, now_s) if state is not None and len(state.queue) else [])

    def leave(self, ticket: Ticket, *, now_s: float) -> None:
        """A waiting ticket gives up: its caller left, or its time in the queue is over."""
        state = self._states.get(ticket.model)
        if state is not None and state.queue.remove(ticket):
            ticket.waited_s += now_s - ticket.enqueued_s

    def wake(self, *, now_s: float) -> list[Action]:
        """Called on a timer: starts work that waits only because its replicas were ejected, and whose time out is over."""
        actions: list[Action] = []
        for state in self._states.values():
            if len(state.queue):
                actions.extend(self._start_waiting(state, now_s))
        return actions

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

    def queue_length(self, model: str) -> int:
        state = self._states.get(model)
        return len(state.queue) if state else 0

    def loads(self) -> Iterator[tuple[str, ReplicaLoad]]:
        """Every (model, replica load), for status and gauges."""
        for model, state in self._states.items():
            for load in state.loads:
                yield model, load

    def deployments(self) -> Iterator[Deployment]:
        for state in self._states.values():
            yield state.deployment

    def expected_wait_s(self, model: str) -> float:
        """What a request arriving now would wait in this deployment's queue; 0.0 for a model that is not offered."""
        state = self._states.get(model)
        if state is None:
            return 0.0
        return state.drain.wait_s(ahead=len(state.queue), slots=sum(load.slots for load in state.loads))

    def _load_of(
        self,
        model: str,
        replica: Replica,
        known: dict[ReplicaKey, ReplicaLoad],
        *,
        slowly_from_s: float | None,
    ) -> ReplicaLoad:
        """Takes the replica's load out of the known or the retired ones, or makes it: it starts slowly among others."""
        key = (replica.id, replica.generation)
        load = known.pop(key, None) or self._retired.pop((model, key), None)
        if load is None:
            load = ReplicaLoad(replica, self._health)
            if slowly_from_s is not None:
                load.health.start_slowly(now_s=slowly_from_s)
            return load
        load.replica, load.slots = replica, replica.slots
        if load.slot_table is not None:
            load.slot_table.resize(replica.slots)
        return load

    def _retire(self, model: str, loads: Iterable[ReplicaLoad]) -> None:
        self._retired.update({(model, load.key): load for load in loads if load.outstanding})

    def _check(self, state: _DeploymentState, ticket: Ticket, now_s: float) -> None:
        admission.check_admission(
            queued=len(state.queue),
            is_full=state.queue.is_full,
            expected_wait_s=self.expected_wait_s(ticket.model),
            time_left_s=ticket.deadline_s - now_s,
        )

    def _wait(self, state: _DeploymentState, ticket: Ticket, now_s: float) -> None:
        ticket.enqueued_s = now_s
        state.queue.push(ticket)

    def _is_anyone_due(self, state: _DeploymentState, now_s: float) -> bool:
        """Whether a waiting ticket could start now, because of a replica whose ejection has just ended."""
        return any(
            waiting.deadline_s > now_s and self._choose(state, waiting, now_s) is not None
            for waiting in state.queue
        )

    def _choose(self, state: _DeploymentState, ticket: Ticket, now_s: float) -> ReplicaLoad | None:
        loads = state.loads
        if ticket.tried:
            loads = [load for load in loads if load.key not in ticket.tried]
        return balancing.choose(loads, now_s=now_s, chance=self._chance)

    def _try_start(self, state: _DeploymentState, ticket: Ticket, now_s: float) -> bool:
        chosen = self._choose(state, ticket, now_s)
        if chosen is None:
            return False
        self._start(ticket, chosen, now_s)
        return True

    def _start(self, ticket: Ticket, chosen: ReplicaLoad, now_s: float) -> None:
        chosen.outstanding += 1
        chosen.health.asked(now_s=now_s)
        ticket.load = chosen
        ticket.started_s = now_s
        if chosen.slot_table is not None:
            ticket.grant = chosen.slot_table.take(ticket.partition)

    def _start_waiting(self, state: _DeploymentState, now_s: float) -> list[Action]:
        """Starts waiting tickets, earliest deadline first, as long as one of them finds a slot."""
        actions: list[Action] = []

        def accepts(ticket: Ticket) -> bool:
            if ticket.deadline_s <= now_s:
                actions.append(Expire(ticket))
                return True
            if not self._try_start(state, ticket, now_s):
                return False
            actions.append(Start(ticket))
            return True

        while len(state.queue) and any(load.outstanding < load.slots for load in state.loads):
            ticket = state.queue.pop(accepts)
            if ticket is None:
                break
            ticket.waited_s += now_s - ticket.enqueued_s
        return actions


def _refuse_rest(loads: list[ReplicaLoad], now_s: float) -> None:
    """Who can't be served before a replica has rested is told when that is, unless it is about to be."""
    rest_s = balancing.rest_s(loads, now_s=now_s)
    if rest_s > admission.RETRY_AFTER_MIN_S:
        raise Saturated(
            "every replica of this model has asked to be left alone for a while",
            retry_after_s=rest_s,
            reason=Reason.RESTING,
        )


def _refuse_late(ticket: Ticket, now_s: float) -> None:
    if ticket.deadline_s <= now_s:
        raise DeadlineExceeded("the deadline passed before the request could start")
