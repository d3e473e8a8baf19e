"""Whose fault was it, and was it the load that was promised? Requests as promises see them."""

import msgspec
import pytest

from headrace.core.endings import ENDINGS
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.load_records import Gaps, Lateness, LoadRecord, LoadRun, Outcome, Window
from headrace.core.slo import LoadLimits
from headrace.core.usage import UsageRecord
from headrace.core.verdicts import Verdict
from headrace.policies import slo_requests
from headrace.policies.slo import Fate, Seen
from headrace.policies.slo_requests import OUR_REASONS, Reach

RECORD = LoadRecord(
    0, 10.0, 10.1, 10.5, 12.5, 12.6, Outcome.OK,
    status=200, input_tokens=100, output_tokens=21, gaps=Gaps(20, 2.0, 0.3), is_streamed=True,
)  # fmt: skip
USAGE = UsageRecord(
    RequestId("req_1"), TenantId("t"), KeyId("k"), "chat", "r", "chat", True, 0.0, "delivered", "ok", 200,
    100, 21, 0, "final", 0.0, 0.5, 2.5, 1,
)  # fmt: skip


# Load tests


def test_times_begin_when_the_request_was_due_and_not_when_a_busy_generator_sent_it() -> None:
    seen = slo_requests.of_record(RECORD)
    assert seen.fate is Fate.WHOLE
    assert (seen.total_s, seen.ttft_s) == (pytest.approx(2.6), pytest.approx(0.5))
    assert (seen.pause_s, seen.tpot_s) == (0.3, pytest.approx(0.1))
    assert (seen.input_tokens, seen.output_tokens) == (100, 21)


def test_one_token_has_no_pace_and_what_does_not_stream_no_pause() -> None:
    one = msgspec.structs.replace(RECORD, output_tokens=1, gaps=Gaps())
    assert (slo_requests.of_record(one).tpot_s, slo_requests.of_record(one).pause_s) == (None, None)
    whole = msgspec.structs.replace(RECORD, is_streamed=False)
    assert slo_requests.of_record(whole).tpot_s is None


def test_the_planned_length_counts_where_the_service_said_none() -> None:
    refused = LoadRecord(0, 0, 0, None, None, 0.1, Outcome.REFUSED, status=503, planned_input_tokens=5000)
    assert slo_requests.of_record(refused).input_tokens == 5000


@pytest.mark.parametrize(
    ("outcome", "status", "reason", "fate"),
    [
        (Outcome.LATE, 200, "", Fate.LATE),
        (Outcome.REFUSED, 503, "queue_full", Fate.REFUSED),
        (Outcome.REFUSED, 429, "rate_limited", Fate.CALLERS),
        (Outcome.REFUSED, 429, "", Fate.REFUSED),
        (Outcome.FAILED, 502, "", Fate.FAILED),
        (Outcome.FAILED, 400, "", Fate.CALLERS),
        (Outcome.FAILED, 200, "", Fate.FAILED),
        (Outcome.FAILED, 0, "", Fate.FAILED),
        (Outcome.BROKEN, 200, "", Fate.BROKEN),
        (Outcome.CANCELLED, 200, "", Fate.LEFT),
        (Outcome.UNSENT, 0, "", Fate.UNSENT),
    ],
)
def test_whose_fault_it_was_the_status_says(outcome: Outcome, status: int, reason: str, fate: Fate) -> None:
    record = msgspec.structs.replace(RECORD, outcome=outcome, status=status, reason=reason)
    assert slo_requests.of_record(record).fate is fate


def run(
    *due_s: float, takes_s: float = 1.0, window_s: float = 100.0, concurrency: int | None = None
) -> LoadRun:
    records = [
        LoadRecord(number, at_s, at_s, at_s, at_s + takes_s, at_s + takes_s, Outcome.OK)
        for number, at_s in enumerate(due_s)
    ]
    return LoadRun(
        "w", "d", 1, "u", "chat", 0.0, window_s, Window(0.0, window_s), records, Lateness(), [],
        is_closed=concurrency is not None, concurrency=concurrency,
    )  # fmt: skip


def test_only_what_was_due_in_the_window_counts() -> None:
    assert len(list(slo_requests.of_run(run(-1.0, 0.0, 50.0, 100.0)))) == 2


