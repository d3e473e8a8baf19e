"""What is offered under one name, and by which of its versions? Replicas, versions and routes as a part of the snapshot."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.control.lives import Life
from headrace.control.steering import Scaled, Steering
from headrace.core.deployments import AppliedVersion
from headrace.core.fleet import PPM, Arm, Deployment, FleetSnapshot, Route, target_key
from headrace.core.ids import ReplicaId, TargetKey


class Offers(NamedTuple):
    """A part of a snapshot; see core.fleet.FleetSnapshot."""

    deployments: dict[TargetKey, Deployment]
    routes: dict[str, Route]


def offers_of(
    name: str,
    steering: Steering,
    versions: Mapping[int, AppliedVersion],
    lives: Sequence[Life],
    scaled: Mapping[int, Scaled],
    *,
    cold_start_s: Mapping[int, float],
) -> Offers:
    """Everything of that name.

    A name that nothing serves yet is offered without a replica, so that its callers hear "not now", and not "unknown".

    Args:
        versions: All that may be named by `steering`.
    """
    routed = [] if steering.route is None else [arm.target for arm in steering.route.arms]
    keys = {target_key(name, number): number for number in versions}
    offered = {
        key: _target(versions[number], lives, scaled.get(number), cold_start_s.get(number))
        for key, number in keys.items()
        if number in steering.replicas or key in routed
    }
    route = None if steering.route is None else _among(steering.route, offered)
    if route is None and name not in offered:
        newest = versions[max(versions)]
        offered[name] = replace(
            _target(newest, (), None, cold_start_s.get(newest.version)), version=0, waiting_room_max=0
        )
    is_plain = route is None or (route.arms == (Arm(name, PPM),) and route.mirror is None)
    return Offers(offered, {} if route is None or is_plain else {name: route})


def offered_before(snapshot: FleetSnapshot, replica: ReplicaId, generation: int) -> Deployment | None:
    """The target that has this very process, with it alone."""
    for deployment in snapshot.deployments.values():
        for each in deployment.replicas:
            if (each.id, each.generation) == (replica, generation):
                return replace(deployment, replicas=(each,))
    return None


def _target(
    applied: AppliedVersion, lives: Iterable[Life], scaled: Scaled | None, cold_start_s: float | None
) -> Deployment:
    mine = [life for life in lives if life.row.version == applied.version]
    replicas = tuple(found for life in mine if (found := life.replica()) is not None)
    described = [life.engine.deployment() for life in mine if life.engine is not None]
    # What each of those that are ready can do; before there are any, what is known of the others.
    ready = [each for each in described if each.replicas] or described
    if not ready:
        target = _nobody(applied)
    else:
        target = replace(
            ready[0],
            replicas=replicas,
            context_tokens=_least_known(each.context_tokens for each in ready),
            vocabulary_tokens=_least_known(each.vocabulary_tokens for each in ready),
            created_s=int(applied.applied_s) or ready[0].created_s,
        )
    if cold_start_s is not None:
        target = replace(target, retry_after_s=cold_start_s)
    if scaled is None or replicas or not scaled.waiting_room:
        return target
    expected_s = None if cold_start_s is None else min((each.row.decided_s for each in mine), default=None)
    return replace(
        target,
        waiting_room_max=scaled.waiting_room,
        ready_expected_s=None if expected_s is None else expected_s + (cold_start_s or 0.0),
    )


def _nobody(applied: AppliedVersion) -> Deployment:
    """A version without any replica."""
    return Deployment(
        name=applied.name,
        upstream_model=applied.name,
        tasks=frozenset({applied.revision.task}),
        revision=applied.revision.digest,
        locations=(applied.spec.deployment.location,),
        context_tokens=applied.revision.args.context_tokens or 0,
        created_s=int(applied.applied_s),
        version=applied.version,
    )


def _among(route: Route, offered: Mapping[TargetKey, Deployment]) -> Route | None:
    """The route over what is offered; the first arm takes over the shares of those that aren't."""
    if route.accepted not in offered:
        return None
    others = tuple(arm for arm in route.arms[1:] if arm.target in offered)
    first = Arm(route.accepted, PPM - sum(arm.weight_ppm for arm in others))
    mirror = route.mirror if route.mirror is not None and route.mirror.target in offered else None
    return replace(route, arms=(first, *others), mirror=mirror)


def _least_known(tokens: Iterable[int]) -> int:
    return min(filter(None, tokens), default=0)
