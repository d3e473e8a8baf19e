"""What went wrong in other people's autoscalers, told again on a virtual clock, to one that should know better.

Each name says whose report it is. The fleet is a model (headrace/evidence/simulate_fleet.py); what decides is the real policy.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.core.deployment_terms import DownTerms, PanicTerms, SloTerms, TargetTerms, UpTerms
from headrace.evidence.simulate_fleet import FleetModel, Wanted
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_run import Run
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies.autoscale import ScaleDecision, ScaleState, Setting, decide
from headrace.policies.autoscale_guards import Guard
from headrace.policies.autoscale_signals import FleetView, LoadSample, ReplicaView
from tests.policies.scaling import Looks, cold, ready, setting, starting
from tests.support import arrivals

PACE = Pace(slots=8, stages_s={"starting": 10.0, "loading": 20.0})
# About 2.1 s a request: 5.6 requests at once, seven tenths of the slots, are 2.6 requests a second for one replica.
PER_REPLICA = 2.6


class Policy:
    """The real policy as the model's scaler. Keeps what it said."""

    def __init__(self, agreed: Setting) -> None:
        self.setting = agreed
        self.state = ScaleState()
        self.said: list[tuple[float, ScaleDecision]] = []

    def __call__(self, sample: LoadSample | None, fleet: FleetView, *, now_s: float, wall_s: float) -> Wanted:
        self.state, decision = decide(self.state, self.setting, sample, fleet, now_s=now_s, wall_s=wall_s)
        self.said.append((now_s, decision))
        return Wanted(decision.replicas, decision.remove)

    def most(self) -> int:
        return max(decision.replicas for _, decision in self.said)

    def wanted_at(self, moment_s: float) -> int:
        return next(decision.replicas for now_s, decision in self.said if now_s >= moment_s)


def agreed(**scale: Any) -> Setting:
    known: dict[str, Any] = {
        "inflight": 5.6, "window_s": 60.0, "panic": PanicTerms(6.0, 2.0), "down": DownTerms(120.0, 1, 0.8),
    }  # fmt: skip
    return setting(**(known | scale))


def played(
    works: list[Work], policy: Policy, *, replicas: int = 1, until_s: float | None = None,
    pace: Pace = PACE, promise: Promise | None = None,
    is_stuck: Callable[[int], bool] = lambda _: False, is_silent: Callable[[float], bool] = lambda _: False,
) -> Run:  # fmt: skip
    model = FleetModel(
        works, policy, pace=pace, promise=promise, replicas=replicas, is_stuck=is_stuck, is_silent=is_silent
    )
    return model.run(until_s=until_s)


def steady(rate: float, *, seconds: float = 1200.0, seed: int = 1) -> list[Work]:
    return arrivals.arrivals(arrivals.constant(rate), rate_max=rate, seconds=seconds, seed=seed)


def test_ray_18925_new_replicas_that_share_the_queue_are_no_reason_to_take_one_away() -> None:
    """The average queue halves when replicas double. What counts is the work of all together, so growth isn't undone."""
    policy = Policy(agreed())
    run = played(steady(3.6 * PER_REPLICA), policy)
    first = next(index for index, (_, decision) in enumerate(policy.said) if decision.replicas >= 4)
    assert all(decision.replicas >= 4 for _, decision in policy.said[first:])
    assert run.cut == 0


def test_ray_26455_load_that_comes_and_goes_within_the_window_moves_nothing() -> None:
    """A delay shorter than the window thrashes, so the file is refused; at the shortest one allowed it holds still."""
    works = arrivals.arrivals(
        arrivals.bursts(1.0, 4 * PER_REPLICA, every_s=30.0, for_s=15.0),
        rate_max=4 * PER_REPLICA,
        seconds=1800.0,
    )
    policy = Policy(agreed(down=DownTerms(60.0, 1, 0.8), panic=PanicTerms(6.0, 3.0)))
    run = played(works, policy, replicas=4)
    assert run.changes <= 4


def test_ray_63279_an_extreme_gain_does_not_swing() -> None:
    """Factor ten and a target far below a slot's worth: the fleet is large, and it is steady."""
    policy = Policy(agreed(inflight=0.5, max=60, up=UpTerms(0.0, 10.0), down=DownTerms(60.0, 60, 0.8)))
    run = played(steady(PER_REPLICA), policy)
    sizes = [size for _, size in run.sizes]
    assert run.changes <= 8
    assert all(later >= 0.6 * max(sizes) for moment_s, later in run.sizes if moment_s > 200.0)


