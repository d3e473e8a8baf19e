"""What workers borrow from the authority, and the messages about it: requests of a tenant's rate, places, slots.

A worker decides on what it holds, without asking. What nobody holds is the authority's to lend; so the sum over all workers
never passes a limit, whatever is on its way between them.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from headrace.core.fleet import Replica
from headrace.core.ids import ReplicaId, TenantId

WorkerId = int


class PoolKind(StrEnum):
    """What is lent one by one and comes back when it is free: it has no time limit of its own."""

    CONCURRENCY = "concurrency"
    QUEUE = "queue"
    SLOTS = "slots"


class PoolKey(NamedTuple):
    """Which pool: the concurrency of a tenant, the queue of a model, or the slots of a replica, whichever model is asked for."""

    kind: PoolKind
    name: str
    replica: ReplicaId = ReplicaId("")
    generation: int = 0


def slots_of(replica: Replica) -> PoolKey:
    return PoolKey(PoolKind.SLOTS, "", replica.id, replica.generation)


class LentSlot(NamedTuple):
    """A slot of an engine whose prefix cache is cut into slots, and the tenant whose prompts it may hold; None: unknown."""

    number: int
    last_tenant: str | None


class Want(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Up: `count` requests wait for more of this; 0: no longer.

    Attributes:
        total: The limit as this worker knows it (a tenant's, as of `revision`); unused for slots.
    """

    key: PoolKey
    count: int
    total: int = 0
    revision: int = 0


class Return(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Up: `count` of it are the authority's again. The answer to Recall, and later what became free."""

    key: PoolKey
    count: int
    slots: list[LentSlot] = []


class AskTokens(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Up: `count` requests wait for a token of the tenant's rate, and `ahead` more are expected soon."""

    tenant: TenantId
    count: int
    ahead: int
    requests_per_minute: int
    requests_burst: int
    revision: int


class ReturnTokens(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Up: tokens that were not used in time; a negative count was used without a lease, while the authority was silent."""

    tenant: TenantId
    count: int


class Grant(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Down: `count` more of it are the worker's, which may `keep` that many."""

    key: PoolKey
    count: int
    keep: int
    slots: list[LentSlot] = []


class Recall(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Down: others want it. What is idle comes back at once and from now on, and what is more than `keep` as soon as it is
    free, even if the worker has a use for it."""

    key: PoolKey
    keep: int


class Sated(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Down: nobody waits for it any more; what becomes idle may stay."""

    key: PoolKey


class Deny(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Down: all of it is in use; the worker may refuse until it is granted more."""

    key: PoolKey


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Down: requests of the tenant's rate.

    Attributes:
        count: How many this worker may admit within the lease's time; 0: the limit is spent.
        left: What the authority's bucket holds after this.
        retry_after_s: When it holds one more, if count is 0.
    """

    tenant: TenantId
    count: int
    left: float
    retry_after_s: float = 0.0


Asking = Want | Return | AskTokens | ReturnTokens
Lending = Grant | Recall | Sated | Deny | Tokens
