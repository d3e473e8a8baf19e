"""An engine's own counters and its attempts agree as intervals: nothing true is reported, nothing large is missed."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import ReplicaId, RequestId
from headrace.core.outcome import AttemptOutcome
from headrace.core.usage import ExecutionRecord, UsageSource
from headrace.policies.engine_counts import (
    ESTIMATE_SPREAD,
    OVERRUN_TOKENS,
    EngineBook,
    Reading,
    Stretch,
    Unrecorded,
    read_on,
)
from headrace.policies.reconciliation import Cause

R = ReplicaId("r-0")
STRETCH_S = 300.0


def stretch(since_s: float = 0.0, until_s: float = 100.0, *, prompt: int = 0, completion: int = 0) -> Stretch:
    return Stretch(R, 0, 0, since_s, until_s, 1000, 1000 + prompt, 500, 500 + completion)


def attempt(
    start_s: float, end_s: float, *, prompt: int = 0, completion: int = 0, cached: int = 0,
    source: UsageSource = UsageSource.FINAL, outcome: AttemptOutcome = AttemptOutcome.COMPLETED,
) -> ExecutionRecord:  # fmt: skip
    return ExecutionRecord(
        RequestId("req"), 1, R, 0, start_s, end_s - start_s, None, str(outcome), 200, prompt, completion, cached,
        str(source),
    )  # fmt: skip


def found(stretches: list[Stretch], attempts: list[ExecutionRecord]) -> list[tuple[Cause, str, int, int]]:
    book = EngineBook(stretches)
    for each in attempts:
        book.add(each)
    return [(d.cause, d.unit, d.recorded, d.found) for d in book.differences()]


def test_what_lies_in_a_stretch_is_what_the_engine_counted() -> None:
    inside = [attempt(10, 20, prompt=7, completion=30), attempt(15, 40, prompt=3, completion=12)]
    assert not found([stretch(prompt=10, completion=42)], inside)
    assert found([stretch(prompt=10, completion=41)], inside) == [
        (Cause.ENGINE_LESS, "completion_tokens", 42, 41)
    ]
    assert found([stretch(prompt=11, completion=42)], inside) == [
        (Cause.ENGINE_MORE, "prompt_tokens", 10, 11)
    ]


def test_what_crosses_an_end_counts_from_nothing_to_all() -> None:
    crossing = attempt(90, 110, completion=50)
    for counted in (0, 25, 50):
        assert not found([stretch(completion=counted)], [crossing])
    assert found([stretch(completion=51)], [crossing]) == [(Cause.ENGINE_MORE, "completion_tokens", 50, 51)]


def test_what_the_cache_held_may_be_counted_or_not() -> None:
    cached = attempt(10, 20, prompt=100, cached=80, completion=1)
    for counted in (20, 100):
        assert not found([stretch(prompt=counted, completion=1)], [cached])
    assert found([stretch(prompt=19, completion=1)], [cached]) == [
        (Cause.ENGINE_LESS, "prompt_tokens", 20, 19)
    ]


def test_an_attempt_that_was_cut_may_have_gone_on_for_a_moment() -> None:
    cut = attempt(10, 20, completion=5, outcome=AttemptOutcome.CANCELLED)
    assert not found([stretch(completion=5 + OVERRUN_TOKENS)], [cut])
    assert found([stretch(completion=6 + OVERRUN_TOKENS)], [cut])


def test_an_estimate_bounds_and_an_unknown_does_not() -> None:
    estimated = attempt(10, 20, completion=10, source=UsageSource.ESTIMATED)
    assert not found([stretch(completion=1)], [estimated])
    assert not found([stretch(completion=10 * ESTIMATE_SPREAD)], [estimated])
    assert found([stretch(completion=10 * ESTIMATE_SPREAD + 1)], [estimated])
    unknown = attempt(10, 20, source=UsageSource.UNKNOWN)
    assert not found([stretch(completion=10**6)], [unknown])


def test_other_replicas_and_other_times_are_not_compared() -> None:
    elsewhere = msgspec.structs.replace(attempt(10, 20, completion=9), replica=ReplicaId("r-1"))
    later = attempt(200, 220, completion=9)
    assert not found([stretch()], [elsewhere, later])
    assert EngineBook([stretch()]).stretches == 1


def reading(at_s: float, prompt: int, completion: int, generation: int = 0) -> Reading:
    return Reading(R, generation, at_s, prompt, completion)


def test_readings_make_a_stretch_longer_until_it_is_cut_or_the_engine_begins_anew() -> None:
    first = read_on(None, reading(10, 5, 6), stretch_s=STRETCH_S)
    assert (first.since_s, first.until_s, first.prompt_before, first.prompt_after) == (10, 10, 5, 5)
    longer = read_on(first, reading(25, 8, 9), stretch_s=STRETCH_S)
    assert (longer.since_s, longer.until_s, longer.completion_before, longer.completion_after) == (
        10,
        25,
        6,
        9,
    )
    cut = read_on(longer, reading(11 + STRETCH_S, 9, 10), stretch_s=STRETCH_S)
    assert (cut.since_s, cut.prompt_before, cut.prompt_after, cut.incarnation) == (25, 8, 9, 0)
    anew = read_on(cut, reading(12 + STRETCH_S, 0, 0), stretch_s=STRETCH_S)
    assert (anew.since_s, anew.prompt_before, anew.incarnation) == (12 + STRETCH_S, 0, 1)
    assert read_on(cut, reading(1, 10, 11), stretch_s=STRETCH_S).incarnation == 1, "the clock was set back"
    other = read_on(anew, reading(13 + STRETCH_S, 0, 0, generation=1), stretch_s=STRETCH_S)
    assert (other.generation, other.incarnation) == (1, 0)


@given(
    works=st.lists(
        st.tuples(st.floats(0, 900), st.floats(0.01, 120), st.integers(0, 400), st.integers(0, 400)),
        max_size=30,
    ),
    pauses=st.lists(st.floats(5, 400), min_size=1, max_size=12),
    forgotten=st.booleans(),
)
def test_an_honest_engine_is_never_accused_and_a_forgotten_attempt_is_found(
    works: list[tuple[float, float, int, int]], pauses: list[float], forgotten: bool
) -> None:
    """The engine counts prompts at the start of the work and tokens evenly over it; readings come at any time."""
    moments, at_s = [0.0], 0.0
    for pause_s in pauses:
        at_s += pause_s
        moments.append(at_s)
    extra = [(moments[0] + 2.0, 1.0, 10_000, 10_000)] if forgotten else []
    last: Stretch | None = None
    stretches: dict[float, Stretch] = {}
    for moment_s in moments:
        prompt = sum(p for start_s, _, p, _ in works + extra if start_s <= moment_s)
        completion = sum(
            int(c * min(1.0, max(0.0, (moment_s - start_s) / took_s)))
            for start_s, took_s, _, c in works + extra
        )
        last = read_on(last, reading(moment_s, prompt, completion), stretch_s=STRETCH_S)
        stretches[last.since_s] = last
    attempts = [attempt(s, s + took_s, prompt=p, completion=c) for s, took_s, p, c in works]
    told = found(list(stretches.values()), attempts)
    if forgotten:
        assert {cause for cause, *_ in told} == {Cause.ENGINE_MORE} or sum(c for *_, c in works) > 9_000
    else:
        assert not told


def more_than_recorded(*unrecorded: Unrecorded) -> list[Cause]:
    """With 50 tokens that no record accounts for, in a stretch from 0 to 100 s."""
    book = EngineBook([stretch(completion=50)])
    for each in unrecorded:
        book.open(each)
    return [difference.cause for difference in book.differences()]


def test_what_is_in_progress_or_was_cut_off_by_a_crash_is_no_work_of_others() -> None:
    """Engines count an answer as it goes, and its record comes with its end, or never."""
    assert more_than_recorded() == [Cause.ENGINE_MORE]
    assert not more_than_recorded(Unrecorded(R, 0, 90.0))
    assert not more_than_recorded(Unrecorded(None, 0, 90.0)), "a replica that nobody knows may be this one"
    assert not more_than_recorded(Unrecorded(R, 0, -50.0, 10.0))
    for elsewhere in (
        Unrecorded(ReplicaId("r-1"), 0, 90.0),
        Unrecorded(R, 1, 90.0),
        Unrecorded(R, 0, 102.0),
        Unrecorded(R, 0, -50.0, -2.0),
    ):
        assert more_than_recorded(elsewhere) == [Cause.ENGINE_MORE]


def test_stretches_between_which_a_clock_was_set_back_are_compared_with_nothing() -> None:
    """Wall-clock steps: an attempt's time says no more in which of the two it lay."""
    before, after = stretch(0, 100, completion=10), stretch(40, 140, completion=500)
    apart = stretch(200, 300, completion=7)
    others = [
        attempt(50, 60, completion=300),
        attempt(60, 70, completion=200),
        attempt(210, 220, completion=7),
    ]
    assert not found([before, after, apart], others)
    assert [cause for cause, *_ in found([before, after, apart], others[:2])] == [Cause.ENGINE_MORE]
    assert found([stretch(0, 100, completion=10), stretch(100, 200, completion=500)], []) != []


def test_what_llama_cpp_does_not_count_is_nothing_that_is_missing() -> None:
    """Prompts that it generates nothing after, and all of an answer that is cut off; other engines count them."""
    vectors = attempt(10, 20, prompt=21)
    cut = attempt(
        30, 40, prompt=7, completion=12, source=UsageSource.CUMULATIVE, outcome=AttemptOutcome.CANCELLED
    )
    assert not found([stretch()], [vectors, cut])
    assert not found([stretch(prompt=28, completion=12)], [vectors, cut])
    assert [cause for cause, *_ in found([stretch(prompt=29)], [vectors, cut])] == [Cause.ENGINE_MORE]