def test_ray_61551_what_was_turned_away_is_not_remembered_as_work() -> None:
    """REPORTS 77. Ten times what may be served, most of it refused, and then nothing: down to the least, in time."""
    policy = Policy(agreed(max=4))
    works = steady(40 * PER_REPLICA, seconds=300.0)
    run = played(works, policy, until_s=1200.0, promise=Promise(queue_max=20))
    assert run.refused > 0.5 * len(works)
    assert policy.wanted_at(299.0) == 4
    # The window, the hold of the burst, the delay, and a step for each replica with its pace.
    assert policy.wanted_at(300.0 + 60.0 + 90.0 + 120.0 + 3 * 62.0) == 1


def test_ray_43034_replicas_that_still_load_are_dropped_before_any_that_serve() -> None:
    """REPORTS 79. Four were wanted, two are loading, two are enough: the loading ones go."""
    looks = Looks(agreed(down=DownTerms(0.0, 4, 0.8), window_s=10.0), FleetView((), 8, cold(30.0)))
    looks.have((*ready(2, in_flight=4), *starting(2)))
    looks.look(20.0, arrived=2, in_flight=8)
    assert looks.last.replicas == 2
    assert set(looks.last.remove) == {"m-100", "m-101"}


def test_dynamo_9294_two_replicas_at_half_load_stay_two() -> None:
    """One would have nine tenths of its load, two have less than half: a flat threshold goes back and forth."""
    policy = Policy(agreed(down=DownTerms(300.0, 1, 0.8)))
    run = played(steady(0.85 * PER_REPLICA, seconds=3600.0), policy, replicas=2)
    assert run.changes <= 2
    assert policy.wanted_at(3500.0) == 2
    assert any(note.guard is Guard.CONSOLIDATION for _, decision in policy.said for note in decision.guards)


def test_dynamo_6985_no_requests_are_a_load_and_no_latency() -> None:
    """Where only latencies are signals, silence has none; the replicas go all the same."""
    slo = SloTerms(ttft_p95_ms=1000.0)
    policy = Policy(agreed(target=TargetTerms(slo=0.9), slo=slo, down=DownTerms(60.0, 2, 0.8)))
    played([Work(1.0, 10, 10)], policy, replicas=6, until_s=600.0)
    assert policy.wanted_at(590.0) == 1


def test_dynamo_12430_a_replica_that_warms_up_does_not_spoil_what_is_known_of_requests() -> None:
    """New replicas take five times as long at first. What is learnt of a request is learnt from those that have settled."""
    slow = replace(PACE, slow_start_s=10.0, slowness=5.0)
    works = arrivals.arrivals(
        arrivals.step(PER_REPLICA, 5 * PER_REPLICA, at_s=300.0), rate_max=5 * PER_REPLICA, seconds=600.0
    )
    with_warm_up, without = Policy(agreed()), Policy(agreed())
    played(works, with_warm_up, pace=slow)
    played(works, without, pace=PACE)
    assert with_warm_up.state.requests.mean_service_s is not None
    assert without.state.requests.mean_service_s is not None
    assert with_warm_up.state.requests.mean_service_s < 1.4 * without.state.requests.mean_service_s


def test_dynamo_14251_a_replica_that_can_not_be_placed_freezes_nothing() -> None:
    """The third launch never becomes ready. When the load goes, it is dropped first, and the others follow."""
    works = arrivals.arrivals(
        arrivals.step(4 * PER_REPLICA, 0.2, at_s=300.0), rate_max=4 * PER_REPLICA, seconds=1500.0
    )
    policy = Policy(agreed())
    run = played(works, policy, is_stuck=lambda launch: launch == 3)
    assert policy.most() >= 4
    assert policy.wanted_at(1490.0) == 1
    assert run.cut == 0


def test_dynamo_13565_scaling_down_cuts_no_answer() -> None:
    """T57. Answers of a minute, and a fleet that shrinks at once when the load goes: each one ends."""
    works = [Work(second / 4, 100, 3000) for second in range(4 * 120)]
    policy = Policy(agreed(window_s=10.0, down=DownTerms(10.0, 20, 0.8)))
    run = played(works, policy, replicas=8, until_s=600.0)
    assert run.cut == 0
    assert run.requests == len(works)
    assert policy.wanted_at(590.0) == 1


