"""The number of replicas follows the load, within what was agreed, and says why."""

from typing import Any

import msgspec
import pytest

from headrace.core.deployment_terms import (
    BudgetTerms,
    DownTerms,
    PanicTerms,
    SloTerms,
    TargetTerms,
    UpTerms,
)
from headrace.policies.autoscale import Reason, ScaleDecision
from headrace.policies.autoscale_guards import Guard
from headrace.policies.autoscale_proposals import Signal
from headrace.policies.autoscale_signals import ReplicaView
from tests.policies.scaling import WALL_S, Looks, fleet, guards_of, ready, setting, starting


def needs_of(decision: ScaleDecision) -> dict[Signal, float | None]:
    return {proposal.signal: proposal.need for proposal in decision.proposals}


# What is asked for


def test_as_many_as_the_requests_in_progress_need() -> None:
    looks = Looks(setting(), fleet(*ready(2)))
    decision = looks.look(20.0, in_flight=10)
    assert decision.replicas == 3
    assert decision.reason is Reason.LOAD_UP
    assert needs_of(decision)[Signal.INFLIGHT] == pytest.approx(10 / 4)


def test_the_largest_proposal_counts() -> None:
    agreed = setting(target=TargetTerms(inflight=4.0, requests_per_s=1.0, kv=0.8))
    decision = Looks(agreed, fleet(*ready(2))).look(30.0, in_flight=4, arrived=10, kv=(0.4, 0.4))
    assert needs_of(decision) == {Signal.INFLIGHT: 1.0, Signal.REQUESTS: 5.0, Signal.KV: pytest.approx(1.0)}
    assert decision.asked == decision.replicas == 5


def test_a_signal_without_data_neither_asks_nor_blocks() -> None:
    agreed = setting(target=TargetTerms(inflight=4.0, kv=0.8, gpu=0.9, uncached_tokens_per_s=1000.0))
    decision = Looks(agreed, fleet(*ready(1))).look(30.0, in_flight=8, arrived=1)
    assert decision.replicas == 2
    assert needs_of(decision) == {
        Signal.INFLIGHT: 2.0, Signal.KV: None, Signal.GPU: None, Signal.UNCACHED: None,
    }  # fmt: skip


def test_work_counts_what_no_cache_had() -> None:
    agreed = setting(target=TargetTerms(uncached_tokens_per_s=1000.0))
    looks = Looks(agreed, fleet(*ready(1)))
    assert looks.look(30.0).asked == 0, "nothing arrives"
    assert needs_of(looks.look(30.0, arrived=4))[Signal.UNCACHED] is None, (
        "nobody knows yet how large they are"
    )
    decision = looks.look(30.0, arrived=4, ended=4, prompt_tokens=8000, cached_tokens=4000)
    assert needs_of(decision)[Signal.UNCACHED] == pytest.approx(2.0)


def test_a_short_window_in_which_nobody_looked_has_no_burst() -> None:
    agreed = setting(target=TargetTerms(uncached_tokens_per_s=1000.0, queue_wait_s=1.0))
    looks = Looks(agreed, fleet(*ready(2)))
    looks.look(20.0, arrived=2, ended=2, service_s=4.0, prompt_tokens=4000, in_flight=2)
    assert looks.look(8.0, is_silent=True).reason is Reason.STEADY


def test_what_waits_is_worked_off_within_the_wait_that_was_agreed() -> None:
    """Eight slots and two seconds each: a replica serves 4 a second. 4 arrive, and 32 that wait should begin within 4 s."""
    agreed = setting(target=TargetTerms(queue_wait_s=4.0))
    looks = Looks(agreed, fleet(*ready(1)))
    decision = looks.look(30.0, arrived=8, ended=8, service_s=16.0, in_flight=8, queued=32)
    assert needs_of(decision)[Signal.QUEUE_WAIT] is None, "of the pressure: nobody measured a wait"
    assert decision.proposals[0].need == pytest.approx(1.0 + 2.0)


