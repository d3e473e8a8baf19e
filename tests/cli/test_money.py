"""Prices, invoices and corrections from the command line: exact, escaped, and clear about what isn't possible."""

import csv
import hashlib
import io
import json
import sqlite3
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headrace.cli import invoice_csv, invoice_page
from headrace.cli.main import main
from headrace.core import invoices
from headrace.core.clock import SystemClock
from headrace.core.invoices import Cause, Invoice, InvoiceLine, LineKind, Unbilled
from headrace.core.money import format_amount, parse_amount
from headrace.stores import sqlite
from headrace.stores.ledger import Ledger
from tests.stores.test_ledger import usage_record

STARTED_S = 1_600_000_000.0  # 2020-09-13
EVIL = "<script>alert(1)</script>&\"'"


class Commands:
    """Runs commands on one data directory."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = data
        self._capsys = capsys
        self.complaint = ""

    def __call__(self, *arguments: str, status: int = 0) -> str:
        assert main([*arguments, "--data", str(self.data)]) == status
        told = self._capsys.readouterr()
        self.complaint = told.err
        return told.out


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    commands = Commands(tmp_path, capsys)
    commands("tenants", "create", "acme")
    commands("prices", "set", "--model", "m", "--currency", "EUR", "--input", "1", "--output", "3",
             "--per-request", "0.25", "--valid-from", "2020-01-01")  # fmt: skip
    ledger = Ledger(tmp_path / sqlite.DATABASE_NAME, clock=SystemClock(), on_failure=print)
    ledger.start()
    for number, source in enumerate(("final", "estimated", "unknown")):
        charge = 0 if source == "unknown" else parse_amount("0.25") + 6_000_000 + 4_000_000 + 15_000_000
        ledger.append(
            usage_record(
                f"req_{number}",
                started_s=STARTED_S,
                usage_source=source,
                price_version="p1",
                charge_pico=charge,
            ),
            [],
        )
    ledger.stop()
    return commands


def test_what_a_month_costs_is_the_same_in_every_form(run: Commands) -> None:
    month = ("invoice", "--tenant", "acme", "--period", "2020-09")
    table = run(*month)
    assert "due: 0.50 EUR (exactly 0.50005)" in table
    assert "1 requests are not billed because their usage is unknown." in table
    facts = json.loads(run(*month, "--json"))
    assert facts["totals"] == [{"currency": "EUR", "amount": "0.50005", "due": "0.50"}]
    rows = list(csv.DictReader(io.StringIO(run(*month, "--format", "csv"), newline="")))
    assert sum(parse_amount(row["BilledCost"]) for row in rows) == parse_amount("0.50005")
    assert {row["ChargeCategory"] for row in rows} == {"Usage"}
    assert [row["x_IsEstimated"] for row in rows].count("true") == 4
    [tokens] = [row for row in rows if row["SkuId"] == "m/output" and row["x_IsEstimated"] == "false"]
    assert (tokens["ConsumedQuantity"], tokens["PricingQuantity"], tokens["PricingUnit"]) == (
        "5",
        "0.000005",
        "1000000 tokens",
    )
    page = run(*month, "--format", "html")
    assert "0.50005 EUR" in page
    assert "It is not an invoice." in page
    [summed] = json.loads(run("usage", "--json"))
    assert summed["charges"] == {"EUR": "0.50005"}
    assert "0.50005 EUR" in run("usage")
    assert "0.250025 EUR" in run("usage", "--requests")


def test_an_issued_invoice_is_the_bytes_of_its_digest(run: Commands, tmp_path: Path) -> None:
    month = ("invoice", "--tenant", "acme", "--period", "2020-09")
    run(*month, "--issue", "--seller", "Example\\nStreet 1")
    assert "invoice 1 issued, SHA-256 " in run.complaint
    digest = run.complaint.split("SHA-256 ")[1].strip()
    file = tmp_path / "invoice.json"
    run(*month, "--format", "json", "--output", str(file))
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
    assert json.loads(file.read_text())["seller"] == "Example\nStreet 1"
    [listed] = json.loads(run("invoice", "list", "--json"))
    assert (listed["number"], listed["sha256"], listed["due"]) == (1, digest, {"EUR": "0.50"})
    assert digest[:16] in run("invoice", "list", "--tenant", "acme")
    assert digest in run(*month, "--format", "html")
    run(*month, "--issue", status=2)
    assert "is on invoice 1" in run.complaint


def test_a_correction_is_an_entry_of_its_own(run: Commands) -> None:
    run("adjust", "--request", "req_0", "--amount", "-0.25", "--reason", "-2 <b>apologies</b>")
    assert "correction 1: -0.25 EUR" in run.complaint
    run("adjust", "--request", "req_0", "--amount", "-1", "--reason", "more", status=2)
    assert "costs 0.000025 EUR; -1.00 would take off more" in run.complaint
    run("adjust", "--tenant", "acme", "--amount", "5", "--reason", "setup", status=2)
    assert "--currency belongs to --tenant" in run.complaint
    run("adjust", "--tenant", "acme", "--currency", "EUR", "--amount", "5,0", "--reason", "setup", status=2)
    assert "--amount: '5,0' is not an amount" in run.complaint
    run("adjust", "--tenant", "acme", "--currency", "EUR", "--amount", "5", "--reason", "setup")
    connection = sqlite3.connect(run.data / sqlite.DATABASE_NAME)
    try:
        [(created_s,)] = connection.execute("SELECT created_s FROM correction WHERE number = 2").fetchall()
        charged = connection.execute("SELECT sum(charge_pico) FROM usage").fetchone()
    finally:
        connection.close()
    assert charged == (2 * parse_amount("0.250025"),)
    period = datetime.fromtimestamp(created_s, tz=UTC).strftime("%Y-%m")
    month = ("invoice", "--tenant", "acme", "--period", period)
    assert "-2 <b>apologies</b> (req_0)" in run(*month)
    [row, other] = csv.DictReader(io.StringIO(run(*month, "--format", "csv"), newline=""))
    assert (row["ChargeDescription"], row["BilledCost"]) == ("'-2 <b>apologies</b>", "-0.25")
    assert row["ChargeClass"] == "Correction"
    assert (other["ChargeCategory"], other["BilledCost"]) == ("Adjustment", "5.00")


def test_requests_that_are_not_billed_are_listed_by_their_ids(run: Commands) -> None:
    month = ("--tenant", "acme", "--period", "2020-09")
    [row] = json.loads(run("invoice", "unbilled", *month, "--json"))
    assert (row["request_id"], row["cause"]) == ("req_2", "unknown_usage")
    assert "req_2" in run("invoice", "unbilled", *month)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("invoice", "--tenant acme --period 2026-11"),
        ("invoice --tenant nobody --period 2020-09", "no tenant `nobody`"),
        ("invoice --tenant acme --period September", "a month such as"),
        ("invoice --tenant acme --period 2020-09 --output x", "--output takes"),
        ("prices set --currency EUR", "at least one price"),
        ("prices set --currency EUR --input 1 --withdraw", "at least one price"),
        ("prices show p9", "no price version `p9`"),
        ("prices set --currency EUR --input 1 --valid-from 2020-01-01", "can't hold from the past"),
    ],
)
def test_what_is_not_possible_says_why(run: Commands, arguments: str, says: str) -> None:
    run(*arguments.split(), status=2)
    assert says in run.complaint


def test_a_book_goes_out_and_comes_back(run: Commands, tmp_path: Path) -> None:
    run("prices", "set", "--model", "m", "--tenant", "acme", "--currency", "EUR", "--withdraw")
    file = tmp_path / "prices.toml"
    file.write_text(run("prices", "export"))
    run("prices", "import", str(file))
    assert "in the book already" in run.complaint
    file.write_bytes(b"\xff")
    run("prices", "import", str(file), status=2)
    assert "no UTF-8" in run.complaint
    listed = json.loads(run("prices", "list", "--all", "--json"))
    assert [(price["version"], price["withdrawn"]) for price in listed] == [("p1", False), ("p2", True)]
    assert "withdrawn" in run("prices", "show", "p2")
    assert json.loads(run("prices", "show", "p1", "--json"))["prices"]["output"] == "3"
    assert "0.25" in run("prices", "show", "p1")
    assert "p1" in run("prices", "list", "--tenant", "acme", "--model", "m")


class Page(HTMLParser):
    """Every tag, every reference to something outside, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def evil_line(kind: LineKind) -> InvoiceLine:
    is_correction = kind is LineKind.CORRECTION
    return InvoiceLine(
        kind=kind,
        period="2026-10-05" if is_correction else "2026-10",
        model=f"=cmd|{EVIL}",
        price_version="p1",
        item="" if is_correction else "input",
        is_estimated=True,
        quantity=1_234_567,
        unit="tokens",
        rate="0.15",
        per=1_000_000,
        amount=format_amount(1_234_567 * 150_000),
        currency="EUR",
        request_id=EVIL,
        note=f"@{EVIL}",
    )


