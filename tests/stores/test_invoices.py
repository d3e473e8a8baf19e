"""An issued invoice never changes, what comes later is on the next, and all of it is what the records say."""

import hashlib
import sqlite3
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import msgspec
import psycopg
import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.core.invoices import Cause, LineKind
from headrace.core.money import PICO, format_amount, parse_amount
from headrace.core.prices import Item, rates_of
from headrace.policies import charging
from headrace.stores import audit, schema
from headrace.stores.database import Kind, columns
from headrace.stores.invoices import InvoiceStore
from headrace.stores.prices import Draft, PriceStore
from tests.stores.conftest import Connect
from tests.stores.test_ledger import usage_record

REFUSALS = (sqlite3.IntegrityError, psycopg.Error)
OCTOBER_S = datetime(2026, 10, 15, tzinfo=UTC).timestamp()
NOVEMBER_S = datetime(2026, 11, 15, tzinfo=UTC).timestamp()
DECEMBER_S = datetime(2026, 12, 15, tzinfo=UTC).timestamp()
STATED = {Item.INPUT: "0.15", Item.CACHED_INPUT: "0.05", Item.OUTPUT: "0.60", Item.REQUEST: "0.0001"}
# usage_record has 10 prompt tokens, 4 of them cached, and 5 completion tokens.
ONE_PICO = parse_amount("0.0001") + 6 * 150_000 + 4 * 50_000 + 5 * 600_000


class Books:
    """A database with a price from the beginning of 2020, and the stores over it."""

    def __init__(self, connect: Connect) -> None:
        self.clock = ManualClock()
        self.database = connect()
        schema.migrate(self.database)
        self.prices = PriceStore(self.database, clock=self.clock, actor="cli:root")
        self.invoices = InvoiceStore(self.database, clock=self.clock, actor="cli:root")
        self.prices.enter([Draft("EUR", STATED, valid_from_s=1_577_836_800.0)])
        self.clock.advance(DECEMBER_S - self.clock.wall_s())

    def use(self, name: str, at_s: float = NOVEMBER_S, **changes: object) -> str:
        """A record as the gateway would write it."""
        record = usage_record(
            f"req_{int(at_s * 1000):012x}{name:0>20}", **{"started_s": at_s, "price_version": "p1", **changes}
        )
        if "charge_pico" not in changes:
            charge = charging.charge(record.charge_rule, record.usage, rates_of(STATED), unit=None)
            record = msgspec.structs.replace(record, charge_pico=charge)
        values = [
            int(value) if isinstance(value, bool) else value for value in msgspec.structs.astuple(record)
        ]
        self.database.execute(
            f"INSERT INTO usage ({columns(record.__struct_fields__)}) VALUES ({', '.join('?' * len(values))})",
            values,
        )
        return record.request_id

    def unguard(self, table: str) -> None:
        """What somebody does who wants to change what must not change."""
        if self.database.kind is Kind.POSTGRES:
            self.database.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        else:
            self.database.execute(f"DROP TRIGGER {table}_no_update")
            self.database.execute(f"DROP TRIGGER {table}_no_delete")


@pytest.fixture
def books(connect: Connect) -> Books:
    return Books(connect)


def test_an_invoice_says_what_the_records_say(books: Books) -> None:
    books.use("1")
    books.use("2", usage_source="estimated", cached_tokens=0)
    books.use("3", outcome="failed", reason="upstream_lost", ttft_s=None)
    books.use("4", outcome="cancelled", reason="client_gone", usage_source="unknown", ttft_s=None)
    books.use("5", price_version="", charge_pico=0)
    books.use("6", at_s=OCTOBER_S)
    books.use("7", tenant="other")
    invoice, problems = books.invoices.preview("acme", "2026-11")
    assert problems == ()
    assert [(line.item, line.is_estimated, line.quantity) for line in invoice.lines] == [
        ("input", False, 6),
        ("input", True, 10),
        ("cached_input", False, 4),
        ("output", False, 5),
        ("output", True, 5),
        ("request", False, 1),
        ("request", True, 1),
    ]
    [total] = invoice.totals
    assert parse_amount(total.amount) == 2 * ONE_PICO + 4 * (150_000 - 50_000)
    assert total.due == "0.00"
    assert (invoice.requests, invoice.number) == (5, 0)
    assert {entry.cause: entry.requests for entry in invoice.unbilled} == {
        Cause.NOT_OWED: 1,
        Cause.UNKNOWN_USAGE: 1,
        Cause.NO_PRICE: 1,
    }
    rows = list(books.invoices.unbilled("acme", "2026-11", limit=10))
    assert [(row.request_id[-1], row.cause) for row in rows] == [
        ("4", Cause.UNKNOWN_USAGE),
        ("5", Cause.NO_PRICE),
    ]
    assert len(list(books.invoices.unbilled("acme", "2026-11", limit=1))) == 1


