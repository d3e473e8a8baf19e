"""Who is asking, and what have we agreed with them?"""

import dataclasses
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated

import msgspec

from headrace.core.ids import KeyId, TenantId
from headrace.core.quotas import Quota, read_quotas


class Priority(IntEnum):
    """Which waiting work goes first: the bands of `X-Headrace-Priority`, and the classes of tenants."""

    LOW = 0
    NORMAL = 1
    HIGH = 2

    @property
    def word(self) -> str:
        """The band's name in headers, commands and tables."""
        return self.name.lower()


SYSTEM_TENANT = TenantId("headrace-system")
"""We ourselves: work for the service's own sake, such as trying a revision. It alone may name a target, and pays nothing."""

PRIORITIES = {priority.word: priority for priority in Priority}
"""The bands by their names."""

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z")]
NameOrNone = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9][a-z0-9-]{0,62})?\Z")]

WEIGHT_MAX = 1000
RESERVED_SLOTS_MAX = 100_000
LIMIT_MAX = 1_000_000_000


class RateUnit(StrEnum):
    """What a rate counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


_Amount = Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MAX)]


class TenantLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Limits agreed with a tenant, or for one of its keys or models; enforced before any expensive work.

    Attributes:
        requests_per_minute: Sustained rate; the bucket refills continuously at this rate. 0 means no limit.
        requests_burst: Size of the bucket, at least 1: how many requests may come at once.
        concurrency_max: Requests in progress (queued or running) at any moment. 0 means no limit.
        tokens_per_minute: Sustained rate of prompt and answer together. 0 means no limit.
        tokens_burst: Tokens that may come at once, and so the most that one request may ask for. 0 means those of a minute.
    """

    requests_per_minute: _Amount = 0
    requests_burst: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = 60
    concurrency_max: _Amount = 0
    tokens_per_minute: _Amount = 0
    tokens_burst: _Amount = 0

    @property
    def tokens_at_once(self) -> int:
        return self.tokens_burst or self.tokens_per_minute

    def rate(self, unit: RateUnit) -> tuple[int, int]:
        """A minute's amount, 0 for no limit, and the size of the bucket."""
        if unit is RateUnit.REQUESTS:
            return self.requests_per_minute, self.requests_burst
        return self.tokens_per_minute, self.tokens_at_once


_NO_LIMITS = TenantLimits()


