"""The picture of the fleet: defaults that are safe, secrets that stay out of sight."""

import pytest

from headrace.core.fleet import Deployment, EngineTraits, FleetSnapshot, Replica, Task
from headrace.core.ids import ReplicaId
from headrace.core.isolation import CacheIsolation
from headrace.core.request import Endpoint


def test_the_authorization_of_a_replica_is_not_in_its_repr() -> None:
    """T47."""
    assert "s3cret" not in repr(Replica(ReplicaId("a"), "h", 1, 1, authorization="Bearer s3cret"))


def test_an_unknown_engine_is_trusted_with_nothing() -> None:
    """T42: what it had cached is not shown."""
    traits = EngineTraits()
    assert (traits.partitions_slots, traits.reports_progress, traits.streams_only) == (False, False, False)
    assert (traits.isolation, traits.tells_cached) == (CacheIsolation.NONE, frozenset())


def test_a_deployment_is_isolated_as_its_weakest_replica() -> None:
    """A prompt may meet any of them."""

    def offer(*isolations: CacheIsolation) -> Deployment:
        replicas = [
            Replica(ReplicaId(str(number)), "h", 1, 1, EngineTraits(isolation=each))
            for number, each in enumerate(isolations)
        ]
        return Deployment("m", "m", frozenset(), "unpinned", tuple(replicas))

    salt, slots, _, off, none = CacheIsolation
    assert offer().cache_isolation is None
    assert offer(salt).cache_isolation is salt
    assert offer(slots, salt).cache_isolation is slots
    assert offer(off, none, salt).cache_isolation is none


def test_two_snapshots_share_no_deployments() -> None:
    assert FleetSnapshot().deployments is not FleetSnapshot().deployments


@pytest.mark.parametrize("endpoint", Endpoint)
def test_every_endpoint_belongs_to_a_task(endpoint: Endpoint) -> None:
    assert (endpoint.task is Task.EMBEDDINGS) == endpoint.value.endswith("/embeddings")
