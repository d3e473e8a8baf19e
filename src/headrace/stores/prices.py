"""Which prices were set? Versions of the price book, which only grows: what was agreed for the past stays as it was."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.core import money
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.money import NotAnAmount
from headrace.core.prices import EVERY_MODEL, EVERY_TENANT, Item, Price, rates_of
from headrace.policies.prices import PriceBook
from headrace.stores import audit, opening, usage_report
from headrace.stores.audit import Act, Action
from headrace.stores.database import Database, Row

# A version is entered this long before it holds: every worker reads the book within a second, and by then all charge by it.
LEAD_S = 2.0
_MODEL_BYTES_MAX = 256
_COLUMNS = "number, tenant, model, currency, valid_from_s, stated"


@dataclass(frozen=True, slots=True)
class Draft:
    """A version as somebody wants it, not yet checked.

    Attributes:
        valid_from_s: Unix seconds; None for as soon as every worker knows it.
        stated: Prices as decimals; None to withdraw what holds for exactly this tenant and model.
    """

    currency: str
    stated: dict[Item, str] | None
    model: str = EVERY_MODEL
    tenant: str = EVERY_TENANT
    valid_from_s: float | None = None


class PriceStore:
    """The price book in a database; safe beside other processes."""

    def __init__(self, database: Database, *, clock: Clock, actor: str) -> None:
        """Takes over the database, and closes it. `actor` is who the audit log names."""
        self._database = database
        self._clock = clock
        self._actor = actor

    def close(self) -> None:
        self._database.close()

    def enter(self, drafts: Sequence[Draft]) -> list[Price]:
        """Adds versions, all of them or none; those that are in the book already, word for word, are left out.

        Raises ConfigError where one can't be charged exactly, names no tenant of ours, or would change the past.
        """
        now_s = self._clock.wall_s()
        with self._database.transaction():
            known = {(p.tenant, p.model, p.currency, p.valid_from_s): p for p in versions(self._database)}
            entered: list[Price] = []
            for draft in drafts:
                version = self._checked(draft, now_s=now_s)
                selector = (version.tenant, version.model, version.currency, version.valid_from_s)
                if selector not in known or known[selector].stated != version.stated:
                    self._refuse_past(version, now_s=now_s)
                    entered.append(self._insert(version))
        return entered

    def versions(self) -> list[Price]:
        """All of them, in the order in which they were entered."""
        with self._database.snapshot():
            return versions(self._database)

    def book(self) -> PriceBook:
        return PriceBook(self.versions())

    def revision(self) -> int:
        """Grows with every version, as with every change of a tenant; the running service says which it goes by."""
        found = self._database.row("SELECT revision FROM tenancy")
        assert found is not None, "the schema has made its one row"
        return int(found[0])

    def _checked(self, draft: Draft, *, now_s: float) -> Price:
        if not money.is_currency(draft.currency):
            raise ConfigError(f"currency {draft.currency!a}: three capital letters, such as EUR")
        if not 0 < len(draft.model.encode()) <= _MODEL_BYTES_MAX or not draft.model.isprintable():
            raise ConfigError(f"model {draft.model!a}: a model's name, or `*` for every model")
        if (
            draft.tenant != EVERY_TENANT
            and self._database.row("SELECT 1 FROM tenant WHERE name = ?", (draft.tenant,)) is None
        ):
            raise ConfigError(f"no tenant `{draft.tenant}`; see `headrace tenants list`")
        try:
            rates = None if draft.stated is None else rates_of(draft.stated)
        except NotAnAmount as error:
            raise ConfigError(f"price of `{draft.model}`: {error}") from None
        valid_from_s = draft.valid_from_s
        if valid_from_s is None:
            valid_from_s = float(math.ceil(now_s + LEAD_S))
        stated = None if draft.stated is None else dict(sorted(draft.stated.items()))
        return Price("", draft.tenant, draft.model, draft.currency, valid_from_s, stated, rates)

    def _refuse_past(self, version: Price, *, now_s: float) -> None:
        """What was used was used at the price of its time. Where nothing was used, there is no past to be changed."""
        if version.valid_from_s >= now_s + LEAD_S:
            return
        where, values = usage_report.where(
            since_s=version.valid_from_s,
            tenant=None if version.tenant == EVERY_TENANT else version.tenant,
            model=None if version.model == EVERY_MODEL else version.model,
        )
        if self._database.row(f"SELECT 1 FROM usage {where} LIMIT 1", values) is not None:
            raise ConfigError(
                f"price of `{version.model}`: it can't hold from the past on, because requests were made since then at the"
                f" price of their time; leave valid_from out, or let it begin {LEAD_S:.0f} s from now or later"
            )

    def _insert(self, version: Price) -> Price:
        stated = msgspec.json.encode(version.stated).decode()
        # Rows are never deleted and transactions wait for each other, so no number comes twice.
        found = self._database.row(
            f"INSERT INTO price ({_COLUMNS}) SELECT coalesce(max(number), 0) + 1, ?, ?, ?, ?, ? FROM price"
            " RETURNING number",
            (version.tenant, version.model, version.currency, version.valid_from_s, stated),
        )
        assert found is not None, "RETURNING has a row"
        entered = msgspec.structs.replace(version, version=_name(found[0]))
        facts: dict[str, object] = {
            "model": version.model,
            "currency": version.currency,
            "valid_from_s": version.valid_from_s,
            "prices": version.stated,
        }
        changes = audit.differences({}, facts)
        act = Act(
            self._clock.wall_s(), self._actor, Action.PRICE_SET, entered.version, version.tenant, changes
        )
        audit.record(self._database, act)
        return entered


def open_prices(data: Path, *, clock: Clock, actor: str = "service", must_exist: bool = False) -> PriceStore:
    """The price book of that data directory."""
    return PriceStore(opening.open_database(data, must_exist=must_exist), clock=clock, actor=actor)


def open_served(data: Path, *, clock: Clock) -> PriceStore:
    """What a gateway goes by: in the data directory itself, although it may be a copy."""
    return PriceStore(opening.open_local(data), clock=clock, actor="service")


def versions(database: Database) -> list[Price]:
    """All of them, in the order in which they were entered."""
    return [_price(row) for row in database.rows(f"SELECT {_COLUMNS} FROM price ORDER BY number")]


def in_force(prices: Iterable[Price], *, wall_s: float) -> list[Price]:
    """Of each tenant and model the version that holds at that Unix time, and those that will."""
    latest: dict[tuple[str, str], Price] = {}
    later: list[Price] = []
    for price in prices:
        if price.valid_from_s > wall_s:
            later.append(price)
            continue
        held = latest.get((price.tenant, price.model))
        if held is None or held.valid_from_s <= price.valid_from_s:
            latest[(price.tenant, price.model)] = price
    return [price for price in latest.values() if price.rates is not None] + later


def listed(
    found: Iterable[Price], *, wall_s: float | None, tenant: str | None = None, model: str | None = None
) -> list[Price]:
    """What is in force at that Unix time or to come, of all versions where it is None; sorted by whom and what they are for.

    Args:
        tenant, model: Only what they are charged by: their own prices, and those for everybody or every model.
    """
    kept = found if wall_s is None else in_force(found, wall_s=wall_s)
    return sorted(
        (
            price
            for price in kept
            if tenant is None or price.tenant in (tenant, EVERY_TENANT)
            if model is None or price.model in (model, EVERY_MODEL)
        ),
        key=lambda price: (price.tenant, price.model, price.valid_from_s),
    )


def _name(number: int) -> str:
    return f"p{number}"


def _price(row: Row) -> Price:
    number, tenant, model, currency, valid_from_s, text = row
    stated = msgspec.json.decode(text, type=dict[Item, str] | None)
    return Price(
        _name(number),
        tenant,
        model,
        currency,
        valid_from_s,
        stated,
        None if stated is None else rates_of(stated),
    )
