"""In which words does an invoice speak to people? Shared by the table in the terminal and the page for paper."""

from headrace.core.invoices import Cause, InvoiceLine, LineKind, Unbilled
from headrace.core.prices import MEASURES, Item

_CAUSES = {
    Cause.NOT_OWED: "failed, or were given up before any work, and cost nothing",
    Cause.UNKNOWN_USAGE: "are not billed because their usage is unknown",
    Cause.NO_PRICE: "are not billed because no price was set for them",
}


def describe(line: InvoiceLine) -> str:
    """What the line is for."""
    if line.kind is LineKind.CORRECTION:
        return f"{line.note} ({line.request_id or line.period})"
    label = MEASURES[Item(line.item)].label
    described = label[0].upper() + label[1:]
    return f"{described}: {line.model}, {line.period}" if line.kind is LineKind.LATE else described


def quantity(line: InvoiceLine) -> str:
    return "" if line.kind is LineKind.CORRECTION else f"{line.quantity:,}"


def unbilled_text(entry: Unbilled) -> str:
    return f"{entry.requests:,} requests {_CAUSES[entry.cause]}."
