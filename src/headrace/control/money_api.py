"""What can be done over the admin port with prices, usage, invoices and corrections? What the commands can, and the same way.

Docs: docs/reference/admin-api.md.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from headrace.control.admin_reading import choice, existing, moment_s, names, parted
from headrace.control.admin_routes import AdminRoute, Asked, Reply, Turn, reply
from headrace.core import money
from headrace.core.clock import Clock
from headrace.core.errors import InvalidRequest
from headrace.core.prices import EVERY_MODEL, EVERY_TENANT, Item
from headrace.core.roles import Role
from headrace.stores import invoices, prices, views
from headrace.stores.invoices import InvoiceStore
from headrace.stores.opening import open_database
from headrace.stores.prices import Draft, PriceStore
from headrace.stores.usage_report import Group, UsageReport


class _NewPrice(msgspec.Struct, forbid_unknown_fields=True):
    """A version of the price book, by the names that the list shows."""

    currency: str
    model: str = EVERY_MODEL
    tenant: str = EVERY_TENANT
    valid_from: str = ""
    withdrawn: bool = False
    prices: dict[Item, str] = {}


class _NewCorrection(msgspec.Struct, forbid_unknown_fields=True):
    amount: str
    reason: str
    request: str = ""
    tenant: str = ""
    currency: str = ""


class MoneyApi:
    """Answers out of the database that the commands use, opened for each: what is summed there can take seconds, and nobody
    else should have to wait for it."""

    def __init__(self, data: Path, *, clock: Clock) -> None:
        self._data = data
        self._clock = clock

    def routes(self) -> tuple[AdminRoute, ...]:
        """The table."""
        return (
            _row("GET", "/admin/v1/prices", Role.VIEWER, self._prices, query=("tenant", "model", "all")),
            _row("POST", "/admin/v1/prices", Role.ADMIN, self._enter, fields=names(_NewPrice)),
            _row("GET", "/admin/v1/usage", Role.VIEWER, self._usage, query=("since", "tenant", "by")),
            _row("GET", "/admin/v1/tenants/{tenant}/invoice", Role.VIEWER, self._invoice, query=("period",)),
            _row("POST", "/admin/v1/corrections", Role.ADMIN, self._correct, fields=names(_NewCorrection)),
        )

    def _prices(self, asked: Asked) -> Reply:
        wants_all = choice(asked.query, "all", ("true", "false")) == "true"
        with closing(self._price_store(asked)) as store:
            found = prices.listed(
                store.versions(),
                wall_s=None if wants_all else self._clock.wall_s(),
                tenant=asked.query.get("tenant"),
                model=asked.query.get("model"),
            )
        return reply({"prices": [views.price(price) for price in found]})

    def _enter(self, asked: Asked) -> Reply:
        new, _ = parted(asked.fields, _NewPrice)
        if new.withdrawn == bool(new.prices):
            raise InvalidRequest('give at least one of `prices`, such as {"input": "0.15"}, or `withdrawn`')
        draft = Draft(
            currency=new.currency,
            stated=None if new.withdrawn else new.prices,
            model=new.model,
            tenant=new.tenant,
            valid_from_s=moment_s({"valid_from": new.valid_from}, "valid_from"),
        )
        with closing(self._price_store(asked)) as store:
            entered = store.enter([draft])
        return reply({"prices": [views.price(price) for price in entered]}, status=201 if entered else 200)

    def _usage(self, asked: Asked) -> Reply:
        since_s, tenant = moment_s(asked.query, "since"), asked.query.get("tenant")
        by = choice(asked.query, "by", tuple(group.value for group in Group))
        groups = (Group(by),) if by else (Group.TENANT, Group.MODEL)
        with closing(UsageReport(open_database(self._data, must_exist=True))) as report:
            if tenant is not None:
                existing(report.require_tenant, tenant)
            sums = report.summary(tenant=tenant, since_s=since_s, group_by=groups)
        return reply({"usage": [views.usage_sum(groups, row) for row in sums]})

    def _invoice(self, asked: Asked) -> Reply:
        """The issued one as it was issued, byte for byte, else what it would say now."""
        tenant, period = asked.named["tenant"], asked.query.get("period")
        with closing(self._invoice_store(asked)) as store:
            existing(store.require_tenant, tenant)
            if period is None:
                raise InvalidRequest("name the month or day: ?period=2026-11", param="period")
            issued = store.find(tenant, period)
            if issued is not None:
                document = msgspec.Raw(issued.document.encode())
                return reply({"invoice": document, "sha256": issued.digest.hex(), "problems": []})
            invoice, problems = store.preview(tenant, period)
        return reply({"invoice": invoice, "sha256": None, "problems": problems})

    def _correct(self, asked: Asked) -> Reply:
        new, _ = parted(asked.fields, _NewCorrection)
        if bool(new.request) == bool(new.tenant) or bool(new.tenant) != bool(new.currency):
            raise InvalidRequest("name the `request`, or the `tenant` with the `currency`")
        try:
            amount_pico = money.parse_amount(new.amount)
        except money.NotAnAmount as error:
            raise InvalidRequest(f"`amount`: {error}", param="amount") from None
        with closing(self._invoice_store(asked)) as store:
            if new.request:
                made = store.correct_request(new.request, amount_pico, new.reason)
            else:
                made = store.correct_tenant(new.tenant, new.currency, amount_pico, new.reason)
        return reply(views.correction(made), status=201)

    def _price_store(self, asked: Asked) -> PriceStore:
        return prices.open_prices(self._data, clock=self._clock, actor=asked.caller.actor, must_exist=True)

    def _invoice_store(self, asked: Asked) -> InvoiceStore:
        return invoices.open_invoices(self._data, clock=self._clock, actor=asked.caller.actor)


def _row(
    method: str,
    path: str,
    role: Role,
    answer: Callable[[Asked], Reply],
    *,
    query: tuple[str, ...] = (),
    fields: tuple[str, ...] = (),
) -> AdminRoute:
    return AdminRoute(method, path, role, answer, query=query, fields=fields, turn=Turn.LEDGER)
