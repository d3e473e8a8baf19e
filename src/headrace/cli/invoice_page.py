"""How does an invoice look on paper? One page of HTML that needs nothing else, for a browser's print command."""

from collections.abc import Iterable
from html import escape

from headrace.cli.invoice_text import describe, quantity, unbilled_text
from headrace.core.invoices import Invoice, InvoiceLine, LineKind

_STYLE = """
@page { size: A4; margin: 18mm 16mm 20mm; @bottom-right { content: counter(page) " / " counter(pages); font: 8pt system-ui; color: #667 } }
* { box-sizing: border-box }
body { font: 10pt/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: #1b2230; background: #eef0f4; margin: 0 }
main { background: #fff; max-width: 210mm; min-height: 277mm; margin: 8mm auto; padding: 18mm 16mm; box-shadow: 0 1px 12px #0002 }
header { display: flex; justify-content: space-between; align-items: flex-start; gap: 12mm }
h1 { font-size: 22pt; font-weight: 650; letter-spacing: -.02em; margin: 0 0 1mm }
h2 { font-size: 10.5pt; margin: 7mm 0 1.5mm; break-after: avoid }
.quiet { color: #667085; font-size: 9pt }
.seller { text-align: right; white-space: pre-line; font-size: 9pt; color: #445 }
dl { display: flex; gap: 16mm; margin: 8mm 0 2mm; padding: 4mm 0; border: solid #d8dce4; border-width: 1px 0 }
dt { color: #667085; font-size: 8pt }
dd { margin: 0; font-weight: 600 }
table { border-collapse: collapse; width: 100%; table-layout: fixed; font-variant-numeric: tabular-nums }
th { text-align: left; font-size: 8pt; font-weight: 600; color: #667085; border-bottom: 1px solid #b8bfcc; padding: 1mm 2mm 1mm 0 }
td { padding: 1.3mm 2mm 1.3mm 0; border-bottom: 1px solid #eceef2; vertical-align: top }
th + th, td + td { text-align: right; white-space: nowrap; padding: 1.3mm 0 1.3mm 5mm }
th:nth-child(2) { width: 30mm } th:nth-child(3) { width: 30mm } th:nth-child(4) { width: 39mm }
tr { break-inside: avoid } thead { display: table-header-group }
.due { margin: 8mm 0 0 auto; width: 82mm; break-inside: avoid }
.due td { border: 0 } .due tr:last-child td { font-size: 13pt; font-weight: 650; border-top: 2px solid #1b2230; padding-top: 2mm }
.due + .due { margin-top: 5mm }
.mark { display: inline-block; white-space: nowrap; font-size: 7.5pt; font-weight: 600; color: #8a5300; background: #fff3dc; border-radius: 3px; padding: 0 1.4mm; margin-left: 1.5mm }
.preview { color: #8a5300; border: 1.5px solid #e0a54a; border-radius: 4px; padding: 2mm 3mm; margin-top: 5mm; font-size: 9pt }
footer { margin-top: 10mm; padding-top: 3mm; border-top: 1px solid #d8dce4; break-inside: avoid }
footer p { margin: 0 0 1.5mm } code { font: 8pt ui-monospace, Menlo, Consolas, monospace; word-break: break-all }
@media print { body { background: none } main { box-shadow: none; margin: 0; padding: 0; max-width: none; min-height: 0 } }
"""
_SECTIONS = (
    (LineKind.LATE, "Usage of earlier periods, recorded after their invoices"),
    (LineKind.CORRECTION, "Corrections"),
)


def written(invoice: Invoice, *, digest: bytes | None) -> str:
    """The page; `digest` is that of the stored invoice, None for a preview."""
    title = f"Invoice {invoice.number}" if invoice.number else "Invoice preview"
    body = "".join((_head(invoice, title), *_tables(invoice), *_due(invoice), _foot(invoice, digest)))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}, {escape(invoice.tenant)}, {escape(invoice.period)}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _head(invoice: Invoice, title: str) -> str:
    facts = (
        ("Tenant", invoice.tenant),
        ("Period", invoice.period),
        ("Issued", invoice.issued[:10] or "not issued"),
        ("Requests", f"{invoice.requests:,}"),
    )
    pairs = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    warning = (
        ""
        if invoice.number
        else '<p class="preview">A preview of what has been recorded so far. It is not an invoice.</p>\n'
    )
    return (
        f"<header><div><h1>{escape(title)}</h1>"
        f'<div class="quiet">{escape(invoice.begins[:10])} up to, not including, {escape(invoice.ends[:10])}, UTC</div></div>'
        f'<div class="seller">{escape(invoice.seller)}</div></header>\n{warning}<dl>{pairs}</dl>\n'
    )


def _tables(invoice: Invoice) -> Iterable[str]:
    usage = [line for line in invoice.lines if line.kind is LineKind.USAGE]
    for model in dict.fromkeys(line.model for line in usage):
        yield _table(model, [line for line in usage if line.model == model])
    for kind, heading in _SECTIONS:
        lines = [line for line in invoice.lines if line.kind is kind]
        if lines:
            yield _table(heading, lines)
    if not invoice.lines:
        yield '<p class="quiet">Nothing was billed in this period.</p>\n'


def _table(heading: str, lines: list[InvoiceLine]) -> str:
    rows = "".join(map(_line, lines))
    return (
        f"<h2>{escape(heading)}</h2>\n<table><thead><tr><th>Item</th><th>Quantity</th><th>Unit price</th><th>Amount</th>"
        f"</tr></thead><tbody>{rows}</tbody></table>\n"
    )


def _line(line: InvoiceLine) -> str:
    mark = '<span class="mark">estimated</span>' if line.is_estimated else ""
    price = "" if line.kind is LineKind.CORRECTION else f"{line.rate} {line.currency}"
    version = f' <span class="quiet">{escape(line.price_version)}</span>' if line.price_version else ""
    return (
        f"<tr><td>{escape(describe(line))}{version}{mark}</td><td>{quantity(line)}</td><td>{escape(price)}</td>"
        f"<td>{line.amount} {escape(line.currency)}</td></tr>"
    )


def _due(invoice: Invoice) -> Iterable[str]:
    for total in invoice.totals:
        currency = escape(total.currency)
        yield (
            f'<table class="due"><tr><td>Sum of the lines</td><td>{total.amount} {currency}</td></tr>'
            f"<tr><td>Amount due</td><td>{total.due} {currency}</td></tr></table>\n"
        )


def _foot(invoice: Invoice, digest: bytes | None) -> str:
    notes = [
        "Amounts are exact; only the amount due is rounded, to the smallest coin. Quantities marked as estimated are our"
        " count of the text, where an engine reported none.",
        *(unbilled_text(entry) for entry in invoice.unbilled),
    ]
    if digest is not None:
        notes.append(f"SHA-256 of this invoice as JSON: <code>{digest.hex()}</code>")
    return f'<footer class="quiet">{"".join(f"<p>{note}</p>" for note in notes)}</footer>\n'
