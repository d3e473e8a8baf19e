"""What was spent before? Sums over the ledger's records of one period, by tenant and key, as budgets count them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from headrace.core.endings import ENDINGS, Charge, Stage
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.quotas import Amounts, BudgetKey, QuotaUnit, Span
from headrace.stores.database import Database
from headrace.stores.usage_report import ID_MARGIN_S, id_at

# With so few tenants, each one's records are found by their index; else all of the period are read once.
_TENANTS_SINGLY = 4
_IDS_AT_ONCE = 500


class Before(NamedTuple):
    """What was spent of each budget, which of the requests asked for are in it, and the number of the last correction in it."""

    budgets: list[tuple[int, list[RequestId]]]
    corrected: int


class Corrected(NamedTuple):
    """An entry that corrects what a tenant is charged, by so many pico-units; it counts in the period in which it was made."""

    number: int
    tenant: TenantId
    amount: int
    made_s: float


def _charged(stage: Stage) -> str:
    reasons = sorted(
        ending.reason.value
        for ending in ENDINGS.values()
        if ending.stage is stage and ending.charge is not Charge.NOTHING
    )
    return ", ".join(f"'{reason}'" for reason in reasons)


# charging.is_billed in SQL; a request that no replica had is charged nothing. Checked against it by its test.
_IS_BILLED = f"""usage_source NOT IN ('unknown', 'none') AND attempts > 0 AND (
    ttft_s IS NULL AND reason IN ({_charged(Stage.WORKING)})
    OR ttft_s IS NOT NULL AND reason IN ({_charged(Stage.ANSWERING)}))"""
# In two parts, because SQLite's sums end at 64 bits.
_MILLION = 1_000_000
_SUMS = f"""
    SELECT tenant, key_id, count(*),
        sum(prompt_tokens + completion_tokens),
        sum(charge_pico / {_MILLION}), sum(charge_pico % {_MILLION})
    FROM usage WHERE started_s >= ? AND started_s < ? AND {_IS_BILLED}"""
_FOREVER_S = 2.0**40


def read_spending(
    database: Database,
    wanted: Sequence[tuple[BudgetKey, Span]],
    recorded: Callable[[BudgetKey], Iterable[RequestId]] = lambda key: (),
) -> Before:
    """What was spent of each budget in that period, corrections included, as of one moment.

    Args:
        recorded: The requests of which the ledger was told lately; asked for once that moment is fixed, so that whatever
            is in the sums and was told since it was first asked is among them.
    """
    with database.snapshot():
        sums = {span: _sums(database, span, wanted) for span in {span for _, span in wanted}}
        corrections = read_corrections(database, after=0) if _has_money(wanted) else []
        found: list[tuple[int, list[RequestId]]] = []
        for key, span in wanted:
            spent = sum(
                each.amount
                for each in corrections
                if counts_for(key, each.tenant) and span.start_s <= each.made_s < span.end_s
            )
            spent += sum(
                amounts.of(key.unit)
                for (tenant, key_id), amounts in sums[span].items()
                if tenant == key.tenant and key.key_id in ("", key_id)
            )
            found.append((spent, _present(database, list(recorded(key)))))
        return Before(found, max((each.number for each in corrections), default=0))


def read_corrections(database: Database, *, after: int) -> list[Corrected]:
    """Those with larger numbers, in their order. There are few: each is the work of a person."""
    rows = database.rows(
        "SELECT number, tenant, amount_pico, created_s FROM correction WHERE number > ? ORDER BY number",
        (after,),
    )
    return [Corrected(*row) for row in rows]


def counts_for(key: BudgetKey, tenant: TenantId) -> bool:
    """Whether a correction of that tenant is one of this budget: of money, and of no key's, since nobody says whose it is."""
    return key.unit is QuotaUnit.MONEY and key.tenant == tenant and not key.key_id


def _has_money(wanted: Sequence[tuple[BudgetKey, Span]]) -> bool:
    return any(key.unit is QuotaUnit.MONEY for key, _ in wanted)


def _sums(
    database: Database, span: Span, wanted: Sequence[tuple[BudgetKey, Span]]
) -> dict[tuple[TenantId, KeyId], Amounts]:
    tenants = sorted({key.tenant for key, each in wanted if each == span})
    end_s = min(span.end_s, _FOREVER_S)
    if len(tenants) <= _TENANTS_SINGLY:
        rows = [
            row
            for tenant in tenants
            for row in database.rows(
                f"{_SUMS} AND tenant = ? GROUP BY tenant, key_id", (float(span.start_s), end_s, tenant)
            )
        ]
    else:
        first, last = id_at(span.start_s - ID_MARGIN_S), id_at(end_s + ID_MARGIN_S)
        rows = database.rows(
            f"{_SUMS} AND request_id >= ? AND request_id < ? GROUP BY tenant, key_id",
            (float(span.start_s), end_s, first, last),
        )
    return {
        (tenant, key_id): Amounts(requests, int(tokens), int(millions) * _MILLION + int(rest))
        for tenant, key_id, requests, tokens, millions, rest in rows
    }


def _present(database: Database, requests: list[RequestId]) -> list[RequestId]:
    """Those that have a record."""
    found: list[RequestId] = []
    for start in range(0, len(requests), _IDS_AT_ONCE):
        some = requests[start : start + _IDS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        rows = database.rows(f"SELECT request_id FROM usage WHERE request_id IN ({marks})", some)
        found += [request for (request,) in rows]
    return found
