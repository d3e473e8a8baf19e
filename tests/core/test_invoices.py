"""Periods are months or days in UTC; the totals of an invoice are the sums of its lines, rounded once."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import invoices, money
from headrace.core.invoices import InvoiceLine, LineKind, NotAPeriod


def line(amount_pico: int, currency: str) -> InvoiceLine:
    amount = money.format_amount(amount_pico)
    return InvoiceLine(
        LineKind.CORRECTION, "2026-11-01", "", "", "", False, 1, "", amount, 1, amount, currency
    )


@given(
    amounts=st.lists(
        st.tuples(st.integers(-(10**24), 10**24), st.sampled_from(["EUR", "JPY", "KWD"])), max_size=20
    )
)
def test_totals_are_the_exact_sums_of_the_lines(amounts: list[tuple[int, str]]) -> None:
    """And only what is due is rounded, also far beyond 64 bits."""
    totals = invoices.totals(tuple(line(pico, currency) for pico, currency in amounts))
    assert [total.currency for total in totals] == sorted({currency for _, currency in amounts})
    for total in totals:
        exact = sum(pico for pico, currency in amounts if currency == total.currency)
        assert money.parse_amount(total.amount) == exact
        assert total.due == money.format_coins(exact, total.currency)


@given(month=st.dates(min_value=datetime(1, 1, 1).date(), max_value=datetime(9998, 12, 31).date()))  # noqa: DTZ001
def test_months_follow_each_other_without_a_gap(month: object) -> None:
    text = f"{month}"[:7]
    begins, ends = invoices.bounds(text)
    assert f"{begins:%Y-%m}".rjust(7, "0") == text
    assert (begins.day, ends.day) == (1, 1)
    assert invoices.bounds(f"{ends.year:04d}-{ends.month:02d}")[0] == ends
    assert timedelta(days=28) <= ends - begins <= timedelta(days=31)


def test_a_day_is_a_period_too() -> None:
    assert invoices.bounds("2026-12-31") == (
        datetime(2026, 12, 31, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    "text",
    ["", "2026", "2026-13", "2026-00", "2026-02-30", "2026-1", "26-11", "9999-12-31", "2026-11-01T00:00"],
)
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(NotAPeriod, match=re.escape(repr(text))):
        invoices.bounds(text)
