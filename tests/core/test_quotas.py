"""Claims about quotas: what people may write, and which period a moment belongs to."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import KeyId, TenantId
from headrace.core.money import PICO, NotAnAmount
from headrace.core.quotas import (
    AMOUNT_MAX,
    Amounts,
    BudgetKey,
    NotAQuota,
    Period,
    Quota,
    QuotaUnit,
    parse_budget,
    parse_quota,
    span_of,
)
from headrace.core.tenant import TenantTerms


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "moment", "start", "end"),
    [
        (Period.DAY, "2026-11-29T00:00:00", "2026-11-29", "2026-11-30"),
        (Period.DAY, "2026-11-29T23:59:59.999", "2026-11-29", "2026-11-30"),
        (Period.MONTH, "2026-12-31T23:59:59", "2026-12-01", "2027-01-01"),
        (Period.MONTH, "2028-02-29T12:00:00", "2028-02-01", "2028-03-01"),
    ],
)
def test_days_and_months_are_those_of_the_calendar_in_utc(
    period: Period, moment: str, start: str, end: str
) -> None:
    assert span_of(period, at(moment)) == (at(start), at(end))


def test_a_total_has_one_period_without_an_end() -> None:
    assert span_of(Period.TOTAL, 1.7e9) == (0, math.inf)


@given(st.sampled_from([Period.DAY, Period.MONTH]), st.floats(0, 4e9))
def test_periods_follow_each_other_without_a_gap(period: Period, wall_s: float) -> None:
    span = span_of(period, wall_s)
    assert span.start_s <= wall_s < span.end_s
    assert span_of(period, span.end_s).start_s == span.end_s
    assert span_of(period, span.end_s - 0.001) == span


def test_what_people_write_is_read_exactly() -> None:
    assert parse_quota("tokens/day=2000000") == Quota(QuotaUnit.TOKENS, Period.DAY, 2_000_000)
    assert parse_quota("requests/total=0").name == "requests/total"
    assert parse_budget("50.00/month") == Quota(QuotaUnit.MONEY, Period.MONTH, 50 * PICO)
    assert parse_budget("0.000001/day").amount == PICO // 1_000_000


@pytest.mark.parametrize(
    "text",
    ["tokens=5", "tokens/week=5", "money/day=5", "tokens/day=-1", "tokens/day=5.5", f"tokens/day={2**63}"],
)
def test_what_is_no_quota_is_told_what_would_be(text: str) -> None:
    with pytest.raises(NotAQuota, match="tokens/day=2000000"):
        parse_quota(text)


@pytest.mark.parametrize("text", ["50", "50/week", "-1/day", "9300000/total"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(NotAQuota):
        parse_budget(text)
    with pytest.raises(NotAnAmount):
        parse_budget("much/day")


def test_two_quotas_for_the_same_are_refused() -> None:
    with pytest.raises(ValueError, match="which of them holds"):
        TenantTerms(quotas=("tokens/day=1", "tokens/day=2"))
    terms = TenantTerms(quotas=("tokens/day=1", "tokens/month=2"), budgets=("1/day",))
    assert [quota.name for quota in terms.all_quotas()] == ["tokens/day", "tokens/month", "money/day"]


def test_amounts_are_shown_in_their_unit() -> None:
    tokens = BudgetKey(TenantId("t"), KeyId(""), QuotaUnit.TOKENS, Period.DAY)
    money = tokens._replace(unit=QuotaUnit.MONEY)
    assert (tokens.show(12), tokens.value(12)) == ("12 tokens", 12)
    assert (money.show(PICO // 2), money.value(PICO // 2)) == ("0.50", "0.50")
    assert Amounts(1, 2, 3).of(QuotaUnit.REQUESTS) == 1
    assert [Amounts(1, 2, 3).of(unit) for unit in QuotaUnit] == [1, 2, 3]
    assert AMOUNT_MAX == 2**63 - 1
