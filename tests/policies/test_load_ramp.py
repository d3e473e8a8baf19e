"""A ramp ends where goodput stays behind, and says the rate that was kept up with."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.load_records import GeneratorProcess, Lateness, LoadRecord, LoadRun, Outcome, Window
from headrace.policies import load_ramp, load_report
from headrace.policies.load_ramp import CLOSER, FACTOR, STEPS_MAX, Step


def made(rate_per_s: float, share: float, *, is_void: bool = False) -> Step:
    return Step(
        rate_per_s, rate_per_s, rate_per_s * share, share, 0.1, 0.2, share >= 0.95 and not is_void, is_void
    )


def climb(share_of: Callable[[float], float], first_per_s: float) -> list[Step]:
    steps: list[Step] = []
    while (rate := load_ramp.next_rate(steps, first_per_s=first_per_s)) is not None:
        steps.append(made(rate, share_of(rate)))
    return steps


@given(capacity=st.floats(1.0, 1000.0), first=st.floats(0.5, 1.0))
def test_a_capacity_is_found_within_the_last_step(capacity: float, first: float) -> None:
    steps = climb(lambda rate: min(1.0, capacity / rate), first)
    found = load_ramp.followed(steps)
    assert found is not None
    assert found * 0.95 <= capacity * 1.0001
    # Two steps between a rate and half as much again leave an eighth at most.
    assert found * FACTOR ** (1 / 2**CLOSER) * 1.001 >= capacity
    assert len({step.rate_per_s for step in steps}) == len(steps)


def test_a_service_without_an_end_ends_the_ramp_by_its_bound_and_one_that_follows_nothing_at_once() -> None:
    assert len(climb(lambda rate: 1.0, 1.0)) == STEPS_MAX
    nothing = climb(lambda rate: 0.0, 4.0)
    assert [step.rate_per_s for step in nothing] == [4.0]
    assert load_ramp.followed(nothing) is None
    assert load_ramp.followed([]) is None


def test_a_step_that_the_generator_spoilt_ends_the_ramp_and_shows_nothing() -> None:
    steps = [made(1.0, 1.0), made(1.5, 1.0, is_void=True)]
    assert load_ramp.next_rate(steps, first_per_s=1.0) is None
    assert load_ramp.followed(steps) == 1.0


def run(*, took_s: Callable[[float], float], outcome: Sequence[Outcome] = (Outcome.OK,) * 100) -> LoadRun:
    """Ten requests a second for ten seconds."""
    records = []
    for number in range(100):
        due_s = number / 10
        ended_s = due_s + took_s(due_s)
        records.append(
            LoadRecord(number, due_s, due_s, due_s + 0.1, ended_s, ended_s, outcome[number], is_streamed=True)
        )
    return LoadRun(
        workload="w", digest="d", seed=1, url="u", model="m", began_at_s=0.0, duration_s=10.0, window=Window(0.0, 10.0),
        records=records, lateness=Lateness(), processes=[GeneratorProcess(0, 100, 0.1)], is_closed=False,
    )  # fmt: skip


def step(of: LoadRun, *before: Step) -> Step:
    return load_ramp.step(of, load_report.summarise(of), rate_per_s=10.0, before=before)


def test_a_step_is_what_its_run_came_to() -> None:
    calm = step(run(took_s=lambda due_s: 0.2))
    assert (calm.intended_per_s, calm.goodput_per_s, calm.good_share, calm.is_followed) == (
        10.0,
        10.0,
        1.0,
        True,
    )
    assert calm.total_p50_s == pytest.approx(0.2)


def test_who_left_as_planned_is_no_failure_and_who_was_refused_is_one() -> None:
    for becomes, share in ((Outcome.CANCELLED, 1.0), (Outcome.REFUSED, 0.96)):
        few = step(run(took_s=lambda due_s: 0.2, outcome=[becomes] * 4 + [Outcome.OK] * 96))
        assert (few.good_share, few.is_followed) == (share, True)
    many = step(run(took_s=lambda due_s: 0.2, outcome=[Outcome.REFUSED] * 50 + [Outcome.OK] * 50))
    assert (many.good_share, many.is_followed) == (0.5, False)
    none = step(run(took_s=lambda due_s: 0.2, outcome=[Outcome.CANCELLED] * 100))
    assert (none.good_share, none.is_followed) == (0.0, False)


def test_answers_that_come_later_and_later_are_behind_though_all_of_them_come() -> None:
    calm = step(run(took_s=lambda due_s: 0.2))
    growing = step(run(took_s=lambda due_s: 0.2 + due_s), calm)
    assert (growing.good_share, growing.is_followed) == (1.0, False)
    # Long answers are no queue.
    assert step(run(took_s=lambda due_s: 3.0)).is_followed


def test_a_step_whose_generator_was_late_is_not_followed() -> None:
    late = msgspec.structs.replace(run(took_s=lambda due_s: 0.2), lateness=Lateness(1.0, 2.0, 3.0))
    assert (step(late).is_void, step(late).is_followed) == (True, False)