def test_aibrix_2670_replicas_on_their_way_are_not_ordered_again() -> None:
    """Starts of two minutes, looks every two seconds: 2 do not become 4, 8 and 16 while the first two load."""
    slow = replace(PACE, stages_s={"starting": 20.0, "loading": 100.0})
    works = arrivals.arrivals(
        arrivals.step(PER_REPLICA, 4 * PER_REPLICA, at_s=120.0), rate_max=4 * PER_REPLICA, seconds=900.0
    )
    policy = Policy(agreed(max=50))
    played(works, policy, pace=slow)
    assert 5 <= policy.most() <= 11, (
        "five are needed, six with what waits meanwhile, and a burst is rounded up"
    )


def test_aibrix_1032_one_replica_that_tells_nothing_blocks_nobody() -> None:
    """Of three replicas one says nothing of its cache: the mean is that of the others, and its silence is not zero."""
    looks = Looks(agreed(target=TargetTerms(kv=0.8)), FleetView(ready(3), 8, cold(30.0)))
    assert looks.look(60.0, arrived=1, in_flight=9, kv=(0.95, 0.97)).replicas == 4


def test_without_reports_for_a_while_the_fleet_stays_and_then_goes_on() -> None:
    """The gateways are silent for two minutes in the middle of a steady load."""
    policy = Policy(agreed())
    run = played(steady(2.6 * PER_REPLICA), policy, replicas=3, is_silent=lambda now_s: 400.0 < now_s < 520.0)
    assert run.changes <= 2
    assert {decision.replicas for now_s, decision in policy.said if 400.0 < now_s < 520.0} <= {3, 4}


def test_knative_3153_leaving_panic_does_not_undo_the_plan() -> None:
    """A burst of ten seconds, and starts of a minute: what was ordered is there before any of it is taken back."""
    slow = replace(PACE, stages_s={"starting": 10.0, "loading": 50.0}, spread=0.0)
    works = arrivals.arrivals(
        arrivals.step(1.0, 8 * PER_REPLICA, at_s=100.0, until_s=110.0),
        rate_max=8 * PER_REPLICA,
        seconds=600.0,
    )
    policy = Policy(agreed(down=DownTerms(60.0, 10, 0.8)))
    run = played(works, policy, pace=slow)
    ordered = policy.wanted_at(112.0)
    assert ordered >= 3
    assert max(ready for _, ready in run.ready) >= ordered
    assert policy.wanted_at(590.0) == 1


def test_knative_3759_busy_replicas_are_not_the_ones_that_go() -> None:
    """One of four has all the work, and none of the rest has any: it stays."""
    looks = Looks(agreed(), FleetView((), 8, cold(30.0)))
    looks.have((*ready(1, in_flight=3), *ready(3, first=2)))
    looks.follow(900.0, in_flight=3)
    assert [replica.id for replica in looks.fleet.replicas] == ["m-1"]


def test_knative_3759_a_conversation_keeps_its_replica_while_there_is_another() -> None:
    looks = Looks(agreed(), FleetView((), 8, cold(30.0)))
    looks.have(
        (ReplicaView("m-1", -900.0, -800.0, sessions=2), ReplicaView("m-2", -100.0, -50.0, in_flight=1))
    )
    looks.follow(300.0, in_flight=1)
    assert [replica.id for replica in looks.fleet.replicas] == ["m-1"]


def test_kserve_1247_a_model_that_loads_is_not_idle() -> None:
    """One request, a start of 90 s, and 30 s until idle: the clock of idleness starts when it is ready."""
    slow = replace(PACE, stages_s={"starting": 10.0, "loading": 80.0}, spread=0.0)
    policy = Policy(agreed(min=0, idle_to_zero_s=30.0))
    run = played(
        [Work(5.0, 100, 10)],
        policy,
        replicas=0,
        until_s=400.0,
        pace=slow,
        promise=Promise(ttft_s=120.0, wait_max_s=300.0),
    )
    assert run.served_well == 1
    assert [ready for _, ready in run.ready] == [0, 1, 0]
    gone_s = run.ready[-1][0]
    assert 96.0 + 30.0 <= gone_s <= 96.0 + 30.0 + 70.0
