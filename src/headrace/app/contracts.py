"""What is promised for a deployment, as the operator asks it: in general, or to one tenant."""

from collections.abc import Callable, Mapping

from headrace.app.gateway_parts import service_terms
from headrace.config import Config
from headrace.control.admin_reading import existing
from headrace.control.admin_routes import AdminRoute, Asked, Reply, Turn, reply
from headrace.core.clock import Clock
from headrace.core.errors import InvalidRequest, ModelNotFound
from headrace.core.fleet import Deployment
from headrace.core.ids import KeyId
from headrace.core.prices import EVERY_TENANT
from headrace.core.roles import Role
from headrace.core.tenant import Principal
from headrace.protocols.contract import contract
from headrace.stores.prices import PriceStore
from headrace.stores.tenants import TenantStore

AskDeployments = Callable[[], Mapping[str, Deployment]]


def route(
    store: TenantStore, prices: PriceStore, config: Callable[[], Config], *, ask: AskDeployments, clock: Clock
) -> AdminRoute:
    """Where an operator asks. `ask` waits for the service's loop."""

    def answer(asked: Asked) -> Reply:
        model, tenant = asked.query.get("model"), asked.query.get("tenant")
        if model is None:
            raise InvalidRequest("the query parameter `model` is required", param="model")
        deployment = ask().get(model)
        if deployment is None:
            raise ModelNotFound.of(model)
        caller = None if tenant is None else _caller(store, tenant, config())
        price = prices.book().find(tenant or EVERY_TENANT, model, wall_s=clock.wall_s())
        return reply(contract(deployment, service_terms(config()), caller=caller, price=price))

    return AdminRoute(
        "GET", "/admin/v1/contract", Role.VIEWER, answer, query=("model", "tenant"), turn=Turn.GATEWAY
    )


def _caller(store: TenantStore, tenant: str, config: Config) -> Principal:
    """The tenant with a key that narrows nothing."""
    record = existing(store.tenant, tenant)
    agreement, defaults = record.agreement, config.tenant_defaults
    return Principal(
        record.name,
        KeyId(""),
        agreement.limits_over(defaults.limits),
        terms=agreement.terms_over(defaults.shadow),
    )
