"""How many replicas does each signal ask for? The largest proposal counts, and a signal that knows nothing proposes nothing.

Signals of two kinds. Loads (requests, concurrency, tokens to compute) are of the whole deployment, and don't depend on how
many share them: new replicas make no load vanish. Pressures (waits, latencies, cache, GPU) are of the replicas that are
ready, and so they are measured only since their number is what it is: what was felt before a replica came says nothing of
whether another is needed.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from headrace.core.deployment_terms import BudgetTerms, ScaleTerms, SloTerms, TargetTerms
from headrace.policies import staffing
from headrace.policies.autoscale_memory import BUCKET_S, SETTLE_S, ScaleState
from headrace.policies.autoscale_signals import FleetView, Window, tail_s, window
from headrace.policies.forecast import Forecast, Predictor, forecast

# Without a target of its own, so few requests may have to wait for a slot. What is promised to the first token is not spent on
# waiting: it is for prompts, their own and those in front of them, of which engines don't say how long they take.
WAITING_SHARE = 0.01
# A pressure asks for at most so many times what is ready: how it answers to replicas is only guessed.
PRESSURE_MAX = 2.0
COLD_START_UNKNOWN_S = 60.0
TICK_S = 2.0


class Signal(StrEnum):
    """What asks."""

    INFLIGHT = "inflight"
    REQUESTS = "requests"
    UNCACHED = "uncached_tokens"
    QUEUE_WAIT = "queue_wait"
    TTFT = "ttft"
    TPOT = "tpot"
    KV = "kv"
    GPU = "gpu"
    FORECAST = "forecast"
    WARM = "warm"
    PANIC = "panic"


class Setting(msgspec.Struct, frozen=True):
    """What was agreed for a deployment, as far as its number of replicas is concerned.

    Attributes:
        first_wait_max_s: How long a request may wait for a deployment that has no replica; None for any time.
    """

    scale: ScaleTerms
    slo: SloTerms = SloTerms()
    budget: BudgetTerms = BudgetTerms()
    first_wait_max_s: float | None = None


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """What one signal asks for.

    Attributes:
        need: In replicas at their target, with the fraction; None where the signal knows nothing.
        value: What was measured, in the signal's unit.
    """

    signal: Signal
    need: float | None
    value: float | None = None


class Needs(NamedTuple):
    """All proposals of one look, and what the guards go by.

    Attributes:
        load: The largest need of the loads over the stable window; None without a fresh look.
        burst: The same over the panic window.
        pressures: Needs of the ready replicas' pressures.
    """

    proposals: tuple[Proposal, ...]
    load: float | None
    burst: float | None
    pressures: dict[Signal, float]


def propose(state: ScaleState, setting: Setting, fleet: FleetView, *, now_s: float) -> Needs:
    """By everything that was seen up to now."""
    scale = setting.scale
    stable = _loads(state, setting, fleet, since_s=now_s - scale.window_s, is_burst=False)
    burst = _loads(state, setting, fleet, since_s=now_s - scale.panic.window_s, is_burst=True)
    pressures = _pressures(state, setting, fleet, now_s=now_s)
    return Needs(
        proposals=(*stable, *pressures),
        load=_largest(stable),
        burst=_largest(burst),
        pressures={each.signal: each.need for each in pressures if each.need is not None},
    )


def expect(state: ScaleState, setting: Setting, fleet: FleetView) -> Forecast | None:
    """The load when a replica that is started now is ready; None where nobody wants to know."""
    predict = setting.scale.predict
    if predict == "off":
        return None
    predictors = list(Predictor) if predict == "auto" else [Predictor(predict)]
    steps = max(1, round((lead_s(fleet) + TICK_S) / BUCKET_S))
    return forecast(state.history.loads, steps=steps, predictors=predictors)


def lead_s(fleet: FleetView) -> float:
    """How far ahead a decision must look: until then nothing that it starts will answer."""
    return COLD_START_UNKNOWN_S if fleet.cold_start is None else fleet.cold_start.p95_s


def _goes_by_others(target: TargetTerms) -> bool:
    """Whether somebody has said what to go by, and not by requests in progress."""
    others = (
        target.requests_per_s,
        target.queue_wait_s,
        target.kv,
        target.gpu,
        target.uncached_tokens_per_s,
        target.slo,
    )
    return not target.inflight and any(others)


def _loads(
    state: ScaleState, setting: Setting, fleet: FleetView, *, since_s: float, is_burst: bool
) -> tuple[Proposal, ...]:
    target = setting.scale.target
    seen = window(state.samples, since_s=since_s)
    found = []
    if not _goes_by_others(target):
        work = None if seen is None else _work(seen, state.requests.mean_service_s, fleet, is_burst=is_burst)
        need = None if work is None else _replicas_for(work, target.inflight, fleet.slots)
        found.append(Proposal(Signal.INFLIGHT, need, work))
    if target.requests_per_s:
        rate = None if seen is None else seen.arrivals_per_s
        found.append(_proposal(Signal.REQUESTS, rate, target.requests_per_s))
    if target.uncached_tokens_per_s:
        found.append(_proposal(Signal.UNCACHED, _uncached(state, seen), target.uncached_tokens_per_s))
    if target.queue_wait_s:
        # What arrives must be served, and what waits must begin within the target; without the target's headroom, for
        # whoever goes by waits accepts full slots.
        found.append(Proposal(Signal.QUEUE_WAIT, _backlog(state, seen, fleet, target.queue_wait_s)))
    if not found and seen is not None and _is_idle(seen):
        # Where only latencies and shares count: silence has no latency, and is a load all the same.
        found.append(Proposal(Signal.REQUESTS, 0.0, 0.0))
    return tuple(found)


def _is_idle(seen: Window) -> bool:
    return seen.arrivals_per_s == seen.in_flight == seen.queued == 0.0


def _replicas_for(work: float, inflight: float, slots: int) -> float:
    """For so many requests at once: so many to each replica where that was agreed, else as few as let hardly anybody wait."""
    return work / inflight if inflight else staffing.slots_for(work, waiting_share=WAITING_SHARE) / slots


def _work(seen: Window, service_s: float | None, fleet: FleetView, *, is_burst: bool) -> float:
    """Requests in progress, had there been room for all.

    While nobody waits they are what is in progress. Once slots are full that says nothing any more: then it is what
    arrives, times how long each stays. What waits is added as far as it must be worked off by the time that new
    replicas are there, since a queue that grows while they load would else order them again and again.
    """
    if service_s is None:
        return seen.in_flight + seen.queued
    offered = seen.arrivals_per_s * service_s
    is_full = seen.queued >= 0.5
    busy = max(seen.in_flight, offered) if is_full or is_burst else seen.in_flight
    return busy + seen.queued * min(1.0, service_s / lead_s(fleet))


def _uncached(state: ScaleState, seen: Window | None) -> float | None:
    """Tokens a second: arrivals of the size that requests have had."""
    if seen is None:
        return None
    tokens = state.requests.mean_uncached_tokens
    if tokens is None:
        return 0.0 if _is_idle(seen) else None
    return seen.arrivals_per_s * tokens


def _backlog(state: ScaleState, seen: Window | None, fleet: FleetView, wait_s: float) -> float | None:
    if seen is None:
        return None
    service_s = state.requests.mean_service_s
    if service_s is None:
        return 0.0 if _is_idle(seen) else None
    return (seen.arrivals_per_s * service_s + seen.queued * service_s / max(wait_s, service_s)) / fleet.slots


def _pressures(
    state: ScaleState, setting: Setting, fleet: FleetView, *, now_s: float
) -> tuple[Proposal, ...]:
    scale, slo = setting.scale, setting.slo
    ready = len(fleet.ready)
    since_s = now_s - scale.window_s
    if state.ready_changed_s is not None:
        since_s = max(since_s, state.ready_changed_s + SETTLE_S)
    samples = [sample for sample in state.samples if sample.start_s >= since_s]
    seen = window(samples, since_s=since_s)
    kv = None if seen is None else seen.kv
    gpu = None if seen is None else seen.gpu
    target = scale.target
    measured: list[tuple[Signal, float | None, float]] = []
    if target.queue_wait_s:
        measured.append(
            (Signal.QUEUE_WAIT, tail_s([s.queue_wait for s in samples], 0.95), target.queue_wait_s)
        )
    if target.slo and slo.ttft_p95_ms:
        limit_s = target.slo * slo.ttft_p95_ms / 1000
        measured.append((Signal.TTFT, tail_s([s.ttft for s in samples], 0.95), limit_s))
    if target.slo and slo.tpot_p95_ms:
        limit_s = target.slo * slo.tpot_p95_ms / 1000
        measured.append((Signal.TPOT, tail_s([s.itl for s in samples], 0.95), limit_s))
    if target.kv:
        measured.append((Signal.KV, kv, target.kv))
    if target.gpu:
        measured.append((Signal.GPU, gpu, target.gpu))
    return tuple(
        Proposal(
            signal,
            None if value is None or not ready else ready * min(PRESSURE_MAX, value / limit),
            value,
        )
        for signal, value, limit in measured
    )


def _proposal(signal: Signal, value: float | None, target: float) -> Proposal:
    return Proposal(signal, None if value is None else value / target, value)


def _largest(proposals: Iterable[Proposal]) -> float | None:
    return max((each.need for each in proposals if each.need is not None), default=None)
