"""Who may call, and within which limits? Tenants and their API keys at rest.

Of a key only its HMAC under the pepper is stored, so a copy of the database gives nobody access.
"""

import difflib
import os
import re
import secrets
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core import keys
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.ids import KeyId, TenantId
from headrace.core.tenant import (
    PRIORITIES,
    RESERVED_SLOTS_MAX,
    WEIGHT_MAX,
    Principal,
    TenantLimits,
    TenantShare,
)
from headrace.stores import sqlite

PEPPER_NAME = "pepper"
_PEPPER_BYTES = 32
_LIMIT_MAX = 1_000_000_000
_KEY_NAME_MAX = 200
_TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
# Public, fixed text; its digest tells whether a pepper is the one that the stored keys were made with.
_PEPPER_CHECK = b"headrace pepper check"


@dataclass(frozen=True, slots=True)
class LimitOverrides:
    """A tenant's own limits; None where the service's default applies. See core.tenant.TenantLimits."""

    requests_per_minute: int | None = None
    requests_burst: int | None = None
    concurrency_max: int | None = None

    def over(self, defaults: TenantLimits) -> TenantLimits:
        """The limits that are in force."""
        per_minute, burst, concurrency = self.requests_per_minute, self.requests_burst, self.concurrency_max
        return TenantLimits(
            requests_per_minute=defaults.requests_per_minute if per_minute is None else per_minute,
            requests_burst=defaults.requests_burst if burst is None else burst,
            concurrency_max=defaults.concurrency_max if concurrency is None else concurrency,
        )


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """One tenant; created_s is Unix seconds."""

    name: TenantId
    created_s: float
    limits: LimitOverrides
    share: TenantShare


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is known of one API key: everything but the key.

    Attributes:
        id: The public part of the key.
        name: A label for people.
        created_s, expires_s, revoked_s: Unix seconds; None for never.
        replaces: The key that this one was rotated from.
    """

    id: KeyId
    tenant: TenantId
    environment: str
    name: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None
    replaces: KeyId | None

    def state(self, now_s: float) -> str:
        """`active`, `expired` or `revoked`, at that Unix time."""
        if self.revoked_s is not None:
            return "revoked"
        return "expired" if self.expires_s is not None and self.expires_s <= now_s else "active"


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """What the gateway holds for one key: who it is, and until when (Unix seconds)."""

    principal: Principal
    expires_s: float | None


def load_pepper(path: Path) -> bytes:
    """The pepper in that file, made on the first call. Raises ConfigError when others can read it or it isn't ours."""
    try:
        if not path.exists():
            _make_pepper(path)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            pepper = file.read(_PEPPER_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path}: mode {mode:04o}; only its owner may read it: chmod 600 {path}")
    if len(pepper) != _PEPPER_BYTES:
        raise ConfigError(f"{path}: must hold exactly {_PEPPER_BYTES} bytes; restore it from a backup")
    return pepper


