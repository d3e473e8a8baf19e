"""Who calls in this world, and within which limits?"""

from random import Random

import msgspec

from headrace.core import keys
from headrace.core.ids import KeyId, TenantId
from headrace.core.isolation import CachePartitions
from headrace.core.tenant import Principal, Priority, TenantLimits, TenantShare, TenantTerms


def draw_tenants(
    chance: Random, *, levels: Random, partitions: CachePartitions
) -> dict[str, tuple[str, Principal]]:
    """A few tenants by name, each with a key and what the gateway knows of its callers; `levels` draws what has been added
    to their limits since, so that the rest of the world stays as it is for each seed."""
    found = {}
    for number in range(chance.randint(1, 3)):
        tenant = f"t{number}"
        limits = TenantLimits(
            requests_per_minute=chance.choice((0, 0, 0, 0, 30, 600)),
            requests_burst=chance.randint(1, 20),
            concurrency_max=chance.choice((0, 1, 4, 64)),
        )
        share = TenantShare(
            priority_max=chance.choice(list(Priority)),
            weight=chance.choice((1, 1, 5)),
            reserved_slots=chance.choice((0, 0, 1)),
        )
        key = keys.make("test", id_random=chance.randbytes(16), secret_random=chance.randbytes(32))
        name, key_id = TenantId(tenant), KeyId(key[8:16])
        partition = partitions.of(name, key_id, TenantTerms())
        limits, terms, key_limits = _draw_levels(limits, levels)
        caller = Principal(
            name, key_id, limits, share, terms, key_limits=key_limits, cache_partition=partition
        )
        found[tenant] = (key, caller)
    return found


def _draw_levels(
    limits: TenantLimits, chance: Random
) -> tuple[TenantLimits, TenantTerms, TenantLimits | None]:
    """Limits on tokens, on a key, on a model and on trial, for some tenants."""

    def drawn() -> TenantLimits:
        return TenantLimits(
            requests_per_minute=chance.choice((0, 0, 60)),
            requests_burst=chance.randint(5, 20),
            concurrency_max=chance.choice((0, 0, 3)),
            tokens_per_minute=chance.choice((0, 600, 60_000)),
            tokens_burst=100_000,
        )

    if chance.random() < 0.6:
        return limits, TenantTerms(), None
    limits = msgspec.structs.replace(
        limits, tokens_per_minute=chance.choice((0, 600, 60_000)), tokens_burst=100_000
    )
    terms = TenantTerms(
        model_limits={"m0": drawn()} if chance.random() < 0.5 else {},
        shadow=drawn() if chance.random() < 0.5 else None,
    )
    return limits, terms, drawn() if chance.random() < 0.5 else None
