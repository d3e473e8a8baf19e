"""A simulated fleet: every request ends once, the gateway's own policies decide, and what goes wrong is met as it would be."""

import itertools
import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.deployment_terms import ScaleTerms, SloTerms
from headrace.core.outcome import Outcome, Reason
from headrace.evidence.simulate_fleet import Autoscaler, Fixed, FleetModel, Loss, Sight, Wanted
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_run import Run
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies.autoscale_signals import FleetView, LoadSample

PACE = Pace(slots=4, prefill_tokens_per_s=8000.0, step_s=0.01, step_per_active_s=0.001)


def steady(rate: float, *, count: int, seed: int = 1, prompt: int = 400, output: int = 100) -> list[Work]:
    chance, at_s, works = Random(seed), 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(rate)
        works.append(
            Work(at_s, 1 + int(chance.expovariate(1 / prompt)), 1 + int(chance.expovariate(1 / output)))
        )
    return works


def played(works: Sequence[Work], replicas: int = 2, **terms: object) -> Run:
    return FleetModel(works, Fixed(replicas), pace=PACE, replicas=replicas, **terms).run()  # type: ignore[arg-type]


def test_a_run_with_the_same_seed_is_the_same_run() -> None:
    works = steady(6.0, count=400)
    first, second, other = (list(played(works, losses=[Loss(20.0)], seed=seed).ends()) for seed in (1, 1, 2))
    assert first == second
    assert first != other


WORK = st.builds(
    Work,
    arrival_s=st.floats(0, 20),
    prompt_tokens=st.integers(1, 4000),
    output_tokens=st.integers(1, 300),
    cached_tokens=st.integers(0, 100),
    prefix=st.sampled_from(["", "a"]),
    prefix_tokens=st.integers(0, 500),
    deadline_s=st.sampled_from([0.0, 0.5, 5.0]),
    cancel_after_s=st.sampled_from([0.0, 0.0, 0.3]),
    cancel_after_tokens=st.sampled_from([0, 0, 5]),
)


@settings(max_examples=60, deadline=None)
@given(
    works=st.lists(WORK, max_size=60),
    losses=st.lists(st.builds(Loss, st.floats(0, 20), st.integers(1, 2)), max_size=3),
    queue_max=st.sampled_from([0, 3, 100]),
    seed=st.integers(0, 5),
)
def test_every_request_ends_once_whatever_happens(
    works: list[Work], losses: list[Loss], queue_max: int, seed: int
) -> None:
    works = sorted(works)
    run = played(works, promise=Promise(queue_max=queue_max, wait_max_s=5.0), losses=losses, seed=seed)
    assert run.requests == len(works)
    assert sorted(end.arrival_s for end in run.ends()) == [work.arrival_s for work in works]
    for end in run.ends():
        assert end.total_s >= 0.0
        if end.outcome is Outcome.DELIVERED:
            assert 0.0 <= end.queue_s <= end.ttft_s <= end.total_s + 1e-9
    assert run.cut == 0
    assert run.busy_s <= 2 * PACE.slots * (run.seconds + 60.0)


def test_who_comes_to_a_full_queue_is_refused_and_who_waits_too_long_too() -> None:
    works = [Work(0.0, 10, 1000) for _ in range(20)]
    run = played(works, promise=Promise(queue_max=5, wait_max_s=2.0))
    assert run.count(Outcome.DELIVERED) == 8
    assert run.reasons == {Reason.QUEUE_FULL: 7, Reason.QUEUE_TIME_OVER: 5}


def test_a_request_that_could_not_end_in_time_is_refused_at_once() -> None:
    """The gateway knows by then how long requests take."""
    works = [Work(float(second), 10, 1000) for second in range(60)]
    late = [Work(60.0 + number / 100, 10, 1000, deadline_s=12.0) for number in range(40)]
    run = played([*works, *late], promise=Promise(wait_max_s=1000.0, queue_max=1000))
    assert run.reasons[Reason.WAIT_TOO_LONG] > 10


def test_a_deadline_that_passes_breaks_an_answer_that_has_begun() -> None:
    ends = list(played([Work(0.0, 10, 1000, deadline_s=1.0)]).ends())
    assert [(end.outcome, end.total_s) for end in ends] == [(Outcome.BROKEN, 1.0)]


def test_a_caller_that_leaves_gives_its_slot_to_the_next() -> None:
    works = [Work(0.0, 10, 1000, cancel_after_s=1.0) for _ in range(8)] + [Work(0.5, 10, 10)]
    ends = list(played(works).ends())
    assert [end.outcome for end in ends].count(Outcome.CANCELLED) == 8
    assert ends[-1].outcome is Outcome.DELIVERED
    assert ends[-1].queue_s == pytest.approx(0.5)


def test_a_caller_that_leaves_after_so_many_tokens_does_so_then() -> None:
    ends = list(played([Work(0.0, 8, 1000, cancel_after_tokens=101)]).ends())
    assert ends[0].outcome is Outcome.CANCELLED
    assert ends[0].total_s == pytest.approx(0.001 + 100 * 0.011)


