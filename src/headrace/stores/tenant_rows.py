"""Which tenants are there, and what is agreed with each? The rows of one table."""

from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.ids import TenantId
from headrace.core.tenant import PRIORITIES, TenantShare
from headrace.stores import agreements
from headrace.stores.agreements import Agreement, LimitOverrides
from headrace.stores.database import Database, Row

AGREED = "requests_per_minute, requests_burst, concurrency_max, class, weight, reserved_slots, terms"
_COLUMNS = f"name, created_s, {AGREED}"


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """One tenant; created_s is Unix seconds."""

    name: TenantId
    created_s: float
    agreement: Agreement


def row(agreement: Agreement) -> tuple[int | str | None, ...]:
    """The columns of AGREED."""
    limits, share = agreement.limits, agreement.share
    return (
        limits.requests_per_minute,
        limits.requests_burst,
        limits.concurrency_max,
        share.priority_max.word,
        share.weight,
        share.reserved_slots,
        agreements.terms_text(agreement.terms),
    )


def exists(database: Database, name: str) -> bool:
    return database.row("SELECT 1 FROM tenant WHERE name = ?", (name,)) is not None


def select(database: Database, where: str = "", values: tuple[str, ...] = ()) -> list[TenantRecord]:
    """The tenants that `where` holds for. Raises ConfigError where this version can't read the terms of one."""
    return [_record(found) for found in database.rows(f"SELECT {_COLUMNS} FROM tenant {where}", values)]


def readable(database: Database) -> tuple[list[TenantRecord], list[str]]:
    """All tenants that this version can read, and what is wrong with the others."""
    records, problems = [], []
    for found in database.rows(f"SELECT {_COLUMNS} FROM tenant"):
        try:
            records.append(_record(found))
        except ConfigError as error:
            problems.append(error.message)
    return records, problems


def require(database: Database, name: str) -> TenantRecord:
    """Raises ConfigError, naming the nearest, when there is no such tenant."""
    found = select(database, "WHERE name = ?", (name,))
    if found:
        return found[0]
    known = [name for (name,) in database.rows("SELECT name FROM tenant ORDER BY name")]
    raise ConfigError(f"no tenant `{name}`; {agreements.nearest(name, known, see='headrace tenants list')}")


def _record(found: Row) -> TenantRecord:
    name, created_s, per_minute, burst, concurrency, word, weight, reserved, terms = found
    return TenantRecord(
        name,
        created_s,
        Agreement(
            LimitOverrides(per_minute, burst, concurrency),
            TenantShare(PRIORITIES[word], weight, reserved),
            agreements.terms_of(terms, tenant=name),
        ),
    )
