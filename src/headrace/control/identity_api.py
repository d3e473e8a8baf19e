"""What can be done over the admin port with tenants, keys, admin tokens and the audit log? What the commands can, and the same way.

Docs: docs/reference/admin-api.md.
"""

from typing import Annotated, Literal

import msgspec

from headrace.control.admin_reading import existing, moment_s, names, number, parted
from headrace.control.admin_routes import AdminRoute, Asked, Reply, reply
from headrace.core.clock import Clock
from headrace.core.roles import ROLES, Role
from headrace.stores import agreements, key_terms, views
from headrace.stores.tenants import TenantStore

_LIFETIME_MAX_S = 100 * 366 * 86_400
_ENTRIES_MAX = 1000
# How much a tenant may spend is for who decides on tenants as a whole.
_MONEY_FIELDS = ("quotas", "budgets")
_Span = Annotated[float, msgspec.Meta(ge=0, le=_LIFETIME_MAX_S)]


class _NewTenant(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _NewKey(msgspec.Struct, forbid_unknown_fields=True):
    tenant: str
    name: str = ""
    env: Literal["live", "test"] = "live"
    expires_in_s: _Span | None = None


class _Rotation(msgspec.Struct, forbid_unknown_fields=True):
    overlap_s: _Span = 86_400.0


class _NewAdmin(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["viewer", "operator", "admin"]
    name: str = ""
    expires_in_s: _Span | None = None


class IdentityApi:
    """Answers out of the store, each act as whoever asks for it."""

    def __init__(self, store: TenantStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def routes(self) -> tuple[AdminRoute, ...]:
        """The table."""
        return (
            AdminRoute("GET", "/admin/v1/tenants", Role.VIEWER, self._tenants),
            AdminRoute(
                "POST",
                "/admin/v1/tenants",
                Role.ADMIN,
                self._create_tenant,
                fields=(*names(_NewTenant), *agreements.FIELDS),
            ),
            AdminRoute("GET", "/admin/v1/tenants/{tenant}", Role.VIEWER, self._tenant),
            AdminRoute(
                "PATCH",
                "/admin/v1/tenants/{tenant}",
                Role.OPERATOR,
                self._change_tenant,
                fields=agreements.FIELDS,
                guarded=dict.fromkeys(_MONEY_FIELDS, Role.ADMIN),
            ),
            AdminRoute("DELETE", "/admin/v1/tenants/{tenant}", Role.ADMIN, self._delete_tenant),
            AdminRoute("POST", "/admin/v1/tenants/{tenant}/erase", Role.ADMIN, self._erase_tenant),
            AdminRoute("GET", "/admin/v1/keys", Role.VIEWER, self._keys, query=("tenant",)),
            AdminRoute(
                "POST",
                "/admin/v1/keys",
                Role.OPERATOR,
                self._create_key,
                fields=(*names(_NewKey), *key_terms.FIELDS),
            ),
            AdminRoute("GET", "/admin/v1/keys/{id}", Role.VIEWER, self._key),
            AdminRoute("DELETE", "/admin/v1/keys/{id}", Role.OPERATOR, self._revoke_key),
            AdminRoute(
                "POST",
                "/admin/v1/keys/{id}/rotate",
                Role.OPERATOR,
                self._rotate_key,
                fields=names(_Rotation),
            ),
            AdminRoute("GET", "/admin/v1/admins", Role.ADMIN, self._admins),
            AdminRoute("POST", "/admin/v1/admins", Role.ADMIN, self._create_admin, fields=names(_NewAdmin)),
            AdminRoute("DELETE", "/admin/v1/admins/{id}", Role.ADMIN, self._revoke_admin),
            AdminRoute(
                "GET",
                "/admin/v1/audit",
                Role.VIEWER,
                self._audit,
                query=("since", "tenant", "after", "limit"),
            ),
            AdminRoute("GET", "/admin/v1/audit/verify", Role.VIEWER, self._verify, query=("head",)),
        )

    # Tenants.

    def _tenants(self, asked: Asked) -> Reply:
        return reply({"tenants": [views.tenant(record) for record in self._store.tenants()]})

    def _create_tenant(self, asked: Asked) -> Reply:
        mine, agreed = parted(asked.fields, _NewTenant)
        return reply(views.tenant(self._by(asked).create_tenant(mine.name, agreed)), status=201)

    def _tenant(self, asked: Asked) -> Reply:
        return reply(views.tenant(existing(self._store.tenant, asked.named["tenant"])))

    def _change_tenant(self, asked: Asked) -> Reply:
        name = asked.named["tenant"]
        existing(self._store.tenant, name)
        return reply(views.tenant(self._by(asked).change_tenant(name, asked.fields)))

    def _delete_tenant(self, asked: Asked) -> Reply:
        name = asked.named["tenant"]
        existing(self._store.tenant, name)
        self._by(asked).delete_tenant(name)
        return reply({"tenant": name, "deleted": True})

    def _erase_tenant(self, asked: Asked) -> Reply:
        return reply(existing(self._by(asked).erase_tenant, asked.named["tenant"]))

    # Keys.

    def _keys(self, asked: Asked) -> Reply:
        tenant = asked.query.get("tenant")
        if tenant is not None:
            existing(self._store.tenant, tenant)
        now_s = self._clock.wall_s()
        return reply({"keys": [views.key(record, now_s=now_s) for record in self._store.keys(tenant)]})

    def _create_key(self, asked: Asked) -> Reply:
        mine, terms = parted(asked.fields, _NewKey)
        existing(self._store.tenant, mine.tenant)
        record, secret = self._by(asked).create_key(
            mine.tenant, terms, name=mine.name, environment=mine.env, lifetime_s=mine.expires_in_s
        )
        return reply({**views.key(record, now_s=self._clock.wall_s()), "key": secret}, status=201)

    def _key(self, asked: Asked) -> Reply:
        record = existing(self._store.key, asked.named["id"])
        return reply(views.key(record, now_s=self._clock.wall_s()))

    def _revoke_key(self, asked: Asked) -> Reply:
        existing(self._store.key, asked.named["id"])
        record = self._by(asked).revoke(asked.named["id"])
        return reply(views.key(record, now_s=self._clock.wall_s()))

    def _rotate_key(self, asked: Asked) -> Reply:
        existing(self._store.key, asked.named["id"])
        mine, _ = parted(asked.fields, _Rotation)
        record, secret = self._by(asked).rotate(asked.named["id"], overlap_s=mine.overlap_s)
        return reply({**views.key(record, now_s=self._clock.wall_s()), "key": secret}, status=201)

    # Admin tokens.

    def _admins(self, asked: Asked) -> Reply:
        now_s = self._clock.wall_s()
        return reply({"admins": [views.admin(record, now_s=now_s) for record in self._store.admins()]})

    def _create_admin(self, asked: Asked) -> Reply:
        mine, _ = parted(asked.fields, _NewAdmin)
        record, secret = self._by(asked).create_admin(
            ROLES[mine.role], name=mine.name, lifetime_s=mine.expires_in_s
        )
        return reply({**views.admin(record, now_s=self._clock.wall_s()), "token": secret}, status=201)

    def _revoke_admin(self, asked: Asked) -> Reply:
        existing(self._store.admin, asked.named["id"])
        record = self._by(asked).revoke_admin(asked.named["id"])
        return reply(views.admin(record, now_s=self._clock.wall_s()))

    # The audit log.

    def _audit(self, asked: Asked) -> Reply:
        entries = self._store.audit_entries(
            since_s=moment_s(asked.query, "since") or 0.0,
            tenant=asked.query.get("tenant", ""),
            after=number(asked.query, "after", least=0, default=0),
            limit=min(_ENTRIES_MAX, number(asked.query, "limit", least=1, default=_ENTRIES_MAX)),
        )
        return reply({"entries": [views.act(entry) for entry in entries]})

    def _verify(self, asked: Asked) -> Reply:
        return reply(views.verdict(self._store.verify_audit(head=asked.query.get("head", ""))))

    def _by(self, asked: Asked) -> TenantStore:
        return self._store.on_behalf_of(asked.caller.actor)
