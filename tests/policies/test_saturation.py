"""A sweep finds what a replica can do, and the fewest callers that get it: tried on models whose capacity is known."""

import math
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.capacity import Bound, Level, Quantiles
from headrace.core.load_records import Gaps, Lateness, LoadRecord, LoadRun, Outcome, Window
from headrace.core.verdicts import Interval
from headrace.policies import drift, load_levels, pace, saturation
from headrace.policies.saturation import Point


def closed_loop(
    callers: int, *, slots: int, service_s: float, duration_s: float, spread: float = 0.0
) -> list[LoadRecord]:
    """Callers who ask again at once, of a server with so many slots and a queue."""
    chance = Random(callers)
    records: list[LoadRecord] = []
    free_at = [0.0] * slots
    asks_at = [0.001 * n for n in range(callers)]
    while min(asks_at) < duration_s:
        caller = asks_at.index(min(asks_at))
        slot = free_at.index(min(free_at))
        begin_s = max(asks_at[caller], free_at[slot])
        end_s = begin_s + service_s * (1 + spread * (chance.random() - 0.5))
        records.append(record(asks_at[caller], end_s, first_s=begin_s + 0.1 * service_s))
        free_at[slot] = asks_at[caller] = end_s
    return records


def record(due_s: float, ended_s: float, *, first_s: float | None = None, tokens: int = 11) -> LoadRecord:
    first_s = due_s if first_s is None else first_s
    return LoadRecord(
        0, due_s, due_s, first_s, ended_s, ended_s, Outcome.OK,
        input_tokens=100, cached_tokens=25, output_tokens=tokens, gaps=Gaps(10, 1.0, 0.1, {100: 10}), is_streamed=True,
    )  # fmt: skip


def run_of(records: list[LoadRecord], *, from_s: float, to_s: float, callers: int | None = 1) -> LoadRun:
    return LoadRun(
        "w", "d", 1, "u", "m", 0.0, to_s, Window(from_s, to_s), records, Lateness(), [], is_closed=True, concurrency=callers
    )  # fmt: skip


def measured(callers: int, *, slots: int, service_s: float, spread: float = 0.0) -> Point:
    duration_s = 30 * service_s
    records = closed_loop(callers, slots=slots, service_s=service_s, duration_s=duration_s, spread=spread)
    found = load_levels.throughput(records, from_s=5 * service_s, to_s=duration_s)
    return Point(callers, found)


def swept(callers_max: int = 256, **server: float | int) -> list[Point]:
    points: list[Point] = []
    while (callers := saturation.next_callers(points, callers_max=callers_max)) is not None:
        points.append(measured(callers, **server))  # type: ignore[arg-type]
        assert len(points) < 20, "a sweep ends"
    return points


# The sweep


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 24), st.floats(0.01, 10), st.floats(0, 0.5))
def test_a_sweep_finds_the_true_capacity_within_five_percent(
    slots: int, service_s: float, spread: float
) -> None:
    points = swept(slots=slots, service_s=service_s, spread=spread)
    found = saturation.knee(points)
    assert found.bound is Bound.THROUGHPUT
    assert found.per_s.estimate == pytest.approx(slots / service_s, rel=0.05)
    assert abs(found.callers - slots) <= max(1, 0.05 * slots + 1)


def test_the_knee_itself_is_tried_though_the_sweep_doubles() -> None:
    points = swept(slots=6, service_s=1.0)
    assert [point.callers for point in points] == [1, 2, 4, 8, 16, 32, 6][: len(points)] or 6 in {
        point.callers for point in points
    }
    assert saturation.knee(points).callers == 6


def test_a_sweep_that_may_not_go_on_proves_no_end() -> None:
    points = swept(callers_max=4, slots=100, service_s=1.0)
    assert [point.callers for point in points] == [1, 2, 4]
    assert saturation.knee(points).bound is Bound.NONE
    assert saturation.knee(points).callers == 4


def flat(callers: int, per_s: float, **more: float | bool) -> Point:
    return Point(callers, Interval(per_s, per_s * 0.99, per_s * 1.01), **more)  # type: ignore[arg-type]


def test_one_level_without_growth_may_be_a_bad_moment_and_two_in_a_row_are_the_end() -> None:
    assert not saturation.is_saturated([flat(1, 10), flat(2, 10)])
    assert not saturation.is_saturated([flat(1, 10), flat(2, 10), flat(4, 20)])
    assert saturation.is_saturated([flat(1, 10), flat(2, 10), flat(4, 10)])