def test_a_wait_is_a_pressure_too() -> None:
    agreed = setting(target=TargetTerms(queue_wait_s=1.0))
    looks = Looks(agreed, fleet(*ready(2)))
    assert looks.look(4.0, arrived=1, in_flight=1).reason is Reason.NO_DATA, (
        "how long requests take is not known yet"
    )
    assert looks.look(30.0, arrived=20, in_flight=1, queue_wait=((0.1, 15), (1.5, 5))).asked == 3
    assert Looks(agreed, fleet(*ready(2))).look(30.0).asked == 0


def test_a_tail_above_the_promise_asks_for_more_and_for_no_more_than_twice() -> None:
    agreed = setting(target=TargetTerms(slo=0.9), slo=SloTerms(ttft_p95_ms=1000.0, tpot_p95_ms=100.0))
    looks = Looks(agreed, fleet(*ready(4)))
    slow: dict[str, Any] = {"arrived": 5, "in_flight": 3, "ttft": ((1.35, 20),), "itl": ((0.01, 200),)}
    assert looks.look(30.0, **slow).asked == 6
    assert looks.look(30.0, **{**slow, "ttft": ((60.0, 20),)}).asked == 8
    assert looks.look(30.0, **{**slow, "itl": ((0.135, 200),), "ttft": ()}).asked == 6
    assert looks.look(30.0, **{**slow, "ttft": ((1.35, 1),), "itl": ()}).asked == 6, (
        "twenty seconds of ten looks"
    )


def test_without_any_target_there_are_as_few_as_let_hardly_anybody_wait() -> None:
    """By Erlang's formula: of 4 at once one in a hundred waits for one of 11 slots, of 100 for one of 125."""
    agreed = setting(target=TargetTerms())
    few = Looks(agreed, fleet(*ready(1), slots=10)).look(30.0, in_flight=4)
    many = Looks(agreed, fleet(*ready(1), slots=10)).look(30.0, in_flight=100)
    assert needs_of(few)[Signal.INFLIGHT] == pytest.approx(1.0, abs=0.1)
    assert needs_of(many)[Signal.INFLIGHT] == pytest.approx(12.5, abs=0.2)


def test_when_slots_are_full_arrivals_say_how_many_there_would_be() -> None:
    """Ten a second that stay two seconds each would be twenty in progress; eight slots and a short queue show fewer."""
    looks = Looks(setting(), fleet(*ready(1)))
    decision = looks.look(60.0, arrived=20, ended=20, service_s=40.0, in_flight=8, queued=1)
    assert decision.asked == 6


# Up


def test_growth_is_bounded_by_its_factor() -> None:
    looks = Looks(setting(up=UpTerms(0.0, 2.0)), fleet(*ready(2)))
    decision = looks.look(4.0, in_flight=60)
    assert decision.replicas == 4
    assert guards_of(decision) == [Guard.UP_FACTOR]


def test_growth_waits_for_its_delay_and_a_burst_does_not() -> None:
    looks = Looks(setting(up=UpTerms(10.0, 10.0)), fleet(*ready(4)))
    assert looks.look(8.0, in_flight=28).reason is Reason.HELD
    assert guards_of(looks.last) == [Guard.UP_DELAY]
    assert looks.look(6.0, in_flight=28).replicas == 7
    burst = Looks(setting(up=UpTerms(10.0, 10.0)), fleet(*ready(4))).look(in_flight=40)
    assert burst.replicas == 10
    assert burst.reason is Reason.PANIC


def test_a_change_of_direction_begins_the_delay_anew() -> None:
    looks = Looks(setting(up=UpTerms(20.0, 10.0), panic=PanicTerms(4.0, 100.0)), fleet(*ready(4)))
    looks.look(14.0, in_flight=28)
    looks.look(40.0, in_flight=4)
    assert looks.look(24.0, in_flight=60).replicas == 4
    assert looks.look(24.0, in_flight=60).replicas == 15


