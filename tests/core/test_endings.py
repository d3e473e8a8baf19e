"""The table of endings keeps its own rules: what is promised, retried and charged follows from how far a request had come."""

import pytest

from headrace.core import endings, errors
from headrace.core.endings import ENDINGS, Charge, Ending, Stage
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.outcome import AttemptOutcome, Outcome, Reason
from headrace.core.usage import TokenUsage, UsageRecord, UsageSource

ROWS = list(ENDINGS.values())


def name(row: Ending) -> str:
    return f"{row.reason}-{row.stage}"


def record_of(row: Ending) -> UsageRecord:
    return UsageRecord(
        request_id=RequestId("r"),
        tenant=TenantId("t"),
        key_id=KeyId("k"),
        model="m",
        revision="v",
        endpoint="/v1/chat/completions",
        is_streaming=True,
        started_s=0.0,
        outcome=row.outcome,
        reason=row.reason,
        status=200,
        prompt_tokens=1,
        completion_tokens=1,
        cached_tokens=0,
        usage_source="final",
        queue_wait_s=0.0,
        ttft_s=0.5 if row.stage is Stage.ANSWERING else None,
        total_s=1.0,
        attempts=0 if row.stage is Stage.UNSTARTED else 1,
    )


def test_no_row_is_lost_behind_another_and_every_reason_has_one() -> None:
    assert len(ROWS) == sum(map(len, endings._TABLE))
    assert {row.reason for row in ROWS} == set(Reason)


def test_an_attempt_can_only_end_in_a_way_that_ends_a_request_too() -> None:
    """Whatever a replica does, a request that ends with it has its row."""
    ends = {row.attempt for row in ROWS}
    assert ends == set(AttemptOutcome) | {None}
    for outcome in set(AttemptOutcome) - {AttemptOutcome.COMPLETED, AttemptOutcome.CANCELLED}:
        assert endings.find(outcome, Stage.WORKING).attempt is outcome


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_the_outcome_says_how_far_a_request_had_come(row: Ending) -> None:
    """Three promises to the caller: refused before any work, failed before the first byte, broken after it."""
    by_stage = {
        Stage.UNSTARTED: Outcome.REFUSED,
        Stage.WORKING: Outcome.FAILED,
        Stage.ANSWERING: Outcome.DELIVERED if row.error is None else Outcome.BROKEN,
    }
    has_left = row.error is errors.ClientGone
    assert row.outcome is (Outcome.CANCELLED if has_left else by_stage[row.stage])
    assert (row.attempt is None) == (row.stage is Stage.UNSTARTED)
    assert row.event == (None if row.outcome is Outcome.DELIVERED else f"request.{row.outcome}")


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_nothing_is_tried_again_after_the_first_byte_nor_for_what_another_replica_would_do_too(
    row: Ending,
) -> None:
    """T25, T26, REPORTS 48: a fault of this replica, or a full one; not a bad request, and not a caller who left."""
    is_of_the_replica = row.attempt is not None and (
        row.attempt.is_replica_fault or row.attempt is AttemptOutcome.BUSY
    )
    assert row.may_retry == (row.stage is Stage.WORKING and is_of_the_replica)


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_nobody_pays_for_what_never_came_except_who_left(row: Ending) -> None:
    """REPORTS 32 and 34: our failure costs nothing before the first byte, and only what came after it."""
    if row.stage is Stage.UNSTARTED or row.outcome is Outcome.FAILED:
        assert row.charge is Charge.NOTHING
    elif row.outcome is Outcome.BROKEN:
        assert row.charge is Charge.DELIVERED
    else:
        assert row.charge is Charge.GENERATED


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_record_knows_its_charge(row: Ending) -> None:
    record = record_of(row)
    assert record.charge_rule is row.charge
    assert record.usage == TokenUsage(1, 1, 0, UsageSource.FINAL)


@pytest.mark.parametrize("row", [row for row in ROWS if row.attempt and row.error], ids=name)
def test_a_row_makes_its_error(row: Ending) -> None:
    """With the reason in it, and `retry_after_s` where a caller should come back."""
    error = row.as_error(retry_after_s=7.0)
    assert (type(error), error.reason) == (row.error, row.reason)
    assert error.message == row.message
    assert error.retry_after_s == (7.0 if isinstance(error, errors.OverloadError) else None)


def test_the_words_of_a_replica_are_shown_where_they_speak_of_the_request_alone() -> None:
    """REPORTS 5: why the request is invalid helps its caller; how a replica failed is its own affair."""
    said = "too many tokens"
    assert endings.find(Reason.REJECTED, Stage.WORKING).as_error(said).message == said
    assert endings.find(Reason.ERRED, Stage.WORKING).as_error(said).message == "the replica failed"
