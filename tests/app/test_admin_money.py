"""Claims about prices, usage, invoices and corrections over the admin port: as the commands have them, and by whom."""

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from headrace.cli.main import main
from headrace.core.money import format_amount
from headrace.core.prices import Item
from headrace.stores import sqlite
from headrace.stores.database import columns
from headrace.stores.invoices import InvoiceStore
from headrace.stores.prices import Draft, PriceStore
from tests.app.conftest import Port
from tests.stores.test_ledger import usage_record

NOVEMBER_S = datetime(2026, 11, 15, tzinfo=UTC).timestamp()
DECEMBER_S = datetime(2026, 12, 15, tzinfo=UTC).timestamp()
# A record of usage_record costs this much.
CHARGE_PICO = 10 * 150_000
INVOICE = "/admin/v1/tenants/acme/invoice"


@dataclass(frozen=True)
class Billed:
    """A port whose tenant `acme` has used something in November; it is December now."""

    port: Port
    request_id: str

    def said(self, capsys: pytest.CaptureFixture[str], *command: str) -> Any:
        """What the command prints as JSON."""
        capsys.readouterr()
        assert main([*command, "--json", "--data", str(self.port.database.parent)]) == 0
        return json.loads(capsys.readouterr().out)


@pytest.fixture
def billed(port: Port) -> Billed:
    port.store.create_tenant("acme")
    port.clock.advance(DECEMBER_S - port.clock.wall_s())
    with closing(sqlite.open_file(port.database)) as database:
        book = PriceStore(database, clock=port.clock, actor="cli:root")
        book.enter([Draft("EUR", {Item.INPUT: "0.15"}, valid_from_s=1_577_836_800.0)])
        record = usage_record(
            f"req_{int(NOVEMBER_S * 1000):012x}{'1':0>20}",
            tenant="acme",
            started_s=NOVEMBER_S,
            price_version="p1",
            cached_tokens=0,
            charge_pico=CHARGE_PICO,
        )
        values = [
            int(value) if isinstance(value, bool) else value for value in msgspec.structs.astuple(record)
        ]
        database.execute(
            f"INSERT INTO usage ({columns(record.__struct_fields__)}) VALUES ({', '.join('?' * len(values))})",
            values,
        )
    return Billed(port, record.request_id)


def test_prices_are_entered_and_listed_as_the_commands_have_them(
    billed: Billed, capsys: pytest.CaptureFixture[str]
) -> None:
    port = billed.port
    fields = {
        "currency": "EUR",
        "tenant": "acme",
        "prices": {"input": "0.12"},
        "valid_from": "2027-01-01T00:00Z",
    }
    status, answer = port.ask("POST", "/admin/v1/prices", fields, token=port.tokens["admin"])
    (made,) = answer["prices"]
    assert (status, made["version"], made["valid_from"]) == (201, "p2", "2027-01-01T00:00:00.000Z")
    assert port.ask("POST", "/admin/v1/prices", fields) == (200, {"prices": []}), "it is in the book already"
    withdrawn = {"currency": "EUR", "tenant": "acme", "withdrawn": True, "valid_from": "2028-01-01"}
    assert port.ask("POST", "/admin/v1/prices", withdrawn)[1]["prices"][0]["withdrawn"] is True
    listed = port.ask("GET", "/admin/v1/prices?all=true", token=port.tokens["viewer"])[1]["prices"]
    assert [price["version"] for price in listed] == ["p1", "p2", "p3"]
    assert listed == billed.said(capsys, "prices", "list", "--all")
    assert port.ask("GET", "/admin/v1/prices?tenant=other&model=small")[1]["prices"] == listed[:1]
    entry = port.store.audit_entries()[-2]
    assert (entry.actor, entry.action) == (f"admin:{port.tokens['admin'][8:16]}", "price.set")


def test_usage_is_summed_as_the_command_does_it(billed: Billed, capsys: pytest.CaptureFixture[str]) -> None:
    port = billed.port
    status, answer = port.ask("GET", "/admin/v1/usage", token=port.tokens["viewer"])
    (row,) = answer["usage"]
    assert (status, row["tenant"], row["charges"]) == (200, "acme", {"EUR": format_amount(CHARGE_PICO)})
    assert answer["usage"] == billed.said(capsys, "usage")
    by_day = port.ask("GET", "/admin/v1/usage?by=day&tenant=acme&since=2026-11-01")[1]["usage"]
    assert by_day == billed.said(capsys, "usage", "--by", "day")
    assert port.ask("GET", "/admin/v1/usage?since=2026-12-01")[1] == {"usage": []}


def test_an_invoice_is_shown_as_it_would_be_and_once_issued_as_it_was(
    billed: Billed, capsys: pytest.CaptureFixture[str]
) -> None:
    port = billed.port
    status, preview = port.ask("GET", f"{INVOICE}?period=2026-11", token=port.tokens["viewer"])
    assert (status, preview["sha256"], preview["problems"]) == (200, None, [])
    assert preview["invoice"] == billed.said(capsys, "invoice", "--tenant", "acme", "--period", "2026-11")
    with closing(sqlite.open_file(port.database)) as database:
        issued = InvoiceStore(database, clock=port.clock, actor="cli:root").issue("acme", "2026-11")
    _, shown = port.ask("GET", f"{INVOICE}?period=2026-11")
    assert shown["invoice"] == json.loads(issued.document)
    assert shown["sha256"] == hashlib.sha256(issued.document.encode()).hexdigest()


