"""What does the admin port of a service offer, and to whom? Every table of routes, and everybody who has a token."""

from collections.abc import Callable

from headrace.control.admin_routes import AdminRoute, Caller
from headrace.control.identity_api import IdentityApi
from headrace.core.clock import Clock
from headrace.stores.tenants import TenantStore


def routes(store: TenantStore, *, clock: Clock) -> tuple[AdminRoute, ...]:
    """All but those that every admin port has."""
    return IdentityApi(store, clock=clock).routes()


def finder(store: TenantStore) -> Callable[[bytes], Caller | None]:
    """Whose an admin token is."""

    def find(token: bytes) -> Caller | None:
        record = store.find_admin(token)
        return None if record is None else Caller(f"admin:{record.id}", record.role)

    return find