def test_what_a_service_does_that_thrashes_is_what_it_did_before() -> None:
    """More callers bring fewer results: that is neither its plateau nor a level that still grew."""
    thrashing = [flat(1, 10), flat(2, 20), flat(4, 40), flat(8, 30), flat(16, 28)]
    bound, callers, per_s = saturation.knee(thrashing)
    assert (bound, callers, per_s.estimate) == (Bound.THROUGHPUT, 4, 40)
    assert saturation.estimate(thrashing) == 4
    assert saturation.next_callers(thrashing, callers_max=64) is None


def test_a_level_that_fails_or_is_too_slow_is_past_the_end_and_no_capacity() -> None:
    failing = [flat(1, 10), flat(2, 20), flat(4, 60, failed_share=0.3)]
    assert saturation.knee(failing)[:2] == (Bound.FAILURES, 2)
    assert saturation.next_callers(failing, callers_max=64) is None
    slow = [flat(1, 10), flat(2, 20), flat(4, 30, is_slow=True)]
    assert saturation.knee(slow)[:2] == (Bound.LATENCY, 2)
    at_once = [flat(1, 10, failed_share=1.0)]
    assert saturation.knee(at_once).bound is Bound.FAILURES
    assert saturation.next_callers(at_once, callers_max=64) is None


def test_levels_of_a_plateau_are_taken_together_by_how_narrow_they_are() -> None:
    both = saturation.together([Interval(10, 9, 11), Interval(11, 10.9, 11.1)])
    assert both.estimate == pytest.approx(10.99, abs=0.005)
    assert both.low == pytest.approx(10.89, abs=0.01)
    assert saturation.together([Interval(10, 10, 10), Interval(12, None, None)]) == Interval(11, None, None)
    assert saturation.together([]) == Interval(None, None, None)


def test_with_nothing_to_see_a_knee_is_where_one_began() -> None:
    assert saturation.estimate([]) == 1
    assert saturation.estimate([flat(3, 10), flat(6, 10)]) == 3


# A level


def test_requests_count_by_the_share_of_their_time_that_lies_in_the_window() -> None:
    """Two callers whose requests take 4 s each: half a request per second, wherever the window begins."""
    records = [record(4.0 * n, 4.0 * n + 4.0) for n in range(10)] * 2
    for from_s in (0.0, 1.3, 3.9):
        assert load_levels.throughput(records, from_s=from_s, to_s=from_s + 10).estimate == pytest.approx(0.5)


def test_what_was_not_answered_or_lies_outside_is_no_throughput() -> None:
    bad = LoadRecord(0, 0, 0, None, None, 1, Outcome.FAILED)
    instant = record(5.0, 5.0)
    found = load_levels.throughput([bad, record(-5, -1), record(20, 21), instant], from_s=0.0, to_s=10.0)
    assert found.estimate == pytest.approx(0.1)
    assert load_levels.throughput([], from_s=1.0, to_s=1.0).estimate is None


def test_a_level_says_what_was_asked_and_what_came_of_it() -> None:
    records = [
        *closed_loop(2, slots=2, service_s=1.0, duration_s=30.0),
        LoadRecord(0, 10, 10, None, None, 11, Outcome.REFUSED, status=503),
    ]
    level = load_levels.level(
        run_of(records, from_s=5, to_s=30, callers=2), shape="short-short", memory_bytes=7
    )
    assert level.requests_per_s == pytest.approx(2.0, rel=0.02)
    assert level.output_tokens_per_s == pytest.approx(22.0, rel=0.02)
    assert level.in_flight == pytest.approx(2.0 + 1 / 25, rel=0.02)
    assert (level.input_tokens, level.output_tokens, level.cached_share) == (100, 11, 0.25)
    assert (level.outcomes["refused"], level.failed, level.memory_bytes) == (1, 1, 7)
    assert level.total.p50.estimate == pytest.approx(1.0, rel=0.01)
    assert level.tpot.p50.estimate == pytest.approx(0.09, rel=0.01)
    assert level.itl.samples == 10 * level.completed


