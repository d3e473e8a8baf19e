"""What goes when a tenant's data is erased, what stays, and why? The rows, and the receipt that says so.

Nothing of what requests said is in any database, so what is erased is what names people: keys with their labels and uses, and in
usage records the user, in whose place a pseudonym stands that nobody can lead back. The rest of a record is what was billed.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from headrace.core.moments import utc
from headrace.stores import key_terms
from headrace.stores.audit import Entry
from headrace.stores.database import Database

PSEUDONYM: Final = "erased-"

# What an erasure leaves, in words for its receipt; the counts are of the moment.
_KEPT: Final = (
    (
        "usage",
        "usage_records",
        "what was used and charged, without content and without the user's name: the books",
    ),
    ("invoice", "invoices", "as they were issued, for as long as the law wants books to be kept"),
    ("correction", "corrections", "entries of the books"),
    (
        "audit",
        "audit_entries",
        "who did what; each entry is part of a chain of digests, which ends where one is changed",
    ),
)


def erase(database: Database, tenant: str) -> dict[str, int]:
    """Inside a transaction: removes the tenant, with keys that still work, and its users' names; how much of each there was."""
    users = _users(database, tenant)
    keys = database.rows("SELECT id, name, terms FROM api_key WHERE tenant = ?", (tenant,))
    erased = {
        "tenants": 0,
        "keys": len(keys),
        "key_names": sum(bool(name) for _, name, _ in keys),
        "key_users": sum(bool(key_terms.terms_of(terms, key_id=key_id).user) for key_id, _, terms in keys),
        "users_in_usage_records": len(users),
        "usage_records_without_user": 0,
    }
    erased["key_uses"] = database.execute(
        "DELETE FROM key_use WHERE key_id IN (SELECT id FROM api_key WHERE tenant = ?)", (tenant,)
    )
    database.execute("UPDATE api_key SET replaces = NULL WHERE tenant = ?", (tenant,))
    database.execute("DELETE FROM api_key WHERE tenant = ?", (tenant,))
    for user in users:
        erased["usage_records_without_user"] += database.execute(
            'UPDATE usage SET "user" = ? WHERE tenant = ? AND "user" = ?',
            (PSEUDONYM + secrets.token_hex(8), tenant, user),
        )
    erased["tenants"] = database.execute("DELETE FROM tenant WHERE name = ?", (tenant,))
    return erased


def has_traces(database: Database, tenant: str) -> bool:
    """Whether usage records name users of a tenant that is gone: of requests that were in progress when it went."""
    return bool(_users(database, tenant))


def kept(database: Database, tenant: str) -> list[dict[str, Any]]:
    """What is left of it."""
    found = []
    for table, what, why in _KEPT:
        row = database.row(f"SELECT count(*) FROM {table} WHERE tenant = ?", (tenant,))
        found.append({"what": what, "count": 0 if row is None else row[0], "why": why})
    return found


def receipt(
    tenant: str, organization: str, erased: Mapping[str, int], left: list[dict[str, Any]], entry: Entry
) -> dict[str, Any]:
    """For who asked for it. Its head can be held to the audit log for good: `headrace audit verify --head HEAD`."""
    return {
        "tenant": tenant,
        "organization": organization,
        "time": utc(entry.at_s),
        "actor": entry.actor,
        "erased": dict(erased),
        "kept": left,
        "head": entry.head,
    }


def _users(database: Database, tenant: str) -> list[str]:
    return [
        user
        for (user,) in database.rows(
            f'SELECT DISTINCT "user" FROM usage WHERE tenant = ? AND "user" <> \'\' AND "user" NOT LIKE \'{PSEUDONYM}%\'',
            (tenant,),
        )
    ]