def _make_pepper(path: Path) -> None:
    """Writes a new pepper aside and links it into place: whoever comes first wins, and nobody reads half of one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_PEPPER_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        draft.unlink()


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

    def create_tenant(
        self, name: str, limits: LimitOverrides | None = None, share: TenantShare | None = None
    ) -> TenantRecord:
        """Raises ConfigError when the name isn't valid or is taken, or a value is out of its range."""
        if _TENANT_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"tenant name {name!r}: 1 to 63 of a-z, 0-9 and `-`, beginning with a letter or a digit"
            )
        with self._writing() as connection:
            if _has_tenant(connection, name):
                raise ConfigError(
                    f"tenant `{name}` exists already; change it with `headrace tenants set {name}`"
                )
            record = TenantRecord(
                TenantId(name), self._clock.wall_s(), limits or LimitOverrides(), share or TenantShare()
            )
            connection.execute(
                "INSERT INTO tenant (name, created_s, requests_per_minute, requests_burst, concurrency_max,"
                " class, weight, reserved_slots) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (name, record.created_s, *_limit_values(record.limits), *_share_values(record.share)),
            )
        return record

    def has_tenant(self, name: str) -> bool:
        with self._reading() as connection:
            return _has_tenant(connection, name)

    def set_tenant(self, name: str, limits: LimitOverrides, share: TenantShare) -> None:
        """Replaces the tenant's own limits, where None gives one back to the default, and its share."""
        with self._writing() as connection:
            _require_tenant(connection, name)
            connection.execute(
                "UPDATE tenant SET requests_per_minute = ?, requests_burst = ?, concurrency_max = ?,"
                " class = ?, weight = ?, reserved_slots = ? WHERE name = ?",
                (*_limit_values(limits), *_share_values(share), name),
            )

    def tenant(self, name: str) -> TenantRecord:
        """Raises ConfigError, naming the nearest, when there is no such tenant."""
        with self._reading() as connection:
            _require_tenant(connection, name)
            return _tenants(connection, "WHERE name = ?", (name,))[0]

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
        if len(name) > _KEY_NAME_MAX or not name.isprintable():
            raise ConfigError(
                f"a key's name is at most {_KEY_NAME_MAX} printable characters, got {name[:_KEY_NAME_MAX]!a}"
            )
        with self._writing() as connection:
            _require_tenant(connection, tenant)
            now_s = self._clock.wall_s()
            expires_s = None if lifetime_s is None else now_s + lifetime_s
            return self._insert_key(
                connection,
                TenantId(tenant),
                environment,
                name,
                created_s=now_s,
                expires_s=expires_s,
                replaces=None,
            )

    def keys(self, tenant: str | None = None) -> list[KeyRecord]:
        """All keys, or those of one tenant, the oldest first; revoked and expired ones too."""
        with self._reading() as connection:
            if tenant is None:
                return _keys(connection, "")
            _require_tenant(connection, tenant)
            return _keys(connection, "WHERE tenant = ?", (tenant,))

    def revoke(self, key_id: str) -> KeyRecord:
        """Ends a key now; a key revoked before keeps its first time."""
        with self._writing() as connection:
            _require_key(connection, key_id)
            connection.execute(
                "UPDATE api_key SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL",
                (self._clock.wall_s(), key_id),
            )
            return _require_key(connection, key_id)

    def rotate(self, key_id: str, *, overlap_s: float) -> tuple[KeyRecord, str]:
        """A new key like that one, with the same lifetime; the old one goes on working for overlap_s at most."""
        with self._writing() as connection:
            old = _require_key(connection, key_id)
            now_s = self._clock.wall_s()
            if (state := old.state(now_s)) != "active":
                raise ConfigError(f"key `{key_id}` is {state}; make a new one with `headrace keys create`")
            ends_s = now_s + overlap_s if old.expires_s is None else min(now_s + overlap_s, old.expires_s)
            connection.execute("UPDATE api_key SET expires_s = ? WHERE id = ?", (ends_s, key_id))
            expires_s = None if old.expires_s is None else now_s + (old.expires_s - old.created_s)
            return self._insert_key(
                connection,
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
                tenant.name: (tenant.limits.over(defaults), tenant.share.part(workers))
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
        check = keys.digest(self._pepper, _PEPPER_CHECK)
        with self._writing() as connection:
            (known,) = connection.execute("SELECT pepper_check FROM tenancy").fetchone()
            if known == check:
                return
            if connection.execute("SELECT 1 FROM api_key LIMIT 1").fetchone() is not None:
                raise ConfigError(
                    f"{self._path}: its keys were made with another pepper, so none of them would work;"
                    f" restore the file `{PEPPER_NAME}` that belongs to this database"
                )
            connection.execute("UPDATE tenancy SET pepper_check = ?", (check,))

    def _insert_key(
        self,
        connection: sqlite3.Connection,
        tenant: TenantId,
        environment: str,
        name: str,
        *,
        created_s: float,
        expires_s: float | None,
        replaces: KeyId | None,
    ) -> tuple[KeyRecord, str]:
        secret = keys.make(
            environment,
            id_random=secrets.token_bytes(keys.ID_RANDOM_BYTES),
            secret_random=secrets.token_bytes(keys.SECRET_RANDOM_BYTES),
        )
        key_id = keys.key_id(secret.encode())
        assert key_id is not None, "a key that we made is well formed"
        record = KeyRecord(key_id, tenant, environment, name, created_s, expires_s, None, replaces)
        # An id that exists already (once in 2.8 * 10**12 per stored key) breaks the primary key: the command fails and
        # is repeated, which is better than code that nobody ever sees run.
        connection.execute(
            "INSERT INTO api_key (digest, id, tenant, environment, name, created_s, expires_s, revoked_s, replaces)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?)",
            (
                keys.digest(self._pepper, secret.encode()),
                key_id,
                tenant,
                environment,
                name,
                created_s,
                expires_s,
                replaces,
            ),
        )
        return record, secret

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
    return TenantStore(path, load_pepper(data / PEPPER_NAME), clock=clock)


def _limit_values(limits: LimitOverrides) -> tuple[int | None, int | None, int | None]:
    for name, value, least in (
        ("requests_per_minute", limits.requests_per_minute, 0),
        ("requests_burst", limits.requests_burst, 1),
        ("concurrency_max", limits.concurrency_max, 0),
    ):
        if value is not None:
            _check_range(name, value, least, _LIMIT_MAX)
    return limits.requests_per_minute, limits.requests_burst, limits.concurrency_max


def _share_values(share: TenantShare) -> tuple[str, int, int]:
    _check_range("weight", share.weight, 1, WEIGHT_MAX)
    _check_range("reserved_slots", share.reserved_slots, 0, RESERVED_SLOTS_MAX)
    return share.priority_max.word, share.weight, share.reserved_slots


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"`{name}` must be from {least} to {most}, got {value}")