def test_a_level_without_an_answer_has_no_figures() -> None:
    level = load_levels.level(run_of([], from_s=0, to_s=1, callers=None), shape="s")
    assert (level.requests_per_s, level.input_tokens, level.concurrency) == (0, 0, 0)
    assert level.ttft.p50.estimate is None
    unstreamed = [LoadRecord(0, 0, 0, None, None, 1, Outcome.OK, output_tokens=5)]
    assert list(load_levels.paces(unstreamed)) == []


def open_loop(rate_per_s: float, *, slots: int, service_s: float, duration_s: float) -> list[LoadRecord]:
    """Requests that come whenever they like, to a server with so many slots and a queue."""
    chance, free_at, at_s, records = Random(7), [0.0] * slots, 0.0, list[LoadRecord]()
    while (at_s := at_s + chance.expovariate(rate_per_s)) < duration_s:
        slot = free_at.index(min(free_at))
        free_at[slot] = max(at_s, free_at[slot]) + service_s
        records.append(record(at_s, free_at[slot]))
    return records


@pytest.mark.parametrize(("share", "kept_up"), [(0.5, True), (0.9, True), (1.2, False), (2.0, False)])
def test_an_open_loop_keeps_up_while_nothing_is_left_over(share: float, kept_up: bool) -> None:
    """Also over a window of which chance decides how many requests came."""
    records = open_loop(share * 30, slots=3, service_s=0.1, duration_s=40)
    run = run_of(records, from_s=5, to_s=40, callers=None)
    assert load_levels.keeps_up(run, callers=3) is kept_up


def test_an_open_loop_that_loses_requests_or_has_none_does_not_keep_up() -> None:
    lost = LoadRecord(0, 6, 6, None, None, 7, Outcome.FAILED)
    assert not load_levels.keeps_up(run_of([record(5, 6), lost], from_s=0, to_s=10), callers=3)
    assert not load_levels.keeps_up(run_of([], from_s=0, to_s=10), callers=3)


# The pace


def like(
    concurrency: int, *, tokens: float, output: float = 21, held_out: bool = False, **true: float
) -> Level:
    """What a replica with that pace would show."""
    ttft_s = true.get("overhead_s", 0.02) + tokens / true.get("prefill", 1000.0)
    tpot_s = true.get("step_s", 0.01) + true.get("per_active_s", 0.001) * concurrency
    total_s = ttft_s + tpot_s * (output - 1)

    def at(value: float) -> Quantiles:
        return Quantiles(Interval(value, value, value), samples=100)

    return Level(
        shape="s", concurrency=concurrency, window_s=10, input_tokens=tokens, output_tokens=output,
        in_flight=concurrency, outcomes={"ok": 100}, throughput=Interval(concurrency / total_s, None, None), output_tokens_per_s=0,
        ttft=at(ttft_s), tpot=at(tpot_s), total=at(total_s), is_held_out=held_out,
    )  # fmt: skip


@given(st.floats(0.001, 1), st.floats(10, 1e5), st.floats(0.001, 0.1), st.floats(0, 0.01))
def test_the_pace_of_a_replica_that_has_one_is_found(
    overhead_s: float, prefill: float, step_s: float, per_active_s: float
) -> None:
    def true(callers: int, tokens: float, *, held_out: bool = False) -> Level:
        return like(
            callers, tokens=tokens, held_out=held_out,
            overhead_s=overhead_s, prefill=prefill, step_s=step_s, per_active_s=per_active_s,
        )  # fmt: skip

    levels = [*(true(n, tokens) for tokens in (64, 2048) for n in (1, 2, 8)), true(4, 512, held_out=True)]
    found = pace.fit(levels, slots=8)
    assert found is not None
    # A hundredth over all levels can't be told from noise, and is none.
    assert found.step_s == pytest.approx(step_s, rel=0.02)
    assert found.step_per_active_s == pytest.approx(per_active_s, rel=0.01, abs=0.01 * step_s)
    assert max(found.errors.values()) < 0.02
    assert all(abs(error) < 0.02 for error in found.held_out_errors.values())
    assert set(found.held_out_errors) == {"ttft", "tpot", "total", "requests_per_s"}


