"""How many replicas would each version like? Its load is looked at every couple of seconds, and a pure policy decides.

What the policy remembers is handed back to the controller, which stores it and hands it in again, whichever controller that
is then. A decision that changes something is recorded with all that it was made from, so that it can be made again.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.control.steering import Scaled, TargetSeen
from headrace.core.deployment_terms import ScaleTerms
from headrace.core.deployments import AppliedVersion
from headrace.core.fleet import ReplicaState
from headrace.core.ids import ReplicaId
from headrace.core.load import EDGES_S, Histogram, TargetLoad
from headrace.core.outcome import Reason as RefusalReason
from headrace.policies import decisions
from headrace.policies.autoscale import Reason, ScaleDecision, decide
from headrace.policies.autoscale_memory import ScaleState, resume
from headrace.policies.autoscale_proposals import TICK_S, Setting
from headrace.policies.autoscale_signals import Counts, FleetView, LoadSample, ReplicaView
from headrace.policies.cold_start import Figures

KIND = "scale"
# What was turned away for one of these would have been served, had there been more replicas.
_FOR_WANT_OF_ROOM = (
    RefusalReason.QUEUE_FULL,
    RefusalReason.WAIT_TOO_LONG,
    RefusalReason.QUEUE_TIME_OVER,
    RefusalReason.DISPLACED,
    RefusalReason.NO_READY_REPLICA,
    RefusalReason.RESTING,
)
# What engines call the share of their KV cache that is in use, without their prefixes.
_KV_GAUGES = ("kv_cache_usage_perc", "kv_cache_usage_ratio", "gpu_cache_usage_perc", "token_usage")
_GPU_GAUGES = ("gpu_utilization",)
# Worth a record also where the number stays.
_NOTABLE = (Reason.NO_DATA, Reason.BUDGET, Reason.BOUNDS, Reason.RENEWAL)


class Inputs(msgspec.Struct, frozen=True):
    """All that one decision was made from."""

    target: str
    state: ScaleState
    setting: Setting
    sample: LoadSample | None
    fleet: FleetView
    now_s: float
    wall_s: float


class Kept(msgspec.Struct, frozen=True):
    """What the controller stores: the policy's memory, and when it was of now."""

    state: ScaleState
    wall_s: float


_Present = tuple[tuple[ReplicaId, bool, bool], ...]
"""Which replicas there are: whether they are ready, and whether they drain."""


class _Look(NamedTuple):
    """The last look at a target, by this process."""

    at_s: float
    replicas: _Present
    load: TargetLoad | None
    load_s: float
    state: ScaleState
    scaled: Scaled
    decision: ScaleDecision
    recorded: ScaleDecision | None


