"""What workers borrow from the authority, and the messages about it: parts of rates and budgets, places, slots.

A worker decides on what it holds, without asking. What nobody holds is the authority's to lend; so the sum over all workers
never passes a limit, whatever is on its way between them.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from headrace.core.fleet import Replica
from headrace.core.ids import KeyId, ReplicaId, TenantId
from headrace.core.quotas import BudgetKey
from headrace.core.tenant import Principal, RateUnit, TenantLimits, TenantTerms
from headrace.core.usage import TokenUsage

WorkerId = int

# A request that finds too little held waits for the authority's answer, which may have been asked just before and whose
# process may not get a core for a while: refusing is worse than that wait.
ANSWER_LIMIT_S = 0.5
# The authority waits for others (workers that may have something idle, the store of several hosts), perhaps once for the
# question before and once for this one, and answers in time all the same.
OTHERS_LIMIT_S = 0.2


class PoolKind(StrEnum):
    """What is lent one by one and comes back when it is free: it has no time limit of its own."""

    CONCURRENCY = "concurrency"
    QUEUE = "queue"
    SLOTS = "slots"


class PoolKey(NamedTuple):
    """Which pool: the concurrency of a limit's subject (see policies/levels.py), the queue of a model, or the slots of a
    replica, whichever model is asked for."""

    kind: PoolKind
    name: str
    replica: ReplicaId = ReplicaId("")
    generation: int = 0


class RateKey(NamedTuple):
    """Which rate: that of a limit's subject, in requests or in tokens."""

    unit: RateUnit
    subject: str


def slots_of(replica: Replica) -> PoolKey:
    return PoolKey(PoolKind.SLOTS, "", replica.id, replica.generation)


class LentSlot(NamedTuple):
    """A slot of an engine whose prefix cache is cut into slots, and the partition whose prompts it may hold; None: unknown."""

    number: int
    last_partition: str | None


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


class AskRate(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Up: `count` of a rate is waited for, of which less than `least` is of no use, and `ahead` more is expected to be soon."""

    key: RateKey
    count: int
    least: int
    ahead: int
    per_minute: int
    burst: int
    revision: int


class ReturnRate(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Up: what was not used, or not in time; negative what was used without a lease, while the authority was silent, or
    beyond what had been taken for it."""

    key: RateKey
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


class GrantRate(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Down: a part of a rate.

    Attributes:
        count: How much this worker may admit within the lease's time; 0: too little is left.
        left: What the authority's bucket holds after this.
    """

    key: RateKey
    count: int
    left: float


class ShadowBegin(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A request began at that moment whose caller has shadow limits: these, of the tenant, its key, and for the model.

    The last four are the fields of policies.levels.Demand.
    """

    number: int
    at_s: float
    tenant: TenantId
    key_id: KeyId
    limits: TenantLimits
    key_limits: TenantLimits | None
    model_limits: TenantLimits | None
    model: str
    prompt_tokens: int
    output_tokens_max: int | None
    choices: int

    @property
    def caller(self) -> Principal:
        """One whose limits they are."""
        model_limits = {} if self.model_limits is None else {self.model: self.model_limits}
        terms = TenantTerms(model_limits=model_limits)
        return Principal(self.tenant, self.key_id, self.limits, terms=terms, key_limits=self.key_limits)

    @property
    def demand(self) -> tuple[str, int, int | None, int]:
        return self.model, self.prompt_tokens, self.output_tokens_max, self.choices


class ShadowEnd(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The request of that number has ended, at that moment."""

    number: int
    at_s: float
    usage: TokenUsage


class Shadowed(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Up: what shadow limits are to judge."""

    events: list[ShadowBegin | ShadowEnd]


class EscrowId(NamedTuple):
    """Which budget's escrow, and of which of its periods: by the period's first Unix second."""

    key: BudgetKey
    start_s: int


class Settled(NamedTuple):
    """So much of the escrow that a worker holds was spent by a request; it goes up with the request's record."""

    id: EscrowId
    amount: int


class TellQuotas(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Up: these are the quotas of all tenants, as of `revision`. The answer is QuotasRead."""

    revision: int
    limits: list[tuple[BudgetKey, int]]


class AskEscrow(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Up: requests lack `needed` of a budget beside what is idle here, the smallest of them `least`; `ahead` more is expected to
    be of use soon."""

    id: EscrowId
    needed: int
    least: int
    ahead: int


class ReturnEscrow(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Up: so much of it is the authority's again. The answer to RecallEscrow, and later what nobody has a use for."""

    id: EscrowId
    amount: int


class QuotasRead(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Down: what was spent of each of these quotas is known."""

    revision: int


class LentEscrow(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Down: the answer to AskEscrow.

    Attributes:
        amount: How much more the worker may spend; less than was needed if there isn't more.
        left: What nobody holds after this; negative where the limit was lowered.
        spent: In the whole period so far.
        is_tight: What is idle is given back at once.
        is_known: False: whether there is more isn't known: because what was spent isn't, or somebody holds some and is silent.
    """

    id: EscrowId
    amount: int
    left: int
    spent: int
    is_tight: bool
    is_known: bool = True


class RecallEscrow(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Down: others need it. What is idle comes back at once and from now on, until the next LentEscrow that isn't tight."""

    id: EscrowId


LeaseAsking = Want | Return | AskRate | ReturnRate
EscrowAsking = TellQuotas | AskEscrow | ReturnEscrow
Asking = LeaseAsking | EscrowAsking
EscrowLending = QuotasRead | LentEscrow | RecallEscrow
Lending = Grant | Recall | Sated | Deny | GrantRate | EscrowLending
