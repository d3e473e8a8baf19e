"""Laws of the autoscaler: what holds whatever the load, the fleet and the agreement are."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.deployment_terms import BudgetTerms, DownTerms, SloTerms, TargetTerms, UpTerms
from headrace.policies.autoscale import ScaleState, Setting, decide
from headrace.policies.autoscale_guards import Guard
from headrace.policies.autoscale_memory import resume
from headrace.policies.autoscale_signals import FleetView, LoadSample, ReplicaView
from tests.policies.scaling import TICK_S, WALL_S, Looks, fleet, guards_of, ready, setting, starting

LOOK: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    arrived=st.integers(0, 200),
    ended=st.integers(0, 200),
    service_s=st.floats(0.0, 400.0),
    in_flight=st.integers(0, 100),
    queued=st.integers(0, 100),
    kv=st.lists(st.floats(0.0, 1.0), max_size=3).map(tuple),
    ttft=st.lists(st.tuples(st.floats(0.01, 10.0), st.integers(1, 50)), max_size=3).map(tuple),
)
REPLICA = st.builds(
    ReplicaView,
    id=st.uuids().map(str),
    launched_s=st.floats(-10_000.0, 0.0),
    ready_s=st.none() | st.floats(-10_000.0, 0.0),
    in_flight=st.integers(0, 8),
    sessions=st.integers(0, 3),
    is_draining=st.booleans(),
    is_stuck=st.booleans(),
)
FLEETS = st.lists(REPLICA, max_size=12, unique_by=lambda replica: replica.id).map(lambda found: fleet(*found))
SETTINGS = st.builds(
    setting,
    min=st.integers(0, 3),
    max=st.integers(3, 12),
    warm=st.integers(0, 2),
    predict=st.sampled_from(["off", "auto"]),
    mode=st.sampled_from(["act", "advise"]),
    idle_to_zero_s=st.sampled_from([0.0, 10.0]),
    max_age_h=st.sampled_from([0.0, 1.0]),
    down=st.builds(DownTerms, st.sampled_from([0.0, 20.0]), st.integers(1, 5), st.floats(0.5, 1.0)),
    up=st.builds(UpTerms, st.sampled_from([0.0, 10.0]), st.floats(1.1, 10.0)),
    target=st.builds(TargetTerms, inflight=st.sampled_from([0.0, 4.0]), kv=st.sampled_from([0.0, 0.8]), slo=st.sampled_from([0.0, 0.9])),
    slo=st.just(SloTerms(ttft_p95_ms=1000.0)),
    budget=st.sampled_from([BudgetTerms(), BudgetTerms(replica_hour="50.00", per_day="1.00", on_exceed="stop")]),
)  # fmt: skip


@settings(max_examples=60)
@given(agreed=SETTINGS, history=st.lists(st.tuples(LOOK, FLEETS, st.booleans()), min_size=1, max_size=12))
def test_whatever_happens_the_decision_is_one_that_can_be_carried_out(
    agreed: Setting, history: list[tuple[dict[str, Any], FleetView, bool]]
) -> None:
    """Within the bounds, except that a renewal may add one and an empty purse may take all; only what is there is
    removed, exactly as many as are too many, and what isn't ready before what is."""
    looks = Looks(agreed, fleet())
    for sample, there, is_silent in history:
        looks.fleet = there
        before = looks.state
        decision = looks.look(is_silent=is_silent, **sample)
        guards = guards_of(decision)
        most = agreed.scale.max + (Guard.RENEWAL in guards)
        assert decision.advised <= most
        assert decision.advised >= agreed.scale.min or Guard.BUDGET_STOP in guards
        wanted = {replica.id: replica for replica in there.wanted}
        if agreed.scale.mode == "advise":
            assert decision.replicas == len(wanted)
        assert len(decision.remove) == max(0, len(wanted) - decision.replicas)
        assert set(decision.remove) <= set(wanted)
        kept = [wanted[name] for name in wanted.keys() - set(decision.remove)]
        is_aged = looks.state.renewal is not None
        if any(wanted[name].ready_s is not None for name in decision.remove) and not is_aged:
            assert all(replica.ready_s is not None for replica in kept)
        # The same arguments, read back from what was stored, make the same decision.
        stored = msgspec.json.decode(msgspec.json.encode(before), type=ScaleState)
        seen = None if is_silent else LoadSample(looks.now_s - TICK_S, looks.now_s, **sample)
        again = decide(stored, agreed, seen, there, now_s=looks.now_s, wall_s=WALL_S + looks.now_s)
        assert again == (looks.state, decision)


@settings(max_examples=40)
@given(
    agreed=SETTINGS,
    history=st.lists(LOOK, min_size=1, max_size=20),
    away_s=st.floats(0.0, 0.5),
    clock_s=st.floats(-1e6, 1e6),
)
def test_a_restart_forgets_no_load(
    agreed: Setting, history: list[dict[str, Any]], away_s: float, clock_s: float
) -> None:
    """The controller is back after a moment, on a clock that began elsewhere: it decides as the one before would have."""
    there = fleet(*ready(3))
    looks = Looks(agreed, there)
    for sample in history:
        looks.look(**sample)
    later_s = looks.now_s + away_s
    expected = decide(looks.state, agreed, None, there, now_s=later_s, wall_s=WALL_S)[1]
    resumed = resume(looks.state, away_s=away_s, now_s=clock_s)
    shift_s = clock_s - later_s
    moved = FleetView(
        tuple(
            ReplicaView(replica.id, replica.launched_s + shift_s, (replica.ready_s or 0.0) + shift_s)
            for replica in there.replicas
        ),
        there.slots,
        there.cold_start,
    )
    found = decide(resumed, agreed, None, moved, now_s=clock_s, wall_s=WALL_S)[1]
    assert found.asked == expected.asked
    assert found.advised == expected.advised


def test_a_state_that_has_seen_nothing_resumes_as_it_is() -> None:
    assert resume(ScaleState(), away_s=5.0, now_s=9.0) == ScaleState()


def test_a_clock_that_was_set_back_meanwhile_counts_as_no_time() -> None:
    looks = Looks(setting(), fleet(*ready(1)))
    looks.look(20.0, in_flight=20)
    looks.have((*ready(1), *starting(4)))
    looks.look(4.0, in_flight=2)
    resumed = resume(looks.state, away_s=-3600.0, now_s=50.0)
    assert resumed.seen_s == 50.0
    assert resumed.panic is not None
    assert looks.state.panic is not None
    assert looks.state.seen_s is not None
    assert resumed.panic.until_s - 50.0 == pytest.approx(looks.state.panic.until_s - looks.state.seen_s)