def test_errors_have_a_sign_and_stand_metric_by_metric() -> None:
    """A held-out level whose first token came twice as late as the pace says, and whose tokens came as it says."""
    late = like(1, tokens=512, held_out=True, overhead_s=0.02 + 0.532, prefill=1000.0)
    found = pace.fit([like(1, tokens=64), like(1, tokens=2048), like(2, tokens=64), late], slots=2)
    assert found is not None
    assert found.held_out_errors["ttft"] == pytest.approx(-0.5, abs=0.01)
    assert abs(found.held_out_errors["tpot"]) < 0.01


def test_levels_that_queue_and_levels_without_an_answer_say_nothing_of_a_pace() -> None:
    assert pace.fit([like(9, tokens=64)], slots=8) is None
    assert pace.fit([], slots=8) is None


def test_one_length_tells_no_prefill_from_overhead() -> None:
    found = pace.fit([like(1, tokens=100)], slots=1)
    assert found is not None
    assert (found.prefill_tokens_per_s, found.step_per_active_s) == (0.0, 0.0)
    assert found.overhead_s == pytest.approx(0.12)
    assert pace.predicted(found, like(1, tokens=100), active=1)["ttft"] == pytest.approx(0.12)


def test_a_prefill_that_takes_less_than_can_be_measured_has_no_rate() -> None:
    """60.7 and 60.8 ms for prompts of 64 and 256 tokens are the same."""
    found = pace.fit([like(1, tokens=64, prefill=1.5e6), like(1, tokens=256, prefill=1.5e6)], slots=1)
    assert found is not None
    assert found.prefill_tokens_per_s == 0.0


def test_nothing_is_faster_than_no_time_at_all() -> None:
    """Longer prompts that were quicker, and a line that would begin below zero, are noise and not a pace."""
    quicker = pace.fit(
        [like(1, tokens=100, overhead_s=1.0), like(1, tokens=1000, overhead_s=0.0, prefill=1e9)], slots=1
    )
    assert quicker is not None
    assert quicker.prefill_tokens_per_s == 0.0
    below = pace.fit([like(1, tokens=100, overhead_s=0.0), like(1, tokens=200, overhead_s=0.1)], slots=1)
    assert below is not None
    assert below.overhead_s == 0.0
    assert below.prefill_tokens_per_s > 0


def test_one_token_has_no_pace_and_no_error_of_one() -> None:
    one = msgspec.structs.replace(like(1, tokens=100, output=1), tpot=Quantiles())
    found = pace.fit([one], slots=1)
    assert found is not None
    assert set(found.errors) == {"ttft", "total", "requests_per_s"}
    assert (found.step_s, found.step_per_active_s) == (0.0, 0.0)


def test_a_replica_without_any_time_has_no_rate() -> None:
    instant = LoadRecord(0, 1.0, 1.0, None, None, 1.0, Outcome.OK)
    assert load_levels.throughput([instant], from_s=0, to_s=10).estimate == pytest.approx(0.1)
    nothing = pace.Pace(overhead_s=0, prefill_tokens_per_s=0, step_s=0, step_per_active_s=0)
    assert pace.predicted(nothing, like(1, tokens=1), active=1)["requests_per_s"] == 0.0
    blank = load_levels.level(run_of([], from_s=0, to_s=1, callers=1), shape="s")
    assert pace.fit([blank], slots=1) is None


# Drift


@given(st.floats(-1e3, 1e3), st.floats(0, 1e6))
def test_a_steady_growth_is_found(per_s: float, at_first: float) -> None:
    found = drift.slope([(t, at_first + per_s * t) for t in range(100)])
    assert found.estimate == pytest.approx(per_s, rel=0.01, abs=0.01)


def test_noise_is_no_drift_and_a_leak_in_it_is_one() -> None:
    chance = Random(1)
    noise = [(float(t), 1000.0 + chance.gauss(0, 10)) for t in range(600)]
    quiet = drift.slope(noise)
    assert quiet.low is not None
    assert quiet.high is not None
    assert quiet.low < 0 < quiet.high
    leak = drift.slope([(t, value + 0.5 * t) for t, value in noise])
    assert leak.low is not None
    assert leak.low > 0.4


def test_too_few_samples_show_no_drift() -> None:
    assert drift.slope([(float(t), 1.0) for t in range(9)]) == Interval(None, None, None)
    assert drift.slope([(1.0, 1.0)] * 50) == Interval(None, None, None)
    assert math.isclose(drift.slope([(float(t), 1.0) for t in range(10)]).estimate or 0.0, 0.0, abs_tol=1e-12)
