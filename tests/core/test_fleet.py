"""The picture of the fleet: defaults that are safe, secrets that stay out of sight."""

from dataclasses import replace

import msgspec
import pytest

from headrace.core.fleet import (
    PPM,
    Arm,
    Deployment,
    EngineTraits,
    FleetSnapshot,
    Mirror,
    Replica,
    Route,
    Task,
)
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


def test_a_target_is_a_version_of_a_name_and_what_has_none_goes_by_the_name() -> None:
    plain = Deployment("chat", "up", frozenset(), "unpinned")
    assert plain.key == "chat"
    assert replace(plain, version=3).key == "chat@v3"


def test_the_first_arm_of_a_route_is_the_accepted_one() -> None:
    assert Route((Arm("chat@v2", 900_000), Arm("chat@v3", 100_000))).accepted == "chat@v2"


@pytest.mark.parametrize(
    "arms",
    [
        (),
        (Arm("a", PPM), Arm("a", 0)),
        (Arm("a", PPM - 1),),
        (Arm("a", PPM + 1), Arm("b", -1)),
        tuple(Arm(name, PPM // 4) for name in "abcd"),
    ],
    ids=["none", "one twice", "not all", "less than nothing", "too many"],
)
def test_a_route_that_does_not_add_up_is_none(arms: tuple[Arm, ...]) -> None:
    with pytest.raises(AssertionError):
        Route(arms)


def test_a_snapshot_comes_through_a_link_as_it_was() -> None:
    deployment = Deployment("chat", "up", frozenset({Task.CHAT}), "sha256:a", version=3, ready_expected_s=1.5)
    route = Route((Arm("chat@v3", PPM),), mirror=Mirror("chat@v4", 10))
    sent = FleetSnapshot(7, {deployment.key: deployment}, {"chat": route})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=FleetSnapshot) == sent
