"""What does the ledger say? Sums and single records, read beside a running writer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.stores import agreements
from headrace.stores.database import Database, columns
from headrace.stores.journal import Mark


class Orphan(Mark, frozen=True):
    """A request that a replica had when the process died that had sent it, and of which no record is left.

    Attributes:
        found_s: Unix seconds of the start that found it.
    """

    found_s: float


Record = TypeVar("Record", UsageRecord, ExecutionRecord)


class Group(Enum):
    """What usage can be summed by; the value is its column in a report."""

    TENANT = "tenant"
    MODEL = "model"
    USER = "user"  # for whom the key was made, where its tenant said so
    DAY = "day"  # UTC day of arrival
    OUTCOME = "outcome"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The usage of one group.

    Attributes:
        group: One value for each of the groups asked for.
        delivered ... cancelled: Requests by outcome; their sum is `requests`.
        prompt_tokens, cached_tokens, completion_tokens: Sums over the requests whose usage is known; None when it is
            known of none.
        estimated_tokens: How many of the prompt and completion tokens are our estimate, not the engine's count.
        unknown: Requests whose usage nobody reported; they are in no sum.
        charges: Pico-units by currency.
    """

    group: tuple[str, ...]
    requests: int
    delivered: int
    failed: int
    broken: int
    cancelled: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    estimated_tokens: int
    unknown: int
    charges: dict[str, int]

    @property
    def estimated_share(self) -> float | None:
        """The part of the prompt and completion tokens that we estimated; None without tokens to take a part of."""
        tokens = (self.prompt_tokens or 0) + (self.completion_tokens or 0)
        return self.estimated_tokens / tokens if tokens else None


# An id is made when a request has been read, `started_s` when it has been understood; the clock may be set in between, by an
# hour where somebody took summer time for winter time.
ID_MARGIN_S = 7200.0

# Aggregates in the order of UsageSum's fields, but for the last.
_SUMS = """
    count(*),
    count(*) FILTER (WHERE outcome = 'delivered'), count(*) FILTER (WHERE outcome = 'failed'),
    count(*) FILTER (WHERE outcome = 'broken'), count(*) FILTER (WHERE outcome = 'cancelled'),
    sum(prompt_tokens) FILTER (WHERE usage_source <> 'unknown'),
    sum(cached_tokens) FILTER (WHERE usage_source <> 'unknown'),
    sum(completion_tokens) FILTER (WHERE usage_source <> 'unknown'),
    coalesce(sum(prompt_tokens + completion_tokens) FILTER (WHERE usage_source = 'estimated'), 0),
    count(*) FILTER (WHERE usage_source = 'unknown')
"""

NO_CURRENCY = (
    "XXX"  # ISO 4217's own, for a version that isn't in the book: from before a step back of the schema
)

# A sum of charges may be larger than 64 bits: it is made of two, of parts above and below this.
_PART_PICO = 10**9
SUM_OF_CHARGES = f"coalesce(sum(charge_pico / {_PART_PICO}), 0), coalesce(sum(charge_pico % {_PART_PICO}), 0)"


def joined(high: int, low: int) -> int:
    """The sum that SUM_OF_CHARGES selects in two parts."""
    return int(high) * _PART_PICO + int(low)


