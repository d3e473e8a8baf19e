"""A load test's report counts every intended request once, and gives no percentile that its samples can't bear."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.load_records import GeneratorProcess, Lateness, Outcome, Window
from headrace.core.verdicts import Verdict
from headrace.policies import blocks, quantiles
from headrace.policies.load_figures import Measure, Since
from headrace.policies.load_report import summarise
from headrace.policies.proportions import Share
from tests.policies.load_rig import gaps, latencies, record, run_of, unsuccessful


@given(st.lists(st.sampled_from(list(Outcome)), max_size=60), st.floats(0, 30), st.floats(0, 30))
def test_what_was_intended_was_sent_or_not_and_has_one_outcome(
    outcomes: list[Outcome], from_s: float, length_s: float
) -> None:
    records = [
        unsuccessful(n, each, sent_s=None if each is Outcome.UNSENT else float(n))
        for n, each in enumerate(outcomes)
    ]
    report = summarise(run_of(records, window=Window(from_s, from_s + length_s)))
    assert report.intended == report.sent + report.unsent == sum(report.outcomes.values())
    assert report.intended == sum(each.count for each in report.ended)
    assert report.before + report.intended + report.after == len(records)
    for by in {stratum.by for stratum in report.strata}:
        assert sum(stratum.intended for stratum in report.strata if stratum.by == by) == report.intended
    assert report.sent == sum(each.came.samples for each in report.ended)


def test_refusals_failures_and_late_answers_are_in_no_percentile_of_answers() -> None:
    """Four hundred refusals in a millisecond don't make a service fast (REPORTS: oha 212)."""
    answers = [record(n, took_s=2.0) for n in range(100)]
    others = [
        unsuccessful(100 + n, outcome)
        for n, outcome in enumerate(
            [Outcome.REFUSED] * 400 + [Outcome.FAILED, Outcome.BROKEN, Outcome.LATE, Outcome.CANCELLED]
        )
    ]
    report = summarise(run_of([*answers, *others]))
    total = report.of(Measure.TOTAL)
    assert (total.samples, total.at(0.5).value, total.max_s) == (100, 2.0, 2.0)
    assert report.goodput.share.estimate == pytest.approx(100 / 504)
    assert report.goodput.per_s == pytest.approx(0.1)


def test_who_got_no_answer_waits_for_ever_in_the_second_column_and_only_there() -> None:
    records = [record(n) for n in range(200)] + [unsuccessful(200 + n, Outcome.FAILED) for n in range(100)]
    records += [unsuccessful(300 + n, Outcome.CANCELLED) for n in range(50)]
    chance = random.Random(1)
    chance.shuffle(records)
    report = summarise(
        run_of([msgspec.structs.replace(each, due_s=float(n)) for n, each in enumerate(records)])
    )
    everyone = report.everyone[1]
    assert (everyone.measure, everyone.samples, everyone.endless) == (Measure.TOTAL, 300, 100)
    assert not everyone.at(0.5).is_endless
    assert everyone.at(0.9).is_endless
    assert everyone.at(0.9).is_supported
    assert everyone.at(0.9).value is None
    assert report.of(Measure.TOTAL).endless == 0


def test_only_a_stream_waits_for_a_first_token_for_ever() -> None:
    """Half of the requests are streams, and one in ten fails of either half."""
    records = [
        record(n, is_streamed=n % 2 == 0)
        if n % 10 > 1
        else unsuccessful(n, Outcome.FAILED, is_streamed=n % 2 == 0)
        for n in range(200)
    ]
    first, total = summarise(run_of(records)).everyone
    assert (first.measure, first.samples, first.endless) == (Measure.TTFT, 100, 20)
    assert (total.measure, total.samples, total.endless) == (Measure.TOTAL, 200, 40)


def test_a_late_send_is_in_the_time_from_the_intended_one_and_not_in_that_from_the_actual_one() -> None:
    late = [record(n, took_s=1.0, sent_s=n + 0.5) for n in range(100)]
    report = summarise(run_of(late))
    assert report.of(Measure.TOTAL).at(0.5).value == 1.0
    assert report.of(Measure.TOTAL, Since.SENT).at(0.5).value == 0.5
    assert report.of(Measure.TTFT).at(0.5).value == pytest.approx(0.1)
    assert report.of(Measure.TTFT, Since.SENT).at(0.5).value == pytest.approx(-0.4)


