"""How does an invoice become rows for other programs? Columns in the words of FOCUS, the FinOps Foundation's cost format."""

from headrace.core import invoices
from headrace.core.invoices import Invoice, InvoiceLine, LineKind
from headrace.evidence import tables

COLUMNS = (
    "InvoiceId",
    "BillingAccountId",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ServiceCategory",
    "ServiceName",
    "SkuId",
    "SkuPriceId",
    "ConsumedQuantity",
    "ConsumedUnit",
    "PricingQuantity",
    "PricingUnit",
    "ListUnitPrice",
    "BilledCost",
    "EffectiveCost",
    "BillingCurrency",
    "x_IsEstimated",
    "x_RequestId",
)


def written(invoice: Invoice) -> str:
    """A heading and one row for each line; amounts are exact, unrounded decimals."""
    return tables.csv_text(COLUMNS, (_row(invoice, line) for line in invoice.lines))


def _row(invoice: Invoice, line: InvoiceLine) -> tuple[object, ...]:
    begins, ends = (moment.isoformat().replace("+00:00", "Z") for moment in invoices.bounds(line.period))
    is_usage = line.kind is not LineKind.CORRECTION
    return (
        invoice.number or "",
        invoice.tenant,
        invoice.begins,
        invoice.ends,
        begins,
        ends,
        "Usage" if is_usage else "Adjustment",
        "Correction" if line.kind is not LineKind.USAGE else "",
        line.item if is_usage else line.note,
        "AI and Machine Learning",
        line.model,
        f"{line.model}/{line.item}" if is_usage else "",
        line.price_version,
        line.quantity if is_usage else "",
        line.unit,
        _priced(line) if is_usage else "",
        (line.unit if line.per == 1 else f"{line.per} {line.unit}") if is_usage else "",
        line.rate if is_usage else "",
        line.amount,
        line.amount,
        line.currency,
        "true" if line.is_estimated else "false",
        line.request_id,
    )


def _priced(line: InvoiceLine) -> str:
    """The quantity in what the price is for, exactly: `per` is a power of ten."""
    digits = len(str(line.per)) - 1
    whole, rest = divmod(line.quantity, line.per)
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if digits else str(line.quantity)
