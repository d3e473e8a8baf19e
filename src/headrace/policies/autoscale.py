"""How many replicas should there be now? One pure step, from what was remembered and seen to a number with its reasons.

    take in  ->  proposals  ->  the largest  ->  guards  ->  decision

The decision holds every proposal and every guard that changed it, so that whoever reads it knows why; and since the step
depends on nothing but its arguments, any decision that was stored with them can be made again.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from headrace.core.deployment_terms import ScaleTerms
from headrace.policies import autoscale_guards as guards
from headrace.policies import autoscale_renewal as renewal
from headrace.policies import replica_spend
from headrace.policies.autoscale_guards import Guard
from headrace.policies.autoscale_memory import ScaleState, take_in
from headrace.policies.autoscale_proposals import (
    Needs,
    Proposal,
    Setting,
    Signal,
    expect,
    lead_s,
    propose,
)
from headrace.policies.autoscale_removal import removal_order
from headrace.policies.autoscale_signals import STALE_S, FleetView, LoadSample

HOUR_S = 3600.0


class Reason(StrEnum):
    """Why it is this number, in one word; the guards say more."""

    STEADY = "steady"
    LOAD_UP = "load_up"
    LOAD_DOWN = "load_down"
    FROM_ZERO = "from_zero"
    IDLE = "idle"
    NO_DATA = "insufficient_data"
    PANIC = "panic"
    HELD = "held"
    BOUNDS = "bounds"
    BUDGET = "budget"
    RENEWAL = "renewal"


class GuardNote(msgspec.Struct, frozen=True, gc=False):
    """A guard that changed the number, and to what."""

    guard: Guard
    replicas: int


class ScaleDecision(msgspec.Struct, frozen=True):
    """What should be, and why.

    Attributes:
        replicas: How many there should be, ready or on their way, without those that drain.
        advised: What it would be if this weren't only advice; else the same.
        remove: Which go, where there are more than that; the first one first. Those that are ready are drained.
        asked: What the signals asked for, before any guard.
    """

    replicas: int
    advised: int
    reason: Reason
    asked: int
    proposals: tuple[Proposal, ...] = ()
    guards: tuple[GuardNote, ...] = ()
    remove: tuple[str, ...] = ()


def decide(
    state: ScaleState,
    setting: Setting,
    sample: LoadSample | None,
    fleet: FleetView,
    *,
    now_s: float,
    wall_s: float,
) -> tuple[ScaleState, ScaleDecision]:
    """One look, every couple of seconds.

    Args:
        state: What the look before left; `ScaleState()` at first.
        sample: What happened since then; None where nobody knows.
        now_s: A clock that never goes back.
        wall_s: Unix seconds, for the day that a budget is for.
    """
    scale = setting.scale
    keep_s = max(scale.window_s, scale.panic.window_s, STALE_S)
    state = take_in(state, sample, fleet, keep_s=keep_s, now_s=now_s)
    state = msgspec.structs.replace(
        state,
        spend=replica_spend.accrue(
            state.spend,
            replicas=len(fleet.replicas),
            price_pico=setting.budget.replica_hour_pico,
            now_s=now_s,
            wall_s=wall_s,
        ),
    )
    counted = renewal.without_aged(fleet, state.renewal)
    needs = propose(state, setting, counted, now_s=now_s)
    has_news = any(each.end_s > now_s - STALE_S for each in state.samples)
    if has_news and (needs.load is not None or needs.pressures):
        state, course = _follow(state, setting, counted, needs, now_s=now_s)
    else:
        course = _Course(needs.proposals, len(counted.wanted), Reason.NO_DATA)
        course.through((course.replicas, Guard.NO_DATA))
    # That somebody waits is the reason, also where there may be no more than one.
    bounds = course.reason if course.reason is Reason.FROM_ZERO else Reason.BOUNDS
    course.through(guards.bound(course.replicas, scale), bounds)
    allowance = replica_spend.allowance(
        state.spend,
        setting.budget,
        replicas_min=scale.min,
        stay_s=lead_s(fleet) + scale.down.delay_s,
        wall_s=wall_s,
    )
    paid = guards.pay(
        course.replicas, allowance, setting.budget, replicas_min=scale.min, capacity=counted.capacity
    )
    course.through(paid, Reason.BUDGET)
    state = _renew(
        state,
        course,
        fleet,
        max_age_s=scale.max_age_h * HOUR_S,
        is_payable=not allowance.is_short,
        now_s=now_s,
    )
    if course.replicas < counted.capacity and not course.is_paced:
        state = msgspec.structs.replace(state, stepped_s=now_s, stepped_to=course.replicas)
    return state, _decision(course, state, fleet, is_advice=scale.mode == "advise")


class _Course:
    """A number on its way through the guards, with what they did to it. `reason` is that of the last one that mattered."""

    def __init__(self, proposals: Sequence[Proposal], asked: int, reason: Reason) -> None:
        self.proposals = tuple(proposals)
        self.asked = self.replicas = asked
        self.reason = reason
        self.notes: list[GuardNote] = []

    @property
    def is_paced(self) -> bool:
        """It goes by the last step down, and is none itself."""
        return any(note.guard is Guard.DOWN_PACE for note in self.notes)

    def through(self, passed: guards.Passed, reason: Reason | None = None) -> None:
        self.replicas, guard = passed
        if guard is not None:
            self.notes.append(GuardNote(guard, self.replicas))
            self.reason = reason or self.reason


def _follow(
    state: ScaleState, setting: Setting, fleet: FleetView, needs: Needs, *, now_s: float
) -> tuple[ScaleState, _Course]:
    """What the load asks for, as far as it may be followed at once."""
    scale, capacity, lead = setting.scale, fleet.capacity, lead_s(fleet)
    load = max(need for need in (needs.load, *needs.pressures.values()) if need is not None)
    state = msgspec.structs.replace(
        state,
        history=state.history.after(load, now_s=now_s),
        peaks=state.peaks.after(load, now_s=now_s, keep_s=scale.down.delay_s),
    )
    proposals = (*needs.proposals, *_ahead(state, setting, fleet, load))
    asked = max(_whole(each.need, scale, capacity) for each in proposals if each.need is not None)
    panic = guards.panic(
        state.panic,
        need=needs.burst or 0.0,
        capacity=capacity,
        ratio=scale.panic.ratio,
        hold_s=scale.window_s + lead,
        now_s=now_s,
    )
    course = _Course(proposals, asked, Reason.STEADY)
    if panic is not None and panic.replicas > asked:
        course.through((panic.replicas, Guard.PANIC))
    # What was agreed as the least is not asked for by anything, and nothing falls below it.
    aim = course.replicas = max(course.replicas, min(scale.min, capacity))
    direction = (aim > capacity) - (aim < capacity)
    since_s = state.direction_since_s if direction == state.direction else now_s
    state = msgspec.structs.replace(state, panic=panic, direction=direction, direction_since_s=since_s)
    if direction > 0:
        course.reason = Reason.FROM_ZERO if not capacity else Reason.PANIC if panic else Reason.LOAD_UP
        course.through(guards.grow(aim, state, scale, capacity=capacity, now_s=now_s))
    elif direction < 0:
        course.reason = Reason.LOAD_DOWN
        _fall(course, state, setting, fleet, now_s=now_s)
    if course.replicas == capacity and direction:
        course.reason = Reason.HELD
    return state, course


def _fall(course: _Course, state: ScaleState, setting: Setting, fleet: FleetView, *, now_s: float) -> None:
    """Down as far as it may go; the last replica by a rule of its own."""
    scale, capacity = setting.scale, fleet.capacity
    if capacity > 1 or course.replicas:
        course.through(guards.shrink(max(1, course.replicas), state, scale, capacity=capacity, now_s=now_s))
        return
    course.through(
        guards.keep_last(
            state, scale, first_wait_s=lead_s(fleet), first_wait_max_s=setting.first_wait_max_s, now_s=now_s
        )
    )
    if not course.replicas:
        course.reason = Reason.IDLE


def _ahead(state: ScaleState, setting: Setting, fleet: FleetView, load: float) -> tuple[Proposal, ...]:
    """What is kept ready for what may come before a replica that is started now could answer."""
    found = []
    warm = math.ceil(load - guards.NEAR) + setting.scale.warm if setting.scale.warm else 0.0
    if (expected := expect(state, setting, fleet)) is not None:
        found.append(Proposal(Signal.FORECAST, expected.load, lead_s(fleet)))
        warm = max(warm, expected.load + expected.short_by)
    if warm:
        found.append(Proposal(Signal.WARM, warm, warm - load))
    return tuple(found)


def _whole(need: float | None, scale: ScaleTerms, capacity: int) -> int:
    return guards.replicas_for(need or 0.0, capacity=capacity, tolerance=scale.tolerance)


def _renew(
    state: ScaleState, course: _Course, fleet: FleetView, *, max_age_s: float, is_payable: bool, now_s: float
) -> ScaleState:
    """One more than there should be while the successor of an aged replica isn't ready."""
    is_quiet = state.panic is None and course.replicas == fleet.capacity and is_payable
    going = renewal.next_renewal(state.renewal, fleet, max_age_s=max_age_s, may_begin=is_quiet, now_s=now_s)
    if going is not None and not renewal.is_replaced(fleet, going):
        course.through((course.replicas + 1, Guard.RENEWAL), Reason.RENEWAL)
    return msgspec.structs.replace(state, renewal=going)


def _decision(course: _Course, state: ScaleState, fleet: FleetView, *, is_advice: bool) -> ScaleDecision:
    there = len(fleet.wanted)
    replicas = course.replicas
    if is_advice:
        course.through((there, Guard.ADVISORY))
    going = state.renewal
    aged = going.replica if going is not None and renewal.is_replaced(fleet, going) else None
    order = removal_order(fleet.wanted, aged=aged)
    return ScaleDecision(
        replicas=course.replicas,
        advised=replicas,
        reason=course.reason,
        asked=course.asked,
        proposals=course.proposals,
        guards=tuple(course.notes),
        remove=order[: max(0, there - course.replicas)],
    )
