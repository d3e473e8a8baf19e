"""The driver shows the policy what the gateways and engines reported, and keeps what it decided from."""

import json

import msgspec
import pytest

from headrace.control.autoscaler import KIND, ScaleByLoad, replay
from headrace.control.cold_starts import ColdStarts
from headrace.control.steering import ReplicaSeen, Scaled, TargetSeen
from headrace.core.deployment_terms import (
    BudgetTerms,
    DownTerms,
    PanicTerms,
    ScaleTerms,
    TargetTerms,
    UpTerms,
)
from headrace.core.deployments import (
    AppliedVersion,
    DeploymentSpec,
    EngineArgs,
    EngineKind,
    Identity,
    Revision,
    RevisionTerms,
)
from headrace.core.fleet import ReplicaState, Task
from headrace.core.ids import ReplicaId, TargetKey
from headrace.core.load import Histogram, TargetLoad
from headrace.policies.autoscale import ScaleDecision
from headrace.policies.decisions import difference

TICK_S = 2.0
WALL_S = 1_700_006_400.0
SCALE = ScaleTerms(
    min=1, max=8, window_s=20.0, target=TargetTerms(inflight=4.0), panic=PanicTerms(4.0, 3.0),
    up=UpTerms(0.0, 4.0), down=DownTerms(30.0, 1, 0.8),
)  # fmt: skip


def applied(scale: ScaleTerms = SCALE, *, budget: BudgetTerms | None = None) -> AppliedVersion:
    spec = DeploymentSpec(
        Identity("chat", EngineKind.SCRIPTED), revision=RevisionTerms(args=EngineArgs(slots=6)), scale=scale, budget=budget or BudgetTerms()
    )  # fmt: skip
    return AppliedVersion("chat", 1, spec, Revision(Task.CHAT, EngineKind.SCRIPTED), 0.0, "test")


def replica(number: int, *, in_flight: int = 0, is_ready: bool = True, **gauges: float) -> ReplicaSeen:
    state = ReplicaState.READY if is_ready else ReplicaState.STARTING
    return ReplicaSeen(
        ReplicaId(f"chat-{number}"), 1, 1, state, 0.0, 0.0, ready_s=1.0 if is_ready else None,
        in_flight=in_flight, slots=6, gauges=gauges,
    )  # fmt: skip


class Driven:
    """A driver on a clock of its own, whose gateways report with each look.

    State: what they have counted, the replicas, and what was scaled last.
    """

    def __init__(
        self, version: AppliedVersion, *replicas: ReplicaSeen, driver: ScaleByLoad | None = None
    ) -> None:
        self.version = version
        self.replicas = replicas
        self.driver = driver or ScaleByLoad(figures=lambda _: None)
        self.load = TargetLoad(target=TargetKey(version.key), name="chat", revision="sha256:a")
        self.now_s = 100.0
        self.kept = ""
        self.scaled: list[Scaled] = []

    def look(
        self, looks: int = 1, *, seconds: float = TICK_S, is_silent: bool = False, is_unknown: bool = False
    ) -> Scaled:
        for _ in range(looks):
            self.now_s += seconds
            target = TargetSeen(
                self.version, self.replicas,
                None if is_unknown else msgspec.structs.replace(self.load),
                0.0 if is_silent else self.now_s,
            )  # fmt: skip
            scaled = self.driver.scale(target, self.kept, now_s=self.now_s, wall_s=WALL_S + self.now_s)
            self.kept = scaled.kept
            self.scaled.append(scaled)
        return self.scaled[-1]


def test_what_is_in_progress_and_waits_makes_replicas() -> None:
    driven = Driven(applied(), replica(0))
    driven.load.in_flight, driven.load.queued = 6, 6
    scaled = driven.look()
    assert scaled.replicas == 3
    assert scaled.summary["reason"] in ("load_up", "panic")
    assert scaled.summary["needs"] == {"inflight": 3.0}


def test_between_two_looks_the_answer_stays_and_is_no_news() -> None:
    driven = Driven(applied(), replica(0))
    driven.load.in_flight = 12
    first = driven.look()
    assert first.is_news
    again = driven.look(seconds=0.5)
    assert (again.replicas, again.kept, again.is_news, again.decisions) == (
        first.replicas,
        first.kept,
        False,
        (),
    )


