"""The lines of an invoice are the charges of its requests, however these are grouped, and nothing is billed twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import endings
from headrace.core.endings import ENDINGS, Charge, Stage
from headrace.core.invoices import Cause, InvoiceLine, LineKind
from headrace.core.money import format_amount, parse_amount
from headrace.core.outcome import Reason
from headrace.core.prices import Item, Price, rates_of
from headrace.core.usage import TokenUsage, Unit, UsageSource
from headrace.policies import charging, invoicing
from headrace.policies.invoicing import UsageGroup
from headrace.policies.prices import PriceBook

STATED = {
    "p1": {Item.INPUT: "0.15", Item.OUTPUT: "0.60", Item.REQUEST: "0.0001", Item.VECTOR: "0.02"},
    "p2": {Item.INPUT: "0.20", Item.CACHED_INPUT: "0.05", Item.OUTPUT: "0.80", Item.REASONING_OUTPUT: "0.40"},
}
BOOK = PriceBook(
    [
        Price(name, "", "*", "EUR", float(at), stated, rates_of(stated))
        for at, (name, stated) in enumerate(STATED.items())
    ]
    + [Price("p3", "", "*", "EUR", 2.0, None, None)]
)
COUNT = st.integers(0, 10**5)


@st.composite
def groups(draw: st.DrawFn) -> UsageGroup:
    """One request as its own group, charged as the gateway does it."""
    prompt, completion = draw(COUNT), draw(COUNT)
    usage = TokenUsage(
        prompt, completion, draw(st.integers(0, prompt)), draw(st.sampled_from(UsageSource)),
        draw(st.integers(0, completion)), draw(COUNT),
    )  # fmt: skip
    row = draw(st.sampled_from(list(ENDINGS.values())))
    version = draw(st.sampled_from(["", "p1", "p2"]))
    unit = draw(st.sampled_from([None, Unit.VECTOR]))
    charged = charging.charge(row.charge, usage, rates_of(STATED[version]), unit=unit) if version else 0
    return UsageGroup(
        draw(st.sampled_from(["a", "b"])), unit, version, row.reason.value, row.stage, usage, 1, charged
    )


@given(made=st.lists(groups(), max_size=30))
def test_the_lines_add_up_to_the_charges_of_the_requests(made: list[UsageGroup]) -> None:
    """The sum of the charges is the sum of the rules, and every request is on lines or has a cause not to be."""
    reckoning = invoicing.reckon(made, BOOK)
    assert reckoning.problems == ()
    lines = invoicing.lines(reckoning.quantities, BOOK, kind=LineKind.USAGE, period="2026-11")
    assert sum(line.amount_pico for line in lines) == sum(group.charged_pico for group in made)
    for line in lines:
        assert line.amount_pico * line.per == line.quantity * parse_amount(line.rate)
    assert reckoning.requests == len(made)
    billed = [group for group in made if group.charged_pico and group.price_version == "p1"]
    assert sum(line.quantity for line in lines if line.item == Item.REQUEST) == len(billed)
    assert len(made) - sum(reckoning.unbilled.values()) >= len(billed)


def group(
    usage: TokenUsage, *, version: str = "p1", charged: str = "0", reason: str = "ok", requests: int = 1
) -> UsageGroup:
    return UsageGroup("m", None, version, reason, Stage.ANSWERING, usage, requests, parse_amount(charged))


@pytest.mark.parametrize(
    ("usage", "version", "cause"),
    [
        (TokenUsage(source=UsageSource.UNKNOWN), "p1", Cause.UNKNOWN_USAGE),
        (TokenUsage(source=UsageSource.UNKNOWN), "", Cause.UNKNOWN_USAGE),
        (TokenUsage(source=UsageSource.NONE), "p1", Cause.NOT_OWED),
        (TokenUsage(5, 5, 0, UsageSource.FINAL), "", Cause.NO_PRICE),
    ],
)
def test_what_is_not_billed_is_counted_by_its_cause(usage: TokenUsage, version: str, cause: Cause) -> None:
    reckoning = invoicing.reckon([group(usage, version=version, requests=7)], BOOK)
    assert (reckoning.quantities, reckoning.unbilled) == ({}, {cause: 7})


def test_requests_that_cost_nothing_by_their_ending_are_not_owed() -> None:
    assert endings.find(Reason.LOST, Stage.WORKING).charge is Charge.NOTHING
    failed = UsageGroup(
        "m", None, "p1", "upstream_lost", Stage.WORKING, TokenUsage(5, 0, 0, UsageSource.CUMULATIVE), 2, 0
    )
    assert invoicing.reckon([failed], BOOK).unbilled == {Cause.NOT_OWED: 2}


def test_estimates_have_lines_of_their_own() -> None:
    counted = group(TokenUsage(1_000_000, 0, 0, UsageSource.FINAL), charged="0.1501")
    estimated = group(TokenUsage(2_000_000, 0, 0, UsageSource.ESTIMATED), charged="0.3001")
    reckoning = invoicing.reckon([counted, estimated], BOOK)
    lines = invoicing.lines(reckoning.quantities, BOOK, kind=LineKind.USAGE, period="2026-11")
    assert [(line.item, line.is_estimated, line.quantity, line.amount) for line in lines] == [
        ("input", False, 1_000_000, "0.15"),
        ("input", True, 2_000_000, "0.30"),
        ("request", False, 1, "0.0001"),
        ("request", True, 1, "0.0001"),
    ]
    assert {(line.rate, line.per, line.unit) for line in lines[:2]} == {("0.15", 1_000_000, "tokens")}


@pytest.mark.parametrize(
    ("version", "charged", "says"),
    [("p1", "0.16", "were charged 0.16, and their rule makes 0.1501"), ("p9", "0.15", "price p9, which isn't in the book"),
     ("p3", "0.15", "price p3, which isn't in the book")],
)  # fmt: skip
def test_records_that_do_not_fit_their_rule_are_found(version: str, charged: str, says: str) -> None:
    wrong = group(TokenUsage(1_000_000, 0, 0, UsageSource.FINAL), version=version, charged=charged)
    [problem] = invoicing.reckon([wrong], BOOK).problems
    assert says in problem


@given(
    before=st.lists(groups(), max_size=10),
    after=st.lists(groups(), max_size=10),
    last=st.lists(groups(), max_size=10),
)
def test_what_comes_after_an_invoice_is_on_the_next_and_on_no_other(
    before: list[UsageGroup], after: list[UsageGroup], last: list[UsageGroup]
) -> None:
    """Over any number of invoices the lines are those of one that knew everything."""
    told: list[InvoiceLine] = []
    known: list[UsageGroup] = []
    for arrived, kind in ((before, LineKind.USAGE), (after, LineKind.LATE), (last, LineKind.LATE)):
        known += arrived
        left = invoicing.late(invoicing.reckon(known, BOOK).quantities, told)
        assert all(count > 0 for count in left.values())
        told += invoicing.lines(left, BOOK, kind=kind, period="2026-11")
    assert invoicing.late(invoicing.reckon(known, BOOK).quantities, told) == {}
    assert sum(line.amount_pico for line in told) == sum(group.charged_pico for group in known)


def test_records_that_were_taken_away_show_as_less_than_nothing() -> None:
    counted = group(
        TokenUsage(1_000_000, 0, 0, UsageSource.FINAL), charged=format_amount(parse_amount("0.1501"))
    )
    lines = invoicing.lines(
        invoicing.reckon([counted], BOOK).quantities, BOOK, kind=LineKind.USAGE, period="2026-11"
    )
    assert sorted(invoicing.late({}, lines).values()) == [-1_000_000, -1]
