"""May this request come in? Decided on its head alone: who asks, from where, and what for."""

import math
from collections.abc import Sequence
from typing import Protocol

from headrace.core.errors import InvalidRequest, NotFound
from headrace.core.tenant import Principal
from headrace.gateway.auth import Authenticator
from headrace.gateway.call import Screened
from headrace.gateway.routes import InferenceRoute, InfoRoute, Route, RouteTable, WebSocketRoute, open_to_all
from headrace.gateway.rules import RequestRules
from headrace.policies import scopes
from headrace.policies.addresses import Address, Network
from headrace.protocols import websocket
from headrace.protocols.http1 import RequestHead
from headrace.telemetry.metrics import Metrics


class Caller(Protocol):
    """The connection that a head came on."""

    @property
    def peer(self) -> str:
        """The address at its other end."""
        ...


class Screening:
    """What is known before a body: an unknown caller's is neither kept nor parsed.

    Args:
        rules: What the requests go by whose heads are judged here.
        trusted_proxies: Networks of proxies that are believed when they say whom they speak for.
    """

    def __init__(
        self,
        auth: Authenticator,
        *,
        rules: RequestRules,
        body_bytes_max: int,
        trusted_proxies: Sequence[Network],
        metrics: Metrics,
    ) -> None:
        self._auth = auth
        self.rules = rules
        self._routes = RouteTable(body_bytes_max=body_bytes_max)
        self._trusted_proxies = trusted_proxies
        self._metrics = metrics

    def screen(self, head: RequestHead, caller: Caller) -> Screened:
        """Raises HeadraceError.

        Whoever has no key, or uses one from where it may not be used, learns nothing about paths either; the path is
        matched exactly, byte by byte, so that no other spelling of it can reach a different decision.
        """
        open_route = open_to_all(head.method, head.path)
        if open_route is not None:
            return Screened(head, open_route, None, self._auth.version, math.inf, self.rules)
        is_websocket = head.upgrade == b"websocket"
        if is_websocket:
            websocket.adopt_key(head)
        entry = self._auth.find(head.headers)
        principal = entry.principal
        if principal.scope.networks is not None:
            scopes.check_network(principal, self._origin(head, caller))
        if head.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise InvalidRequest("compressed bodies are not accepted; send the JSON as it is")
        route = self._routes.find(head.method, head.path, is_websocket=is_websocket)
        if route is None:
            self._metrics.unmatched_requests.labels().add()
            raise NotFound(
                "no such path, or not with that method; see GET /v1/models and docs/reference/http.md"
            )
        if principal.scope.endpoints is not None:
            _check_endpoint(principal, route)
        expires_s = math.inf if entry.expires_s is None else entry.expires_s
        return Screened(head, route, principal, self._auth.version, expires_s, self.rules)

    def _origin(self, head: RequestHead, caller: Caller) -> Address | None:
        forwarded = head.headers.get(b"x-forwarded-for", b"")
        return scopes.origin(caller.peer, forwarded, self._trusted_proxies)


def _check_endpoint(principal: Principal, route: Route) -> None:
    """Of the paths that take work; what there is to ask about the service itself is open to every key."""
    match route:
        case InferenceRoute(endpoint):
            scopes.check_endpoint(principal, endpoint.value)
        case WebSocketRoute(requests):
            scopes.check_endpoint(principal, requests.endpoint.value)
        case InfoRoute():
            pass