@dataclass(frozen=True, slots=True)
class TenantShare:
    """What one tenant gets of a deployment while others want it too.

    Attributes:
        priority_max: The tenant's class: the highest band that its requests may ask for.
        weight: Its part of the device time inside a band, relative to the others' weights; 1 to WEIGHT_MAX.
        reserved_slots: Slots of each deployment that are its own: lent while it doesn't use them, and given back with the
            next slot that frees.
    """

    priority_max: Priority = Priority.NORMAL
    weight: int = 1
    reserved_slots: int = 0

    def part(self, workers: int) -> "TenantShare":
        """What one of so many workers sees to, who know nothing of each other's running requests."""
        return dataclasses.replace(self, reserved_slots=-(-self.reserved_slots // workers))


class CacheBoundary(StrEnum):
    """Within one tenant: whose prompts may meet in an engine's prefix cache."""

    TENANT = "tenant"
    KEY = "key"
    USER = "user"


class TenantTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything agreed with a tenant beyond its limits and its share.

    Kept as one JSON object, so a new agreement is a field with a default here, a row in the table of cli/tenants.py, and
    nothing else. What a field may hold is said by its type: `msgspec.Meta` for a range or a pattern, `__post_init__` for
    what two fields must agree on. A version that doesn't know a field refuses the tenant; it never ignores an agreement.

    Attributes:
        organization: Whose tenant it is, where one customer has several.
        tokens_per_minute, tokens_burst: As in TenantLimits; None where the service's default applies.
        model_limits: Limits of the tenant's requests for single models, beside its own, by the model's name.
        shadow, shadow_key, shadow_models: Limits of the tenant, of each of its keys and for single models that refuse nothing;
            what they would refuse is counted. None where the service's default applies, which only `shadow` has.
        tokens_valid_from_s: Tokens of identity providers that were issued before that Unix time are refused; 0 refuses none.
        is_durable: The end of an answer goes out only when its record is on the disk.
        cache_group: Tenants that name the same group share prefix caches; "" for a tenant of its own.
        cache_boundary: Whose prompts may meet within the tenant.
        quotas: How many requests and tokens it may use in a day, a month, or at all, as `tokens/day=2000000`.
        budgets: How much it may spend, as `50.00/month`, in the price book's currency.
        retention_s: Answers under an Idempotency-Key are kept for no longer than this; None where the service's time applies.
        locations: Its requests run in one of these and nowhere else; none for anywhere.
    """

    organization: NameOrNone = ""
    tokens_per_minute: _Amount | None = None
    tokens_burst: _Amount | None = None
    model_limits: dict[str, TenantLimits] = {}
    shadow: TenantLimits | None = None
    shadow_key: TenantLimits | None = None
    shadow_models: dict[str, TenantLimits] = {}
    tokens_valid_from_s: Annotated[int, msgspec.Meta(ge=0)] = 0
    is_durable: bool = False
    cache_group: NameOrNone = ""
    cache_boundary: CacheBoundary = CacheBoundary.TENANT
    quotas: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    retention_s: Annotated[int, msgspec.Meta(ge=0)] | None = None
    locations: tuple[_Name, ...] = ()

    def __post_init__(self) -> None:
        if self.cache_group and self.cache_boundary is not CacheBoundary.TENANT:
            raise ValueError(
                f"`cache_group` shares between tenants what `cache_boundary` {self.cache_boundary.value} keeps apart "
                "within one; set one of them"
            )
        self.all_quotas()

    def all_quotas(self) -> tuple[Quota, ...]:
        """Those of requests, tokens and money."""
        return read_quotas(self.quotas, self.budgets)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a credential may be used for; None in a field means that it doesn't narrow anything.

    Attributes:
        models: Names of deployments.
        endpoints: Paths of the public port, such as `/v1/chat/completions`.
        networks: Where its calls may come from.
    """

    models: frozenset[str] | None = None
    endpoints: frozenset[str] | None = None
    networks: tuple[IPv4Network | IPv6Network, ...] | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Attributes:
        tenant: Whose limits, usage and cache partition apply.
        key_id: The public part of the API key, safe to log.
        limits: The tenant's limits at the moment of authentication.
        share: The tenant's share at that moment.
        terms: What else was agreed with the tenant at that moment.
        scope: What the key may be used for.
        user: Which person or program of the tenant's the key was given to; "" where nobody said.
        key_limits: Limits of the key alone, beside its tenant's; None where it has none.
        key_quotas: Quotas of the key alone, beside its tenant's.
        has_levels: Whether other limits apply to it than those on the tenant's requests, or shadow limits.
        shadow: A caller whose limits are this one's shadow limits; None where it has none.
        cache_partition: Whose prompts may share a prefix cache with this caller's, by a name that engines get as their salt;
            see core.isolation. A secret of the service: kept out of repr, and never logged.
    """

    tenant: TenantId
    key_id: KeyId
    limits: TenantLimits
    share: TenantShare = TenantShare()
    terms: TenantTerms = dataclasses.field(default_factory=TenantTerms)
    scope: Scope = Scope()
    user: str = ""
    key_limits: TenantLimits | None = None
    key_quotas: tuple[Quota, ...] = ()
    cache_partition: str = dataclasses.field(default="", repr=False)
    has_levels: bool = dataclasses.field(init=False, repr=False, compare=False)
    shadow: "Principal | None" = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        terms, shadow = self.terms, None
        nothing = (None, _NO_LIMITS)
        if terms.shadow not in nothing or terms.shadow_key not in nothing or terms.shadow_models:
            shadow = Principal(
                self.tenant,
                self.key_id,
                terms.shadow or _NO_LIMITS,
                terms=TenantTerms(model_limits=terms.shadow_models),
                key_limits=terms.shadow_key,
            )
        has_levels = (
            self.limits.tokens_per_minute > 0
            or self.key_limits is not None
            or bool(terms.model_limits)
            or shadow is not None
        )
        object.__setattr__(self, "shadow", shadow)
        object.__setattr__(self, "has_levels", has_levels)
