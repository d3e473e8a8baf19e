"""`headrace invoice` and `headrace adjust`: what a tenant owes for a month, and how that is put right."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, durations, identity, invoice_csv, invoice_page
from headrace.cli.invoice_text import describe, unbilled_text
from headrace.core import money
from headrace.core.errors import ConfigError
from headrace.core.invoices import Invoice
from headrace.stores import invoices
from headrace.stores.invoices import InvoiceStore, Issued

_FORMATS = ("table", "json", "csv", "html")


def add(commands: Any) -> None:
    """Registers the commands."""
    parser = common.command(
        commands,
        "invoice",
        _invoice,
        help="show what a tenant owes for a month or a day; issue it, list what was issued, list what isn't billed",
        example="headrace invoice --tenant acme --period 2026-11 --format html --output acme.html"
        "\n         headrace invoice list --tenant acme",
        with_json=True,
    )
    parser.add_argument(
        "action",
        nargs="?",
        choices=("show", "list", "unbilled"),
        default="show",
        help="show one, list those that were issued, or list requests that aren't billed (default: show)",
    )
    parser.add_argument("--tenant", help="whose; may be left out for `list`")
    parser.add_argument("--period", metavar="PERIOD", help="2026-11, or a day: 2026-11-15; UTC")
    parser.add_argument(
        "--format", choices=_FORMATS, default="table", help="csv has FOCUS columns, html is one printable page (default: table)"
    )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="write there instead of standard output")
    parser.add_argument(
        "--issue",
        action="store_true",
        help="number it and keep it for good; later changes go to the next one",
    )
    parser.add_argument(
        "--seller", default="", metavar="TEXT", help="who sends it; lines are separated by `\\n`"
    )
    parser.add_argument(
        "--limit", type=int, default=1000, metavar="N", help="with `unbilled`: how many (default: 1000)"
    )
    adjust = common.command(
        commands,
        "adjust",
        _adjust,
        help="correct what a request or a tenant is billed, by an entry of its own; nothing that is recorded changes",
        example="headrace adjust --tenant acme --currency EUR --amount -5 --reason 'outage of November 3'",
    )
    whom = adjust.add_mutually_exclusive_group(required=True)
    whom.add_argument(
        "--request", metavar="ID", help="the request that was billed wrongly; never below 0 in all"
    )
    whom.add_argument("--tenant", help="or a tenant as a whole, with --currency")
    adjust.add_argument("--amount", required=True, metavar="AMOUNT", help="-0.10 takes off, 0.10 adds")
    adjust.add_argument("--currency", metavar="CODE", help="with --tenant: ISO 4217, such as EUR")
    adjust.add_argument(
        "--reason", required=True, metavar="TEXT", help="one line, which stands on the invoice"
    )


@contextmanager
def _store(arguments: argparse.Namespace) -> Iterator[InvoiceStore]:
    data = config.data_directory(arguments.data)
    opened = invoices.open_invoices(data, clock=identity.CLOCK, actor=identity.actor())
    try:
        yield opened
    finally:
        opened.close()


def _invoice(arguments: argparse.Namespace) -> None:
    with _store(arguments) as store:
        if arguments.action == "list":
            _list(store, arguments)
            return
        if arguments.tenant is None or arguments.period is None:
            raise ConfigError("name whose and which: --tenant acme --period 2026-11")
        store.require_tenant(arguments.tenant)
        if arguments.action == "unbilled":
            _unbilled(store, arguments)
            return
        invoice, issued, problems = _found(store, arguments)
    for problem in problems:
        identity.note(f"can't be issued: {problem}")
    form = "json" if arguments.json else arguments.format
    if form == "table":
        if arguments.output is not None:
            raise ConfigError("--output takes --format json, csv or html")
        _print(invoice)
        return
    text = _written(invoice, issued, form)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        Path(arguments.output).write_text(text, encoding="utf-8", newline="")


def _found(
    store: InvoiceStore, arguments: argparse.Namespace
) -> tuple[Invoice, Issued | None, tuple[str, ...]]:
    """The issued one, if there is one for this, else a preview, and what speaks against issuing it."""
    seller = arguments.seller.replace("\\n", "\n")
    if arguments.issue:
        issued = store.issue(arguments.tenant, arguments.period, seller=seller)
        identity.note(f"invoice {issued.invoice.number} issued, SHA-256 {issued.digest.hex()}")
        return issued.invoice, issued, ()
    found = store.find(arguments.tenant, arguments.period)
    if found is not None:
        return found.invoice, found, ()
    invoice, problems = store.preview(arguments.tenant, arguments.period, seller=seller)
    return invoice, None, problems


def _written(invoice: Invoice, issued: Issued | None, form: str) -> str:
    if form == "csv":
        return invoice_csv.written(invoice)
    if form == "html":
        return invoice_page.written(invoice, digest=None if issued is None else issued.digest)
    # What was issued is shown byte for byte, so that its digest can be checked.
    return issued.document if issued is not None else _preview_json(invoice)


def _preview_json(invoice: Invoice) -> str:
    return msgspec.json.format(msgspec.json.encode(invoice), indent=2).decode() + "\n"


def _print(invoice: Invoice) -> None:
    title = f"invoice {invoice.number}, issued {invoice.issued}" if invoice.number else "preview, not issued"
    print(f"{invoice.tenant}, {invoice.period}: {title}; {invoice.requests} requests\n")
    rows = [
        (
            line.kind.value,
            line.model or None,
            describe(line),
            line.price_version or None,
            "yes" if line.is_estimated else None,
            line.quantity if line.item else None,
            line.rate if line.item else None,
            f"{line.amount} {line.currency}",
        )
        for line in invoice.lines
    ]
    headings = ("kind", "model", "item", "price", "estimated", "quantity", "unit price", "amount")
    common.print_table(rows, headings=headings)
    print()
    for total in invoice.totals:
        print(f"due: {total.due} {total.currency} (exactly {total.amount})")
    for entry in invoice.unbilled:
        print(unbilled_text(entry))


def _list(store: InvoiceStore, arguments: argparse.Namespace) -> None:
    found = store.issued(arguments.tenant)
    if arguments.json:
        common.print_json(
            [
                {
                    "number": issued.invoice.number,
                    "tenant": issued.invoice.tenant,
                    "period": issued.invoice.period,
                    "issued": issued.invoice.issued,
                    "due": {total.currency: total.due for total in issued.invoice.totals},
                    "sha256": issued.digest.hex(),
                }
                for issued in found
            ]
        )
        return
    rows = [
        (
            issued.invoice.number,
            issued.invoice.tenant,
            issued.invoice.period,
            issued.invoice.issued,
            " + ".join(f"{total.due} {total.currency}" for total in issued.invoice.totals) or None,
            issued.digest.hex()[:16],
        )
        for issued in found
    ]
    common.print_table(rows, headings=("number", "tenant", "period", "issued", "due", "sha256"))


def _unbilled(store: InvoiceStore, arguments: argparse.Namespace) -> None:
    found = list(store.unbilled(arguments.tenant, arguments.period, limit=arguments.limit))
    if arguments.json:
        common.print_json(
            [
                {
                    "request_id": row.request_id,
                    "started": durations.utc(row.started_s),
                    "model": row.model,
                    "reason": row.reason,
                    "cause": row.cause.value,
                }
                for row in found
            ]
        )
        return
    rows = [
        (row.request_id, durations.utc(row.started_s), row.model, row.reason, row.cause.value)
        for row in found
    ]
    common.print_table(rows, headings=("request", "started", "model", "reason", "cause"))


def _adjust(arguments: argparse.Namespace) -> None:
    try:
        amount_pico = money.parse_amount(arguments.amount)
    except money.NotAnAmount as error:
        raise ConfigError(f"--amount: {error}") from error
    if (arguments.tenant is None) != (arguments.currency is None):
        raise ConfigError("--currency belongs to --tenant; a request has the currency of its price")
    with _store(arguments) as store:
        if arguments.tenant is None:
            made = store.correct_request(arguments.request, amount_pico, arguments.reason)
        else:
            made = store.correct_tenant(arguments.tenant, arguments.currency, amount_pico, arguments.reason)
    amount = money.format_amount(made.amount_pico)
    identity.note(
        f"correction {made.number}: {amount} {made.currency} for tenant `{made.tenant}`, on its next invoice"
    )
