"""What a workload comes to is counted from the requests themselves."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.workload import (
    ArrivalKind,
    Arrivals,
    Cancel,
    LengthKind,
    Lengths,
    Prefixes,
    Turns,
    Workload,
    constant,
)
from headrace.policies import workload_plan
from headrace.policies.workload_plan import Planned
from headrace.policies.workload_summary import SPANS_MAX, WorkloadSummary, summarise


def workload(**said: Any) -> Workload:
    arrivals = said.pop("arrivals", Arrivals(ArrivalKind.CONSTANT, rate_per_s=2.0))
    return Workload("w", arrivals, **{"input_tokens": constant(100), "output_tokens": constant(10), **said})


def summary(of: Workload, **terms: Any) -> WorkloadSummary:
    return summarise(workload_plan.plan(of, chance=Random(1), **terms))


def test_totals_are_those_of_the_requests_and_rates_those_of_their_time() -> None:
    found = summary(workload(), duration_s=60.0)
    assert (found.requests, found.conversations, found.groups) == (120, 120, 0)
    assert (found.duration_s, found.rate_per_s) == (60.0, 2.0)
    assert (found.input_total, found.output_total, found.shared) == (12_000, 1200, 0.0)
    assert (found.input_tokens.p50, found.input_tokens.mean) == (100, 100.0)
    assert found.span_s == 1.0
    assert sum(found.spans) == 120
    assert found.peak_per_s == max(found.spans)


def test_quantiles_are_by_nearest_rank_and_bounded_by_the_least_and_the_most() -> None:
    of = workload(input_tokens=Lengths(LengthKind.UNIFORM, minimum=10, maximum=1000))
    spread = summary(of, duration_s=500.0).input_tokens
    assert spread.least == spread.quantiles[0] < spread.p50 < spread.p90 < spread.p99 <= spread.most
    assert spread.quantiles[-1] == spread.most
    assert spread.p50 == pytest.approx(505, rel=0.1)


def test_what_is_shared_is_the_common_beginning_and_what_was_said_before() -> None:
    of = workload(
        prefixes=Prefixes(20, 2, 1.0, constant(30)),
        turns=Turns(constant(2), gap_s=0.1, tokens=constant(5)),
    )
    found = summary(of, duration_s=1000.0)
    # 50 of 100 in a first turn; in the second 110 of 115, the first prompt and its answer.
    assert found.shared == pytest.approx((50 + 110) / (100 + 115), rel=0.02)
    assert (found.own_tokens.least, found.own_tokens.most) == (5, 50)
    assert found.groups == 2


def test_shares_of_streams_and_of_callers_who_leave_are_counted() -> None:
    found = summary(workload(stream_share=0.5, cancel=Cancel(0.25, after_s=1.0)), duration_s=2000.0)
    assert found.streamed == pytest.approx(0.5, abs=0.03)
    assert found.cancelled == pytest.approx(0.25, abs=0.03)
    by_tokens = summary(workload(cancel=Cancel(1.0, after_tokens=2)), duration_s=5.0)
    assert by_tokens.cancelled == 1.0


def test_a_closed_loop_has_no_times_and_nothing_has_no_lengths() -> None:
    closed = workload(arrivals=Arrivals(ArrivalKind.CLOSED, concurrency=2), requests_max=5)
    found = summary(closed)
    assert (found.requests, found.duration_s, found.rate_per_s, found.spans) == (5, None, None, [])
    nothing = summarise([])
    assert (nothing.requests, nothing.input_tokens.most, nothing.shared, nothing.streamed) == (0, 0, 0.0, 0.0)


@given(last_s=st.floats(0.001, 1e9))
def test_spans_are_few_and_hold_every_request(last_s: float) -> None:
    first = next(workload_plan.plan(workload(), chance=Random(1)))._replace(due_s=0.0)
    found = summarise([first, first._replace(number=1, due_s=last_s)])
    assert sum(found.spans) == 2
    assert len(found.spans) <= SPANS_MAX
    assert found.span_s is not None
    assert len(found.spans) * found.span_s >= last_s


def test_requests_that_come_at_once_have_no_rate() -> None:
    first = next(workload_plan.plan(workload(), chance=Random(1)))._replace(due_s=0.0)
    assert summarise([first]).rate_per_s is None


def test_a_conversation_of_unknown_length_shares_what_was_said_before() -> None:
    def turn(number: int, **changed: Any) -> Planned:
        return Planned(
            number, float(number), 100, 10, None, 0, 7, number + 1, True, None, None, None, **changed
        )

    found = summarise([turn(0, turns=0), turn(1, turns=0)._replace(input_tokens=150)])
    assert found.own_tokens.least == 40