def test_an_issued_invoice_never_changes_and_what_comes_later_is_on_the_next(books: Books) -> None:
    books.use("1")
    first = books.invoices.issue("acme", "2026-11", seller="Example\nStreet 1")
    books.use("2")
    books.use("3", at_s=DECEMBER_S)
    assert books.invoices.find("acme", "2026-11") == first
    assert first.invoice.seller == "Example\nStreet 1"
    assert hashlib.sha256(first.document.encode()).digest() == first.digest
    december, problems = books.invoices.preview("acme", "2026-12")
    assert problems == ()
    late = [line for line in december.lines if line.kind is LineKind.LATE]
    assert {line.period for line in late} == {"2026-11"}
    assert sum(line.amount_pico for line in late) == ONE_PICO
    assert parse_amount(december.totals[0].amount) == 2 * ONE_PICO
    books.clock.advance(40 * 86_400)
    second = books.invoices.issue("acme", "2026-12")
    assert second.invoice.number == 2
    january, _ = books.invoices.preview("acme", "2027-01")
    assert january.lines == ()
    assert books.invoices.issued("acme") == [first, second]
    assert books.invoices.issued("other") == []


def test_the_database_itself_refuses_to_change_what_counts_in_money(books: Books) -> None:
    books.use("1")
    books.invoices.correct_tenant("acme", "EUR", -PICO, "goodwill")
    books.invoices.issue("acme", "2026-11")
    for table in ("usage", "price", "correction", "invoice"):
        for statement in (f"UPDATE {table} SET tenant = 'x'", f"DELETE FROM {table}"):
            with pytest.raises(REFUSALS, match="never changed"):
                books.database.execute(statement)


def test_an_invoice_that_was_tampered_with_is_found(books: Books) -> None:
    books.use("1")
    books.invoices.issue("acme", "2026-11")
    books.unguard("invoice")
    books.database.execute("UPDATE invoice SET document = replace(document, 'acme', 'evil')")
    with pytest.raises(ConfigError, match="invoice 1 was changed"):
        books.invoices.issued()


@pytest.mark.parametrize(
    ("period", "says"),
    [
        ("2026-12", "is not over: it can be invoiced from 2027-01-01T00:00:00Z on"),
        ("2026-11", "is on invoice 1"),
        ("2026-11-15", "is on invoice 1"),
        ("2026", "a month such as"),
    ],
)
def test_what_can_not_be_issued_says_why(books: Books, period: str, says: str) -> None:
    books.use("1")
    books.invoices.issue("acme", "2026-11")
    with pytest.raises(ConfigError, match=says):
        books.invoices.issue("acme", period)


def test_nothing_is_issued_while_records_and_rules_do_not_agree(books: Books) -> None:
    books.use("1", charge_pico=7)
    _, problems = books.invoices.preview("acme", "2026-11")
    assert len(problems) == 1
    with pytest.raises(ConfigError, match="nothing was issued: 1 requests of model 'm'"):
        books.invoices.issue("acme", "2026-11")
    assert books.invoices.issued() == []


def test_usage_that_was_invoiced_and_is_gone_is_found(books: Books) -> None:
    books.use("1")
    books.invoices.issue("acme", "2026-11")
    books.unguard("usage")
    books.database.execute("DELETE FROM usage")
    _, problems = books.invoices.preview("acme", "2026-12")
    assert any("are recorded no more" in problem for problem in problems)