class ScaleByLoad:
    """An `Autoscaler`. State: the last look at each target.

    Args:
        figures: What starts of that version take here; None where none was ever measured.
        decided: Told of each look: what was decided, and whether it is recorded.
        forgotten: Gets the key of a target that is gone.
        first_wait_max_s: How long a request may wait for a deployment without replicas.
        tick_s: Between two looks at a target. A first request for one without replicas is seen at once, and so are replicas that
            come and go: a rollout starts some too, which a decision from before would take away again.
    """

    def __init__(
        self,
        *,
        figures: Callable[[AppliedVersion], Figures | None],
        decided: Callable[[TargetSeen, ScaleDecision, bool], None] = lambda *_: None,
        forgotten: Callable[[str], None] = lambda _: None,
        first_wait_max_s: float | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        self._figures = figures
        self._decided = decided
        self._forgotten = forgotten
        self._first_wait_max_s = first_wait_max_s
        self._tick_s = tick_s
        self._looks: dict[str, _Look] = {}

    def scale(self, target: TargetSeen, kept: str, *, now_s: float, wall_s: float) -> Scaled:
        """By the load since the last look; the same again where that is too short ago, and nothing is new."""
        key = target.applied.key
        last = self._looks.get(key)
        present = tuple((each.id, each.ready_s is not None, each.is_draining) for each in target.replicas)
        is_new = last is None or last.replicas != present or _is_awaited(target)
        if last is not None and not is_new and now_s - last.at_s < self._tick_s:
            return msgspec.structs.replace(last.scaled, decisions=(), is_news=False)
        state = _remembered(kept, now_s=now_s, wall_s=wall_s) if last is None else last.state
        inputs = Inputs(
            key,
            state,
            self._setting(target.applied),
            _sample(target, last, now_s=now_s),
            _fleet(target, self._figures(target.applied)),
            now_s,
            wall_s,
        )
        state, decision = _decide(inputs)
        is_news = last is None or last.recorded is None or _is_news(last.recorded, decision)
        self._decided(target, decision, is_news)
        scaled = Scaled(
            kept=msgspec.json.encode(Kept(state, wall_s)).decode(),
            replicas=decision.replicas,
            looked_s=now_s,
            remove=tuple(ReplicaId(name) for name in decision.remove),
            waiting_room=_waiting_room(target, inputs.setting.scale),
            decisions=(_record(target.applied.name, inputs, decision),) if is_news else (),
            is_news=is_news,
            summary=summary(decision, inputs.fleet),
        )
        self._looks[key] = _Look(
            now_s, present, target.load, target.load_s, state, scaled, decision,
            decision if is_news or last is None else last.recorded,
        )  # fmt: skip
        return scaled

    def forget(self, key: str) -> None:
        """That target is gone."""
        self._looks.pop(key, None)
        self._forgotten(key)

    def _setting(self, applied: AppliedVersion) -> Setting:
        spec = applied.spec
        return Setting(spec.scale, spec.slo, spec.budget, self._first_wait_max_s)


def replay(inputs: bytes) -> ScaleDecision:
    """Decides again from what a decision was recorded with. Raises ValueError for inputs of another shape."""
    return _decide(msgspec.json.decode(inputs, type=Inputs))[1]


def summary(decision: ScaleDecision, fleet: FleetView) -> dict[str, Any]:
    """What status shows: the number, why, what each signal asked for, and which guards changed that."""
    found: dict[str, Any] = {
        "wanted": decision.replicas,
        "ready": len(fleet.ready),
        "reason": decision.reason.value,
        "asked": decision.asked,
        "needs": {proposal.signal.value: proposal.need for proposal in decision.proposals},
        "guards": [note.guard.value for note in decision.guards],
    }
    if decision.advised != decision.replicas:
        found["advised"] = decision.advised
    return found


def _decide(inputs: Inputs) -> tuple[ScaleState, ScaleDecision]:
    return decide(
        inputs.state, inputs.setting, inputs.sample, inputs.fleet, now_s=inputs.now_s, wall_s=inputs.wall_s
    )


def _remembered(kept: str, *, now_s: float, wall_s: float) -> ScaleState:
    """Of an earlier controller. What can't be read any more, as after an upgrade, is forgotten: load shows itself anew."""
    try:
        before = msgspec.json.decode(kept, type=Kept)
    except ValueError:
        return ScaleState()
    return resume(before.state, away_s=wall_s - before.wall_s, now_s=now_s)


def _is_awaited(target: TargetSeen) -> bool:
    """Somebody waits for the first replica of a deployment that has none."""
    return target.load is not None and target.load.queued > 0 and not any(
        not replica.is_draining for replica in target.replicas
    )  # fmt: skip


def _is_news(before: ScaleDecision, decision: ScaleDecision) -> bool:
    if (before.replicas, before.advised) != (decision.replicas, decision.advised):
        return True
    return decision.reason is not before.reason and decision.reason in _NOTABLE


def _record(deployment: str, inputs: Inputs, decision: ScaleDecision) -> decisions.Decision:
    return decisions.decision(KIND, deployment, decision.reason.value, inputs, decision)


def _sample(target: TargetSeen, last: _Look | None, *, now_s: float) -> LoadSample | None:
    """What happened since the last look. None where the gateways have said nothing since then.

    A target that their report doesn't name has had no request. What was counted before the first look is of a time that
    nobody knows the length of, so only what is in progress counts then.
    """
    before_s = 0.0 if last is None else last.load_s
    if target.load_s <= before_s:
        return None
    told = [each.gauges for each in target.replicas if each.ready_s is not None and not each.is_draining]
    kv, gpu = _told(told, _KV_GAUGES), _told(told, _GPU_GAUGES)
    start_s = now_s - TICK_S if last is None else last.at_s
    load = target.load
    if load is None:
        return LoadSample(start_s, now_s, kv=kv, gpu=gpu)
    done = load.since(load if last is None else last.load)
    refused_for_limits = done.refused - sum(done.causes.get(reason, 0) for reason in _FOR_WANT_OF_ROOM)
    waited_s = done.queue_wait.mean_s or 0.0
    delivered = done.total.count
    return LoadSample(
        start_s,
        now_s,
        arrived=max(0, done.arrived - refused_for_limits),
        ended=delivered,
        service_s=max(0.0, done.total.sum_s - waited_s * delivered),
        in_flight=load.in_flight,
        queued=load.queued,
        prompt_tokens=done.prompt_tokens,
        cached_tokens=done.cached_tokens,
        ttft=_counts(done.ttft),
        queue_wait=_counts(done.queue_wait),
        itl=_counts(done.itl),
        kv=kv,
        gpu=gpu,
    )


def _counts(histogram: Histogram) -> Counts:
    """Without the empty buckets; what is above the last edge counts as there."""
    edges = (*EDGES_S, EDGES_S[-1])
    return tuple((edge_s, count) for edge_s, count in zip(edges, histogram.counts, strict=False) if count)


def _told(gauges: list[Mapping[str, float]], names: tuple[str, ...]) -> tuple[float, ...]:
    """By whichever name; those that say nothing are left out."""
    found = (next((each[name] for name in names if name in each), None) for each in gauges)
    return tuple(value for value in found if value is not None)


def _fleet(target: TargetSeen, figures: Figures | None) -> FleetView:
    return FleetView(
        tuple(
            ReplicaView(
                replica.id, replica.launched_s, replica.ready_s, replica.in_flight,
                is_draining=replica.is_draining,
                is_stuck=replica.ready_s is None
                and (replica.is_stuck or bool(target.refusal) or replica.state is ReplicaState.FAILED),
            )
            for replica in target.replicas
        ),
        _slots(target),
        figures,
    )  # fmt: skip


def _slots(target: TargetSeen) -> int:
    """Of one replica: as its engine has it, and before there is one as the file says it."""
    return max(
        (replica.slots for replica in target.replicas), default=target.applied.spec.revision.args.slots or 1
    )


def _waiting_room(target: TargetSeen, scale: ScaleTerms) -> int:
    """As many as the first replica takes at once: more would meet a full one, and are better told when to come back."""
    return _slots(target) if scale.min == 0 else 0