def test_whoever_waits_for_a_first_replica_is_seen_at_once() -> None:
    """T58. One start, at the very next report, and no more wait than the replica can take."""
    driven = Driven(applied(msgspec.structs.replace(SCALE, min=0, idle_to_zero_s=60.0)))
    assert driven.look().replicas == 0
    driven.load.arrived, driven.load.queued = 1, 1
    scaled = driven.look(seconds=0.2)
    assert scaled.replicas == 1
    assert scaled.summary["reason"] == "from_zero"
    assert scaled.waiting_room == 6


def test_a_replica_that_a_rollout_has_started_is_not_taken_away_by_a_decision_from_before() -> None:
    """None was wanted a moment ago, because there was no load; now there is one, and it is new, not idle."""
    driven = Driven(applied(msgspec.structs.replace(SCALE, min=0, idle_to_zero_s=60.0)))
    assert driven.look().replicas == 0
    driven.replicas = (replica(0, is_ready=False),)
    assert driven.look(seconds=0.2).replicas == 1
    driven.replicas = (replica(0),)
    assert driven.look(seconds=0.2).replicas == 1


def test_what_was_counted_before_the_first_look_is_no_burst() -> None:
    """A controller that comes back finds counters of days."""
    driven = Driven(applied(), replica(0))
    driven.load.arrived = driven.load.delivered = 1_000_000
    assert driven.look(5).replicas == 1


def test_a_target_that_no_report_names_has_no_load() -> None:
    scale = msgspec.structs.replace(SCALE, min=0, idle_to_zero_s=60.0)
    driven = Driven(applied(scale), replica(0))
    assert driven.look(20, is_unknown=True).replicas == 1
    assert driven.look(20, is_unknown=True).replicas == 0


def test_without_reports_nothing_changes() -> None:
    driven = Driven(applied(), replica(0), replica(1))
    driven.load.in_flight = 8
    driven.look(10)
    scaled = driven.look(60, is_silent=True)
    assert scaled.replicas == 2
    assert scaled.summary["reason"] == "insufficient_data"


def test_the_callers_own_limits_are_no_load_and_a_full_queue_is() -> None:
    driven = Driven(
        applied(msgspec.structs.replace(SCALE, target=TargetTerms(requests_per_s=1.0))), replica(0)
    )
    driven.look()
    for _ in range(10):
        driven.load.arrived += 20
        driven.load.refused += 18
        driven.load.delivered += 2
        driven.load.causes = {
            "rate_limited": driven.load.causes.get("rate_limited", 0) + 16,
            "queue_full": driven.load.causes.get("queue_full", 0) + 2,
        }
        driven.look()
    assert driven.scaled[-1].summary["needs"] == {"requests": pytest.approx(2.0, rel=0.15)}


def test_the_engines_gauges_are_a_signal_and_a_silent_engine_is_none() -> None:
    scale = msgspec.structs.replace(SCALE, target=TargetTerms(kv=0.5, gpu=0.9))
    driven = Driven(
        applied(scale), replica(0, kv_cache_usage_perc=0.9, gpu_utilization=0.2), replica(1), replica(2, is_ready=False)
    )  # fmt: skip
    driven.load.in_flight = 2
    scaled = driven.look(20)
    assert scaled.summary["needs"]["kv"] == pytest.approx(2 * 0.9 / 0.5)
    assert scaled.summary["needs"]["gpu"] == pytest.approx(2 * 0.2 / 0.9)


def test_latencies_are_those_since_the_last_look() -> None:
    scale = msgspec.structs.replace(SCALE, target=TargetTerms(queue_wait_s=1.0))
    driven = Driven(applied(scale), replica(0))
    for _ in range(200):
        driven.load.queue_wait.observe(30.0)
    driven.load.arrived = driven.load.delivered = 200
    driven.look()
    for _ in range(15):
        driven.load = msgspec.structs.replace(
            driven.load, queue_wait=driven.load.queue_wait.plus(_observed(0.1, 4)), total=driven.load.total.plus(_observed(1.1, 4))
        )  # fmt: skip
        driven.look()
    state = json.loads(driven.kept)["state"]
    assert {edge for sample in state["samples"] for edge, _ in sample["queue_wait"]} == {0.1}
    assert state["requests"]["service_s"] / state["requests"]["ended"] == pytest.approx(1.0)


def _observed(value_s: float, count: int) -> Histogram:
    histogram = Histogram()
    for _ in range(count):
        histogram.observe(value_s)
    return histogram


