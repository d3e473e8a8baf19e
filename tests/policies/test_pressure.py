"""The ladder: what is given up first, when it is taken back, and that no resource alone can hide another."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.pressure import (
    LAGS_IN_A_ROW,
    Level,
    Memory,
    Pressure,
    Reading,
    share_descriptors,
)

MIB = 1024 * 1024
GIB = 1024 * MIB


def reading(
    *, lag_s: float = 0.0, used: float = 0.0, limit_bytes: int = GIB, descriptors: int = 10
) -> Reading:
    """A process that uses this share of its memory."""
    memory = Memory(int(used * limit_bytes), limit_bytes)
    return Reading(lag_s=lag_s, memories=(memory,), descriptors=descriptors, descriptors_max=100)


def pressure() -> Pressure:
    return Pressure(lag_s_max=1.0, hold_s=5.0)


def test_nothing_short_is_calm() -> None:
    verdict = pressure().judge(reading(), now_s=0.0)
    assert (verdict.level, verdict.reason) == (Level.CALM, "")


def test_memory_first_ends_keep_alive_and_then_refuses() -> None:
    """T15."""
    ladder = pressure()
    assert ladder.judge(reading(used=0.89), now_s=0.0).level is Level.CALM
    brief = ladder.judge(reading(used=0.91), now_s=1.0)
    assert (brief.level, brief.reason) == (Level.BRIEF, "memory")
    refuse = ladder.judge(reading(used=0.96), now_s=2.0)
    assert (refuse.level, refuse.reason) == (Level.REFUSE, "memory")


def test_of_much_memory_what_is_left_counts_and_not_its_share() -> None:
    """256 GiB of which 97 % hold a model's weights leave 7 GiB: nobody is pressed."""
    ladder = pressure()
    assert ladder.judge(reading(used=0.97, limit_bytes=256 * GIB), now_s=0.0).level is Level.CALM
    assert ladder.judge(reading(used=0.9995, limit_bytes=256 * GIB), now_s=0.0).level is Level.REFUSE


def test_the_tightest_limit_on_memory_holds() -> None:
    memories = (Memory(GIB, 100 * GIB), Memory(96 * MIB, 100 * MIB))
    tight = Reading(lag_s=0.0, memories=memories, descriptors=1, descriptors_max=100)
    assert pressure().judge(tight, now_s=0.0).level is Level.REFUSE


def test_without_a_limit_on_memory_there_is_no_pressure_from_it() -> None:
    free = Reading(lag_s=0.0, memories=(), descriptors=1, descriptors_max=100)
    assert pressure().judge(free, now_s=0.0).level is Level.CALM


def test_descriptors_first_end_keep_alive_and_then_refuse() -> None:
    """T16."""
    ladder = pressure()
    assert ladder.judge(reading(descriptors=79), now_s=0.0).level is Level.CALM
    assert ladder.judge(reading(descriptors=80), now_s=0.0).level is Level.BRIEF
    assert ladder.judge(reading(descriptors=95), now_s=0.0).reason == "descriptors"
    assert ladder.verdict.level is Level.REFUSE


def test_callers_who_are_kept_waiting_end_keep_alive() -> None:
    """T16: whatever is kept back for work, idle connections make room for them."""
    waiting = Reading(lag_s=0.0, memories=(), descriptors=50, descriptors_max=100, keeps_waiting=True)
    verdict = pressure().judge(waiting, now_s=0.0)
    assert (verdict.level, verdict.reason) == (Level.BRIEF, "descriptors")
    full = Reading(lag_s=0.0, memories=(), descriptors=96, descriptors_max=100, keeps_waiting=True)
    assert pressure().judge(full, now_s=0.0).level is Level.REFUSE


def test_one_long_pause_is_no_lag_and_several_are() -> None:
    ladder = pressure()
    for now_s in range(10):
        assert ladder.judge(reading(lag_s=9.0 if now_s % 2 else 0.0), now_s=now_s).level is Level.CALM
    for _ in range(LAGS_IN_A_ROW):
        ladder.judge(reading(lag_s=0.6), now_s=11.0)
    assert (ladder.verdict.level, ladder.verdict.reason) == (Level.BRIEF, "lag")
    for _ in range(LAGS_IN_A_ROW):
        ladder.judge(reading(lag_s=1.0), now_s=12.0)
    assert ladder.verdict.level is Level.REFUSE


def test_the_way_down_takes_time_and_goes_step_by_step() -> None:
    ladder = pressure()
    ladder.judge(reading(used=0.99), now_s=0.0)
    assert ladder.judge(reading(), now_s=4.9).level is Level.REFUSE
    step = ladder.judge(reading(), now_s=5.0)
    assert (step.level, step.reason) == (Level.BRIEF, "memory")
    assert ladder.judge(reading(), now_s=9.9).level is Level.BRIEF
    calm = ladder.judge(reading(), now_s=10.0)
    assert (calm.level, calm.reason) == (Level.CALM, "")


def test_what_wavers_at_a_limit_stays_on_its_level() -> None:
    """A little better is not good enough: the level would come and go."""
    ladder = pressure()
    for now_s in range(100):
        level = ladder.judge(reading(used=0.951 if now_s % 2 else 0.945), now_s=now_s).level
        assert now_s == 0 or level is Level.REFUSE


@given(
    used=st.lists(st.floats(0, 1), min_size=1, max_size=50),
    lags_s=st.lists(st.floats(0, 3), min_size=1, max_size=50),
    descriptors=st.lists(st.integers(0, 100), min_size=1, max_size=50),
)
def test_a_level_never_falls_by_two_nor_before_its_time(
    used: list[float], lags_s: list[float], descriptors: list[int]
) -> None:
    ladder, before, changed_s = pressure(), Level.CALM, 0.0
    for now_s in range(50):
        verdict = ladder.judge(
            reading(
                used=used[now_s % len(used)],
                lag_s=lags_s[now_s % len(lags_s)],
                descriptors=descriptors[now_s % len(descriptors)],
            ),
            now_s=now_s,
        )
        assert (verdict.reason == "") == (verdict.level is Level.CALM)
        if verdict.level < before:
            assert before - verdict.level == 1
            assert now_s - changed_s >= 5.0
        if verdict.level is not before:
            before, changed_s = verdict.level, now_s


@given(descriptors_max=st.integers(64, 1_000_000), in_use=st.integers(0, 60))
def test_every_request_has_a_descriptor_for_its_replica(descriptors_max: int, in_use: int) -> None:
    """T16: callers and the work for them together never take more than there is, but for a limit that is too low to serve."""
    shares = share_descriptors(descriptors_max, in_use=in_use)
    assert shares.work_max >= 1
    assert shares.connections_max > shares.work_max
    if descriptors_max > in_use + 70:
        assert shares.connections_max + shares.work_max + in_use < descriptors_max
