"""What is known of one deployment? Its replicas' loads, its queue, its pace; and what they say about a newcomer."""

from itertools import islice

import msgspec

from headrace.core.errors import NoReadyReplica, Saturated
from headrace.core.fleet import Deployment
from headrace.core.ids import TargetKey, TenantId
from headrace.core.outcome import AttemptOutcome
from headrace.policies import admission
from headrace.policies.admission import QueueBounds
from headrace.policies.fairness import FairQueue
from headrace.policies.prediction import ServiceModel
from headrace.policies.tickets import ReplicaLoad, Ticket

_CUT_SHORT = (AttemptOutcome.CANCELLED, AttemptOutcome.DEADLINE)


class QueueView(msgspec.Struct, frozen=True, gc=False):
    """A deployment's queue as status shows it.

    Attributes:
        wait_s: How long until all that waits has started, and a slot is free.
        service_s: What requests hold their slots for; None before the first has ended.
    """

    length: int
    body_bytes: int
    wait_s: float
    service_s: float | None


class DeploymentState:
    """One deployment's replicas, queue and measured service time, and what they say about a newcomer.

    `served_since_s` is since when it has had replicas; `started` holds what runs, in the order of its start; `running` counts the slots of tenants that have reserved some.
    `turn` grows with each start out of the queue: of models that wait for the same replicas, the one with the least is next.
    """

    __slots__ = (
        "bounds",
        "deployment",
        "key",
        "loads",
        "queue",
        "running",
        "served_since_s",
        "service",
        "started",
        "turn",
    )

    def __init__(self, deployment: Deployment, bounds: QueueBounds, running: dict[TenantId, int]) -> None:
        self.key: TargetKey = deployment.key
        self.deployment = deployment
        self.bounds = bounds
        self.loads: list[ReplicaLoad] = []
        self.served_since_s: float | None = None
        self.running = running
        self.queue: FairQueue[Ticket] = FairQueue(running)
        self.service = ServiceModel()
        self.started: dict[Ticket, None] = {}
        self.turn = 0

    def wakes_s(self, now_s: float) -> float | None:
        """How long until its first replica is expected, where requests may wait for that; None where they may not, or it is
        there."""
        deployment = self.deployment
        if self.loads or not deployment.waiting_room_max:
            return None
        expected_s = deployment.ready_expected_s
        return deployment.retry_after_s if expected_s is None else max(0.0, expected_s - now_s)

    @property
    def has_free_slot(self) -> bool:
        return any(load.shared.outstanding < load.shared.slots for load in self.loads)

    def typical_s(self, now_s: float) -> float:
        """What a request holds its slot for: measured, or until one has ended twice what the oldest has run already.

        Of what has run for some time, and nothing else is known, the best guess is that it runs as long again.
        """
        mean_s = self.service.mean_s
        if mean_s is not None:
            return mean_s
        oldest = next(iter(self.started), None)
        return max(admission.SERVICE_PRIOR_S, 0.0 if oldest is None else 2.0 * (now_s - oldest.started_s))

    def cost_s(self, ticket: Ticket) -> float:
        """What this ticket will hold a slot for."""
        predicted_s = self.service.predict_s(
            prompt_bytes=ticket.prompt_bytes, output_tokens_max=ticket.output_tokens_max
        )
        return admission.SERVICE_PRIOR_S if predicted_s is None else predicted_s

    def wait_s(self, ahead_s: float, now_s: float) -> float:
        """When a slot will be free for what comes after that much work.

        All slots are taken to be given out in turn, each for a typical time: what runs ends in the order of its start, and
        slots that were taken in the same moment are free again in the same moment, not one after the other. What other
        models of the replicas use of them stays theirs, but for an even share; of the ends of their work nothing is known
        but how many there are to come. Slots that other workers have, though not more than their share, stay theirs too.
        """
        slots = others = 0
        for load in self.loads:
            shared, elsewhere = load.shared, load.shared.outstanding - load.outstanding
            others += elsewhere
            expected = shared.slots_expected
            slots += max(expected - elsewhere, expected // len(shared.targets))
        slots = max(1, slots)
        typical_s = self.typical_s(now_s)
        rounds, index = divmod(int(ahead_s / typical_s), slots) if typical_s > 0.0 else (0, 0)
        index += max(0, len(self.started) - slots)  # these end first, on slots that are no longer given out
        holder = next(islice(self.started, index, None), None)
        if holder is not None:
            left_s = max(0.0, typical_s - (now_s - holder.started_s))
        else:
            left_s = typical_s / (others + 1) if others and not self.has_free_slot else 0.0
        return left_s + rounds * typical_s

    def drain_s(self, now_s: float) -> float:
        """How long until all that waits has started, and a slot is free."""
        wakes_s = self.wakes_s(now_s)
        if wakes_s is not None:
            return wakes_s
        is_measured = self.service.mean_s is not None
        ahead_s = self.queue.cost_s if is_measured else len(self.queue) * self.typical_s(now_s)
        return self.wait_s(ahead_s, now_s)

    def retry_after_s(self, now_s: float) -> float:
        """When to come back instead of waiting here."""
        wakes_s = self.wakes_s(now_s)
        return (
            admission.retry_after_s(self.drain_s(now_s))
            if wakes_s is None
            else max(admission.RETRY_AFTER_MIN_S, wakes_s)
        )

    def enter_waiting_room(self, ticket: Ticket, now_s: float) -> list[Ticket]:
        """Those who must leave the waiting room of a deployment without replicas for this ticket.

        Raises NoReadyReplica where it is full of others with as much right to be there, or the first replica would come too
        late for this ticket.
        """
        wakes_s = self.wakes_s(now_s)
        assert wakes_s is not None, "without a waiting room nobody waits for a replica"
        asleep = NoReadyReplica(
            "this model is being started; come back when it is there", retry_after_s=self.retry_after_s(now_s)
        )
        if now_s + wakes_s >= ticket.deadline_s:
            raise asleep
        try:
            return self.make_room(ticket, now_s)
        except Saturated:
            raise asleep from None

    def refuse_infeasible(self, ticket: Ticket, now_s: float) -> None:
        """Raises Saturated; before the first measurement nothing is known to be infeasible."""
        typical_s = self.service.mean_s
        if typical_s is None:
            return
        wait_s = self.wait_s(self.queue.ahead_s(ticket, typical_s=typical_s), now_s)
        admission.refuse_infeasible(
            wait_s=wait_s,
            service_s=ticket.cost_s,
            doubt_s=admission.doubt_s(wait_s=wait_s, typical_s=typical_s, spread_s=self.service.spread_s),
            time_left_s=ticket.deadline_s - now_s,
            wait_max_s=self.bounds.wait_max_s,
        )

    def needs_s(self, ticket: Ticket) -> float:
        """With less time left than that it is not begun: it would seldom end in time, and others wait for the slot."""
        return 0.0 if self.service.mean_s is None else self.cost_s(ticket)

    def make_room(self, ticket: Ticket, now_s: float) -> list[Ticket]:
        """Those who must leave the full queue for this ticket. Raises Saturated if it is this one that must."""
        queue, bounds = self.queue, self.bounds
        length_max = bounds.length_max
        if not self.loads:
            length_max = min(length_max, self.deployment.waiting_room_max)
        shed: list[Ticket] = []
        while True:
            lacks_place = len(queue) >= length_max
            # An empty queue takes one of any size, or it would never be taken.
            lacks_bytes = len(queue) > 0 and queue.body_bytes + ticket.body_bytes > bounds.bytes_max
            if not lacks_place and not lacks_bytes:
                return shed
            victim = queue.displace_for(ticket, by_bytes=not lacks_place)
            if victim is None:
                queued = len(queue) + len(shed)
                for other in shed:
                    queue.push(other)
                raise admission.full(queued=queued, wait_s=self.drain_s(now_s))
            shed.append(victim)

    def measure(self, ticket: Ticket, outcome: AttemptOutcome, output_tokens: int, now_s: float) -> None:
        """Learns from an attempt that has ended, and settles its account.

        One that was cut short says that it needs no less than it took, so it counts only where that is long.
        """
        self.started.pop(ticket, None)
        held_s = now_s - ticket.started_s
        if ticket.account is not None:
            self.queue.settle(ticket, held_s)
        if outcome is AttemptOutcome.COMPLETED or (outcome in _CUT_SHORT and held_s >= self.typical_s(now_s)):
            self.service.observe(
                prompt_bytes=ticket.prompt_bytes, output_tokens=output_tokens, service_s=held_s
            )

    def view(self, now_s: float) -> QueueView:
        return QueueView(
            len(self.queue),
            self.queue.body_bytes,
            self.drain_s(now_s),
            self.service.mean_s,
        )
