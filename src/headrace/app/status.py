"""What does `headrace status` show? The whole service as one JSON object, out of what its parts say of themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

import headrace
from headrace.app.report import PlaneReport
from headrace.control.status import ReplicaStatus
from headrace.core.fleet import Deployment
from headrace.policies.deployment import QueueView
from headrace.policies.health import Circuit
from headrace.policies.pressure import Level


def service_status(
    planes: Sequence[PlaneReport],
    deployments: Mapping[str, Deployment],
    replicas: Sequence[ReplicaStatus],
    *,
    uptime_s: float,
    ledger: Mapping[str, int],
    workers: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Sums over the data planes; the keys' revision is the oldest that any of them goes by."""
    waiting = sum(plane.waiting for plane in planes)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in deployments}
    for replica in replicas:
        rows.setdefault(replica.deployment, []).append(_replica(replica, planes))
    return {
        "version": headrace.__version__,
        "uptime_s": uptime_s,
        "ready": any(plane.is_ready for plane in planes),
        "connections": sum(plane.connections for plane in planes),
        "in_flight": sum(plane.in_progress for plane in planes) - waiting,
        "queued": waiting,
        "pressure": _pressure(planes),
        "deployments": [
            {
                "model": name,
                "tasks": sorted(task.value for task in deployment.tasks),
                "revision": deployment.revision,
                "ready": len(deployment.replicas),
                **_queue([plane.queues[name] for plane in planes if name in plane.queues]),
                "replicas": rows[name],
            }
            for name, deployment in deployments.items()
        ]
        # Servers that have never answered, so that nobody knows what they offer.
        + [
            {"model": None, "tasks": [], "revision": "", "ready": 0, **_queue([]), "replicas": unknown}
            for name, unknown in rows.items()
            if name not in deployments
        ],
        "keys": {
            "count": min((plane.key_count for plane in planes), default=0),
            "revision": min((plane.keys_revision for plane in planes), default=0),
        },
        "ledger": dict(ledger),
        "workers": [dict(row) for row in workers],
    }


def _pressure(planes: Sequence[PlaneReport]) -> dict[str, str]:
    """Of the plane that is pressed hardest."""
    hardest = max(planes, key=lambda plane: plane.pressure, default=None)
    if hardest is None:
        return {"level": Level.CALM.name.lower(), "reason": ""}
    return {"level": hardest.pressure.name.lower(), "reason": hardest.pressure_reason}


def _queue(queues: Sequence[QueueView]) -> dict[str, Any]:
    """The waiting work of one model; its expected wait is the longest, and its service time the mean, over the planes."""
    services_s = [queue.service_s for queue in queues if queue.service_s is not None]
    return {
        "queued": sum(queue.length for queue in queues),
        "queued_bytes": sum(queue.body_bytes for queue in queues),
        "expected_wait_s": max((queue.wait_s for queue in queues), default=None),
        "service_s": sum(services_s) / len(services_s) if services_s else None,
    }


# Several data planes may judge differently: the worst is shown.
_SEVERITY = (Circuit.CLOSED, Circuit.SLOW_START, Circuit.HALF_OPEN, Circuit.OPEN)


def _replica(status: ReplicaStatus, planes: Sequence[PlaneReport]) -> dict[str, Any]:
    loads = [
        load
        for plane in planes
        for load in plane.loads
        if (load.model, load.replica) == (status.deployment, status.replica)
    ]
    cold = status.cold_start
    return {
        "id": status.replica,
        "state": status.state.value,
        "reason": status.reason,
        "generation": status.generation,
        "restarts": status.restarts,
        "slots": sum(load.slots for load in loads),
        "slots_max": sum(load.slots_max for load in loads),
        "in_flight": sum(load.outstanding for load in loads),
        "circuit": max((load.circuit for load in loads), key=_SEVERITY.index, default=Circuit.CLOSED).value,
        "rest_s": max((load.rest_s for load in loads), default=0.0),
        "pid": status.pid,
        "cold_start_s": cold and {"launch": cold.launch_s, "load": cold.load_s, "warm": cold.warm_s},
        "gauges": dict(status.gauges),
    }