class UsageReport:
    """The reading side of the ledger. One thread at a time."""

    def __init__(self, database: Database) -> None:
        """Takes over the database, and closes it."""
        self._database = database

    def close(self) -> None:
        self._database.close()

    def summary(
        self,
        *,
        since_s: float | None = None,
        until_s: float | None = None,
        tenant: str | None = None,
        group_by: Sequence[Group] = (Group.TENANT, Group.MODEL),
    ) -> list[UsageSum]:
        """Sums over the requests that arrived in [since_s, until_s), Unix seconds, sorted by group."""
        assert group_by, "without a group there is no row to name"
        groups = ", ".join(
            self._database.utc_day("started_s") if group is Group.DAY else columns([group.value])
            for group in group_by
        )
        condition, values = where(since_s=since_s, until_s=until_s, tenant=tenant)
        width = len(group_by)
        with self._database.snapshot():
            rows = self._database.rows(
                f"SELECT {groups}, {_SUMS} FROM usage {condition} GROUP BY {groups} ORDER BY {groups}", values
            )
            charged = self._database.rows(
                f"SELECT {groups}, price_version, {SUM_OF_CHARGES} FROM usage {condition}"
                f" GROUP BY {groups}, price_version",
                values,
            )
            currencies = self.currencies()
        charges: dict[tuple[str, ...], dict[str, int]] = {}
        for row in charged:
            version, high, low = row[width:]
            if version:
                sums = charges.setdefault(row[:width], {})
                currency = currencies.get(version, NO_CURRENCY)
                sums[currency] = sums.get(currency, 0) + joined(high, low)
        return [UsageSum(row[:width], *(*row[width:], charges.get(row[:width], {}))) for row in rows]

    def currencies(self) -> dict[str, str]:
        """Of each version in the price book, as records name it."""
        return currencies(self._database)

    def requests(
        self, *, tenant: str | None = None, since_s: float | None = None, limit: int = 100
    ) -> list[UsageRecord]:
        """Single records, the newest first."""
        condition, values = where(since_s=since_s, tenant=tenant)
        rows = self._database.rows(
            f"SELECT {columns(UsageRecord.__struct_fields__)} FROM usage {condition} ORDER BY request_id DESC LIMIT ?",
            [*values, limit],
        )
        return [_record(row, UsageRecord) for row in rows]

    def each(
        self,
        *,
        since_s: float | None = None,
        until_s: float | None = None,
        tenant: str | None = None,
        model: str | None = None,
    ) -> Iterator[UsageRecord]:
        """All records of that time, in the order in which they began, however many there are."""
        condition, values = where(since_s=since_s, until_s=until_s, tenant=tenant, model=model)
        with self._database.snapshot():
            for row in self._database.each(
                f"SELECT {columns(UsageRecord.__struct_fields__)} FROM usage {condition} ORDER BY started_s, request_id",
                values,
            ):
                yield _record(row, UsageRecord)

    def orphans(
        self, *, tenant: str | None = None, since_s: float | None = None, limit: int = 100
    ) -> list[Orphan]:
        """Requests that a crash cut off, the newest first; they are in no sum and on no bill."""
        condition, values = where(since_s=since_s, tenant=tenant)
        rows = self._database.rows(
            f"SELECT {columns(Orphan.__struct_fields__)} FROM orphan {condition} ORDER BY request_id DESC LIMIT ?",
            [*values, limit],
        )
        return [Orphan(*row) for row in rows]

    def tenants(self) -> list[str]:
        """Every tenant that exists or has used something."""
        return [
            name
            for (name,) in self._database.rows("SELECT name FROM tenant UNION SELECT tenant FROM usage", ())
        ]

    def require_tenant(self, name: str) -> None:
        """Raises ConfigError, naming the nearest: a mistyped tenant must not look like one that used nothing."""
        if name not in (known := self.tenants()):
            raise ConfigError(
                f"no tenant `{name}`; {agreements.nearest(name, known, see='headrace tenants list')}"
            )

    def executions(self, request_id: str) -> list[ExecutionRecord]:
        """The attempts of one request, in their order."""
        rows = self._database.rows(
            f"SELECT {columns(ExecutionRecord.__struct_fields__)} FROM execution WHERE request_id = ? ORDER BY attempt",
            [request_id],
        )
        return [_record(row, ExecutionRecord) for row in rows]


def currencies(database: Database) -> dict[str, str]:
    """Of each version in the price book, as records name it."""
    return dict(database.rows("SELECT 'p' || number, currency FROM price"))


def _record(row: tuple[Any, ...], kind: type[Record]) -> Record:
    # Not strict, because our databases hold no booleans: 0 and 1 become what the field wants.
    return msgspec.convert(row, kind, strict=False)


def id_at(wall_s: float) -> str:
    """What the ids of that moment begin with; see core.ids."""
    return f"req_{max(0, int(wall_s * 1000)):012x}"


def ids_between(*, since_s: float | None, until_s: float | None) -> tuple[str, list[str]]:
    """The rows of requests whose ids were made in [since_s, until_s), Unix seconds."""
    terms = {"request_id >= ?": since_s, "request_id < ?": until_s}
    asked = {term: id_at(moment_s) for term, moment_s in terms.items() if moment_s is not None}
    return (f"WHERE {' AND '.join(asked)}" if asked else "", list(asked.values()))


def where(
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    tenant: str | None = None,
    model: str | None = None,
) -> tuple[str, list[float | str]]:
    """The rows of that time, tenant and model. Without a tenant the key narrows them down: it begins with the time of
    arrival."""
    terms: dict[str, float | str | None] = {
        "started_s >= ?": since_s,
        "started_s < ?": until_s,
        "tenant = ?": tenant,
        "model = ?": model,
    }
    if tenant is None:
        terms["request_id >= ?"] = None if since_s is None else id_at(since_s - ID_MARGIN_S)
        terms["request_id < ?"] = None if until_s is None else id_at(until_s + ID_MARGIN_S)
    asked = {term: value for term, value in terms.items() if value is not None}
    return (f"WHERE {' AND '.join(asked)}" if asked else "", list(asked.values()))
