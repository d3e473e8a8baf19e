"""How are tenants, keys, admins and acts shown as JSON? In one form, for commands and for the admin API."""

from headrace.core.moments import utc
from headrace.stores.admins import AdminRecord
from headrace.stores.audit import Entry, Verdict
from headrace.stores.keys import KeyRecord
from headrace.stores.tenant_rows import TenantRecord

Json = dict[str, object]


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


def _moment(unix_s: float | None) -> str | None:
    return None if unix_s is None else utc(unix_s)
