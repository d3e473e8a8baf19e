"""How are tenants, keys, acts, prices and usage shown as JSON? In one form, for commands and for the admin API."""

from collections.abc import Sequence

from headrace.core.deployments import AppliedVersion
from headrace.core.moments import utc
from headrace.core.money import format_amount
from headrace.core.prices import Price
from headrace.stores.admins import AdminRecord
from headrace.stores.audit import Entry, Verdict
from headrace.stores.deployments import Wish
from headrace.stores.invoices import Correction
from headrace.stores.keys import KeyRecord
from headrace.stores.tenant_rows import TenantRecord
from headrace.stores.usage_report import Group, UsageSum

Json = dict[str, object]
# What was refused has no record.
OUTCOMES = ("delivered", "failed", "broken", "cancelled")
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")


def tenant(record: TenantRecord) -> Json:
    return {"tenant": record.name, **record.agreement.values(), "created": utc(record.created_s)}


def key(record: KeyRecord, *, now_s: float) -> Json:
    return {
        "id": record.id,
        "tenant": record.tenant,
        "name": record.name,
        "env": record.environment,
        "state": record.state(now_s),
        "created": utc(record.created_s),
        "expires": _moment(record.expires_s),
        "revoked": _moment(record.revoked_s),
        "replaces": record.replaces,
        "used": _moment(record.used_s),
        **record.terms.values(),
    }


def admin(record: AdminRecord, *, now_s: float) -> Json:
    return {
        "id": record.id,
        "role": record.role.word,
        "name": record.name,
        "state": record.state(now_s),
        "created": utc(record.created_s),
        "expires": _moment(record.expires_s),
        "revoked": _moment(record.revoked_s),
    }


def act(entry: Entry) -> Json:
    return {
        "number": entry.number,
        "time": utc(entry.at_s),
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "tenant": entry.tenant or None,
        "changes": {name: {"old": old, "new": new} for name, (old, new) in entry.changes.items()},
        "digest": entry.digest.hex(),
    }


def verdict(found: Verdict) -> Json:
    return {"entries": found.entries, "head": found.head, "problem": found.problem or None}


def price(version: Price) -> Json:
    return {
        "version": version.version,
        "tenant": version.tenant or None,
        "model": version.model,
        "currency": version.currency,
        "valid_from": utc(version.valid_from_s),
        "withdrawn": version.stated is None,
        "prices": version.stated,
    }


def usage_sum(groups: Sequence[Group], row: UsageSum) -> Json:
    named = dict(zip((group.value for group in groups), row.group, strict=True))
    facts = {
        name: getattr(row, name) for name in ("requests", *OUTCOMES, *TOKENS, "estimated_tokens", "unknown")
    }
    charges = {currency: format_amount(pico) for currency, pico in row.charges.items()}
    return {**named, **facts, "estimated_share": row.estimated_share, "charges": charges}


def correction(made: Correction) -> Json:
    return {
        "number": made.number,
        "tenant": made.tenant,
        "request": made.request_id or None,
        "model": made.model or None,
        "price_version": made.price_version or None,
        "currency": made.currency,
        "amount": format_amount(made.amount_pico),
        "reason": made.reason,
        "created": utc(made.created_s),
    }


def _moment(unix_s: float | None) -> str | None:
    return None if unix_s is None else utc(unix_s)


def version(made: AppliedVersion) -> Json:
    return {
        "version": made.version,
        "digest": made.revision.digest,
        "applied": utc(made.applied_s),
        "actor": made.actor,
    }


def applied(made: AppliedVersion, *, is_new: bool) -> Json:
    return {
        "name": made.name,
        "version": made.version,
        "digest": made.revision.digest,
        "changed": is_new,
    }


def wish(made: Wish) -> Json:
    return {
        "version": made.version or None,
        "reason": made.reason,
        "actor": made.actor,
        "time": utc(made.at_s),
    }


def deployment(wish: Wish, wanted: AppliedVersion | None) -> Json:
    """What is wanted of one name; `version` is null once it was removed."""
    return {
        "name": wish.name,
        "version": wish.version or None,
        "engine": None if wanted is None else wanted.revision.engine,
        "task": None if wanted is None else wanted.revision.task,
        "digest": None if wanted is None else wanted.revision.digest,
        "reason": wish.reason,
        "actor": wish.actor,
        "changed": utc(wish.at_s),
    }