def test_a_stuck_replica_and_one_that_does_not_fit_are_no_capacity() -> None:
    driven = Driven(applied(), replica(0), msgspec.structs.replace(replica(1, is_ready=False), is_stuck=True))
    driven.load.in_flight = 3
    scaled = driven.look(3)
    assert scaled.replicas == 1
    assert scaled.remove == ("chat-1",)


# What is recorded


def test_a_decision_that_changes_something_is_recorded_and_can_be_made_again() -> None:
    driven = Driven(applied(), replica(0))
    driven.look(5)
    driven.load.in_flight = 20
    driven.look(5)
    driven.replicas = tuple(replica(number) for number in range(5))
    driven.look(5)
    driven.load.in_flight = 0
    driven.look(60)
    recorded = [decision for scaled in driven.scaled for decision in scaled.decisions]
    assert len(recorded) >= 3
    assert {decision.kind for decision in recorded} == {KIND}
    assert [difference(decision, {KIND: replay}) for decision in recorded] == [""] * len(recorded)
    wanted = [msgspec.json.decode(decision.outcome, type=ScaleDecision).replicas for decision in recorded]
    assert wanted[0] == 1
    assert max(wanted) == 5


def test_a_long_steady_load_fills_no_log() -> None:
    driven = Driven(applied(), replica(0))
    driven.load.in_flight = 3
    driven.look(500)
    assert sum(len(scaled.decisions) for scaled in driven.scaled) == 1


def test_that_the_budget_binds_is_recorded_although_the_number_stays() -> None:
    budget = BudgetTerms(replica_hour="10.00", per_day="239.90")
    driven = Driven(applied(budget=budget), replica(0))
    driven.look(5)
    driven.load.in_flight = 6
    driven.look(30)
    assert [decision.reason for scaled in driven.scaled for decision in scaled.decisions] == [
        "steady",
        "budget",
    ]


def test_another_controller_goes_on_from_what_was_kept() -> None:
    """The panic of the first one still holds with the second one, whose clock began elsewhere."""
    driven = Driven(applied(), replica(0))
    driven.load.in_flight = 20
    driven.look(3)
    driven.load.in_flight = 0
    driven.look(1)
    heir = Driven(driven.version, replica(0))
    heir.kept, heir.now_s = driven.kept, 5000.0
    wall_s = WALL_S + driven.now_s - heir.now_s
    target = TargetSeen(heir.version, heir.replicas, heir.load, 5000.0)
    scaled = heir.driver.scale(target, heir.kept, now_s=5000.0, wall_s=wall_s + 5000.0)
    assert scaled.replicas == driven.scaled[-1].replicas
    assert scaled.replicas > 1


def test_a_memory_that_can_not_be_read_is_begun_anew() -> None:
    driven = Driven(applied(), replica(0))
    driven.kept = '{"from": "a later version"}'
    driven.load.in_flight = 8
    assert driven.look().replicas == 2


def test_a_forgotten_target_is_seen_for_the_first_time_again() -> None:
    driven = Driven(applied(), replica(0))
    driven.look(2)
    driven.driver.forget(driven.version.key)
    driven.load.arrived = 10**6
    assert driven.look().is_news


def test_whoever_counts_is_told_of_each_look() -> None:
    told: list[tuple[int, bool]] = []
    driver = ScaleByLoad(
        figures=lambda _: None, decided=lambda _, decision, is_news: told.append((decision.replicas, is_news))
    )
    Driven(applied(), replica(0), driver=driver).look(3)
    assert told == [(1, True), (1, False), (1, False)]


# Cold starts


def test_starts_are_known_by_revision_and_hardware_and_noted_once() -> None:
    starts = ColdStarts(hardware="here")
    version = applied()
    assert starts.figures(version) is None
    first = starts.note(version, {"starting": 1.0, "loading": 9.0}, at_s=50.0)
    assert first is not None
    assert starts.note(version, {"starting": 1.0, "loading": 9.0}, at_s=60.0) is None
    known = starts.figures(version)
    assert known is not None
    assert known.totals_s == (10.0,)
    assert starts.note(version, {"starting": 2.0, "loading": 9.0}, at_s=70.0) is not None
    later = starts.figures(version)
    assert later is not None
    assert later.totals_s == (10.0, 11.0)
    heir = ColdStarts(hardware="elsewhere", stored=[first])
    like = heir.figures(version)
    assert like is not None
    assert like.is_like