def test_a_correction_is_on_the_next_invoice_once(books: Books) -> None:
    request = books.use("1")
    books.invoices.issue("acme", "2026-11")
    cut = books.invoices.correct_request(request, -ONE_PICO, "answered in the wrong language")
    grace = books.invoices.correct_tenant("acme", "USD", -5 * PICO, "goodwill")
    december, _ = books.invoices.preview("acme", "2026-12")
    assert [
        (line.kind, line.amount_pico, line.currency, line.note, line.request_id) for line in december.lines
    ] == [
        (LineKind.CORRECTION, -ONE_PICO, "EUR", "answered in the wrong language", request),
        (LineKind.CORRECTION, -5 * PICO, "USD", "goodwill", ""),
    ]
    assert [(total.currency, total.due) for total in december.totals] == [("EUR", "0.00"), ("USD", "-5.00")]
    assert december.corrections == (cut.number, grace.number)
    books.clock.advance(40 * 86_400)
    books.invoices.issue("acme", "2026-12")
    assert books.invoices.preview("acme", "2027-01")[0].lines == ()


def test_of_two_invoices_that_are_issued_at_the_same_moment_one_is_refused(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would have what came late for an earlier one, and the tenant would pay for it twice."""
    books.use("1", at_s=OCTOBER_S)
    books.invoices.issue("acme", "2026-10")
    books.use("2", at_s=OCTOBER_S)
    transaction = books.database.transaction

    def after_another() -> AbstractContextManager[None]:
        monkeypatch.undo()
        books.invoices.issue("acme", "2026-12-01")
        return transaction()

    monkeypatch.setattr(books.database, "transaction", after_another)
    with pytest.raises(ConfigError, match="at the same moment"):
        books.invoices.issue("acme", "2026-11")
    again = books.invoices.issue("acme", "2026-11")
    late = [
        line
        for issued in books.invoices.issued("acme")
        for line in issued.invoice.lines
        if line.kind is LineKind.LATE and line.item == Item.INPUT
    ]
    assert sum(line.quantity for line in late) == 6
    assert again.invoice.number == 3


def test_a_request_never_costs_less_than_nothing(books: Books) -> None:
    request = books.use("1")
    books.invoices.correct_request(request, -ONE_PICO + 1, "most of it")
    with pytest.raises(
        ConfigError, match=f"costs {format_amount(1)} EUR; {format_amount(-2)} would take off more"
    ):
        books.invoices.correct_request(request, -2, "too much")
    books.invoices.correct_request(request, -1, "the rest")


@pytest.mark.parametrize(
    ("tenant", "currency", "pico", "reason", "says"),
    [
        ("acme", "euro", 1, "r", "three capital letters"),
        ("nobody", "EUR", 1, "r", "no tenant `nobody`"),
        ("acme", "EUR", 0, "r", "corrects nothing"),
        ("acme", "EUR", 1, " ", "needs a reason"),
        ("acme", "EUR", 1, "a\nb", "needs a reason"),
        ("acme", "EUR", 1, "a" * 501, "needs a reason"),
    ],
)
def test_a_correction_that_nobody_could_check_is_refused(
    books: Books, tenant: str, currency: str, pico: int, reason: str, says: str
) -> None:
    books.use("1")
    with pytest.raises(ConfigError, match=says):
        books.invoices.correct_tenant(tenant, currency, pico, reason)


def test_a_correction_of_what_has_no_price_or_does_not_exist_is_refused(books: Books) -> None:
    unpriced = books.use("1", price_version="", charge_pico=0)
    with pytest.raises(ConfigError, match="has no price"):
        books.invoices.correct_request(unpriced, 1, "r")
    with pytest.raises(ConfigError, match="no record of request 'req_x'"):
        books.invoices.correct_request("req_x", 1, "r")


def test_acts_about_money_are_in_the_audit_log(books: Books) -> None:
    request = books.use("1")
    books.invoices.correct_request(request, -1, "r")
    books.invoices.issue("acme", "2026-11")
    found = [(entry.action, entry.target) for entry in audit.entries(books.database, tenant="acme")]
    assert found == [("usage.correct", request), ("invoice.issue", "1")]


def test_sums_beyond_64_bits_are_exact(books: Books) -> None:
    """A charge fits 64 bits, a month of them need not: 9.2 million units."""
    dearest = 2**63 - 1
    for number in range(50):
        books.use(str(number), charge_pico=dearest)
    _, problems = books.invoices.preview("acme", "2026-11")
    assert format_amount(50 * dearest) in problems[0]