def test_tpot_is_of_answers_with_more_than_one_token_and_itl_of_every_gap() -> None:
    records = [record(n, took_s=1.0, gaps=gaps(0.1, 0.1, 0.3), events=4) for n in range(10)]
    records += [record(10, output_tokens=1), record(11, output_tokens=None), record(12, is_streamed=False)]
    report = summarise(run_of(records))
    assert report.of(Measure.TPOT).samples == 10
    assert report.of(Measure.TPOT).at(0.5).value == pytest.approx(0.09)
    assert report.of(Measure.ITL).samples == 30
    assert report.of(Measure.ITL).at(0.5).value == pytest.approx(0.1, rel=0.07)
    assert report.of(Measure.PAUSE).samples == 10
    assert report.of(Measure.PAUSE).max_s == 0.3
    assert report.of(Measure.TTFT).samples == 12
    assert report.of(Measure.TOTAL).samples == 13
    assert report.rates.uncounted == 1


def test_a_percentile_that_the_samples_cannot_bear_is_not_given() -> None:
    """REPORTS: a P99 of fifty samples is their maximum by another name."""
    chance = random.Random(3)
    few = summarise(run_of([record(n, took_s=took) for n, took in enumerate(latencies(chance, 50))]))
    tail = few.of(Measure.TOTAL).at(0.99)
    assert (tail.value, tail.low, tail.high, tail.is_supported) == (None, None, None, False)
    assert (tail.worth, tail.needed) == (50, 299)
    many = summarise(run_of([record(n, took_s=took) for n, took in enumerate(latencies(chance, 900))]))
    tail = many.of(Measure.TOTAL).at(0.99)
    assert tail.low is not None
    assert tail.value is not None
    assert tail.high is not None
    assert tail.low <= tail.value <= tail.high


