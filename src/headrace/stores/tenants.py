"""Who may call, and what is agreed with them? Tenants at rest, and all that may be done with them and their keys."""

import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core import keys as key_format
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.ids import TenantId
from headrace.core.tenant import PRIORITIES, Principal, TenantLimits, TenantShare
from headrace.stores import agreements, keys, pepper, sqlite
from headrace.stores.agreements import Agreement, LimitOverrides
from headrace.stores.keys import KeyEntry, KeyRecord

_TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
# Public, fixed text; its digest tells whether a pepper is the one that the stored keys were made with.
_PEPPER_CHECK = b"headrace pepper check"
_AGREED = "requests_per_minute, requests_burst, concurrency_max, class, weight, reserved_slots, terms"


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """One tenant; created_s is Unix seconds."""

    name: TenantId
    created_s: float
    agreement: Agreement


class TenantStore:
    """Tenants and keys in headrace.db; safe to call from several threads, and beside other processes."""

    def __init__(self, path: Path, pepper: bytes, *, clock: Clock) -> None:
        """Opens the database. Raises ConfigError when its keys were made with another pepper."""
        self._path = path
        self._pepper = pepper
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: int | None = None
        self._connection = sqlite.open_database(path)
        try:
            self._check_pepper()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def create_tenant(self, name: str, given: Mapping[str, object] | None = None) -> TenantRecord:
        """A tenant with the default agreement, but for the fields in `given`; see stores.agreements.

        Raises ConfigError when the name isn't valid or is taken, or a field can't hold its value.
        """
        agreement = Agreement().changed(given or {})
        if _TENANT_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"tenant name {name!r}: 1 to 63 of a-z, 0-9 and `-`, beginning with a letter or a digit"
            )
        with self._writing() as connection:
            if _has_tenant(connection, name):
                raise ConfigError(
                    f"tenant `{name}` exists already; change it with `headrace tenants set {name}`"
                )
            record = TenantRecord(TenantId(name), self._clock.wall_s(), agreement)
            connection.execute(
                f"INSERT INTO tenant (name, created_s, {_AGREED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (name, record.created_s, *_row(agreement)),
            )
        return record

    def has_tenant(self, name: str) -> bool:
        with self._reading() as connection:
            return _has_tenant(connection, name)

    def change_tenant(self, name: str, given: Mapping[str, object]) -> TenantRecord:
        """Changes the fields in `given` and no other; None gives one back to its default."""
        with self._writing() as connection:
            old = _require_tenant(connection, name)
            agreement = old.agreement.changed(given)
            connection.execute(
                f"UPDATE tenant SET ({_AGREED}) = (?, ?, ?, ?, ?, ?, ?) WHERE name = ?",
                (*_row(agreement), name),
            )
        return TenantRecord(old.name, old.created_s, agreement)

    def tenant(self, name: str) -> TenantRecord:
        """Raises ConfigError, naming the nearest, when there is no such tenant."""
        with self._reading() as connection:
            return _require_tenant(connection, name)

    def tenants(self) -> list[TenantRecord]:
        """All tenants by name."""
        with self._reading() as connection:
            return _tenants(connection, "ORDER BY name")

    def create_key(
        self, tenant: str, *, name: str = "", environment: str = "live", lifetime_s: float | None = None
    ) -> tuple[KeyRecord, str]:
        """A new key of that tenant and its secret, which is in no store and can't be had again.

        Raises ConfigError when there is no such tenant, or the name can't be shown in one line.
        """
        keys.check_name(name)
        with self._writing() as connection:
            _require_tenant(connection, tenant)
            now_s = self._clock.wall_s()
            expires_s = None if lifetime_s is None else now_s + lifetime_s
            return keys.insert(
                connection,
                self._pepper,
                TenantId(tenant),
                environment,
                name,
                created_s=now_s,
                expires_s=expires_s,
            )

    def keys(self, tenant: str | None = None) -> list[KeyRecord]:
        """All keys, or those of one tenant, the oldest first; revoked and expired ones too."""
        with self._reading() as connection:
            if tenant is None:
                return keys.select(connection)
            _require_tenant(connection, tenant)
            return keys.select(connection, "WHERE tenant = ?", (tenant,))

    def revoke(self, key_id: str) -> KeyRecord:
        """Ends a key now; a key revoked before keeps its first time."""
        with self._writing() as connection:
            keys.require(connection, key_id)
            connection.execute(
                "UPDATE api_key SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL",
                (self._clock.wall_s(), key_id),
            )
            return keys.require(connection, key_id)

    def rotate(self, key_id: str, *, overlap_s: float) -> tuple[KeyRecord, str]:
        """A new key like that one, with the same lifetime; the old one goes on working for overlap_s at most."""
        with self._writing() as connection:
            old = keys.require(connection, key_id)
            now_s = self._clock.wall_s()
            if (state := old.state(now_s)) != "active":
                raise ConfigError(f"key `{key_id}` is {state}; make a new one with `headrace keys create`")
            ends_s = now_s + overlap_s if old.expires_s is None else min(now_s + overlap_s, old.expires_s)
            connection.execute("UPDATE api_key SET expires_s = ? WHERE id = ?", (ends_s, key_id))
            expires_s = None if old.expires_s is None else now_s + (old.expires_s - old.created_s)
            return keys.insert(
                connection,
                self._pepper,
                old.tenant,
                old.environment,
                old.name,
                created_s=now_s,
                expires_s=expires_s,
                replaces=old.id,
            )

    def key_ring(self, defaults: TenantLimits, *, workers: int = 1) -> dict[bytes, KeyEntry]:
        """Every key that isn't revoked or expired, by its digest, for the gateway to look up callers in.

        Args:
            workers: Each of so many sees to its part of a tenant's reserved slots, rounded up.
        """
        with self._reading() as connection:
            self._seen = _revision(connection)
            agreed = {
                tenant.name: (
                    tenant.agreement.limits.over(defaults),
                    tenant.agreement.share.part(workers),
                    tenant.agreement.terms,
                )
                for tenant in _tenants(connection, "")
            }
            rows = connection.execute(
                "SELECT digest, tenant, id, expires_s FROM api_key"
                " WHERE revoked_s IS NULL AND (expires_s IS NULL OR expires_s > ?)",
                (self._clock.wall_s(),),
            )
            return {
                digest: KeyEntry(Principal(tenant, key_id, *agreed[tenant]), expires_s)
                for digest, tenant, key_id, expires_s in rows
            }

    def revision(self) -> int:
        """Grows with every change of a tenant or key; what `key_ring` read last is `ring_revision`."""
        with self._reading() as connection:
            return _revision(connection)

    @property
    def ring_revision(self) -> int:
        """The revision of the last `key_ring`, 0 before it."""
        return self._seen or 0

    def changed(self) -> bool:
        """Whether a tenant or a key has changed, here or in another process, since the last `key_ring`. Cheap."""
        with self._reading() as connection:
            return self._seen != _revision(connection)

    def _check_pepper(self) -> None:
        check = key_format.digest(self._pepper, _PEPPER_CHECK)
        with self._writing() as connection:
            (known,) = connection.execute("SELECT pepper_check FROM tenancy").fetchone()
            if known == check:
                return
            if connection.execute("SELECT 1 FROM api_key LIMIT 1").fetchone() is not None:
                raise ConfigError(
                    f"{self._path}: its keys were made with another pepper, so none of them would work;"
                    f" restore the file `{pepper.NAME}` that belongs to this database"
                )
            connection.execute("UPDATE tenancy SET pepper_check = ?", (check,))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, sqlite.as_config_error(self._path), sqlite.transaction(self._connection):
            yield self._connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, sqlite.as_config_error(self._path), sqlite.snapshot(self._connection):
            yield self._connection


