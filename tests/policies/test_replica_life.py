"""The life of a replica, on a clock that the test turns: stages by progress, reasons, delays, and what can follow what."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fleet import ReplicaState
from headrace.policies import replica_life
from headrace.policies.replica_life import (
    TRANSITIONS,
    Budget,
    Ending,
    Event,
    Hysteresis,
    Reason,
    Restarts,
    StageWatch,
    after,
    why_ended,
)

MB = 1 << 20


# What can follow what


def test_every_state_has_its_row_and_stopped_is_the_end() -> None:
    assert TRANSITIONS.keys() == set(ReplicaState)
    assert TRANSITIONS[ReplicaState.STOPPED] == {}
    for state in set(ReplicaState) - {ReplicaState.STOPPED}:
        assert after(state, Event.RETIRE) is ReplicaState.STOPPED


@given(st.lists(st.sampled_from(Event)))
def test_a_replica_is_ready_only_after_an_answer_and_gets_nothing_after_it_was_withdrawn(
    events: list[Event],
) -> None:
    """E4: whatever happens to it in whatever order."""
    state, has_answered = ReplicaState.PENDING, False
    for event in events:
        if event not in TRANSITIONS[state]:
            continue
        before, state = state, after(state, event)
        if event in (Event.LAUNCH, Event.EJECT, Event.WITHDRAW):
            has_answered = False
        has_answered |= event is Event.ANSWER
        assert (state is not ReplicaState.READY) or has_answered
        if before is ReplicaState.DRAINING:
            assert state not in (ReplicaState.READY, ReplicaState.WARMING)


def test_what_is_not_in_the_table_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        after(ReplicaState.PENDING, Event.ANSWER)


# Stages by progress


def test_a_long_load_that_goes_on_is_no_stall() -> None:
    """kserve#1247, kserve#3795: a deadline on the whole kills what is still loading."""
    watch = StageWatch(Budget(all_s=86_400, stall_s=300), steps=(1, MB), now_s=0.0)
    for minute in range(1, 600):
        watch.measured((0, minute * 100 * MB), now_s=minute * 60.0)
        assert not watch.is_stalled(now_s=minute * 60.0)
        assert not watch.is_over(now_s=minute * 60.0)


def test_a_load_that_stands_still_is_a_stall_long_before_its_time_is_over() -> None:
    watch = StageWatch(Budget(all_s=1800, stall_s=300), steps=(1, MB), now_s=0.0)
    watch.measured((10, 50 * MB), now_s=100.0)
    watch.measured((10, 50 * MB + 1), now_s=399.0)
    assert not watch.is_stalled(now_s=399.0)
    assert watch.is_stalled(now_s=400.0)
    assert watch.stalled_for_s(now_s=400.0) == 300.0


def test_one_that_says_for_ever_that_it_waits_is_ended_by_its_budget() -> None:
    watch = StageWatch(Budget(all_s=1800, stall_s=300), steps=(1,), now_s=0.0)
    for second in range(0, 1800, 10):
        watch.measured((second,), now_s=float(second))
        assert not watch.is_over(now_s=float(second))
    assert watch.is_over(now_s=1800.0)
    assert not watch.is_stalled(now_s=1800.0)


@given(st.lists(st.integers(0, 100 * MB), min_size=1))
def test_memory_that_goes_up_and_down_is_no_progress_for_ever(measured: list[int]) -> None:
    watch = StageWatch(Budget(all_s=1e9, stall_s=10), steps=(MB,), now_s=0.0)
    for index, value in enumerate(measured * 3):
        watch.measured((value,), now_s=float(index))
    end_s = len(measured) * 3.0 + 10
    # Everything was seen in the first round; what comes again later is nothing new.
    watch.measured((max(measured),), now_s=end_s)
    assert watch.is_stalled(now_s=end_s)


# In and out


def test_two_bad_probes_take_out_two_good_ones_bring_back_and_flapping_changes_nothing() -> None:
    """T22, REPORTS 88."""
    use = Hysteresis()
    assert [use.probed(is_good=good) for good in (False, True, False, True)] == [False] * 4
    assert use.is_in
    assert [use.probed(is_good=good) for good in (False, False)] == [False, True]
    assert not use.is_in
    assert [use.probed(is_good=good) for good in (True, False, True, False)] == [False] * 4
    assert not use.is_in
    assert [use.probed(is_good=good) for good in (True, True)] == [False, True]
    assert use.is_in


