"""Who changed what, and when? Every administrative act, in the transaction of the act itself, in a log that only grows.

    audit.record(database, Act(now_s, actor, Action.TENANT_CHANGE, name, tenant=name, changes={"weight": (1, 3)}))

Each entry holds the SHA-256 of the digest before it and its own content, so an entry that was changed, removed or slipped in
by hand is found by `verify`. Whoever can write the whole database could compute the chain anew: note a head (`number:digest`)
elsewhere from time to time, and what came before it can't be changed unnoticed.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import ConfigError
from headrace.stores import opening
from headrace.stores.database import Database, Row

_BEGINNING = bytes(32)
_COLUMNS = "number, at_s, actor, action, target, tenant, changes, digest"


class Action(StrEnum):
    """What can be done; the value is what the log says. A new kind of act is a new member."""

    TENANT_CREATE = "tenant.create"
    TENANT_CHANGE = "tenant.change"
    TENANT_DELETE = "tenant.delete"
    TENANT_ERASE = "tenant.erase"
    KEY_CREATE = "key.create"
    KEY_ROTATE = "key.rotate"
    KEY_REVOKE = "key.revoke"
    PRICE_SET = "price.set"
    CORRECTION = "usage.correct"
    INVOICE_ISSUE = "invoice.issue"
    ADMIN_CREATE = "admin.create"
    ADMIN_REVOKE = "admin.revoke"
    ACCEPTANCE_BEGIN = "acceptance.begin"
    ACCEPTANCE_END = "acceptance.end"
    DEPLOYMENT_APPLY = "deployment.apply"
    DEPLOYMENT_ROLLBACK = "deployment.rollback"
    DEPLOYMENT_REMOVE = "deployment.remove"
    ROLLOUT_SAY = "rollout.say"
    CONFIG_RELOAD = "config.reload"


@dataclass(frozen=True, slots=True)
class Act:
    """One administrative act.

    Attributes:
        at_s: Unix seconds.
        actor: `cli:` and the user of the operating system, or `admin:` and the id of an admin token (`owner` for the
            one in the data directory).
        target: The name or id of what it was done to; never a secret.
        tenant: Whose it is; "" where it is nobody's.
        changes: What is other than it was, as (old, new) by field; JSON values, and never a secret.
    """

    at_s: float
    actor: str
    action: Action
    target: str
    tenant: str = ""
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An act as the log holds it, perhaps one that another version wrote; its number counts from 1 without a gap."""

    number: int
    at_s: float
    actor: str
    action: str
    target: str
    tenant: str
    changes: dict[str, tuple[Any, Any]]
    digest: bytes

    @property
    def head(self) -> str:
        """What a later `verify` can be held to."""
        return f"{self.number}:{self.digest.hex()}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found.

    Attributes:
        entries: How many are in order, from the first.
        head: The last of them, as `number:digest`; "" for an empty log.
        problem: What is wrong with the next, in one sentence; "" where nothing is.
    """

    entries: int
    head: str
    problem: str


def record(database: Database, act: Act) -> None:
    """Appends one entry. Call it inside the transaction that does the act: then both happen or neither."""
    # The update comes first: it makes others who append wait, on databases where a transaction alone doesn't.
    database.execute("UPDATE audit_head SET number = number + 1")
    head = database.row("SELECT number, digest FROM audit_head")
    assert head is not None, "the schema has made its one row"
    number, previous = head
    changes = msgspec.json.encode(act.changes, order="sorted").decode()
    content = (number, act.at_s, act.actor, act.action.value, act.target, act.tenant, changes)
    digest = _digest(previous or _BEGINNING, content)
    database.execute(f"INSERT INTO audit ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*content, digest))
    database.execute("UPDATE audit_head SET digest = ?", (digest,))


def append(data: Path, act: Act) -> None:
    """Records an act that changes nothing in the database of that data directory. Raises DatabaseUnavailable."""
    with closing(opening.open_database(data)) as database, database.transaction():
        record(database, act)


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """The `changes` of an act that made `old` into `new`; a field that one of them lacks counts as None there."""
    return {
        name: (old.get(name), new.get(name))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    }


def entries(
    database: Database,
    *,
    since_s: float = 0.0,
    tenant: str = "",
    target: str = "",
    after: int = 0,
    limit: int = 1000,
) -> list[Entry]:
    """The oldest `limit` entries of that time, tenant and target whose number is above `after`."""
    found = database.rows(
        f"SELECT {_COLUMNS} FROM audit WHERE number > ? AND at_s >= ? AND (? = '' OR tenant = ?)"
        " AND (? = '' OR target = ?) ORDER BY number LIMIT ?",
        (after, since_s, tenant, tenant, target, target, limit),
    )
    return [_entry(row) for row in found]


def last(database: Database) -> Entry:
    """The newest entry; inside the transaction that wrote it, that one."""
    found = database.row(f"SELECT {_COLUMNS} FROM audit ORDER BY number DESC LIMIT 1")
    assert found is not None, "an act has just been written"
    return _entry(found)


def verify(database: Database, *, head: str = "") -> Verdict:
    """Follows the chain from its beginning to its head.

    Args:
        head: A head noted earlier, `number:digest`, which must still be part of the chain.
    Raises: ConfigError for a head that isn't one.
    """
    noted_number, noted_digest = _parse_head(head) if head else (0, b"")
    with database.snapshot():
        found = database.row("SELECT number, digest FROM audit_head")
        assert found is not None, "the schema has made its one row"
        head_number, head_digest = found
        number, digest = 0, _BEGINNING
        for row in _each(database):
            problem = _problem(row, number=number + 1, previous=digest)
            if not problem and row[0] == noted_number and bytes(row[-1]) != noted_digest:
                problem = f"entry {row[0]} is another than the one noted, or stands behind one that is"
            if problem:
                return Verdict(number, _head(number, digest), problem)
            number, digest = row[0], bytes(row[-1])
    if number < max(head_number, noted_number):
        return Verdict(
            number,
            _head(number, digest),
            f"entries {number + 1} to {max(head_number, noted_number)} are missing from the end",
        )
    if (number, digest) != (head_number, bytes(head_digest or _BEGINNING)):
        return Verdict(number, _head(number, digest), "the last entry is not the one that was written last")
    return Verdict(number, _head(number, digest), "")


def _each(database: Database) -> Iterator[Row]:
    return database.each(f"SELECT {_COLUMNS} FROM audit ORDER BY number")


def _problem(row: Row, *, number: int, previous: bytes) -> str:
    """What is wrong with that entry, which should have that number and stand behind that digest."""
    if row[0] != number:
        return f"entry {number} is missing"
    if _digest(previous, tuple(row[:-1])) != bytes(row[-1]):
        return f"entry {number} was changed after it was written"
    return ""


def _digest(previous: bytes, content: tuple[Any, ...]) -> bytes:
    number, at_s, *words = content
    # Text of a float differs between libraries and versions; its bits don't.
    return hashlib.sha256(previous + msgspec.json.encode([number, float(at_s).hex(), *words])).digest()


def _head(number: int, digest: bytes) -> str:
    return f"{number}:{digest.hex()}" if number else ""


def _parse_head(text: str) -> tuple[int, bytes]:
    number, _, digest = text.partition(":")
    try:
        noted = int(number), bytes.fromhex(digest)
    except ValueError:
        noted = 0, b""
    if noted[0] < 1 or len(noted[1]) != len(_BEGINNING):
        raise ConfigError(f"{text!r} is no head; it looks like `17:` and 64 hexadecimal digits")
    return noted


def _entry(row: Row) -> Entry:
    number, at_s, actor, action, target, tenant, changes, digest = row
    read: dict[str, tuple[Any, Any]] = msgspec.json.decode(changes, type=dict[str, tuple[Any, Any]])
    return Entry(number, at_s, actor, action, target, tenant, read, bytes(digest))
