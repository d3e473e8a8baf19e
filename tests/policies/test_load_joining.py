"""The parts of a request's time add up to what its caller waited, and what can't be joined is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.load_records import Outcome
from headrace.policies import load_joining
from headrace.policies.load_joining import Inside
from tests.policies.load_rig import record, unsuccessful

TIMES = st.floats(0, 10)


@given(TIMES, TIMES, TIMES, TIMES, TIMES)
def test_the_parts_add_up_to_the_time_from_the_intended_send(
    late_s: float, took_s: float, queue_s: float, execution_s: float, inside_s: float
) -> None:
    known = record(3, took_s=late_s + took_s, sent_s=3 + late_s)
    found = load_joining.split(known, Inside(queue_s, execution_s, inside_s))
    assert found is not None
    assert found.total_s == pytest.approx(known.ended_s - known.due_s, abs=1e-9)


def test_what_is_joined_what_is_not_and_what_it_cost() -> None:
    records = [
        record(0, took_s=1.0, request_id="a"),
        record(1, took_s=2.0, request_id="b", sent_s=1.5),
        record(2, took_s=0.1, request_id="c"),
        unsuccessful(3, Outcome.REFUSED, request_id="d"),
        unsuccessful(4, Outcome.BROKEN, request_id="e"),
        record(5),
        unsuccessful(6, Outcome.UNSENT, sent_s=None),
    ]
    inside = {
        "a": Inside(0.2, 0.5, 0.9, 1, 5, "EUR"),
        "b": Inside(0.4, 0.8, 1.4, 2, 7, "EUR"),
        "c": Inside(0.0, 5.0, 5.0, 1, 1, "USD"),
        "e": Inside(0.0, 0.001, 0.001),
    }
    found = load_joining.join(records, inside)
    assert (found.matched, found.nameless, found.unmatched) == (4, 1, {"refused": 1})
    assert (found.whole, found.misfits, found.retried) == (2, 1, 1)
    assert found.charges == {"EUR": 12, "USD": 1}
    assert found.mean is not None
    assert found.mean.total_s == pytest.approx(1.5)
    assert found.mean.queue_s == pytest.approx(0.3)
    assert found.slow is not None
    assert [getattr(found.slow, f"{part}_s") for part in load_joining.PARTS] == pytest.approx(
        [0.5, 0.1, 0.4, 0.8, 0.2]
    )


def test_nothing_has_no_parts() -> None:
    found = load_joining.join([], {})
    assert (found.mean, found.slow, found.matched) == (None, None, 0)
    assert load_joining.split(unsuccessful(0, Outcome.UNSENT, sent_s=None), Inside(0, 0, 0)) is None