@pytest.mark.parametrize(
    ("limits", "loaded", "reach"),
    [
        (LoadLimits(), run(), Reach.THERE),
        (LoadLimits(requests_per_s_max=1), run(*range(100)), Reach.THERE),
        (LoadLimits(requests_per_s_max=1), run(*range(30)), Reach.BELOW),
        (LoadLimits(requests_per_s_max=1), run(), Reach.BELOW),
        (LoadLimits(requests_per_s_max=1), run(*range(9)), Reach.BELOW),
        (LoadLimits(requests_per_s_max=1), run(1, window_s=0), Reach.BELOW),
        (LoadLimits(requests_per_s_max=0.3), run(*range(100)), Reach.ABOVE),
        (LoadLimits(requests_per_s_max=9, concurrency_max=2), run(1, 2, concurrency=2), Reach.THERE),
        (LoadLimits(concurrency_max=2), run(1, 2, concurrency=2), Reach.THERE),
        (LoadLimits(concurrency_max=2), run(1, 2, concurrency=1), Reach.BELOW),
        (LoadLimits(concurrency_max=2), run(1, 2, concurrency=3), Reach.ABOVE),
        (LoadLimits(concurrency_max=2), run(*range(100)), Reach.BELOW),
        (LoadLimits(concurrency_max=2), run(*range(100), takes_s=9.0), Reach.THERE),
    ],
)
def test_a_run_is_at_the_load_that_was_promised_or_it_is_not(
    limits: LoadLimits, loaded: LoadRun, reach: Reach
) -> None:
    assert slo_requests.reach(limits, loaded) is reach


def test_what_is_excused_as_the_callers_is_no_load() -> None:
    """A service that finds no model for nine in ten requests has shown what it does at a tenth of the rate."""
    loaded = run(*range(100))
    unknown = [
        msgspec.structs.replace(each, outcome=Outcome.FAILED, status=404) if each.number % 10 else each
        for each in loaded.records
    ]
    promised = LoadLimits(requests_per_s_max=1)
    assert slo_requests.reach(promised, loaded) is Reach.THERE
    assert slo_requests.reach(promised, msgspec.structs.replace(loaded, records=unknown)) is Reach.BELOW


@pytest.mark.parametrize(
    ("verdict", "reach", "says"),
    [
        (Verdict.PASS, Reach.BELOW, Verdict.INCONCLUSIVE),
        (Verdict.PASS, Reach.ABOVE, Verdict.PASS),
        (Verdict.FAIL, Reach.BELOW, Verdict.FAIL),
        (Verdict.FAIL, Reach.ABOVE, Verdict.INCONCLUSIVE),
        (Verdict.INCONCLUSIVE, Reach.THERE, Verdict.INCONCLUSIVE),
    ],
)
def test_less_load_proves_nothing_and_more_refutes_nothing(
    verdict: Verdict, reach: Reach, says: Verdict
) -> None:
    assert slo_requests.at_reach(verdict, reach) is says


# The ledger


def test_a_record_of_the_ledger_is_what_its_caller_saw() -> None:
    assert slo_requests.of_usage(USAGE) == Seen(Fate.WHOLE, 2.5, 0.5, None, 0.1, 100, 21)
    whole = msgspec.structs.replace(USAGE, is_streaming=False)
    assert slo_requests.of_usage(whole).tpot_s is None


def test_a_record_without_counts_has_no_lengths() -> None:
    unknown = msgspec.structs.replace(USAGE, prompt_tokens=0, completion_tokens=0)
    assert slo_requests.of_usage(unknown)[5:] == (None, None)


@pytest.mark.parametrize(
    ("outcome", "reason", "status", "fate"),
    [
        ("failed", "upstream_error", 502, Fate.FAILED),
        ("failed", "upstream_rejected", 400, Fate.CALLERS),
        ("broken", "upstream_rejected", 400, Fate.CALLERS),
        ("broken", "upstream_lost", 502, Fate.BROKEN),
        ("failed", "deadline_exceeded", 504, Fate.LATE),
        ("cancelled", "client_gone", 499, Fate.LEFT),
        ("refused", "draining", 503, Fate.REFUSED),
    ],
)
def test_an_ending_of_the_ledger_has_its_fault(outcome: str, reason: str, status: int, fate: Fate) -> None:
    record = msgspec.structs.replace(USAGE, outcome=outcome, reason=reason, status=status)
    assert slo_requests.of_usage(record).fate is fate


def test_refusals_of_which_only_the_reasons_are_known_are_counted_by_whose_fault_they_are() -> None:
    counted = slo_requests.of_refusals({"queue_full": 3, "rate_limited": 2, "draining": 1})
    assert counted == {Seen(Fate.REFUSED): 4, Seen(Fate.CALLERS): 2}


def test_what_is_ours_is_what_is_answered_from_500_on() -> None:
    assert {"queue_full", "upstream_lost", "no_ready_replica", "internal_error"} <= set(OUR_REASONS)
    for ending in ENDINGS.values():
        if ending.error is not None and ending.error.status < 500:
            assert ending.reason not in OUR_REASONS
