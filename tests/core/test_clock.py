"""Two clocks, one contract."""

import pytest

from headrace.core.clock import Clock, ManualClock, SystemClock


def test_a_manual_clock_moves_only_when_told_and_both_times_move_together() -> None:
    clock: Clock = ManualClock(start_s=50.0)
    assert isinstance(clock, ManualClock)
    assert (clock.now_s(), clock.wall_s()) == (50.0, 1_700_000_000.0)
    clock.advance(2.5)
    assert (clock.now_s(), clock.wall_s()) == (52.5, 1_700_000_002.5)


def test_a_manual_clock_does_not_run_backwards() -> None:
    with pytest.raises(AssertionError):
        ManualClock().advance(-0.001)


def test_the_clock_of_the_machine_never_runs_backwards() -> None:
    clock: Clock = SystemClock()
    first_s, second_s = clock.now_s(), clock.now_s()
    assert first_s <= second_s
    assert clock.wall_s() > 1_700_000_000.0