def test_slow_and_fast_times_of_a_run_count_as_few_samples() -> None:
    """Latencies of one queue depend on each other: a thousand in ten bursts are not a thousand."""
    took = [5.0 if n // 100 % 2 else 1.0 for n in range(1000)]
    chance = random.Random(4)
    bursts = summarise(run_of([record(n, took_s=each) for n, each in enumerate(took)]))
    chance.shuffle(took)
    mixed = summarise(run_of([record(n, took_s=each) for n, each in enumerate(took)]))
    assert mixed.of(Measure.TOTAL).at(0.5).worth > 300
    assert bursts.of(Measure.TOTAL).at(0.5).worth < 30
    assert bursts.goodput.share.low == mixed.goodput.share.low


def test_gaps_of_one_stream_are_not_many_samples() -> None:
    """Four streams tell of four, however many events they have."""
    slow_and_fast = [gaps(*[0.1 if n % 2 else 0.01] * 500) for n in range(4)]
    report = summarise(run_of([record(n, gaps=each) for n, each in enumerate(slow_and_fast)]))
    assert report.of(Measure.ITL).samples == 2000
    assert {figure.worth for figure in report.of(Measure.ITL).figures} == {4}


def test_strata_hold_what_belongs_together() -> None:
    records = [
        record(0, is_cold=True, prefix_group=1, cached_tokens=0, planned_output_tokens=10),
        record(1, is_cold=False, prefix_group=1, cached_tokens=64, turn=2, planned_output_tokens=5000),
        record(2, cached_tokens=None, is_streamed=False, input_tokens=40000, planned_output_tokens=40),
        unsuccessful(3, Outcome.REFUSED, planned_input_tokens=600),
        unsuccessful(4, Outcome.UNSENT, sent_s=None, prefix_group=1, planned_input_tokens=600),
    ]
    strata = {(each.by, each.name): each.intended for each in summarise(run_of(records)).strata}
    assert strata == {
        ("prefix", "first of its prefix"): 1, ("prefix", "prefix asked before"): 1, ("prefix", "none shared"): 2,
        ("prefix", "never sent"): 1,
        ("cache", "hit"): 1, ("cache", "miss"): 1, ("cache", "not said"): 3,
        ("turn", "first"): 4, ("turn", "later"): 1, ("answer", "streamed"): 4, ("answer", "whole"): 1,
        ("input", "under 128 tokens"): 2, ("input", "32768 tokens and more"): 1, ("input", "512 to 2047 tokens"): 2,
        ("output", "under 32 tokens"): 3, ("output", "2048 tokens and more"): 1, ("output", "32 to 127 tokens"): 1,
    }  # fmt: skip


def test_refusals_with_and_without_a_time_to_come_back_are_told_apart() -> None:
    refused = [
        unsuccessful(
            n, Outcome.REFUSED, reason="rate_limited", status=429, has_retry_after=n < 2, took_s=0.01
        )
        for n in range(5)
    ]
    report = summarise(run_of([*refused, record(5)]))
    assert [(each.outcome, each.has_retry_after, each.count) for each in report.ended] == [
        (Outcome.OK, False, 1), (Outcome.REFUSED, False, 3), (Outcome.REFUSED, True, 2),
    ]  # fmt: skip
    assert report.ended[1].came.max_s == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"lateness": Lateness(0.01, 0.2, 0.3)}, "0.200 s late"),
        ({"processes": [GeneratorProcess(0, 1, 0.97)]}, "97% of its core"),
        ({"processes": [GeneratorProcess(0, 1, 0.1, "killed by signal 9")]}, "was lost: killed"),
        ({"records": []}, "no request was due"),
        (
            {"records": [record(0), unsuccessful(1, Outcome.UNSENT, sent_s=None)]},
            "1 of 2 requests were due and not sent",
        ),
    ],
)
def test_a_generator_that_did_not_keep_up_makes_the_run_void(fields: dict[str, object], says: str) -> None:
    generator = summarise(run_of(fields.pop("records", [record(0)]), **fields)).generator  # type: ignore[arg-type]
    assert generator.verdict is Verdict.ERROR
    assert says in " ".join(generator.void)


def test_a_generator_that_kept_up_makes_a_run_that_counts() -> None:
    report = summarise(run_of([record(0, revision="r2"), record(1, revision="r1")]))
    assert report.generator.verdict is Verdict.PASS
    assert report.revisions == ("r1", "r2")
    assert msgspec.json.decode(msgspec.json.encode(report))["intended"] == 2


@given(st.integers(0, 500))
def test_blocks_are_all_of_it_in_order(count: int) -> None:
    parts = blocks.cut(range(count))
    assert [item for part in parts for item in part] == list(range(count))
    assert len(parts) <= blocks.BLOCKS
    assert len(parts) == min(count, max(blocks.BLOCKS_MIN, min(blocks.BLOCKS, count // 5)))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=20))
def test_samples_are_worth_one_at_least_and_their_number_at_most(pairs: list[tuple[int, int]]) -> None:
    found = blocks.worth([Share(events, events + rest) for events, rest in pairs])
    total = sum(events + rest for events, rest in pairs)
    assert min(1, total) <= found <= total


def test_half_of_blocks_that_are_all_alike_inside_are_worth_their_number() -> None:
    found = blocks.worth([Share(100 * (n % 2), 100) for n in range(20)])
    assert found == 19


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=300),
    st.integers(1, 300),
    st.sampled_from([0.5, 0.9, 0.95]),
)
def test_fewer_independent_samples_never_make_an_interval_narrower(
    values: list[float], worth: int, quantile: float
) -> None:
    samples = quantiles.Samples(values)
    full = quantiles.interval(samples, quantile, alpha=0.05)
    less = quantiles.interval(samples, quantile, alpha=0.05, worth=min(worth, len(values)))
    assert less.estimate == full.estimate
    assert (less.low if less.low is not None else -math.inf) <= (
        full.low if full.low is not None else math.inf
    )
    same = quantiles.interval(samples, quantile, alpha=0.05, worth=len(values))
    assert same == full
