"""Which replica is too old? It is replaced before it goes: its successor is started first, and it is drained when that is ready.

What leaks, fragments and drifts in a long-lived engine goes with it, and no request notices.
"""

import msgspec

from headrace.policies.autoscale_memory import Renewal
from headrace.policies.autoscale_signals import FleetView, ReplicaView


def next_renewal(
    going: Renewal | None, fleet: FleetView, *, max_age_s: float, may_begin: bool, now_s: float
) -> Renewal | None:
    """The one that goes on, or that begins: one at a time, the oldest first.

    Args:
        max_age_s: Since a replica became ready; 0 is never.
        may_begin: The number of replicas is what it should be, and one more can be paid for.
    """
    if going is not None and any(replica.id == going.replica for replica in fleet.wanted):
        return going
    aged = [replica for replica in fleet.ready if max_age_s and _age_s(replica, now_s) > max_age_s]
    if not aged or not may_begin or fleet.starting:
        return None
    return Renewal(max(aged, key=lambda replica: _age_s(replica, now_s)).id, now_s)


def without_aged(fleet: FleetView, going: Renewal | None) -> FleetView:
    """The fleet as it counts: as soon as the successor is started, it stands for the aged one."""
    if going is None or not _successors(fleet, going):
        return fleet
    others = tuple(replica for replica in fleet.replicas if replica.id != going.replica)
    return msgspec.structs.replace(fleet, replicas=others)


def is_replaced(fleet: FleetView, going: Renewal) -> bool:
    """Whether a successor is ready."""
    return any(replica.ready_s is not None for replica in _successors(fleet, going))


def _successors(fleet: FleetView, going: Renewal) -> list[ReplicaView]:
    return [
        replica
        for replica in fleet.wanted
        if replica.launched_s >= going.since_s and replica.id != going.replica
    ]


def _age_s(replica: ReplicaView, now_s: float) -> float:
    return 0.0 if replica.ready_s is None else now_s - replica.ready_s
