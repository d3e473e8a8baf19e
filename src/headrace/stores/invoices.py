"""What does a tenant owe, and what was it told? Invoices out of the ledger, issued ones kept for good, and corrections.

Everything that counts in money only grows: usage, corrections, invoices. What becomes known later is on a later invoice.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headrace.core import endings, invoices, money
from headrace.core.clock import Clock
from headrace.core.endings import Charge, Stage
from headrace.core.errors import ConfigError
from headrace.core.invoices import Cause, Invoice, InvoiceLine, LineKind, NotAPeriod, Unbilled
from headrace.core.money import format_amount
from headrace.core.request import Endpoint
from headrace.core.usage import TokenUsage, UsageSource
from headrace.policies import invoicing
from headrace.policies.invoicing import Reckoning, UsageGroup
from headrace.policies.prices import PriceBook
from headrace.stores import audit, opening, prices, usage_report
from headrace.stores.audit import Act, Action
from headrace.stores.database import Database, Row

_STAGE = (
    f"CASE WHEN attempts = 0 THEN '{Stage.UNSTARTED}'"
    f" WHEN ttft_s IS NULL THEN '{Stage.WORKING}' ELSE '{Stage.ANSWERING}' END"
)
_ALIKE = f"model, endpoint, price_version, reason, {_STAGE}, usage_source"
_SUMS = (
    "count(*), sum(prompt_tokens), sum(completion_tokens), sum(cached_tokens), sum(reasoning_tokens), sum(units),"
    f" {usage_report.SUM_OF_CHARGES}"
)
_CORRECTION = "number, tenant, request_id, model, price_version, currency, amount_pico, reason, created_s"


@dataclass(frozen=True, slots=True)
class Correction:
    """One entry beside the ledger: an amount that is added to what a tenant owes, or taken off it.

    Attributes:
        request_id, model, price_version: Of the request that it is about; empty where it is about none.
        created_s: Unix seconds.
    """

    number: int
    tenant: str
    request_id: str
    model: str
    price_version: str
    currency: str
    amount_pico: int
    reason: str
    created_s: float


@dataclass(frozen=True, slots=True)
class Issued:
    """An invoice as it was issued, and the SHA-256 of the bytes that were stored."""

    invoice: Invoice
    document: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class UnbilledRequest:
    request_id: str
    started_s: float
    model: str
    reason: str
    cause: Cause


class InvoiceStore:
    """Invoices and corrections in a database; safe beside other processes."""

    def __init__(self, database: Database, *, clock: Clock, actor: str) -> None:
        """Takes over the database, and closes it. `actor` is who the audit log names."""
        self._database = database
        self._clock = clock
        self._actor = actor

    def close(self) -> None:
        self._database.close()

    def require_tenant(self, tenant: str) -> None:
        """Raises ConfigError for a name that nobody has and that used nothing: a mistyped one must not look like one that
        owes nothing."""
        known = self._database.row(
            "SELECT 1 FROM tenant WHERE name = ? UNION ALL SELECT 1 FROM usage WHERE tenant = ? LIMIT 1",
            (tenant, tenant),
        )
        if known is None:
            raise ConfigError(f"no tenant `{tenant}`; see `headrace tenants list`")

    def preview(self, tenant: str, period: str, *, seller: str = "") -> tuple[Invoice, tuple[str, ...]]:
        """What an invoice would say now, and what speaks against it, in sentences. Raises ConfigError for what is no period."""
        with self._database.snapshot():
            return self._made(tenant, period, seller)

    def issue(self, tenant: str, period: str, *, seller: str = "") -> Issued:
        """Makes an invoice, numbers it and keeps it for good.

        Raises ConfigError where the period isn't over, was invoiced already, or records and rules don't agree.
        """
        begins, ends = _bounds(period)
        now_s = self._clock.wall_s()
        if now_s < ends.timestamp():
            raise ConfigError(f"{period} is not over: it can be invoiced from {_iso(ends)} on")
        # Outside the transaction, which the ledger's writer would have to wait for. What is recorded in between is late.
        before = self._newest(tenant)
        invoice, problems = self.preview(tenant, period, seller=seller)
        if problems:
            raise ConfigError(f"nothing was issued: {'; '.join(problems)}")
        with self._database.transaction():
            taken = self._database.row(
                "SELECT number FROM invoice WHERE tenant = ? AND begins_s < ? AND ends_s > ?",
                (tenant, ends.timestamp(), begins.timestamp()),
            )
            if taken is not None:
                raise ConfigError(
                    f"{period} of tenant `{tenant}` is on invoice {taken[0]}; what was recorded later, and corrections,"
                    " are on the next one"
                )
            if self._newest(tenant) != before:
                # It may have the same late usage and the same corrections.
                raise ConfigError("another invoice was issued at the same moment; issue this one again")
            return self._keep(invoice, begins.timestamp(), ends.timestamp(), now_s)

    def issued(self, tenant: str | None = None) -> list[Issued]:
        """All of them, or those of a tenant, in the order of their numbers. Raises ConfigError where one was changed."""
        rows = self._database.rows(
            "SELECT number, document, digest FROM invoice WHERE ? = '' OR tenant = ? ORDER BY number",
            (tenant or "", tenant or ""),
        )
        return [_issued(*row) for row in rows]

    def find(self, tenant: str, period: str) -> Issued | None:
        """The invoice that was issued for exactly this."""
        row = self._database.row(
            "SELECT number, document, digest FROM invoice WHERE tenant = ? AND period = ?", (tenant, period)
        )
        return None if row is None else _issued(*row)

    def correct_request(self, request_id: str, amount_pico: int, reason: str) -> Correction:
        """Adds to what a request costs, or takes off it. Raises ConfigError where it would cost less than nothing."""
        with self._database.transaction():
            found = self._database.row(
                "SELECT tenant, model, price_version, charge_pico FROM usage WHERE request_id = ?",
                (request_id,),
            )
            if found is None:
                raise ConfigError(f"no record of request {request_id!a}; see `headrace usage --requests`")
            tenant, model, version, charge_pico = found
            currency = usage_report.currencies(self._database).get(version)
            if currency is None:
                raise ConfigError(
                    f"request {request_id} has no price, so there is nothing to correct; use --tenant"
                )
            row = self._database.row(
                "SELECT coalesce(sum(amount_pico), 0) FROM correction WHERE request_id = ?", (request_id,)
            )
            assert row is not None, "an aggregate has one row"
            left_pico = charge_pico + int(row[0])
            if left_pico + amount_pico < 0:
                raise ConfigError(
                    f"request {request_id} costs {format_amount(left_pico)} {currency};"
                    f" {format_amount(amount_pico)} would take off more"
                )
            return self._correct(tenant, request_id, model, version, currency, amount_pico, reason)

    def correct_tenant(self, tenant: str, currency: str, amount_pico: int, reason: str) -> Correction:
        """Adds to what a tenant owes, or takes off it."""
        if not money.is_currency(currency):
            raise ConfigError(f"currency {currency!a}: three capital letters, such as EUR")
        with self._database.transaction():
            self.require_tenant(tenant)
            return self._correct(tenant, "", "", "", currency, amount_pico, reason)

    def unbilled(self, tenant: str, period: str, *, limit: int) -> Iterator[UnbilledRequest]:
        """The oldest requests that would be billed if their usage or a price were known."""
        begins, ends = _bounds(period)
        with self._database.snapshot():
            rows = self._database.each(
                f"SELECT request_id, started_s, model, reason, {_STAGE}, usage_source FROM usage"
                " WHERE tenant = ? AND started_s >= ? AND started_s < ? AND (usage_source = ? OR price_version = '')"
                " ORDER BY request_id",
                (tenant, begins.timestamp(), ends.timestamp(), UsageSource.UNKNOWN.value),
            )
            for request_id, started_s, model, reason, stage, source in rows:
                if limit <= 0:
                    return
                rule = endings.find(reason, Stage(stage)).charge
                if rule is not Charge.NOTHING and source != UsageSource.NONE:
                    cause = Cause.UNKNOWN_USAGE if source == UsageSource.UNKNOWN else Cause.NO_PRICE
                    yield UnbilledRequest(request_id, started_s, model, reason, cause)
                    limit -= 1

    def _correct(self, tenant: str, request_id: str, model: str, version: str, currency: str, amount_pico: int,
                 reason: str) -> Correction:  # fmt: skip
        if not amount_pico:
            raise ConfigError("an amount of 0 corrects nothing")
        if not reason.strip() or not reason.isprintable() or len(reason) > 500:
            raise ConfigError(
                "a correction needs a reason: one line of at most 500 characters, which the tenant reads"
            )
        facts = (tenant, request_id, model, version, currency, amount_pico, reason, self._clock.wall_s())
        row = self._database.row(
            f"INSERT INTO correction ({_CORRECTION})"
            " SELECT coalesce(max(number), 0) + 1, ?, ?, ?, ?, ?, ?, ?, ? FROM correction RETURNING number",
            facts,
        )
        assert row is not None, "RETURNING has a row"
        made = Correction(row[0], *facts)
        self._record(
            Action.CORRECTION,
            request_id or tenant,
            tenant,
            {"amount": format_amount(amount_pico), "currency": currency, "reason": reason},
        )
        return made

    def _record(self, action: Action, target: str, tenant: str, facts: dict[str, object]) -> None:
        act = Act(self._clock.wall_s(), self._actor, action, target, tenant, audit.differences({}, facts))
        audit.record(self._database, act)

    def _made(self, tenant: str, period: str, seller: str) -> tuple[Invoice, tuple[str, ...]]:
        begins, ends = _bounds(period)
        book = PriceBook(prices.versions(self._database))
        reckoning = self._reckon(tenant, begins.timestamp(), ends.timestamp(), book)
        late, problems, known = self._late(tenant, begins.timestamp(), book)
        corrections = self._open_corrections(tenant, ends.timestamp())
        lines = (
            *invoicing.lines(reckoning.quantities, book, kind=LineKind.USAGE, period=period),
            *late,
            *map(_correction_line, corrections),
        )
        invoice = Invoice(
            number=0,
            tenant=tenant,
            period=period,
            begins=_iso(begins),
            ends=_iso(ends),
            issued="",
            requests=reckoning.requests,
            lines=lines,
            totals=invoices.totals(lines),
            unbilled=tuple(
                Unbilled(cause, reckoning.unbilled[cause]) for cause in Cause if cause in reckoning.unbilled
            ),
            corrections=tuple(correction.number for correction in corrections),
            known=known,
            seller=seller,
        )
        return invoice, (*reckoning.problems, *problems)

    def _reckon(self, tenant: str, begins_s: float, ends_s: float, book: PriceBook) -> Reckoning:
        rows = self._database.rows(
            f"SELECT {_ALIKE}, {_SUMS} FROM usage WHERE tenant = ? AND started_s >= ? AND started_s < ?"
            f" GROUP BY {_ALIKE}",
            (tenant, begins_s, ends_s),
        )
        return invoicing.reckon(map(_group, rows), book)

    def _late(
        self, tenant: str, before_s: float, book: PriceBook
    ) -> tuple[list[InvoiceLine], list[str], dict[str, int]]:
        """What was recorded of earlier periods after their invoices and is on no other, and how many requests they have now."""
        found: list[InvoiceLine] = []
        problems: list[str] = []
        known: dict[str, int] = {}
        told = [issued.invoice for issued in self.issued(tenant)]
        earlier = self._database.rows(
            "SELECT period, begins_s, ends_s FROM invoice WHERE tenant = ? AND ends_s <= ? ORDER BY begins_s",
            (tenant, before_s),
        )
        for period, begins_s, ends_s in earlier:
            counted = self._database.row(
                "SELECT count(*) FROM usage WHERE tenant = ? AND started_s >= ? AND started_s < ?",
                (tenant, begins_s, ends_s),
            )
            assert counted is not None, "an aggregate has one row"
            known[period] = counted[0]
            # Counting takes a fraction of the time of adding up, and most often nothing has come since.
            if known[period] == max(
                invoice.requests if invoice.period == period else invoice.known.get(period, 0)
                for invoice in told
            ):
                continue
            now = self._reckon(tenant, begins_s, ends_s, book)
            lines = [
                line
                for invoice in told
                for line in invoice.lines
                if line.kind is not LineKind.CORRECTION and line.period == period
            ]
            left = invoicing.late(now.quantities, lines)
            problems += now.problems
            problems += [
                f"{-count} {key.item} of model {key.model!a} in {period} were invoiced and are recorded no more"
                for key, count in left.items()
                if count < 0
            ]
            more = {key: count for key, count in left.items() if count > 0}
            found += invoicing.lines(more, book, kind=LineKind.LATE, period=period)
        return found, problems, known

    def _open_corrections(self, tenant: str, before_s: float) -> list[Correction]:
        rows = self._database.rows(
            f"SELECT {_CORRECTION} FROM correction WHERE tenant = ? AND created_s < ?"
            " AND NOT EXISTS (SELECT 1 FROM invoiced WHERE invoiced.correction = correction.number) ORDER BY number",
            (tenant, before_s),
        )
        return [Correction(*row) for row in rows]

    def _newest(self, tenant: str) -> int:
        """The number of the tenant's last invoice, 0 before the first."""
        row = self._database.row("SELECT coalesce(max(number), 0) FROM invoice WHERE tenant = ?", (tenant,))
        assert row is not None, "an aggregate has one row"
        return int(row[0])

    def _keep(self, invoice: Invoice, begins_s: float, ends_s: float, now_s: float) -> Issued:
        row = self._database.row("SELECT coalesce(max(number), 0) + 1 FROM invoice")
        assert row is not None, "an aggregate has one row"
        number = int(row[0])
        issued = datetime.fromtimestamp(now_s, tz=UTC)
        invoice = msgspec.structs.replace(invoice, number=number, issued=_iso(issued))
        document = msgspec.json.encode(invoice).decode()
        digest = hashlib.sha256(document.encode()).digest()
        self._database.execute(
            "INSERT INTO invoice (number, tenant, period, begins_s, ends_s, issued_s, document, digest)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (number, invoice.tenant, invoice.period, begins_s, ends_s, now_s, document, digest),
        )
        for correction in invoice.corrections:
            self._database.execute(
                "INSERT INTO invoiced (correction, invoice) VALUES (?, ?)", (correction, number)
            )
        self._record(
            Action.INVOICE_ISSUE,
            str(number),
            invoice.tenant,
            {"period": invoice.period, "digest": digest.hex()},
        )
        return Issued(invoice, document, digest)