def _revision(connection: sqlite3.Connection) -> int:
    (revision,) = connection.execute("SELECT revision FROM tenancy").fetchone()
    return int(revision)


def _has_tenant(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM tenant WHERE name = ?", (name,)).fetchone() is not None


def _tenants(connection: sqlite3.Connection, where: str, values: tuple[str, ...] = ()) -> list[TenantRecord]:
    rows = connection.execute(
        "SELECT name, created_s, requests_per_minute, requests_burst, concurrency_max, class, weight, reserved_slots"
        f" FROM tenant {where}",
        values,
    )
    return [
        TenantRecord(
            row[0], row[1], LimitOverrides(*row[2:5]), TenantShare(PRIORITIES[row[5]], row[6], row[7])
        )
        for row in rows
    ]


def _keys(connection: sqlite3.Connection, where: str, values: tuple[str, ...] = ()) -> list[KeyRecord]:
    rows = connection.execute(
        "SELECT id, tenant, environment, name, created_s, expires_s, revoked_s, replaces"
        f" FROM api_key {where} ORDER BY created_s, id",
        values,
    )
    return [KeyRecord(*row) for row in rows]


def _require_tenant(connection: sqlite3.Connection, name: str) -> None:
    if not _has_tenant(connection, name):
        known = [tenant.name for tenant in _tenants(connection, "ORDER BY name")]
        raise ConfigError(f"no tenant `{name}`; {_nearest(name, known, command='headrace tenants list')}")


def _require_key(connection: sqlite3.Connection, key_id: str) -> KeyRecord:
    found = _keys(connection, "WHERE id = ?", (key_id,))
    if found:
        return found[0]
    if keys.is_well_formed(key_id.encode()):
        # A whole key pasted where its id belongs must not come back in the message.
        raise ConfigError(
            "keys are named by their id, the 8 characters after `hr_live_` or `hr_test_`, not by the key"
        )
    known = [key.id for key in _keys(connection, "")]
    raise ConfigError(f"no key `{key_id}`; {_nearest(key_id, known, command='headrace keys list')}")


def _nearest(name: str, known: list[TenantId] | list[KeyId], *, command: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{near[0]}`?" if near else f"see `{command}`"
