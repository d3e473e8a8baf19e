"""Where may this request run? Its tenant names the places, each replica is in one, and no other ever gets it."""

from collections.abc import Sequence
from typing import TypeVar

from headrace.core.errors import Forbidden
from headrace.core.fleet import Deployment
from headrace.core.outcome import Reason
from headrace.policies.tickets import ReplicaLoad

T = TypeVar("T", bound=ReplicaLoad)


def check(wanted: Sequence[str], deployment: Deployment) -> None:
    """Raises Forbidden where the model runs in none of these places, whatever is ready at the moment.

    The caller hears which places are allowed, which is its own tenant's agreement, and nothing of where there are others.
    """
    if not runs_in(wanted, deployment):
        raise Forbidden(
            f"requests of this tenant run in {' or '.join(wanted)} alone, and this model does not run there",
            param="model",
            reason=Reason.LOCATION,
        )


def runs_in(wanted: Sequence[str], deployment: Deployment) -> bool:
    """Whether the deployment has replicas, ready or not, in one of these places; anywhere will do where none are named."""
    return not wanted or any(location in wanted for location in deployment.locations)


def allowed(wanted: Sequence[str], loads: list[T]) -> list[T]:
    """The replicas that are in these places; all where none are named."""
    return [load for load in loads if load.replica.location in wanted] if wanted else loads