def open_invoices(data: Path, *, clock: Clock, actor: str) -> InvoiceStore:
    """Those of that data directory. Raises ConfigError when there is no database."""
    return InvoiceStore(opening.open_database(data, must_exist=True), clock=clock, actor=actor)


def _bounds(period: str) -> tuple[datetime, datetime]:
    try:
        return invoices.bounds(period)
    except NotAPeriod as error:
        raise ConfigError(str(error)) from None


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _group(row: Row) -> UsageGroup:
    model, endpoint, version, reason, stage, source = row[:6]
    requests, prompt, completion, cached, reasoning, units, high, low = map(int, row[6:])
    return UsageGroup(
        model,
        Endpoint(endpoint).unit,
        version,
        reason,
        Stage(stage),
        TokenUsage(prompt, completion, cached, UsageSource(source), reasoning, units),
        requests,
        usage_report.joined(high, low),
    )


def _correction_line(correction: Correction) -> InvoiceLine:
    amount = format_amount(correction.amount_pico)
    return InvoiceLine(
        kind=LineKind.CORRECTION,
        period=datetime.fromtimestamp(correction.created_s, tz=UTC).date().isoformat(),
        model=correction.model,
        price_version=correction.price_version,
        item="",
        is_estimated=False,
        quantity=1,
        unit="",
        rate=amount,
        per=1,
        amount=amount,
        currency=correction.currency,
        request_id=correction.request_id,
        note=correction.reason,
    )


def _issued(number: int, document: str, digest: bytes) -> Issued:
    if hashlib.sha256(document.encode()).digest() != bytes(digest):
        raise ConfigError(
            f"invoice {number} was changed after it was issued: it doesn't fit its digest; restore it from a backup"
        )
    return Issued(msgspec.json.decode(document, type=Invoice), document, bytes(digest))