def test_what_is_close_to_what_is_there_changes_nothing() -> None:
    looks = Looks(setting(tolerance=0.1), fleet(*ready(10)))
    assert looks.look(30.0, in_flight=43).reason is Reason.STEADY
    assert looks.look(30.0, in_flight=46).replicas == 12


def test_from_zero_neither_delay_nor_factor_holds() -> None:
    agreed = setting(min=0, idle_to_zero_s=60.0, up=UpTerms(300.0, 1.5))
    decision = Looks(agreed, fleet()).look(queued=9, arrived=9)
    assert decision.replicas == 3
    assert decision.reason is Reason.FROM_ZERO


# Panic


def test_a_burst_is_answered_by_the_short_window() -> None:
    looks = Looks(setting(), fleet(*ready(1)))
    looks.look(20.0, in_flight=1)
    decision = looks.look(4.0, in_flight=20)
    assert decision.replicas == 5
    assert decision.reason is Reason.PANIC
    assert decision.guards[0].guard is Guard.PANIC


def test_panic_is_left_only_when_what_it_ordered_had_time_to_come() -> None:
    """Window of 20 s and a cold start of 10 s: until 30 s after the last moment of the burst nothing is taken away."""
    looks = Looks(setting(down=DownTerms(0.0, 20, 0.8), window_s=20.0), fleet(*ready(1)))
    looks.look(4.0, in_flight=20)
    looks.have((*ready(1), *starting(4)))
    for _ in range(14):
        decision = looks.look(in_flight=1)
        assert decision.replicas == 5
    assert guards_of(looks.last) == [Guard.PANIC]
    assert looks.look(4.0, in_flight=1).replicas == 1


def test_what_is_there_beyond_the_burst_stays_too() -> None:
    looks = Looks(setting(down=DownTerms(0.0, 20, 0.8)), fleet(*ready(1)))
    looks.look(4.0, in_flight=20)
    looks.have(ready(8))
    decision = looks.look(in_flight=1)
    assert decision.replicas == 8
    assert guards_of(decision) == [Guard.PANIC, Guard.PANIC_HOLD]


def test_a_larger_burst_in_a_burst_raises_the_number() -> None:
    looks = Looks(setting(), fleet(*ready(1)))
    assert looks.look(4.0, in_flight=20).replicas == 5
    looks.have((*ready(1), *starting(4)))
    assert looks.look(4.0, in_flight=28).replicas == 7
    assert looks.look(4.0, in_flight=60).replicas == 15


# Down


def test_nothing_is_taken_away_before_the_delay_is_over() -> None:
    looks = Looks(setting(), fleet(*ready(3)))
    assert looks.look(20.0, in_flight=10).reason is Reason.STEADY
    looks.look(60.0, in_flight=1)
    assert {note for decision in looks.decisions[10:] for note in guards_of(decision)} == {Guard.DOWN_DELAY}
    assert all(decision.replicas == 3 for decision in looks.decisions)
    decision = looks.follow(14.0, in_flight=1)
    assert decision.replicas == 2
    assert [decision.reason for decision in looks.decisions if decision.remove] == [Reason.LOAD_DOWN]


def test_what_was_taken_away_is_not_asked_back_while_it_drains() -> None:
    """Whoever carries it out may be slow: until the replica is on its way out the number stays as it was decided."""
    looks = Looks(setting(), fleet(*ready(3)))
    looks.look(64.0, in_flight=1)
    assert looks.last.replicas == 2
    for _ in range(8):
        assert looks.look(in_flight=1).replicas == 2
        assert guards_of(looks.last) == [Guard.DOWN_PACE]


def test_steps_down_have_a_size_and_a_pace() -> None:
    looks = Looks(setting(), fleet(*ready(5)))
    looks.follow(60.0)
    assert len(looks.fleet.replicas) == 5
    looks.follow(4.0)
    assert len(looks.fleet.replicas) == 4
    assert guards_of(looks.last) == [Guard.DOWN_PACE]
    looks.follow(16.0)
    assert len(looks.fleet.replicas) == 4
    looks.follow(4.0)
    assert len(looks.fleet.replicas) == 3


