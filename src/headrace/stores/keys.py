"""Which API keys are there, and what is known of each? The rows of one table.

Of a key only its HMAC under the pepper is stored, so a copy of the database gives nobody access.
"""

import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headrace.core import keys
from headrace.core.errors import ConfigError
from headrace.core.ids import KeyId, TenantId
from headrace.stores import agreements, key_terms
from headrace.stores.database import Database
from headrace.stores.key_terms import KeyTerms

_NAME_MAX = 200
# In one statement: a database across a network is asked once for all of them, since whoever waits for it may be about to hear
# that a key was revoked.
_USES_MAX = 500
_COLUMNS = "id, tenant, environment, name, created_s, expires_s, revoked_s, replaces, terms"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is known of one API key: everything but the key.

    Attributes:
        id: The public part of the key.
        name: A label for people.
        created_s, expires_s, revoked_s: Unix seconds; None for never.
        replaces: The key that this one was rotated from.
        terms: What it is narrowed to.
        used_s: When a call last came with it, within a few seconds.
    """

    id: KeyId
    tenant: TenantId
    environment: str
    name: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None
    replaces: KeyId | None
    terms: KeyTerms
    used_s: float | None = None

    def state(self, now_s: float) -> str:
        """`active`, `expired` or `revoked`, at that Unix time."""
        if self.revoked_s is not None:
            return "revoked"
        return "expired" if self.expires_s is not None and self.expires_s <= now_s else "active"

    def facts(self) -> dict[str, object]:
        """What was decided about it when it was made, for the audit log."""
        return {
            "name": self.name,
            "environment": self.environment,
            "expires_s": self.expires_s,
            **{name: value for name, value in self.terms.values().items() if value not in (None, "")},
        }


def check_name(name: str) -> None:
    """Raises ConfigError when that name of a key or an admin token can't be shown in one line."""
    if len(name) > _NAME_MAX or not name.isprintable():
        raise ConfigError(f"a name is at most {_NAME_MAX} printable characters, got {name[:_NAME_MAX]!a}")


def insert(
    database: Database,
    pepper: bytes,
    tenant: TenantId,
    environment: str,
    name: str,
    *,
    created_s: float,
    expires_s: float | None,
    terms: KeyTerms,
    replaces: KeyId | None = None,
) -> tuple[KeyRecord, str]:
    """A new key and its secret, which is in no store and can't be had again."""
    secret = keys.make(
        environment,
        id_random=secrets.token_bytes(keys.ID_RANDOM_BYTES),
        secret_random=secrets.token_bytes(keys.SECRET_RANDOM_BYTES),
    )
    key_id = keys.key_id(secret.encode())
    assert key_id is not None, "a key that we made is well formed"
    record = KeyRecord(key_id, tenant, environment, name, created_s, expires_s, None, replaces, terms)
    # An id that exists already (once in 2.8 * 10**12 per stored key) breaks the primary key: the command fails and
    # is repeated, which is better than code that nobody ever sees run.
    database.execute(
        f"INSERT INTO api_key (digest, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?, ?)",
        (
            keys.digest(pepper, secret.encode()),
            key_id,
            tenant,
            environment,
            name,
            created_s,
            expires_s,
            replaces,
            msgspec.json.encode(terms).decode(),
        ),
    )
    return record, secret


def select(database: Database, where: str = "", values: tuple[str, ...] = ()) -> list[KeyRecord]:
    """The keys that `where` holds for, the oldest first."""
    rows = database.rows(
        f"SELECT {_COLUMNS}, used_s FROM api_key LEFT JOIN key_use ON key_use.key_id = api_key.id {where}"
        " ORDER BY created_s, id",
        values,
    )
    return [
        KeyRecord(
            key_id,
            tenant,
            environment,
            name,
            created_s,
            expires_s,
            revoked_s,
            replaces,
            key_terms.terms_of(terms, key_id=key_id),
            used_s,
        )
        for (
            key_id,
            tenant,
            environment,
            name,
            created_s,
            expires_s,
            revoked_s,
            replaces,
            terms,
            used_s,
        ) in rows
    ]


def delete_all(database: Database, tenant: str, *, now_s: float) -> None:
    """Removes every key of a tenant. Raises ConfigError where one of them still works."""
    working = [
        key.id for key in select(database, "WHERE tenant = ?", (tenant,)) if key.state(now_s) == "active"
    ]
    if working:
        raise ConfigError(
            f"tenant `{tenant}` has keys that work ({', '.join(working[:5])}{', ...' if working[5:] else ''});"
            " revoke them first"
        )
    database.execute(
        "DELETE FROM key_use WHERE key_id IN (SELECT id FROM api_key WHERE tenant = ?)", (tenant,)
    )
    database.execute("UPDATE api_key SET replaces = NULL WHERE tenant = ?", (tenant,))
    database.execute("DELETE FROM api_key WHERE tenant = ?", (tenant,))


def note_uses(database: Database, used_s: Mapping[KeyId, float]) -> None:
    """Writes down when keys were last used (Unix seconds); of several who know, the latest is right. Ids that aren't keys'
    are passed over. Call it inside a transaction."""
    moments = iter(used_s.items())
    while uses := tuple(itertools.islice(moments, _USES_MAX)):
        database.execute(
            "INSERT INTO key_use (key_id, used_s)"
            f" SELECT id, column2 FROM (VALUES {', '.join(['(?, ?)'] * len(uses))}) AS seen, api_key WHERE id = column1"
            " ON CONFLICT (key_id) DO UPDATE SET used_s = excluded.used_s WHERE excluded.used_s > key_use.used_s",
            tuple(itertools.chain.from_iterable(uses)),
        )


def require(database: Database, key_id: str) -> KeyRecord:
    """Raises ConfigError, naming the nearest, when there is no such key."""
    found = select(database, "WHERE id = ?", (key_id,))
    if found:
        return found[0]
    if keys.is_well_formed(key_id.encode()):
        # A whole key pasted where its id belongs must not come back in the message.
        raise ConfigError(
            "keys are named by their id, the 8 characters after `hr_live_` or `hr_test_`, not by the key"
        )
    known = [key.id for key in select(database)]
    raise ConfigError(f"no key `{key_id}`; {agreements.nearest(key_id, known, see='headrace keys list')}")
