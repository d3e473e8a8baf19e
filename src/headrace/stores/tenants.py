"""Who may call, and what is agreed with them? Tenants at rest, and all that may be done with them, their keys and admins."""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.core import keys as key_format
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.ids import KeyId, TenantId
from headrace.core.isolation import CachePartitions
from headrace.core.roles import Role
from headrace.core.tenant import SYSTEM_TENANT, Principal, TenantLimits
from headrace.stores import (
    admins,
    audit,
    erasure,
    key_ring,
    key_terms,
    keys,
    mirror,
    opening,
    pepper,
    tenant_rows,
)
from headrace.stores.admins import AdminRecord
from headrace.stores.agreements import Agreement
from headrace.stores.audit import Act, Action
from headrace.stores.database import Database, Kind
from headrace.stores.key_ring import InForce, KeyEntry
from headrace.stores.keys import KeyRecord
from headrace.stores.tenant_rows import TenantRecord

_TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
# Public, fixed text; its digest tells whether a pepper is the one that the stored keys were made with.
_PEPPER_CHECK = b"headrace pepper check"


class TenantStore:
    """Tenants, keys and admin tokens; safe to call from several threads, and beside other processes.

    Every change is in the audit log, in the same transaction, as an act of the store's actor.

    Attributes:
        unreadable: What was wrong with tenants and keys that the last `key_ring` left out.
    """

    def __init__(
        self,
        database: Database,
        pepper: bytes,
        *,
        clock: Clock,
        actor: str = "service",
        is_checked: bool = False,
    ) -> None:
        """Takes the database over. Raises ConfigError when its keys were made with another pepper.

        Args:
            actor: Who acts; see stores.audit.Act.
            is_checked: Its pepper is known to be this one.
        """
        self._database = database
        self._pepper = pepper
        self._clock = clock
        self._actor = actor
        self._seen: int | None = None
        self.unreadable: tuple[str, ...] = ()
        if is_checked:
            return
        try:
            self._check_pepper()
        except BaseException:
            database.close()
            raise

    def on_behalf_of(self, actor: str) -> "TenantStore":
        """The same store, for what somebody else does; only the first one is closed."""
        other = copy.copy(self)
        other._actor = actor
        return other

    def close(self) -> None:
        self._database.close()

    def create_tenant(self, name: str, given: Mapping[str, object] | None = None) -> TenantRecord:
        """A tenant with the default agreement, but for the fields in `given`; see stores.agreements.

        Raises ConfigError when the name isn't valid or is taken, or a field can't hold its value.
        """
        agreement = Agreement().changed(given or {})
        if _TENANT_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"tenant name {name!r}: 1 to 63 of a-z, 0-9 and `-`, beginning with a letter or a digit"
            )
        if name == SYSTEM_TENANT:
            raise ConfigError(f"tenant name {name!r}: it is reserved for the service's own requests")
        with self._database.transaction():
            if tenant_rows.exists(self._database, name):
                raise ConfigError(
                    f"tenant `{name}` exists already; change it with `headrace tenants set {name}`"
                )
            record = TenantRecord(TenantId(name), self._clock.wall_s(), agreement)
            self._database.execute(
                f"INSERT INTO tenant (name, created_s, {tenant_rows.AGREED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (name, record.created_s, *tenant_rows.row(agreement)),
            )
            self._record(
                Action.TENANT_CREATE,
                name,
                tenant=name,
                changes=audit.differences(Agreement().values(), agreement.values()),
            )
        return record

    def has_tenant(self, name: str) -> bool:
        with self._database.snapshot():
            return tenant_rows.exists(self._database, name)

    def change_tenant(self, name: str, given: Mapping[str, object]) -> TenantRecord:
        """Changes the fields in `given` and no other; None gives one back to its default."""
        with self._database.transaction():
            old = tenant_rows.require(self._database, name)
            agreement = old.agreement.changed(given)
            changes = audit.differences(old.agreement.values(), agreement.values())
            if changes:
                self._database.execute(
                    f"UPDATE tenant SET ({tenant_rows.AGREED}) = (?, ?, ?, ?, ?, ?, ?) WHERE name = ?",
                    (*tenant_rows.row(agreement), name),
                )
                self._record(Action.TENANT_CHANGE, name, tenant=name, changes=changes)
        return TenantRecord(old.name, old.created_s, agreement)

    def delete_tenant(self, name: str) -> None:
        """Removes a tenant and its keys, none of which may still work. What it used stays in the ledger, under its name."""
        with self._database.transaction():
            old = tenant_rows.require(self._database, name)
            keys.delete_all(self._database, name, now_s=self._clock.wall_s())
            self._database.execute("DELETE FROM tenant WHERE name = ?", (name,))
            self._record(
                Action.TENANT_DELETE,
                name,
                tenant=name,
                changes=audit.differences(old.agreement.values(), Agreement().values()),
            )

    def erase_tenant(self, name: str) -> dict[str, Any]:
        """Removes a tenant, its keys, working or not, and its users' names from its usage records; returns the receipt.

        May be repeated, for records of requests that were in progress. Raises ConfigError where there is nothing of it.
        """
        with self._database.transaction():
            organization = ""
            if tenant_rows.exists(self._database, name) or not erasure.has_traces(self._database, name):
                organization = tenant_rows.require(self._database, name).agreement.terms.organization
            erased = erasure.erase(self._database, name)
            self._record(
                Action.TENANT_ERASE,
                name,
                tenant=name,
                changes={what: (count, 0) for what, count in erased.items() if count},
            )
            entry = audit.last(self._database)
            return erasure.receipt(name, organization, erased, erasure.kept(self._database, name), entry)

    def tenant(self, name: str) -> TenantRecord:
        """Raises ConfigError, naming the nearest, when there is no such tenant."""
        with self._database.snapshot():
            return tenant_rows.require(self._database, name)

    def tenants(self) -> list[TenantRecord]:
        """All tenants by name."""
        with self._database.snapshot():
            return tenant_rows.select(self._database, "ORDER BY name")

    def create_key(
        self,
        tenant: str,
        given: Mapping[str, object] | None = None,
        *,
        name: str = "",
        environment: str = "live",
        lifetime_s: float | None = None,
    ) -> tuple[KeyRecord, str]:
        """A new key of that tenant and its secret, which is in no store and can't be had again.

        Args:
            given: What it's narrowed to; see stores.key_terms.
        Raises: ConfigError when there is no such tenant, the name can't be shown in one line, or a field can't hold its
            value.
        """
        keys.check_name(name)
        terms = key_terms.read(given or {})
        with self._database.transaction():
            tenant_rows.require(self._database, tenant)
            now_s = self._clock.wall_s()
            expires_s = None if lifetime_s is None else now_s + lifetime_s
            record, secret = keys.insert(
                self._database,
                self._pepper,
                TenantId(tenant),
                environment,
                name,
                created_s=now_s,
                expires_s=expires_s,
                terms=terms,
            )
            self._record(
                Action.KEY_CREATE,
                record.id,
                tenant=tenant,
                changes=audit.differences({}, record.facts()),
            )
            return record, secret

    def keys(self, tenant: str | None = None) -> list[KeyRecord]:
        """All keys, or those of one tenant, the oldest first; revoked and expired ones too."""
        with self._database.snapshot():
            if tenant is None:
                return keys.select(self._database)
            tenant_rows.require(self._database, tenant)
            return keys.select(self._database, "WHERE tenant = ?", (tenant,))

    def key(self, key_id: str) -> KeyRecord:
        """Raises ConfigError, naming the nearest, when there is no such key."""
        with self._database.snapshot():
            return keys.require(self._database, key_id)

    def revoke(self, key_id: str) -> KeyRecord:
        """Ends a key now; a key revoked before keeps its first time."""
        with self._database.transaction():
            old = keys.require(self._database, key_id)
            if old.revoked_s is not None:
                return old
            self._database.execute(
                "UPDATE api_key SET revoked_s = ? WHERE id = ?", (self._clock.wall_s(), key_id)
            )
            self._record(Action.KEY_REVOKE, key_id, tenant=old.tenant)
            return keys.require(self._database, key_id)

    def rotate(self, key_id: str, *, overlap_s: float) -> tuple[KeyRecord, str]:
        """A new key like that one, with the same terms and lifetime; the old one goes on working for overlap_s at most."""
        with self._database.transaction():
            old = keys.require(self._database, key_id)
            now_s = self._clock.wall_s()
            if (state := old.state(now_s)) != "active":
                raise ConfigError(f"key `{key_id}` is {state}; make a new one with `headrace keys create`")
            ends_s = now_s + overlap_s if old.expires_s is None else min(now_s + overlap_s, old.expires_s)
            self._database.execute("UPDATE api_key SET expires_s = ? WHERE id = ?", (ends_s, key_id))
            expires_s = None if old.expires_s is None else now_s + (old.expires_s - old.created_s)
            record, secret = keys.insert(
                self._database,
                self._pepper,
                old.tenant,
                old.environment,
                old.name,
                created_s=now_s,
                expires_s=expires_s,
                terms=old.terms,
                replaces=old.id,
            )
            self._record(
                Action.KEY_ROTATE,
                key_id,
                tenant=old.tenant,
                changes={"expires_s": (old.expires_s, ends_s), "replaced_by": (None, record.id)},
            )
            return record, secret

    def create_admin(
        self, role: Role, *, name: str = "", lifetime_s: float | None = None
    ) -> tuple[AdminRecord, str]:
        """A new token for the admin port and its secret, which is in no store and can't be had again."""
        keys.check_name(name)
        with self._database.transaction():
            now_s = self._clock.wall_s()
            expires_s = None if lifetime_s is None else now_s + lifetime_s
            record, secret = admins.insert(
                self._database, self._pepper, role, name, created_s=now_s, expires_s=expires_s
            )
            facts = {"role": role.word, "name": name, "expires_s": expires_s}
            self._record(Action.ADMIN_CREATE, record.id, changes=audit.differences({}, facts))
            return record, secret

    def admins(self) -> list[AdminRecord]:
        """All admin tokens, the oldest first; revoked and expired ones too."""
        with self._database.snapshot():
            return admins.select(self._database)

    def admin(self, token_id: str) -> AdminRecord:
        """Raises ConfigError, naming the nearest, when there is no such token."""
        with self._database.snapshot():
            return admins.require(self._database, token_id)

    def revoke_admin(self, token_id: str) -> AdminRecord:
        """Ends an admin token now; one revoked before keeps its first time."""
        with self._database.transaction():
            old = admins.require(self._database, token_id)
            if old.revoked_s is not None:
                return old
            self._database.execute(
                "UPDATE admin SET revoked_s = ? WHERE id = ?", (self._clock.wall_s(), token_id)
            )
            self._record(Action.ADMIN_REVOKE, token_id)
            return admins.require(self._database, token_id)

    def find_admin(self, token: bytes) -> AdminRecord | None:
        """Whose token it is, where it is in force at this moment."""
        with self._database.snapshot():
            return admins.find(self._database, self._pepper, token, now_s=self._clock.wall_s())

    def key_ring(
        self,
        defaults: TenantLimits,
        *,
        shadow: TenantLimits | None = None,
        workers: int = 1,
        salt_rotation: int = 0,
    ) -> dict[bytes, KeyEntry]:
        """Every key that isn't revoked or expired, by its digest, for the gateway to look up callers in.

        What this version can't read opens nothing: such a key, or the keys of such a tenant, are left out.

        Args:
            shadow: Limits on trial of tenants that have none of their own.
            workers: Each of so many sees to its part of a tenant's reserved slots, rounded up.
            salt_rotation: See core.isolation.CachePartitions.
        """
        with self._database.snapshot():
            self._seen = _revision(self._database)
            ring = key_ring.read(
                self._database,
                InForce(defaults, shadow, workers),
                CachePartitions(self._pepper, rotation=salt_rotation),
                now_s=self._clock.wall_s(),
            )
        self.unreadable = ring.problems
        return ring.entries

    def note_uses(self, used_s: Mapping[KeyId, float]) -> None:
        """Writes down when keys were last used, in Unix seconds. No change of the tenancy, and no administrative act."""
        if used_s:
            with self._database.transaction():
                keys.note_uses(self._database, used_s)

    def keyless(
        self, defaults: TenantLimits, *, shadow: TenantLimits | None = None, workers: int = 1
    ) -> dict[TenantId, Principal]:
        """Every tenant as a caller without a key, for the gateway to match tokens with; the arguments are `key_ring`'s."""
        with self._database.snapshot():
            return key_ring.keyless(self._database, InForce(defaults, shadow, workers))

    def copied_s(self) -> float | None:
        """When this copy of a central database was last true, in Unix seconds; None where it is no copy."""
        return mirror.seen_s(self._database)

    def revision(self) -> int:
        """Grows with every change of a tenant or key; what `key_ring` read last is `ring_revision`."""
        with self._database.snapshot():
            return _revision(self._database)

    @property
    def ring_revision(self) -> int:
        """The revision of the last `key_ring`, 0 before it."""
        return self._seen or 0

    def changed(self) -> bool:
        """Whether a tenant or a key has changed, here or in another process, since the last `key_ring`. Cheap."""
        with self._database.snapshot():
            return self._seen != _revision(self._database)

    def audit_entries(
        self, *, since_s: float = 0.0, tenant: str = "", after: int = 0, limit: int = 1000
    ) -> list[audit.Entry]:
        """See stores.audit.entries."""
        return audit.entries(self._database, since_s=since_s, tenant=tenant, after=after, limit=limit)

    def verify_audit(self, *, head: str = "") -> audit.Verdict:
        """See stores.audit.verify."""
        return audit.verify(self._database, head=head)

    def _record(
        self,
        action: Action,
        target: str,
        *,
        tenant: str = "",
        changes: Mapping[str, tuple[object, object]] | None = None,
    ) -> None:
        """Puts an act of this transaction into the audit log."""
        act = Act(self._clock.wall_s(), self._actor, action, target, tenant, changes or {})
        audit.record(self._database, act)

    def _check_pepper(self) -> None:
        check = key_format.digest(self._pepper, _PEPPER_CHECK)
        with self._database.transaction():
            known = self._database.row("SELECT pepper_check FROM tenancy")
            if known == (check,):
                return
            is_shared = self._database.kind is Kind.POSTGRES or self.copied_s() is not None
            if is_shared and known != (None,):
                raise ConfigError(
                    f"{self._database.name}: is used with another pepper; copy the file `{pepper.NAME}` from the data"
                    " directory of a service that uses it, mode 0600"
                )
            if self._database.row("SELECT 1 FROM api_key LIMIT 1") is not None:
                raise ConfigError(
                    f"{self._database.name}: its keys were made with another pepper, so none of them would work;"
                    f" restore the file `{pepper.NAME}` that belongs to this database"
                )
            self._database.execute("UPDATE tenancy SET pepper_check = ?", (check,))


