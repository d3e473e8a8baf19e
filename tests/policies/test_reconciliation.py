"""Books that agree have no difference; each way to disagree has its cause."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.endings import ENDINGS
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.outcome import AttemptOutcome, Outcome
from headrace.core.prices import Item, Price, rates_of
from headrace.core.request import Endpoint
from headrace.core.usage import ExecutionRecord, UsageRecord, UsageSource
from headrace.policies import charging
from headrace.policies.prices import PriceBook
from headrace.policies.reconciliation import CallerSaw, Cause, Difference, Findings, compare, examine

STATED = {Item.INPUT: "0.15", Item.CACHED_INPUT: "0.075", Item.OUTPUT: "0.60", Item.REQUEST: "0.0001"}
PRICES = [
    Price("p1", "", "*", "EUR", 0.0, STATED, rates_of(STATED)),
    Price("p2", "", "*", "EUR", 9e9, None, None),
]
BOOK = PriceBook(PRICES)
RATES = rates_of(STATED)


def record(**changes: object) -> UsageRecord:
    """A delivered request on its first attempt, charged as it should be."""
    made = UsageRecord(
        request_id=RequestId("req_1"),
        tenant=TenantId("acme"),
        key_id=KeyId("k3x9q2ab"),
        model="m",
        revision="unpinned",
        endpoint=str(Endpoint.CHAT_COMPLETIONS),
        is_streaming=True,
        started_s=100.0,
        outcome=str(Outcome.DELIVERED),
        reason="ok",
        status=200,
        prompt_tokens=100,
        completion_tokens=20,
        cached_tokens=40,
        usage_source=str(UsageSource.FINAL),
        queue_wait_s=0.0,
        ttft_s=0.1,
        total_s=0.5,
        attempts=1,
        price_version="p1",
    )
    made = msgspec.structs.replace(made, **changes)
    if "charge_pico" not in changes and made.price_version:
        due = charging.charge(made.charge_rule, made.usage, RATES, unit=Endpoint(made.endpoint).unit)
        made = msgspec.structs.replace(made, charge_pico=due)
    return made


def attempt(of: UsageRecord, number: int = 1, **changes: object) -> ExecutionRecord:
    made = ExecutionRecord(
        request_id=of.request_id,
        attempt=number,
        replica=ReplicaId("r-0"),
        generation=0,
        started_s=of.started_s,
        duration_s=of.total_s,
        ttft_s=of.ttft_s,
        outcome=str(AttemptOutcome.COMPLETED),
        upstream_status=200,
        prompt_tokens=of.prompt_tokens,
        completion_tokens=of.completion_tokens,
        cached_tokens=of.cached_tokens,
        usage_source=of.usage_source,
    )
    return msgspec.structs.replace(made, **changes)


def causes(found: object) -> list[Cause]:
    return [difference.cause for difference in found]  # type: ignore[attr-defined]


def test_books_that_agree_have_no_difference() -> None:
    made = record()
    assert not list(examine(made, [attempt(made)], BOOK))
    retried = record(attempts=2)
    lost = attempt(retried, 1, outcome=str(AttemptOutcome.LOST), completion_tokens=3)
    assert not list(examine(retried, [lost, attempt(retried, 2)], BOOK))
    free = record(price_version="", started_s=-1.0)
    assert not list(examine(free, [attempt(free)], BOOK))
    unstarted = record(
        outcome=str(Outcome.CANCELLED), reason="client_gone", attempts=0, prompt_tokens=0, completion_tokens=0,
        cached_tokens=0, usage_source=str(UsageSource.NONE), ttft_s=None,
    )  # fmt: skip
    assert not list(examine(unstarted, [], BOOK))


@pytest.mark.parametrize("numbers", [[], [2], [1, 3], [1, 2, 3], [2, 1]])
def test_attempts_are_all_there_each_once_and_in_their_order(numbers: list[int]) -> None:
    made = record(attempts=2)
    found = list(examine(made, [attempt(made, number) for number in numbers], BOOK))
    assert found == [Difference(Cause.ATTEMPT_MISSING, made.request_id, 2, len(numbers), "attempts")]


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens"])
def test_no_more_is_delivered_than_was_executed(field: str) -> None:
    made = record()
    less = attempt(made, **{field: getattr(made, field) - 1})
    found = list(examine(made, [less], BOOK))
    assert found == [
        Difference(
            Cause.DELIVERED_MORE, made.request_id, getattr(made, field), getattr(made, field) - 1, field
        )
    ]
    more = attempt(made, **{field: getattr(made, field) + 1})
    assert not list(examine(made, [more], BOOK))


def test_an_answer_that_was_delivered_was_completed_by_its_attempt() -> None:
    made = record()
    lost = attempt(made, outcome=str(AttemptOutcome.LOST))
    assert list(examine(made, [lost], BOOK)) == [
        Difference(Cause.DELIVERED_MORE, made.request_id, 1, 0, "answers")
    ]


def test_a_charge_is_what_rule_and_price_make_of_the_counts() -> None:
    made = record()
    wrong = record(charge_pico=made.charge_pico + 1)
    assert list(examine(wrong, [attempt(wrong)], BOOK)) == [
        Difference(Cause.CHARGE_DIFFERS, made.request_id, made.charge_pico + 1, made.charge_pico, "pico")
    ]
    for without_price in (record(price_version="", charge_pico=1, started_s=-1.0),):
        assert causes(examine(without_price, [attempt(without_price)], BOOK)) == [Cause.CHARGE_DIFFERS]


def test_a_failed_request_that_was_charged_is_found() -> None:
    """The rule is read from how it ended: a failure before the first byte costs nothing."""
    failed = record(
        outcome=str(Outcome.FAILED), reason="upstream_lost", status=502, ttft_s=None, charge_pico=5
    )
    lost = attempt(failed, outcome=str(AttemptOutcome.LOST))
    assert causes(examine(failed, [lost], BOOK)) == [Cause.CHARGE_DIFFERS]


@pytest.mark.parametrize("version", ["p2", "p7"])
def test_a_price_that_is_not_in_the_book_or_is_none_is_found(version: str) -> None:
    made = record(price_version=version, charge_pico=1)
    assert causes(examine(made, [attempt(made)], BOOK)) == [Cause.PRICE_UNKNOWN]


def test_a_price_that_did_not_hold_at_the_time_is_found() -> None:
    """A worker that stood still may go by an older book than the one in force: the charge agrees with the wrong version."""
    later = PriceBook([*PRICES, Price("p3", "", "*", "EUR", 50.0, STATED, rates_of(STATED))])
    for version in ("p1", ""):
        made = record(price_version=version)
        assert causes(examine(made, [attempt(made)], later)) == [Cause.PRICE_DIFFERS]
    before = record(started_s=49.0)
    assert not list(examine(before, [attempt(before)], later))


def test_an_ending_without_a_rule_is_found() -> None:
    made = msgspec.structs.replace(record(), reason="by_magic")
    assert causes(examine(made, [attempt(made)], BOOK)) == [Cause.ENDING_UNKNOWN]


def test_what_is_unknown_or_estimated_is_listed_and_no_fault() -> None:
    unknown = record(
        usage_source=str(UsageSource.UNKNOWN), prompt_tokens=0, completion_tokens=0, cached_tokens=0
    )
    assert causes(examine(unknown, [attempt(unknown)], BOOK)) == [Cause.USAGE_UNKNOWN]
    estimated = record(usage_source=str(UsageSource.ESTIMATED))
    assert causes(examine(estimated, [attempt(estimated)], BOOK)) == [Cause.USAGE_ESTIMATED]
    assert not Cause.USAGE_UNKNOWN.is_fault
    assert not Cause.USAGE_ESTIMATED.is_fault
    assert Cause.CHARGE_DIFFERS.is_fault


def test_every_cause_says_what_it_means() -> None:
    assert all(cause.meaning for cause in Cause)


def test_what_a_caller_saw_is_what_was_recorded() -> None:
    made = record()
    assert not list(compare(made, CallerSaw("req_1", True, 100, 20)))
    assert not list(compare(made, CallerSaw("req_1")))
    assert list(compare(made, CallerSaw("req_1", True, 100, 21))) == [
        Difference(Cause.CALLER_DIFFERS, "req_1", 20, 21, "completion_tokens")
    ]
    broken = record(outcome=str(Outcome.BROKEN), reason="upstream_lost")
    assert causes(compare(broken, CallerSaw("req_1"))) == [Cause.CALLER_DIFFERS]
    assert not list(compare(broken, CallerSaw("req_1", has_ended=False)))


@given(
    ending=st.sampled_from(sorted(ENDINGS.values(), key=lambda row: (row.reason, row.stage))),
    source=st.sampled_from(UsageSource),
    prompt=st.integers(0, 10**6),
    cached=st.integers(0, 10**6),
    completion=st.integers(0, 10**6),
    off=st.integers(-(10**9), 10**9),
)
def test_whatever_ended_however_a_charge_is_found_wrong_exactly_if_it_is(
    ending: object, source: UsageSource, prompt: int, cached: int, completion: int, off: int
) -> None:
    made = record(
        reason=str(ending.reason),  # type: ignore[attr-defined]
        outcome=str(ending.outcome),  # type: ignore[attr-defined]
        attempts=0 if ending.stage == "unstarted" else 1,  # type: ignore[attr-defined]
        ttft_s=0.1 if ending.stage == "answering" else None,  # type: ignore[attr-defined]
        prompt_tokens=prompt,
        cached_tokens=min(cached, prompt),
        completion_tokens=completion,
        usage_source=str(source),
    )
    shifted = msgspec.structs.replace(made, charge_pico=made.charge_pico + off)
    executions = [attempt(made)] if made.attempts else []
    assert (Cause.CHARGE_DIFFERS in causes(examine(shifted, executions, BOOK))) == (off != 0)


def test_findings_count_all_and_name_the_first() -> None:
    findings = Findings(listed_max=2)
    for number in range(5):
        findings.add(Difference(Cause.ORPHAN, f"req_{number}"))
    assert findings.counts == {Cause.ORPHAN: 5}
    assert [each.subject for each in findings.listed[Cause.ORPHAN]] == ["req_0", "req_1"]
    assert findings.faults == 0
    findings.add(Difference(Cause.REJECTED, "req_9"))
    assert findings.faults == 1
