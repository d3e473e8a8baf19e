"""What does a gateway hold of tenants and keys? Every key that opens something, by its digest, with what holds for it."""

from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.ids import KeyId, TenantId
from headrace.core.isolation import CachePartitions
from headrace.core.tenant import Principal, TenantLimits, TenantShare, TenantTerms
from headrace.stores import key_terms, tenant_rows
from headrace.stores.agreements import Agreement
from headrace.stores.database import Database


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """What the gateway holds for one key: who it is, and until when (Unix seconds)."""

    principal: Principal
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class InForce:
    """What turns what is agreed with a tenant into what is in force.

    Attributes:
        defaults: Where a tenant has no limit of its own.
        shadow: Limits on trial of tenants that have none of their own.
        workers: Each of so many sees to its part of a tenant's reserved slots, rounded up.
    """

    defaults: TenantLimits
    shadow: TenantLimits | None
    workers: int

    def of(self, agreement: Agreement) -> tuple[TenantLimits, TenantShare, TenantTerms]:
        """As a Principal has it."""
        return (
            agreement.limits_over(self.defaults),
            agreement.share.part(self.workers),
            agreement.terms_over(self.shadow),
        )


@dataclass(frozen=True, slots=True)
class Ring:
    """The keys, and what was wrong with those that were left out.

    A version that can't read what was agreed must not guess, and one row that it can't read must not keep it from hearing
    that another key was revoked.
    """

    entries: dict[bytes, KeyEntry]
    problems: tuple[str, ...]


def read(database: Database, in_force: InForce, partitions: CachePartitions, *, now_s: float) -> Ring:
    """Every key that is neither revoked nor expired at that Unix time. Call it inside a snapshot."""
    tenants, problems = tenant_rows.readable(database)
    agreed = {tenant.name: in_force.of(tenant.agreement) for tenant in tenants}
    rows = database.rows(
        "SELECT digest, tenant, id, expires_s, terms FROM api_key"
        " WHERE revoked_s IS NULL AND (expires_s IS NULL OR expires_s > ?)",
        (now_s,),
    )
    entries = {}
    for digest, tenant, key_id, expires_s, text in rows:
        if tenant not in agreed:
            continue
        try:
            terms = key_terms.terms_of(text, key_id=key_id)
        except ConfigError as error:
            problems.append(error.message)
            continue
        caller = Principal(
            tenant,
            key_id,
            *agreed[tenant],
            scope=terms.scope(),
            user=terms.user,
            key_limits=terms.limits(in_force.defaults),
            key_quotas=terms.all_quotas(),
            cache_partition=partitions.of(tenant, key_id, agreed[tenant][2], user=terms.user),
        )
        entries[digest] = KeyEntry(caller, expires_s)
    return Ring(entries, tuple(problems))


def keyless(database: Database, in_force: InForce) -> dict[TenantId, Principal]:
    """Every tenant as a caller without a key, for tokens to be matched with. Call it inside a snapshot."""
    tenants, _ = tenant_rows.readable(database)
    return {
        tenant.name: Principal(tenant.name, KeyId(""), *in_force.of(tenant.agreement)) for tenant in tenants
    }