# From one life to the next


def delays(restarts: Restarts, *, reason: Reason = Reason.CRASHED, lives: int = 10) -> list[float]:
    class Certain:
        def random(self) -> float:
            return 1.0

        def randrange(self, stop: int) -> int:
            return 0

    return [restarts.delay_s(life, reason, Certain()) for life in range(1, lives + 1)]  # type: ignore[arg-type]


def test_the_first_restart_is_quick_and_a_crash_loop_waits_from_ten_seconds_up_to_five_minutes() -> None:
    assert delays(Restarts()) == [0.5, 10, 20, 40, 80, 160, 300, 300, 300, 300]


def test_what_the_next_life_would_meet_as_well_is_not_tried_again_at_once() -> None:
    assert delays(Restarts(), reason=Reason.OUT_OF_MEMORY, lives=2) == [10, 10]
    assert delays(Restarts(), reason=Reason.CORRUPT_MODEL, lives=1) == [10]


@given(st.integers(1, 1_000_000), st.randoms())
def test_a_delay_is_bounded_however_long_it_goes_on(lives: int, chance: random.Random) -> None:
    assert 0 < Restarts().delay_s(lives, Reason.CRASHED, chance) <= 300.0


def test_a_life_that_was_steady_begins_the_count_again() -> None:
    restarts = Restarts()
    assert restarts.short_lives(7, ready_for_s=59.0) == 8
    assert restarts.short_lives(7, ready_for_s=60.0) == 1


def test_a_crash_loop_and_what_will_come_again_are_told_to_who_waits() -> None:
    """A rollout that waits for such a replica waits in vain."""
    restarts = Restarts()
    crashed = Ending(Reason.CRASHED, "ended with status 1")
    assert not restarts.is_stuck(0, None, most=5)
    assert not restarts.is_stuck(4, crashed, most=5)
    assert restarts.is_stuck(5, crashed, most=5)
    assert restarts.is_stuck(1, Ending(Reason.START_STALLED, "nothing moved"), most=5)
    assert restarts.is_stuck(1, Ending(Reason.OUT_OF_MEMORY, "no memory"), most=5)


# Why a process ended


@pytest.mark.parametrize(
    ("found", "reason", "text"),
    [
        ({"status": 0}, Reason.CRASHED, "ended with status 0"),
        ({"status": 1, "said": "it broke"}, Reason.CRASHED, "ended with status 1; it broke"),
        ({"status": 137}, Reason.CRASHED, "killed by SIGKILL"),
        ({"status": 139}, Reason.CRASHED, "killed by SIGSEGV"),
        ({"status": 200}, Reason.CRASHED, "ended with status 200"),
        ({"status": None}, Reason.CRASHED, "its lifeline was killed"),
        (
            {"status": 1, "failed_to_load": "bad magic", "said": "x"},
            Reason.LOAD_FAILED,
            "failed to load: bad magic; x",
        ),
        (
            {"status": 137, "oom_kills": 1},
            Reason.OUT_OF_MEMORY,
            "killed by SIGKILL; the kernel has killed for want of memory in its lifetime",
        ),
        ({"status": 137, "oom_kills": 1, "was_told": True}, Reason.CRASHED, "killed by SIGKILL"),
        ({"status": 143, "oom_kills": 3}, Reason.CRASHED, "killed by SIGTERM"),
    ],
)
def test_an_exit_status_and_last_words_become_a_reason(
    found: dict[str, Any], reason: Reason, text: str
) -> None:
    assert why_ended(found.pop("status"), **found) == Ending(reason, text)


@pytest.mark.parametrize(
    "words",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 123",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "MemoryError",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_want_of_memory_is_recognized_in_the_words_of_each_engine(words: str) -> None:
    """E8: it is no crash by chance, and trying the same again at once is of no use."""
    assert why_ended(1, said=words).reason is Reason.OUT_OF_MEMORY
    assert why_ended(1, failed_to_load=words).reason is Reason.OUT_OF_MEMORY


def test_reasons_are_words_for_programs() -> None:
    assert all(reason.value.isidentifier() for reason in replica_life.Reason)