def test_the_last_replica_stays_where_nothing_else_was_agreed() -> None:
    looks = Looks(setting(), fleet(*ready(1)))
    assert looks.look(5000.0).replicas == 1


def test_the_last_replica_goes_after_the_agreed_idle_time() -> None:
    looks = Looks(setting(min=0, idle_to_zero_s=300.0), fleet(*ready(1, since_s=0.0)))
    looks.look(10.0, in_flight=1)
    assert looks.look(298.0).replicas == 1
    assert guards_of(looks.last) == [Guard.IDLE_CLOCK]
    decision = looks.look()
    assert decision.replicas == 0
    assert decision.reason is Reason.IDLE
    looks.have(())
    assert looks.look(100.0).replicas == 0


def test_where_a_first_request_could_not_wait_for_it_the_last_replica_stays() -> None:
    agreed = setting(min=0, idle_to_zero_s=30.0, first_wait_max_s=20.0)
    patient = Looks(agreed, fleet(*ready(1, since_s=0.0), start_s=10.0))
    assert patient.look(100.0).replicas == 0
    hasty = Looks(agreed, fleet(*ready(1, since_s=0.0), start_s=30.0))
    assert hasty.look(100.0).replicas == 1
    assert guards_of(hasty.last) == [Guard.FIRST_REQUEST]


# Bounds, advice, data


def test_the_number_stays_within_its_bounds() -> None:
    looks = Looks(setting(min=2, max=3), fleet(*ready(1)))
    decision = looks.look()
    assert (decision.replicas, decision.reason) == (2, Reason.BOUNDS)
    decision = looks.look(20.0, in_flight=100)
    assert (decision.replicas, decision.reason) == (3, Reason.BOUNDS)
    assert guards_of(decision)[-1] is Guard.MAX


def test_advice_tells_and_changes_nothing() -> None:
    decision = Looks(setting(mode="advise"), fleet(*ready(1))).look(20.0, in_flight=12)
    assert decision.replicas == 1
    assert decision.advised == 3
    assert guards_of(decision) == [Guard.ADVISORY]
    assert decision.remove == ()


def test_without_news_everything_stays() -> None:
    looks = Looks(setting(), fleet(*ready(3)))
    looks.look(20.0, in_flight=12)
    decision = looks.look(600.0, is_silent=True)
    assert (decision.replicas, decision.reason) == (3, Reason.NO_DATA)
    never = Looks(setting(), fleet(*ready(3))).look(is_silent=True)
    assert (never.replicas, never.reason) == (3, Reason.NO_DATA)


# What is kept ready


def test_warm_replicas_are_beyond_what_the_load_needs() -> None:
    looks = Looks(setting(warm=2), fleet(*ready(1)))
    assert looks.look(20.0, in_flight=6).replicas == 4
    assert needs_of(looks.last)[Signal.WARM] == 4


@pytest.mark.parametrize("predict", ["auto", "kalman"])
def test_a_climb_is_met_a_cold_start_ahead(predict: str) -> None:
    """Three requests more each minute, and starts of two minutes: what comes by then is asked for now."""
    looks = Looks(setting(predict=predict, max=100), fleet(*ready(30), start_s=120.0))
    for minute in range(20):
        looks.look(60.0, in_flight=40 + 3 * minute)
    now, expected = needs_of(looks.last)[Signal.INFLIGHT], needs_of(looks.last)[Signal.FORECAST]
    assert now is not None
    assert expected == pytest.approx(now + 6 / 4, rel=0.05)


def test_what_forecasts_have_missed_is_kept_warm() -> None:
    """Every fourth quarter minute there are 30 more, and a start takes half a minute: nothing but readiness helps."""
    looks = Looks(setting(predict="constant"), fleet(*ready(9), start_s=30.0))
    for _ in range(10):
        looks.look(46.0, in_flight=4)
        looks.look(14.0, in_flight=34)
    looks.look(44.0, in_flight=4)
    warm = needs_of(looks.last)[Signal.WARM]
    assert warm is not None
    assert warm > 4.5


