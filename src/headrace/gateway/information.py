"""What does a GET ask about the service itself? Whether it lives, what it offers to this key, and on which terms."""

from collections.abc import Callable

from headrace.core.clock import Clock
from headrace.core.errors import ModelNotFound
from headrace.core.fleet import Deployment
from headrace.core.tenant import Principal
from headrace.gateway.call import Call
from headrace.gateway.dispatch import Dispatch
from headrace.gateway.routes import Info, InfoRoute
from headrace.gateway.usage import UsageCloser
from headrace.policies import scopes
from headrace.protocols import contract, openai, openapi, strict_json
from headrace.protocols.contract import ServiceTerms


class Information:
    """Answers from what the walk goes by: what is said here is what is done.

    State: `_openapi`, once somebody has asked for it.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        usage: UsageCloser,
        terms: ServiceTerms,
        *,
        is_ready: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._dispatch = dispatch
        self._usage = usage
        self._terms = terms
        self._is_ready = is_ready
        self._clock = clock
        self._openapi = b""

    def go_by(self, terms: ServiceTerms) -> None:
        """What a contract says of the configuration, from now on."""
        self._terms = terms
        self._openapi = b""

    def offered(self, caller: Principal, model: str) -> Deployment:
        """Raises ModelNotFound; nobody learns of a model that their key isn't for."""
        deployment = self._dispatch.routing.offered(model)
        if deployment is None or not scopes.allows_model(caller.scope, model):
            raise ModelNotFound.of(model)
        return deployment

    def answer(self, call: Call, route: InfoRoute) -> None:
        if route.kind is Info.LIVEZ:
            call.respond(200, b'{"status":"alive"}')
        elif route.kind is Info.READYZ:
            ready = self._is_ready()
            call.respond(200 if ready else 503, b'{"status":"ready"}' if ready else b'{"status":"not ready"}')
        else:
            assert call.principal is not None, "not open to all"
            call.respond(200, self._told(call.principal, route.kind, route.name))

    def _told(self, caller: Principal, kind: Info, name: str) -> bytes:
        match kind:
            case Info.MODELS:
                return openai.model_list(
                    [
                        self.offered(caller, name)
                        for name in self._dispatch.routing.names()
                        if scopes.allows_model(caller.scope, name)
                    ]
                )
            case Info.MODEL:
                return openai.model_card(self.offered(caller, name))
            case Info.CONTRACT:
                return self._contract(caller, self.offered(caller, name))
            case Info.OPENAPI:
                self._openapi = self._openapi or strict_json.encode(openapi.document())
                return self._openapi
            case _:
                raise AssertionError(f"{kind} is answered before")

    def _contract(self, caller: Principal, deployment: Deployment) -> bytes:
        price = self._usage.prices.find(caller.tenant, deployment.name, wall_s=self._clock.wall_s())
        return strict_json.encode(contract.contract(deployment, self._terms, caller=caller, price=price))
