"""Which revision answers this request? By the weights of its name's route, and for one conversation always the same.

There is no state: a conversation is a point between nothing and all, and each arm a piece of that line. The arms beside the
accepted one grow from both ends of it, so that a conversation changes its arm at most once while they grow, from the
accepted one to another.
"""

import hashlib
from typing import NamedTuple

from headrace.core.fleet import PPM, Deployment, FleetSnapshot, Route
from headrace.core.ids import TargetKey


class _Piece(NamedTuple):
    """The points from `low` up to, and without, `high`."""

    low: int
    high: int
    deployment: Deployment


class _Split(NamedTuple):
    """A name that several targets serve at this moment: who isn't in a piece is the rest's."""

    is_sticky: bool
    pieces: tuple[_Piece, ...]
    rest: Deployment


class RoutingTable:
    """The routes of one snapshot, resolved: an arm that has no ready replica gets nothing, and the accepted one its share.

    Attributes:
        plain: The targets of the names that one target serves at this moment: nearly all requests need no more.
    """

    def __init__(self, snapshot: FleetSnapshot) -> None:
        self._deployments = snapshot.deployments
        self._routes = snapshot.routes
        self.plain: dict[str, Deployment] = {}
        self._split: dict[str, _Split] = {}
        self._served: set[TargetKey] = set()
        for name in {deployment.name for deployment in snapshot.deployments.values()}:
            self._resolve(name)

    def choose(self, name: str, *, tenant: str, conversation: str, request_id: str) -> Deployment | None:
        """The target for a request; None where nothing of that name is offered.

        Args:
            conversation: What its requests have in common, such as a session's name; "" for a request by itself.
        """
        split = self._split.get(name)
        if split is None:
            return self.plain.get(name)
        at = point(name, tenant, conversation if split.is_sticky and conversation else request_id)
        for piece in split.pieces:
            if piece.low <= at < piece.high:
                return piece.deployment
        return split.rest

    def find(self, target: TargetKey) -> Deployment | None:
        """The target of that key, whether or not a route leads to it."""
        return self._deployments.get(target)

    def offered(self, name: str) -> Deployment | None:
        """What is told of a name: its accepted target."""
        split = self._split.get(name)
        return self.plain.get(name) if split is None else split.rest

    def names(self) -> list[str]:
        """All that are offered to callers."""
        return [*self.plain, *self._split]

    def is_served(self, target: TargetKey) -> bool:
        """Whether requests come to it at this moment, other than those that name it."""
        return target in self._served

    def takes_over(self, name: str, target: TargetKey) -> Deployment | None:
        """The accepted target of the name, for what the other can't or shall not do; None if it is that itself."""
        accepted = self._routes[name].accepted if name in self._routes else name
        return None if accepted == target else self._deployments.get(accepted)

    def mirror(self, name: str, *, request_id: str) -> Deployment | None:
        """Where a copy of the request goes, if this one is to be copied and there is somebody to get it."""
        route = self._routes.get(name)
        mirror = None if route is None else route.mirror
        if mirror is None or point("mirror", name, request_id) >= mirror.share_ppm:
            return None
        deployment = self._deployments.get(mirror.target)
        return deployment if deployment is not None and deployment.replicas else None

    def _resolve(self, name: str) -> None:
        route = self._routes.get(name)
        accepted = self._deployments.get(name if route is None else route.accepted)
        if accepted is None:
            return
        pieces = [] if route is None else self._pieces(route)
        left_ppm = PPM - sum(piece.high - piece.low for piece in pieces)
        self._served.update(piece.deployment.key for piece in pieces)
        self._served.add(accepted.key)
        if route is not None and route.is_experiment and pieces and not accepted.replicas:
            accepted = pieces[0].deployment
            pieces = pieces[1:]
        if not pieces:
            self.plain[name] = accepted
        elif len(pieces) == 1 and not left_ppm:
            self.plain[name] = pieces[0].deployment
        else:
            self._split[name] = _Split(route is None or route.is_sticky, tuple(pieces), accepted)

    def _pieces(self, route: Route) -> list[_Piece]:
        """The second arm grows from the one end, the third from the other."""
        pieces = []
        for number, arm in enumerate(route.arms[1:]):
            deployment = self._deployments.get(arm.target)
            if deployment is None or not deployment.replicas or not arm.weight_ppm:
                continue
            low = 0 if number == 0 else PPM - arm.weight_ppm
            pieces.append(_Piece(low, low + arm.weight_ppm, deployment))
        return pieces


def point(*parts: str) -> int:
    """Where on the line from 0 to PPM something lies: evenly spread, and the same in every process."""
    digest = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) * PPM >> 64