# Money


def test_growth_ends_where_the_day_could_not_be_paid() -> None:
    budget = BudgetTerms(replica_hour="1.00", per_day="24.10")
    decision = Looks(setting(budget=budget), fleet(*ready(1))).look(20.0, in_flight=40)
    assert decision.reason is Reason.BUDGET
    assert 1 < decision.replicas < 10
    assert guards_of(decision)[-1] is Guard.BUDGET


@pytest.mark.parametrize(("on_exceed", "replicas"), [("freeze_up", 4), ("shrink_to_min", 1), ("stop", 0)])
def test_what_happens_when_the_budget_is_gone_was_agreed(on_exceed: Any, replicas: int) -> None:
    budget = BudgetTerms(replica_hour="100.00", per_day="0.50", on_exceed=on_exceed)
    looks = Looks(setting(budget=budget), fleet(*ready(4)))
    assert looks.look(20.0, in_flight=40).replicas == replicas
    assert looks.last.reason is Reason.BUDGET


def test_a_new_day_has_a_new_budget() -> None:
    budget = BudgetTerms(replica_hour="100.00", per_day="2500.00", on_exceed="stop")
    looks = Looks(setting(budget=budget), fleet(*ready(1)), now_s=86400.0 - 60.0)
    looks.state = msgspec.structs.replace(
        looks.state,
        spend=msgspec.structs.replace(looks.state.spend, day_start_s=WALL_S, spent_pico=2500 * 10**12),
    )
    assert looks.look(50.0, in_flight=1).replicas == 0
    assert looks.look(12.0, in_flight=1).replicas == 1


# Renewal


def test_an_aged_replica_is_replaced_before_it_goes() -> None:
    looks = Looks(
        setting(max_age_h=1.0), fleet(*ready(1, since_s=-1000.0), *ready(1, since_s=-3595.0, first=2))
    )
    assert looks.look(4.0, in_flight=7).replicas == 2
    decision = looks.look(4.0, in_flight=7)
    assert (decision.replicas, decision.reason) == (3, Reason.RENEWAL)
    assert looks.look(in_flight=7).replicas == 3, "it has been asked for, and nothing has come yet"
    young, old = looks.fleet.replicas
    looks.have((young, old, ReplicaView("m-3", looks.now_s)))
    assert looks.look(20.0, in_flight=7).replicas == 3, "its successor starts"
    looks.have((young, old, ReplicaView("m-3", looks.now_s - 20.0, looks.now_s)))
    decision = looks.look(in_flight=7)
    assert (decision.replicas, decision.remove) == (2, ("m-2",))
    looks.have((young, ReplicaView("m-3", looks.now_s - 20.0, looks.now_s)))
    assert looks.look(20.0, in_flight=7).replicas == 2
    assert looks.state.renewal is None


def test_the_aged_one_goes_even_where_another_still_starts() -> None:
    looks = Looks(setting(max_age_h=1.0), fleet(*ready(1, since_s=-4000.0)))
    looks.look(4.0, in_flight=3)
    old = looks.fleet.replicas[0]
    new = ReplicaView("m-3", looks.now_s, looks.now_s)
    looks.have((old, new, ReplicaView("m-4", looks.now_s)))
    decision = looks.look(20.0, in_flight=7)
    assert decision.replicas == 2
    assert decision.remove == ("m-1",)


def test_nothing_is_renewed_in_a_burst_nor_for_money_that_is_not_there() -> None:
    aged = ready(2, since_s=-4000.0)
    burst = Looks(setting(max_age_h=1.0), fleet(*aged)).look(4.0, in_flight=40)
    assert burst.reason is Reason.PANIC
    budget = BudgetTerms(replica_hour="100.00", per_day="0.50")
    poor = Looks(setting(max_age_h=1.0, budget=budget), fleet(*aged)).look(20.0, in_flight=7)
    assert poor.replicas == 2
