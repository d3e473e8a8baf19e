"""What was turned away of a model since a moment? Asked over the admin port, of what this service has seen itself."""

from collections.abc import Callable

from headrace.control.admin_reading import moment_s
from headrace.control.admin_routes import AdminRoute, Asked, Reply, Turn, reply
from headrace.core import moments
from headrace.core.errors import InvalidRequest
from headrace.core.roles import Role
from headrace.policies.refusal_history import Refused

PATH = "/admin/v1/refusals"


def route(ask: Callable[[str, float], Refused]) -> AdminRoute:
    """`ask` gets the model and the moment, and waits for the service's loop."""

    def answer(asked: Asked) -> Reply:
        if not (model := asked.query.get("model", "")):
            raise InvalidRequest("`model` says which", param="model")
        found = ask(model, moment_s(asked.query, "since") or 0.0)
        return reply(
            {"model": model, "reasons": found.reasons, "known_from": moments.utc(found.known_from_s)}
        )

    return AdminRoute("GET", PATH, Role.VIEWER, answer, query=("model", "since"), turn=Turn.GATEWAY)