def evil_invoice(number: int) -> Invoice:
    lines = tuple(map(evil_line, LineKind))
    return Invoice(
        number=number,
        tenant=EVIL,
        period="2026-11",
        begins="2026-11-01T00:00:00Z",
        ends="2026-12-01T00:00:00Z",
        issued="2026-12-02T00:00:00Z",
        requests=7,
        lines=lines,
        totals=invoices.totals(lines),
        unbilled=(Unbilled(Cause.NO_PRICE, 3),),
        seller=EVIL,
    )


@pytest.mark.parametrize("number", [0, 7])
def test_the_page_needs_nothing_else_and_runs_nothing(number: int) -> None:
    """Names of models and reasons are text there, whatever they hold."""
    text = invoice_page.written(evil_invoice(number), digest=b"\x07" * 32 if number else None)
    page = Page(text)
    assert "script" not in page.tags
    assert page.links == []
    assert "url(" not in text
    assert "@import" not in text
    spoken = "".join(page.words)
    assert spoken.count(f"@{EVIL}") == 1
    assert "0.18518505 EUR" in spoken
    assert "Amount due" in spoken
    assert ("07" * 32 in spoken) == bool(number)


def test_an_empty_invoice_is_a_page_too() -> None:
    empty = Invoice(0, "t", "2026-11", "2026-11-01", "2026-12-01", "", 0, (), (), ())
    assert "Nothing was billed" in invoice_page.written(empty, digest=None)


def test_no_cell_of_the_csv_is_a_formula() -> None:
    """Spreadsheets run what begins with = or @; amounts below 0 are numbers and stay so."""
    rows = list(csv.reader(io.StringIO(invoice_csv.written(evil_invoice(1)), newline="")))
    assert tuple(rows[0]) == invoice_csv.COLUMNS
    for row in rows[1:]:
        assert not any(cell.startswith(("=", "@", "+", "-")) for cell in row)