def test_a_correction_is_on_the_next_invoice(billed: Billed) -> None:
    port = billed.port
    whole = {"amount": f"-{format_amount(CHARGE_PICO)}", "reason": "it was slow"}
    status, made = port.ask(
        "POST", "/admin/v1/corrections", {"request": billed.request_id, **whole}, token=port.tokens["admin"]
    )
    assert (status, made["number"], made["tenant"], made["amount"]) == (201, 1, "acme", whole["amount"])
    assert "would take off more" in port.refused(
        "POST", "/admin/v1/corrections", {"request": billed.request_id, **whole}
    )
    credit = {"tenant": "acme", "currency": "EUR", "amount": "-5", "reason": "an outage"}
    assert port.ask("POST", "/admin/v1/corrections", credit)[0] == 201
    _, invoice = port.ask("GET", f"{INVOICE}?period=2026-12")
    amounts = {line["amount"] for line in invoice["invoice"]["lines"]}
    assert {whole["amount"], format_amount(-5 * 10**12)} <= amounts
    assert [entry.action for entry in port.store.audit_entries()[-2:]] == ["usage.correct", "usage.correct"]


@pytest.mark.parametrize("field", [{"quotas": ["requests/day=5"]}, {"budgets": ["50/month"]}])
def test_how_much_a_tenant_may_spend_is_for_admins(port: Port, field: dict[str, list[str]]) -> None:
    """T46: an operator sets limits, but gives no money away, nor takes a budget off by giving it back to its default."""
    port.store.create_tenant("acme")
    (name,) = field
    before = port.store.audit_entries()
    for given in ({"weight": 2, **field}, {name: None}):
        status, code, message = port.error(
            "PATCH", "/admin/v1/tenants/acme", given, token=port.tokens["operator"]
        )
        assert (status, code) == (403, "forbidden")
        assert message == f"`{name}` needs the role `admin`; this token's is `operator`."
    assert port.store.audit_entries() == before
    assert port.ask("PATCH", "/admin/v1/tenants/acme", {"weight": 2}, token=port.tokens["operator"])[0] == 200
    status, changed = port.ask("PATCH", "/admin/v1/tenants/acme", field, token=port.tokens["admin"])
    assert (status, changed[name]) == (200, field[name])


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/admin/v1/prices", {}, "missing required field `currency`"),
        ("POST", "/admin/v1/prices", {"currency": "EUR"}, "give at least one of `prices`"),
        (
            "POST",
            "/admin/v1/prices",
            {"currency": "EUR", "withdrawn": True, "prices": {"input": "1"}},
            "give at least one of `prices`",
        ),
        ("POST", "/admin/v1/prices", {"currency": "euro", "prices": {"input": "1"}}, "three capital letters"),
        ("POST", "/admin/v1/prices", {"currency": "EUR", "prices": {"input": 0.1}}, "expected `str`"),
        ("POST", "/admin/v1/prices", {"currency": "EUR", "prices": {"inputs": "1"}}, "inputs"),
        ("POST", "/admin/v1/prices", {"currency": "EUR", "prices": {"input": "much"}}, "price of `*`"),
        (
            "POST",
            "/admin/v1/prices",
            {"currency": "EUR", "prices": {"input": "1"}, "tenant": "b"},
            "no tenant",
        ),
        (
            "POST",
            "/admin/v1/prices",
            {"currency": "EUR", "prices": {"input": "1"}, "valid_from": "soon"},
            "`valid_from` is a date",
        ),
        (
            "POST",
            "/admin/v1/prices",
            {"currency": "EUR", "prices": {"input": "1"}, "valid_from": "2026-11-01"},
            "can't hold from the past on",
        ),
        ("GET", "/admin/v1/prices?all=yes", None, "`all` is one of true, false"),
        ("GET", "/admin/v1/usage?by=hour", None, "`by` is one of tenant, model"),
        ("GET", "/admin/v1/usage?since=yesterday", None, "`since` is a date"),
        ("GET", INVOICE, None, "?period=2026-11"),
        ("GET", f"{INVOICE}?period=november", None, "november"),
        ("POST", "/admin/v1/corrections", {"amount": "1", "reason": "x"}, "name the `request`, or"),
        (
            "POST",
            "/admin/v1/corrections",
            {"amount": "1", "reason": "x", "tenant": "acme"},
            "with the `currency`",
        ),
        (
            "POST",
            "/admin/v1/corrections",
            {"amount": "1", "reason": "x", "request": "req_none"},
            "no record of request",
        ),
        ("POST", "/admin/v1/corrections", {"amount": "much", "reason": "x", "request": "r"}, "`amount`"),
        (
            "POST",
            "/admin/v1/corrections",
            {"amount": "0", "reason": "x", "tenant": "acme", "currency": "EUR"},
            "corrects nothing",
        ),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_done(
    billed: Billed, method: str, path: str, body: Any, message: str
) -> None:
    before = billed.port.store.audit_entries()
    assert message in billed.port.refused(method, path, body)
    assert billed.port.store.audit_entries() == before


@pytest.mark.parametrize(
    "path", ["/admin/v1/usage?tenant=acmee", "/admin/v1/tenants/acmee/invoice?period=2026-11"]
)
def test_a_tenant_that_does_not_exist_is_404(billed: Billed, path: str) -> None:
    status, code, message = billed.port.error("GET", path)
    assert (status, code) == (404, "not_found")
    assert "no tenant `acmee`" in message


def test_while_the_database_can_not_be_had_callers_are_told_to_come_back(billed: Billed) -> None:
    with closing(sqlite3.connect(billed.port.database)) as by_hand, by_hand:
        by_hand.execute("ALTER TABLE price RENAME TO lost")
    for path in ("/admin/v1/prices", "/admin/v1/usage", f"{INVOICE}?period=2026-11"):
        assert billed.port.error("GET", path)[:2] == (503, "saturated"), path
