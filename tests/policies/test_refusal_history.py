"""What was turned away is known by minute and reason, of reports that only grow."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import TargetKey
from headrace.core.load import PlaneLoad, TargetLoad
from headrace.policies import refusal_history
from headrace.policies.refusal_history import UNNAMED, RefusalHistory

T0 = 1_800_000_000.0 - 1_800_000_000.0 % 60


def report(*targets: TargetLoad) -> PlaneLoad:
    return PlaneLoad(1, list(targets), [])


def target(refused: int, *, name: str = "chat", key: str = "", **causes: int) -> TargetLoad:
    return TargetLoad(
        target=TargetKey(key or name),
        name=name,
        revision="r",
        arrived=refused,
        refused=refused,
        causes=causes,
    )


def test_what_was_added_since_the_last_report_is_put_to_its_minute() -> None:
    history = RefusalHistory(wall_s=T0)
    history.saw(report(target(3, queue_full=3)), wall_s=T0 + 30)
    history.saw(report(target(3, queue_full=3)), wall_s=T0 + 50)
    history.saw(report(target(5, queue_full=3, rate_limited=2)), wall_s=T0 + 130)
    everything = history.since("chat", T0, wall_s=T0 + 140)
    assert everything.reasons == {"queue_full": 3, "rate_limited": 2}
    assert everything.known_from_s == T0
    assert history.since("chat", T0 + 60, wall_s=T0 + 140).reasons == {"rate_limited": 2}
    assert history.since("other", T0, wall_s=T0 + 140).reasons == {}


def test_versions_of_a_model_are_counted_together() -> None:
    history = RefusalHistory(wall_s=T0)
    history.saw(
        report(target(1, key="chat@v1", queue_full=1), target(2, key="chat@v2", queue_full=2)), wall_s=T0
    )
    assert history.since("chat", T0, wall_s=T0).reasons == {"queue_full": 3}


def test_a_reason_that_ends_begun_requests_too_is_counted_without_its_name() -> None:
    """The report has four ended by a deadline, of which two were turned away before any work."""
    history = RefusalHistory(wall_s=T0)
    history.saw(report(target(3, queue_full=1, deadline_exceeded=4)), wall_s=T0)
    assert history.since("chat", T0, wall_s=T0).reasons == {"queue_full": 1, UNNAMED: 2}


def test_counts_that_begin_anew_are_all_new_and_a_target_that_went_is_forgotten() -> None:
    history = RefusalHistory(wall_s=T0)
    history.saw(report(target(5, queue_full=5)), wall_s=T0)
    history.saw(report(target(1, queue_full=1)), wall_s=T0)
    assert history.since("chat", T0, wall_s=T0).reasons == {"queue_full": 6}
    history.saw(report(target(1, name="other", queue_full=1)), wall_s=T0)
    history.saw(report(target(2, queue_full=2)), wall_s=T0)
    assert history.since("chat", T0, wall_s=T0).reasons == {"queue_full": 8}


def test_a_target_that_refused_nothing_leaves_nothing() -> None:
    history = RefusalHistory(wall_s=T0)
    history.saw(report(target(0)), wall_s=T0)
    assert history.since("chat", T0 - 9, wall_s=T0) == ({}, T0)


def test_only_the_last_days_are_kept_and_only_so_many_models() -> None:
    history = RefusalHistory(wall_s=T0)
    late_s = T0 + refusal_history.KEEP_S + 120
    history.saw(report(target(1, queue_full=1)), wall_s=T0)
    history.saw(report(target(2, queue_full=2)), wall_s=late_s)
    found = history.since("chat", T0, wall_s=late_s)
    assert found == ({"queue_full": 1}, late_s - refusal_history.KEEP_S)
    for number in range(refusal_history.MODELS_MAX):
        history.saw(report(target(1, name=f"m{number}", queue_full=1)), wall_s=late_s)
    assert history.since("chat", T0, wall_s=late_s).reasons == {}


def test_a_clock_that_is_set_back_puts_it_to_the_minute_that_is_there() -> None:
    history = RefusalHistory(wall_s=T0)
    history.saw(report(target(1, queue_full=1)), wall_s=T0 + 600)
    history.saw(report(target(2, queue_full=2)), wall_s=T0)
    assert history.since("chat", T0 + 600, wall_s=T0 + 600).reasons == {"queue_full": 2}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0, 90)), max_size=30))
def test_every_refusal_is_counted_once(added: list[tuple[int, int, float]]) -> None:
    history, now_s, full, limited = RefusalHistory(wall_s=T0), T0, 0, 0
    for more_full, more_limited, later_s in added:
        full, limited, now_s = full + more_full, limited + more_limited, now_s + later_s
        history.saw(report(target(full + limited, queue_full=full, rate_limited=limited)), wall_s=now_s)
    assert sum(history.since("chat", T0, wall_s=now_s).reasons.values()) == full + limited
