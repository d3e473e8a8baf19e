"""What tests of the dispatcher share: a small fleet, tickets, and a driver that does no more than drive."""

from random import Random

from headrace.core.fleet import Deployment, EngineTraits, FleetSnapshot, Replica
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.isolation import CacheIsolation
from headrace.core.tenant import Priority, TenantShare
from headrace.policies.admission import QueueBounds
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import HealthRules
from headrace.policies.tickets import Ticket

RULES = HealthRules(failures_to_eject=2, ejection_s=4.0, ejection_max_s=16.0)
QUEUE_MAX = 4
MODELS = ("chat", "embeddings")
SHARES = {
    "acme": TenantShare(),
    "beta": TenantShare(Priority.HIGH, weight=2),
    "corp": TenantShare(reserved_slots=1),
}
PARTITIONED = EngineTraits(isolation=CacheIsolation.SLOTS)
OURS = EngineTraits(is_ours=True)


def replica(name: str, *, slots: int = 1, generation: int = 0, partitions_slots: bool = False) -> Replica:
    traits = PARTITIONED if partitions_slots else EngineTraits()
    return Replica(ReplicaId(name), "127.0.0.1", 1, slots, traits, generation=generation)


def fleet(**replicas: list[Replica]) -> FleetSnapshot:
    return FleetSnapshot(
        deployments={
            model: Deployment(model, model, frozenset(), "unpinned", tuple(running))
            for model, running in replicas.items()
        }
    )


def dispatcher(*replicas: Replica, queue_length_max: int = QUEUE_MAX) -> Dispatcher:
    made = Dispatcher(bounds=bounds(length_max=queue_length_max), health=RULES, chance=Random(1))
    made.publish(fleet(chat=list(replicas)), now_s=0.0)
    return made


def bounds(*, length_max: int = QUEUE_MAX, bytes_max: int = 10**9, wait_max_s: float = 1e9) -> QueueBounds:
    return QueueBounds(length_max, bytes_max, wait_max_s)


def ticket(
    model: str = "chat",
    *,
    deadline_s: float = 100.0,
    tenant: str = "acme",
    priority: Priority = Priority.NORMAL,
    body_bytes: int = 100,
    prompt_bytes: int = 100,
    locations: tuple[str, ...] = (),
) -> Ticket:
    return Ticket(
        model=model,
        tenant=TenantId(tenant),
        locations=locations,
        deadline_s=deadline_s,
        share=SHARES.get(tenant, TenantShare()),
        priority=priority,
        body_bytes=body_bytes,
        prompt_bytes=prompt_bytes,
    )


def come(one: Dispatcher, newcomer: Ticket, *, now_s: float) -> bool:
    """What a driver does with an arrival that displaces nobody: True if it starts, False if it waits."""
    if one.arrive(newcomer, now_s=now_s):
        return True
    assert one.wait(newcomer, now_s=now_s) == []
    return False