def test_a_beginning_that_a_replica_has_seen_is_not_computed_again() -> None:
    pace = Pace(slots=4, prefill_tokens_per_s=1000.0, prefixes_max=8)
    works = [Work(10.0 * number, 1000, 2, prefix="manual", prefix_tokens=900) for number in range(3)]
    run = FleetModel(works, Fixed(1), pace=pace).run()
    assert [end.cached_tokens for end in run.ends()] == [0, 900, 900]
    assert [end.ttft_s for end in run.ends()] == pytest.approx([1.0, 0.1, 0.1])


def test_what_a_lost_replica_had_begun_is_broken_and_what_it_had_not_is_tried_elsewhere() -> None:
    works = [Work(0.0, 10, 400) for _ in range(2)]  # one on each replica; begun when it is lost
    works += [Work(0.95, 8000, 10) for _ in range(2)]  # a second for the prompt: not begun
    run = played(works, losses=[Loss(1.0)])
    ends = list(run.ends())
    assert sorted(end.outcome for end in ends) == [Outcome.BROKEN, *[Outcome.DELIVERED] * 3]
    assert run.retries == 1
    assert [ready for _, ready in run.ready][:2] == [2, 1]


def test_a_lost_replica_is_replaced_after_a_cold_start() -> None:
    run = played(steady(2.0, count=200), losses=[Loss(10.0)])
    (_, two), (lost_s, one), (back_s, again) = run.ready[:3]
    assert (two, one, again) == (2, 1, 2)
    assert lost_s == pytest.approx(10.0, abs=0.1)
    assert 0.8 * 30.0 < back_s - lost_s < 1.2 * 30.0 + 0.1


def test_a_failure_costs_a_fleet_with_nothing_to_spare_its_promise_and_one_with_a_spare_nothing() -> None:
    works = steady(6.0, count=1200)
    promise = Promise(ttft_s=1.0)
    tight, spare = (
        played(works, replicas, losses=[Loss(60.0)], promise=promise).attainment for replicas in (2, 4)
    )
    assert tight < 0.97
    assert spare > 0.99


class Watcher:
    """Sees what an autoscaler sees, and changes nothing."""

    def __init__(self, replicas: int) -> None:
        self.wanted = Wanted(replicas)
        self.seen: list[tuple[float, LoadSample | None]] = []

    def __call__(self, sample: LoadSample | None, fleet: FleetView, *, now_s: float, wall_s: float) -> Wanted:
        self.seen.append((now_s, sample))
        return self.wanted


def test_reports_come_as_late_as_was_said() -> None:
    watcher = Watcher(2)
    FleetModel(steady(4.0, count=200), watcher, pace=PACE, replicas=2, sight=Sight(delay_looks=3)).run()
    assert [sample for _, sample in watcher.seen[:3]] == [None] * 3
    assert all(sample is not None and sample.end_s == now_s - 6.0 for now_s, sample in watcher.seen[3:])


def test_what_a_lost_report_would_have_said_is_in_the_next_one() -> None:
    watcher = Watcher(2)
    works = steady(4.0, count=400)
    run = FleetModel(works, watcher, pace=PACE, replicas=2, sight=Sight(lost_share=0.5)).run()
    heard = [sample for _, sample in watcher.seen if sample is not None]
    assert 0.2 * len(watcher.seen) < len(heard) < 0.8 * len(watcher.seen)
    assert sum(sample.arrived for sample in heard) > 0.9 * run.requests
    assert all(later.start_s == earlier.end_s for earlier, later in itertools.pairwise(heard))


def test_the_controller_s_own_policy_grows_the_fleet_under_a_load_that_it_cannot_carry() -> None:
    scaler = Autoscaler(ScaleTerms(max=6), SloTerms(ttft_p95_ms=2000.0))
    pace = Pace(slots=4, step_s=0.01, step_per_active_s=0.001, stages_s={"start": 5.0})
    run = FleetModel(
        steady(12.0, count=2500), scaler, pace=pace, replicas=1, promise=Promise(queue_max=64)
    ).run()
    assert max(ready for _, ready in run.ready) >= 3
    assert scaler.decided[-1][1].replicas >= 3


def test_a_slow_start_is_over_after_its_time() -> None:
    pace = Pace(
        slots=1, step_s=0.01, step_per_active_s=0.0, stages_s={"s": 1.0}, slow_start_s=5.0, slowness=3.0
    )
    works = [Work(0.0, 1, 101), Work(20.0, 1, 101)]
    run = FleetModel(
        works, Fixed(1), pace=pace, replicas=0, promise=Promise(wait_max_s=60.0, ttft_s=math.inf)
    ).run()
    took_s = [end.total_s - end.ttft_s for end in run.ends()]
    assert took_s == pytest.approx([3.0, 1.0], rel=0.01)


def test_no_works_are_no_run() -> None:
    run = played([])
    assert (run.requests, run.attainment, run.replica_hours) == (0, 1.0, 0.0)