def open_tenants(
    data: Path, *, clock: Clock, actor: str = "service", must_exist: bool = False
) -> TenantStore:
    """The store of that data directory, with its pepper; `must_exist` as for stores.opening.open_database."""
    return _with_pepper(opening.open_database(data, must_exist=must_exist), data, clock=clock, actor=actor)


def open_served(data: Path, *, clock: Clock) -> TenantStore:
    """What a gateway goes by: in the data directory itself, although it may be a copy."""
    return _with_pepper(opening.open_local(data), data, clock=clock, actor="service")


def open_changed(data: Path, *, clock: Clock) -> TenantStore:
    """What a running service changes. It has checked the database when it began, or could not have it: it is asked when it
    is needed."""
    if not (reference := opening.remembered(data)):
        return open_tenants(data, clock=clock)
    secret = pepper.load(data / pepper.NAME)
    return TenantStore(opening.connect_central(reference), secret, clock=clock, is_checked=True)


def _with_pepper(database: Database, data: Path, *, clock: Clock, actor: str) -> TenantStore:
    try:
        secret = pepper.load(data / pepper.NAME)
    except BaseException:
        database.close()
        raise
    return TenantStore(database, secret, clock=clock, actor=actor)


def _revision(database: Database) -> int:
    found = database.row("SELECT revision FROM tenancy")
    assert found is not None, "the schema has made its one row"
    return int(found[0])
