"""What is known of a load test's requests, and whether it survives being written down."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.load import EDGES_S, Histogram
from headrace.core.load_records import (
    Gaps,
    GeneratorProcess,
    Lateness,
    LoadRecord,
    LoadRun,
    Outcome,
    Window,
)

GAPS = st.floats(min_value=0.0, max_value=2000.0)


def run(*records: LoadRecord, processes: list[GeneratorProcess] | None = None) -> LoadRun:
    return LoadRun(
        workload="steady",
        digest="sha256:0",
        seed=1,
        url="http://127.0.0.1:8000",
        model="chat",
        began_at_s=1_700_000_000.0,
        duration_s=10.0,
        window=Window(1.0, 10.0),
        records=list(records),
        lateness=Lateness(),
        processes=processes or [],
        is_closed=False,
    )


@given(st.lists(st.lists(GAPS, max_size=20), max_size=5))
def test_gaps_of_many_streams_together_are_what_one_histogram_of_all_would_be(
    streams: list[list[float]],
) -> None:
    pooled, expected = Histogram(), Histogram()
    for stream in streams:
        gaps = Gaps()
        for gap_s in stream:
            gaps.observe(gap_s)
            expected.observe(gap_s)
        gaps.add_to(pooled)
        assert gaps.count == len(stream)
        assert gaps.max_s == max(stream, default=0.0)
    assert pooled.counts == expected.counts
    assert pooled.sum_s == pytest.approx(expected.sum_s)


def test_events_that_came_together_have_no_time_between_them() -> None:
    gaps = Gaps()
    gaps.observe(0.25)
    gaps.observe_together(3)
    pooled = Histogram()
    gaps.add_to(pooled)
    assert (gaps.count, gaps.sum_s) == (4, 0.25)
    assert pooled.counts[0] == 3
    assert len(pooled.counts) == len(EDGES_S) + 1


def test_a_request_is_never_sent_early_and_one_that_was_not_sent_is_not_late() -> None:
    sent = LoadRecord(0, 1.0, 1.25, 1.5, 2.0, 2.0, Outcome.OK)
    assert sent.late_by_s == 0.25
    assert msgspec.structs.replace(sent, sent_s=0.999).late_by_s == 0.0
    assert msgspec.structs.replace(sent, sent_s=None, outcome=Outcome.UNSENT).late_by_s is None


def test_a_request_belongs_to_the_window_that_it_was_due_in() -> None:
    window = Window(1.0, 2.0)
    due = [0.999, 1.0, 1.999, 2.0]
    records = [LoadRecord(0, due_s, due_s, None, None, 9.0, Outcome.FAILED) for due_s in due]
    assert [window.holds(record) for record in records] == [False, True, True, False]


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_run_is_the_same_after_it_was_written_and_read(is_binary: bool) -> None:
    gaps = Gaps()
    gaps.observe(0.02)
    record = LoadRecord(
        3, 1.0, 1.0, 1.5, 2.0, 2.0, Outcome.LATE, "late", 200, gaps=gaps, prefix_group=2, process=1
    )
    before = run(
        record, processes=[GeneratorProcess(0, 1, 0.5), GeneratorProcess(1, 0, 0.75, "killed by SIGKILL")]
    )
    encoded = msgspec.msgpack.encode(before) if is_binary else msgspec.json.encode(before)
    decode = msgspec.msgpack.decode if is_binary else msgspec.json.decode
    assert decode(encoded, type=LoadRun) == before
    assert before.cpu_share == 0.75
    assert run().cpu_share == 0.0
