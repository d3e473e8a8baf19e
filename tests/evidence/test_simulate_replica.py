"""The replica in virtual time against one that goes through every step, and against what queueing theory says."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from headrace.core.outcome import Outcome
from headrace.evidence.simulate_fleet import Fixed, FleetModel
from headrace.evidence.simulate_replica import Pace, ReplicaModel
from headrace.evidence.simulate_run import Run
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies import staffing
from headrace.policies.quantiles import nearest_rank

PACE = Pace(slots=256, prefill_tokens_per_s=16_000.0, step_s=0.012, step_per_active_s=0.00008)
PATIENT = Promise(ttft_s=math.inf, tpot_s=math.inf, queue_max=100_000, wait_max_s=1e6)


class Seen(NamedTuple):
    ttft_s: float
    total_s: float


def lognormal_works(rate: float, count: int, seed: int = 1) -> list[Work]:
    chance, at_s, works = Random(seed), 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(rate)
        prompt, output = chance.lognormvariate(6.0, 0.9), chance.lognormvariate(4.6, 0.8)
        works.append(Work(at_s, 1 + int(prompt), 1 + int(output)))
    return works


def step_by_step(works: Sequence[Work], pace: Pace) -> list[Seen]:
    """The same replica, with nothing left out: answers join at the beginning of a step, and each step is taken."""
    coming, waiting = deque(works), deque[Work]()
    computing: deque[tuple[float, Work]] = deque()
    active: list[list[float]] = []  # tokens left, arrival, first token
    seen: list[Seen] = []
    now_s = lane_s = 0.0

    def take(work: Work, start_s: float) -> None:
        nonlocal lane_s
        lane_s = max(start_s, lane_s) + work.prompt_tokens / pace.prefill_tokens_per_s
        computing.append((lane_s, work))

    def arrivals(until_s: float) -> None:
        while coming and coming[0].arrival_s <= until_s:
            work = coming.popleft()
            if len(active) + len(computing) < pace.slots:
                take(work, work.arrival_s)
            else:
                waiting.append(work)

    while coming or waiting or computing or active:
        arrivals(now_s)
        while waiting and len(active) + len(computing) < pace.slots:
            take(waiting.popleft(), now_s)
        while computing and computing[0][0] <= now_s:
            work = computing.popleft()[1]
            active.append([work.output_tokens - 1, work.arrival_s, now_s])
        for answer in [answer for answer in active if answer[0] <= 0]:
            active.remove(answer)
            seen.append(Seen(answer[2] - answer[1], now_s - answer[1]))
        if active:
            now_s += pace.step_of_s(len(active))
            for answer in active:
                answer[0] -= 1
        else:
            moments = [each[0] for each in list(computing)[:1]] + [
                work.arrival_s for work in list(coming)[:1]
            ]
            now_s = max(now_s, min(moments, default=now_s))
    return seen


def in_virtual_time(works: Sequence[Work], pace: Pace) -> list[Seen]:
    run = FleetModel(works, Fixed(1), pace=pace, promise=PATIENT).run()
    assert run.count(Outcome.DELIVERED) == len(works)
    return [Seen(end.ttft_s, end.total_s) for end in run.ends()]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "slots"), [(2.0, 256), (8.0, 256), (8.0, 26)])
def test_virtual_time_says_what_every_single_step_says(rate: float, slots: int) -> None:
    """A calm replica, a busy one, and one with a queue in front: means and tails within 2 %, a fifth of a step for what is
    shorter than that."""
    pace, works = replace(PACE, slots=slots), lognormal_works(rate, 1500)
    quick, exact = in_virtual_time(works, pace), step_by_step(works, pace)
    for field in Seen._fields:
        ours, theirs = ([getattr(each, field) for each in seen] for seen in (quick, exact))
        assert len(ours) == len(theirs)
        assert sum(ours) / len(ours) == pytest.approx(sum(theirs) / len(theirs), rel=0.02, abs=0.0025)
        assert nearest_rank(ours, 0.99) == pytest.approx(nearest_rank(theirs, 0.99), rel=0.02, abs=0.0025)


def exponential_run(load: float, slots: int, *, count: int, seed: int) -> Run:
    """M/M/c: prompts take no time, and every token the same."""
    pace = Pace(slots=slots, prefill_tokens_per_s=1e12, step_s=0.001, step_per_active_s=0.0)
    chance, at_s, works = Random(seed), 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(load)  # of a second each
        works.append(Work(at_s, 1, 1 + round(chance.expovariate(1 / 1000))))
    return FleetModel(works, Fixed(1), pace=pace, promise=PATIENT, seed=seed).run()


@pytest.mark.slow
def test_waits_are_those_of_erlang_s_formula() -> None:
    """Ten slots under a load of eight: 41 of 100 wait, and those who wait do so for half a second in the mean."""
    load, slots = 8.0, 10
    ends = [
        end
        for seed in range(4)
        for end in exponential_run(load, slots, count=6000, seed=seed).ends(from_s=50)
    ]
    waited = [end.queue_s for end in ends if end.queue_s > 0]
    assert len(waited) / len(ends) == pytest.approx(staffing.waiting_share(load, slots), rel=0.1)
    assert sum(waited) / len(waited) == pytest.approx(1.0 / (slots - load), rel=0.15)


class Answer:
    ends_at = 0.0
    is_gone = False


def test_an_answer_alone_takes_a_step_for_each_token_but_the_first() -> None:
    model = ReplicaModel[Answer](Pace(prefill_tokens_per_s=1000.0, step_s=0.01, step_per_active_s=0.001))
    answer = Answer()
    computed_s = model.take(500, 0.0)
    assert computed_s == 0.5
    assert model.join(answer, 11, computed_s) == 0.5
    assert model.next_end_s() == pytest.approx(0.5 + 10 * 0.011)
    assert model.ended(0.55) is None
    assert model.ended(0.61) is answer
    assert model.next_end_s() == math.inf


def test_one_who_joins_slows_the_others_and_one_who_leaves_gives_it_back() -> None:
    model = ReplicaModel[Answer](Pace(step_s=0.01, step_per_active_s=0.01))
    first, second = Answer(), Answer()
    model.join(first, 101, 0.0)  # 100 steps of 20 ms
    model.join(second, 1001, 1.0)  # 50 are left, of 30 ms
    assert model.next_end_s() == pytest.approx(2.5)
    model.leave(second, 1.9)  # 20 are left, of 20 ms again
    assert model.next_end_s() == pytest.approx(2.3)
    assert model.ended(2.3) is first


def test_prompts_hold_answers_up_as_far_as_was_said() -> None:
    """A prompt of a second, during which an answer gets on at a quarter of its pace."""
    pace = Pace(prefill_tokens_per_s=1000.0, step_s=0.01, step_per_active_s=0.0, interference=0.75)
    model = ReplicaModel[Answer](pace)
    answer = Answer()
    model.join(answer, 101, 0.0)  # a second by itself
    model.take(1000, 0.0)
    assert model.next_end_s() == pytest.approx(1.75)
    assert model.ended(1.5) is None
    assert model.ended(1.75) is answer
    model.take(1000, 2.0)
    answer.is_gone = False
    model.join(answer, 11, 2.0)
    assert model.next_end_s() == pytest.approx(2.4), "all of it falls into the prompt"


def test_prompts_are_computed_one_after_another_each_after_its_own_overhead() -> None:
    model = ReplicaModel[Answer](Pace(prefill_tokens_per_s=1000.0, overhead_s=0.1))
    assert model.take(100, 0.0) == pytest.approx(0.2)
    assert model.take(100, 0.0) == pytest.approx(0.3)
    assert model.take(100, 1.0) == pytest.approx(1.2)


def test_a_beginning_is_computed_once_while_the_cache_has_room() -> None:
    model = ReplicaModel[Answer](Pace(prefixes_max=2))
    assert [model.cached_tokens("a", 500), model.cached_tokens("a", 500)] == [0, 500]
    assert model.cached_tokens("a", 800) == 500, "a longer one has the shorter one cached"
    assert [model.cached_tokens("b", 100), model.cached_tokens("c", 100)] == [0, 0]
    assert model.cached_tokens("a", 500) == 0, "pushed out by the two"
    assert ReplicaModel[Answer](Pace()).cached_tokens("a", 500) == 0


def test_a_slow_replica_takes_so_many_times_as_long_for_all_that_comes_then() -> None:
    model = ReplicaModel[Answer](Pace(prefill_tokens_per_s=1000.0, step_s=0.01, step_per_active_s=0.0))
    answer = Answer()
    model.join(answer, 101, 0.0)
    model.slow_down(3.0, 0.5)
    assert model.next_end_s() == pytest.approx(0.5 + 1.5)
    assert model.take(100, 0.5) == pytest.approx(0.8)
