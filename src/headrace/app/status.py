"""What does `headrace status` show? The whole service as one JSON object, out of what its parts say of themselves."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import headrace
from headrace.app.report import PlaneReport
from headrace.control.status import ReplicaStatus
from headrace.core.fleet import Deployment, target_key
from headrace.core.outcome import Outcome
from headrace.policies.deployment import QueueView
from headrace.policies.health import Circuit
from headrace.policies.pressure import Level
from headrace.telemetry.merging import MetricsState


def service_status(
    planes: Sequence[PlaneReport],
    deployments: Mapping[str, Deployment],
    replicas: Sequence[ReplicaStatus],
    *,
    uptime_s: float,
    ledger: Mapping[str, int],
    requests: Mapping[str, Mapping[str, int]],
    config: Mapping[str, Any] | None = None,
    controller: Mapping[str, Any] | None = None,
    rollouts: Sequence[Mapping[str, Any]] = (),
    workers: Sequence[Mapping[str, Any]] = (),
    budgets: Sequence[Mapping[str, Any]] = (),
    central: Mapping[str, Any] | None = None,
    limit_store: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Sums over the data planes; the keys' revision is the oldest that any of them goes by.

    Args:
        config: Which version of the configuration is in force, and what only a restart puts in force.
        controller: The process that keeps replicas true, as the service sees it.
        rollouts: Each deployment that was applied: the wanted and the accepted version, and why they differ if they do.
        requests: How many ended how, by outcome and reason.
        central: How the central database fares; None where there is none.
        limit_store: The same of the store that hosts share their rates in.
    """
    waiting = sum(plane.waiting for plane in planes)
    return {
        "version": headrace.__version__,
        "uptime_s": uptime_s,
        "ready": any(plane.is_ready for plane in planes),
        "connections": sum(plane.connections for plane in planes),
        "in_flight": sum(plane.in_progress for plane in planes) - waiting,
        "queued": waiting,
        "requests": {outcome: dict(reasons) for outcome, reasons in requests.items()},
        "pressure": _pressure(planes),
        "deployments": _deployments(planes, deployments, replicas),
        "keys": {
            "count": min((plane.key_count for plane in planes), default=0),
            "revision": min((plane.keys_revision for plane in planes), default=0),
        },
        "ledger": dict(ledger),
        "central": central and dict(central),
        "limit_store": limit_store and dict(limit_store),
        "config": config
        and {**config, "oldest_version": min((each.config_version for each in planes), default=0)},
        "controller": controller and dict(controller),
        "rollouts": [dict(row) for row in rollouts],
        "workers": [dict(row) for row in workers],
        "budgets": [dict(row) for row in budgets],
    }


def _deployments(
    planes: Sequence[PlaneReport],
    deployments: Mapping[str, Deployment],
    replicas: Sequence[ReplicaStatus],
) -> list[dict[str, Any]]:
    """Each target with its queue and replicas."""
    rows: dict[str, list[dict[str, Any]]] = {key: [] for key in deployments}
    names: dict[str, str] = {}
    slots = {
        (key, replica.id): replica.slots
        for key, deployment in deployments.items()
        for replica in deployment.replicas
    }
    for replica in replicas:
        key = target_key(replica.deployment, replica.version)
        names[key] = replica.deployment if replica.version else ""
        rows.setdefault(key, []).append(_replica(replica, planes, slots.get((key, replica.replica), 0)))
    known: list[dict[str, Any]] = [
        {
            "model": deployment.name,
            "target": key,
            "tasks": sorted(task.value for task in deployment.tasks),
            "revision": deployment.revision,
            "ready": len(deployment.replicas),
            "cache_isolation": deployment.cache_isolation,
            "locations": list(deployment.locations),
            **_queue([plane.queues[key] for plane in planes if key in plane.queues]),
            "replicas": rows[key],
        }
        for key, deployment in deployments.items()
    ]
    # What isn't offered any more, but still works; and servers that have never answered, so that nobody knows what they offer.
    return known + [
        {
            "model": names[key] or None,
            "target": key if names[key] else None,
            "tasks": [],
            "revision": "",
            "ready": 0,
            "cache_isolation": None,
            "locations": sorted({replica["location"] for replica in unknown}),
            **_queue([]),
            "replicas": unknown,
        }
        for key, unknown in rows.items()
        if key not in deployments
    ]


_REQUESTS, _REFUSALS = "headrace_requests_total", "headrace_refusals_total"
REQUEST_COUNTS = (_REQUESTS, _REFUSALS)


def ended_requests(counted: Iterable[MetricsState]) -> dict[str, dict[str, int]]:
    """How many requests ended how since the start, by outcome and reason: out of metrics, which hold them already. What was
    refused before it was known as a request of a model is counted by the refusals alone."""
    ended: dict[str, Counter[str]] = {}
    refused: Counter[str] = Counter()  # however early
    for state in counted:
        for series in state.get(_REQUESTS, ()):
            _, _, outcome, reason = series.labels
            ended.setdefault(outcome, Counter())[reason] += int(series.value)
        for series in state.get(_REFUSALS, ()):
            refused[series.labels[1]] += int(series.value)
    if refused:
        ended[Outcome.REFUSED] = refused
    return {str(outcome): dict(reasons.most_common()) for outcome, reasons in ended.items()}


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


def _replica(status: ReplicaStatus, planes: Sequence[PlaneReport], slots_max: int) -> dict[str, Any]:
    """Of the slots, those that late first tokens have taken from a plane are missing; not those that none has leased."""
    loads = [
        load
        for plane in planes
        for load in plane.loads
        if (load.target, load.replica) == (target_key(status.deployment, status.version), status.replica)
    ]
    cold = status.cold_start
    return {
        "id": status.replica,
        "state": status.state.value,
        "reason": status.reason,
        "generation": status.generation,
        "restarts": status.restarts,
        "slots": max(0, slots_max - sum(load.slots_max - load.slots for load in loads)),
        "slots_max": slots_max,
        "in_flight": sum(load.outstanding for load in loads),
        "circuit": max((load.circuit for load in loads), key=_SEVERITY.index, default=Circuit.CLOSED).value,
        "rest_s": max((load.rest_s for load in loads), default=0.0),
        "silent_s": max((load.silent_s for load in loads), default=0.0),
        "location": status.location,
        "cache_isolation": status.traits and status.traits.isolation,
        "cache_risk": status.traits.cache_risk if status.traits is not None else "",
        "pid": status.pid,
        "cold_start_s": cold
        and {name.removesuffix("_s"): seconds for name, seconds in cold.stages().items()},
        "code": status.code,
        "gauges": dict(status.gauges),
    }
