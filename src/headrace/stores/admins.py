"""Who may come to the operator's port, and as what? The rows of one table.

Of an admin token only its HMAC under the pepper is stored, as of an API key; the two are never taken for each other.
"""

import secrets
from dataclasses import dataclass

from headrace.core import keys
from headrace.core.errors import ConfigError
from headrace.core.ids import KeyId
from headrace.core.roles import ROLES, Role
from headrace.stores import agreements
from headrace.stores.database import Database

_COLUMNS = "id, role, name, created_s, expires_s, revoked_s"


@dataclass(frozen=True, slots=True)
class AdminRecord:
    """What is known of one admin token: everything but the token.

    Attributes:
        id: The public part of the token.
        name: A label for people.
        created_s, expires_s, revoked_s: Unix seconds; None for never.
    """

    id: KeyId
    role: Role
    name: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None

    def state(self, now_s: float) -> str:
        """`active`, `expired` or `revoked`, at that Unix time."""
        if self.revoked_s is not None:
            return "revoked"
        return "expired" if self.expires_s is not None and self.expires_s <= now_s else "active"


def insert(
    database: Database, pepper: bytes, role: Role, name: str, *, created_s: float, expires_s: float | None
) -> tuple[AdminRecord, str]:
    """A new token and its secret, which is in no store and can't be had again."""
    secret = keys.make(
        keys.ADMIN,
        id_random=secrets.token_bytes(keys.ID_RANDOM_BYTES),
        secret_random=secrets.token_bytes(keys.SECRET_RANDOM_BYTES),
    )
    token_id = keys.key_id(secret.encode())
    assert token_id is not None, "a token that we made is well formed"
    record = AdminRecord(token_id, role, name, created_s, expires_s, None)
    database.execute(
        f"INSERT INTO admin (digest, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL)",
        (keys.digest(pepper, secret.encode()), token_id, role.word, name, created_s, expires_s),
    )
    return record, secret


def select(database: Database, where: str = "", values: tuple[object, ...] = ()) -> list[AdminRecord]:
    """The tokens that `where` holds for, the oldest first."""
    rows = database.rows(f"SELECT {_COLUMNS} FROM admin {where} ORDER BY created_s, id", values)
    return [
        AdminRecord(token_id, ROLES[word], name, created_s, expires_s, revoked_s)
        for token_id, word, name, created_s, expires_s, revoked_s in rows
    ]


def find(database: Database, pepper: bytes, token: bytes, *, now_s: float) -> AdminRecord | None:
    """Whose token it is, where it is in force."""
    if not keys.is_well_formed(token):  # a mistyped one costs no look-up
        return None
    # By its digest under a secret pepper: an attacker can't steer it, so its timing says nothing of a token.
    found = select(database, "WHERE digest = ?", (keys.digest(pepper, token),))
    return found[0] if found and found[0].state(now_s) == "active" else None


def require(database: Database, token_id: str) -> AdminRecord:
    """Raises ConfigError, naming the nearest, when there is no such token."""
    found = select(database, "WHERE id = ?", (token_id,))
    if found:
        return found[0]
    if keys.is_well_formed(token_id.encode()):
        # A whole token pasted where its id belongs must not come back in the message.
        raise ConfigError(
            "admin tokens are named by their id, the 8 characters after `hr_admn_`, not by the token"
        )
    known = [admin.id for admin in select(database)]
    raise ConfigError(
        f"no admin `{token_id}`; {agreements.nearest(token_id, known, see='headrace admins list')}"
    )
