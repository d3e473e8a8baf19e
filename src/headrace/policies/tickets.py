"""What does the dispatcher keep? Requests on their way, what runs on each replica, and what its driver must do about them."""

from dataclasses import dataclass

from headrace.core.fleet import Deployment, Replica
from headrace.core.ids import ReplicaId, TargetKey, TenantId
from headrace.core.tenant import Priority, TenantShare
from headrace.policies.concurrency import ConcurrencyLimit
from headrace.policies.fairness import TenantAccount
from headrace.policies.health import HealthRules, ReplicaHealth
from headrace.policies.levels import Receipt
from headrace.policies.partition import SlotGrant, SlotTable

ReplicaKey = tuple[ReplicaId, int]

NO_SHARE = TenantShare()


class Ticket:
    """One admitted request on its way. Owner: the Dispatcher, until it has left.

    Attributes:
        model: The name that was asked for.
        target: Which of the deployments of that name is to serve it.
        is_pinned: None but that one may.
        moved_to: The target, where it is no longer the one that the request came to.
        tenant: Who asks: whose share of the deployment.
        partition: Whose prefix cache it may use; the tenant's own if nothing else is said.
        locations: Where it may run; none for anywhere.
        deadline_s: Monotonic; never started after it.
        share, priority: What decides its turn while others wait too; the priority is within the share's class.
        prompt_bytes, output_tokens_max: Its size, for predictions.
        body_bytes: What it holds of memory while it waits.
        cost_s: Predicted seconds on a slot, from the moment that it waits.
        account: What it was charged to, from its start out of the queue to its end.
        load: The replica that runs it now, or None while it waits.
        grant: The slot of that replica, where slots are partitioned.
        receipt: What it took of its limits, where there are others than those on its tenant's requests.
        tried: Replicas that failed it.
        awaits_restart: Its replica is an engine of ours that has probably ended: worth waiting for the next generation.
        waited_s: Time spent in the queue so far.
    """

    __slots__ = (
        "account",
        "awaits_restart",
        "body_bytes",
        "cost_s",
        "deadline_s",
        "enqueued_s",
        "grant",
        "is_pinned",
        "load",
        "locations",
        "model",
        "moved_to",
        "output_tokens_max",
        "partition",
        "priority",
        "prompt_bytes",
        "receipt",
        "share",
        "started_s",
        "target",
        "tenant",
        "tried",
        "waited_s",
    )

    def __init__(
        self,
        *,
        model: str,
        tenant: TenantId,
        deadline_s: float,
        target: TargetKey = "",
        is_pinned: bool = False,
        partition: str = "",
        locations: tuple[str, ...] = (),
        share: TenantShare = NO_SHARE,
        priority: Priority = Priority.NORMAL,
        prompt_bytes: int = 0,
        output_tokens_max: int | None = None,
        body_bytes: int = 0,
    ) -> None:
        self.model = model
        self.target = target or model
        self.is_pinned = is_pinned
        self.moved_to: Deployment | None = None
        self.tenant = tenant
        self.partition = partition or tenant
        self.locations = locations
        self.deadline_s = deadline_s
        self.share = share
        self.priority = priority if priority <= share.priority_max else share.priority_max
        self.prompt_bytes = prompt_bytes
        self.output_tokens_max = output_tokens_max
        self.body_bytes = body_bytes
        self.cost_s = 0.0
        self.account: TenantAccount | None = None
        self.load: ReplicaLoad | None = None
        self.grant: SlotGrant | None = None
        self.receipt: Receipt | None = None
        self.tried: tuple[ReplicaKey, ...] = ()
        self.awaits_restart = False
        self.enqueued_s = 0.0
        self.started_s = 0.0
        self.waited_s = 0.0


class ReplicaSlots:
    """The slots of one replica, whichever of its models is asked for. `outstanding` is raised and lowered only by the
    Dispatcher, never by probes.

    Attributes:
        slots: How many requests it may run now: what the replica has, but no more than `lease` and `limit`.
        lease: The slots that this process may use of it, where several share it; None for all.
        limit: What was found to be served well; None for engines that know their slots exactly.
        outstanding: How many it runs.
        targets: The deployments that are offered on it.
    """

    __slots__ = ("_total", "_workers", "lease", "limit", "outstanding", "slot_table", "slots", "targets")

    def __init__(self, replica: Replica, *, is_adaptive: bool, workers: int = 1) -> None:
        self._workers = workers
        self._total = self.slots = replica.slots
        self.lease: int | None = None
        self.limit = _limit_of(replica, is_adaptive=is_adaptive)
        self.outstanding = 0
        self.targets: tuple[TargetKey, ...] = ()
        self.slot_table = SlotTable(0) if replica.traits.partitions_slots else None

    def resize(self, total: int) -> None:
        """What the replica has is another number, or the lease."""
        self._total = total
        if self.slot_table is not None and self.lease is None:  # else slots are lent one by one
            self.slot_table.resize(total)
        if self.limit is not None:
            self.limit.resize(total)
        self.set_slots()

    def set_adaptive(self, replica: Replica, *, is_adaptive: bool) -> None:
        """Whether it is found out what is served well; if so, from the beginning."""
        self.limit = _limit_of(replica, is_adaptive=is_adaptive)
        self.set_slots()

    @property
    def slots_max(self) -> int:
        """What this process may use of the replica, were it to serve all of it well."""
        return self._total if self.lease is None else min(self.lease, self._total)

    @property
    def slots_expected(self) -> int:
        """How many it will run while it has work: where several workers share the replica, each gets an even share."""
        if self.lease is None or self._workers == 1:
            return self.slots
        share = self._total // self._workers
        return max(self.slots, share if self.limit is None else min(share, self.limit.value))

    def set_slots(self) -> None:
        """Takes over what has changed of the slots, the lease or the limit."""
        self.slots = self.slots_max if self.limit is None else min(self.slots_max, self.limit.value)


def _limit_of(replica: Replica, *, is_adaptive: bool) -> ConcurrencyLimit | None:
    return ConcurrencyLimit(replica.slots) if is_adaptive and not replica.traits.is_ours else None


class ReplicaLoad:
    """What runs on one replica for one target. `outstanding` is raised and lowered with that of `shared`.

    Health is by model as well: a server that fails at one of its models may serve the others.

    Attributes:
        shared: The replica's slots, which all of its models share.
    """

    __slots__ = ("health", "key", "outstanding", "replica", "shared")

    def __init__(self, replica: Replica, rules: HealthRules, shared: ReplicaSlots) -> None:
        self.replica = replica
        self.key: ReplicaKey = (replica.id, replica.generation)
        self.outstanding = 0
        self.health = ReplicaHealth(rules)
        self.shared = shared


@dataclass(frozen=True, slots=True)
class Start:
    """Run the ticket on `ticket.load.replica` now; the slot is already taken."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Expire:
    """The ticket has left the queue: its deadline has passed, or is too near for any answer; or its model is gone.

    Attributes:
        is_withdrawn: Whether it is the model that is gone, and no other target has taken the ticket on.
    """

    ticket: Ticket
    is_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class Shed:
    """The ticket has left the queue for another that has more right to its place.

    Attributes:
        retry_after_s: When to come back.
    """

    ticket: Ticket
    retry_after_s: float


Action = Start | Expire | Shed