def open_tenants(data: Path, *, clock: Clock, must_exist: bool = False) -> TenantStore:
    """The store of that data directory, with its pepper; `must_exist` as for stores.sqlite.open_database."""
    path = data / sqlite.DATABASE_NAME
    if must_exist:
        sqlite.open_database(path, must_exist=True).close()
    return TenantStore(path, pepper.load(data / pepper.NAME), clock=clock)


def _row(agreement: Agreement) -> tuple[int | str | None, ...]:
    """The columns of _AGREED."""
    limits, share = agreement.limits, agreement.share
    return (
        limits.requests_per_minute,
        limits.requests_burst,
        limits.concurrency_max,
        share.priority_max.word,
        share.weight,
        share.reserved_slots,
        agreements.terms_text(agreement.terms),
    )


def _revision(connection: sqlite3.Connection) -> int:
    (revision,) = connection.execute("SELECT revision FROM tenancy").fetchone()
    return int(revision)


def _has_tenant(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM tenant WHERE name = ?", (name,)).fetchone() is not None


def _tenants(connection: sqlite3.Connection, where: str, values: tuple[str, ...] = ()) -> list[TenantRecord]:
    rows = connection.execute(f"SELECT name, created_s, {_AGREED} FROM tenant {where}", values)
    return [
        TenantRecord(
            name,
            created_s,
            Agreement(
                LimitOverrides(per_minute, burst, concurrency),
                TenantShare(PRIORITIES[word], weight, reserved),
                agreements.terms_of(terms, tenant=name),
            ),
        )
        for name, created_s, per_minute, burst, concurrency, word, weight, reserved, terms in rows
    ]


def _require_tenant(connection: sqlite3.Connection, name: str) -> TenantRecord:
    found = _tenants(connection, "WHERE name = ?", (name,))
    if found:
        return found[0]
    known = [tenant.name for tenant in _tenants(connection, "ORDER BY name")]
    raise ConfigError(f"no tenant `{name}`; {agreements.nearest(name, known, see='headrace tenants list')}")
