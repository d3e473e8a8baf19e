"""What does the admin port of a service offer, and to whom? Every table of routes, and everybody who has a token."""

from collections.abc import Callable
from pathlib import Path

from headrace.app import contracts, refused, reloading, tenant_use
from headrace.app.contracts import AskDeployments
from headrace.app.deployments_api import DeploymentsApi
from headrace.app.rollouts_api import RolloutsApi
from headrace.app.tenant_use import AskUse
from headrace.config import Config
from headrace.control.admin_routes import AdminRoute, Caller
from headrace.control.identity_api import IdentityApi
from headrace.control.money_api import MoneyApi
from headrace.core.clock import Clock
from headrace.policies.refusal_history import Refused
from headrace.policies.reloading import Reloaded
from headrace.stores.prices import PriceStore
from headrace.stores.tenants import TenantStore


def routes(
    store: TenantStore,
    prices: PriceStore,
    config: Callable[[], Config],
    data: Path,
    *,
    ask_use: AskUse,
    ask_deployments: AskDeployments,
    ask_reload: Callable[[str], Reloaded],
    ask_refused: Callable[[str, float], Refused],
    clock: Clock,
) -> tuple[AdminRoute, ...]:
    """All but those that every admin port has. What begins with `ask` waits for the service's loop.

    Args:
        config: What is in force now.
    """
    return (
        *IdentityApi(store, clock=clock).routes(),
        *MoneyApi(data, clock=clock).routes(),
        *DeploymentsApi(data, config, clock=clock).routes(),
        *RolloutsApi(data, clock=clock).routes(),
        tenant_use.route(store, lambda: config().tenant_defaults, ask=ask_use, clock=clock),
        contracts.route(store, prices, config, ask=ask_deployments, clock=clock),
        reloading.route(ask_reload),
        refused.route(ask_refused),
    )


def finder(store: TenantStore) -> Callable[[bytes], Caller | None]:
    """Whose an admin token is."""

    def find(token: bytes) -> Caller | None:
        record = store.find_admin(token)
        return None if record is None else Caller(f"admin:{record.id}", record.role)

    return find
