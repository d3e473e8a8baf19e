"""Claims about what was spent before, as the ledger has it: summed by the same rule as a record that comes, for its period alone."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.core.endings import ENDINGS, Stage
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.quotas import BudgetKey, Period, QuotaUnit, Span, span_of
from headrace.core.usage import UsageRecord
from headrace.policies import spending
from headrace.stores import ledger_rows, sqlite
from headrace.stores.database import Database
from headrace.stores.spending import read_corrections, read_spending

DAY = span_of(Period.DAY, 1_800_000_000.0)
RECORD = UsageRecord(
    RequestId("r"), TenantId("acme"), KeyId("k1"), "m", "unpinned", "/v1/chat/completions", True, DAY.start_s + 60.0,
    "delivered", "ok", 200, 7, 5, 0, "final", 0.0, 0.1, 1.0, 1, "p1", 99,
)  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = sqlite.open_file(tmp_path / "headrace.db")
    yield opened
    opened.close()


def write(tmp_path: Path, records: list[UsageRecord]) -> None:
    connection = sqlite.open_database(tmp_path / "headrace.db")
    ledger_rows.write_group(connection, lambda: ([(record, []) for record in records], []))
    connection.close()


def named(number: int, record: UsageRecord = RECORD, **fields: object) -> UsageRecord:
    """A record whose id says when it came, as all do."""
    made = msgspec.structs.replace(record, **fields)
    at_ms = int(made.started_s * 1000)
    return msgspec.structs.replace(made, request_id=RequestId(f"req_{at_ms:012x}7000{number:016x}"))


def key(unit: QuotaUnit, *, tenant: str = "acme", key_id: str = "") -> BudgetKey:
    return BudgetKey(TenantId(tenant), KeyId(key_id), unit, Period.DAY)


def spent(database: Database, *keys: BudgetKey, span: Span = DAY) -> list[int]:
    return [found for found, _ in read_spending(database, [(each, span) for each in keys]).budgets]


def every_ending() -> list[UsageRecord]:
    return [
        named(
            number,
            reason=ending.reason.value,
            attempts=int(ending.stage is not Stage.UNSTARTED),
            ttft_s=0.1 if ending.stage is Stage.ANSWERING else None,
            usage_source=source,
        )
        for number, (ending, source) in enumerate(
            (ending, source)
            for ending in ENDINGS.values()
            for source in ("final", "cumulative", "estimated", "none", "unknown")
        )
    ]


def test_the_sums_follow_the_same_rule_as_a_record_that_comes(tmp_path: Path, database: Database) -> None:
    """For every way in which a request can end, and every source of its counts."""
    records = every_ending()
    write(tmp_path, records)
    for unit in QuotaUnit:
        expected = sum(spending.used(record).of(unit) for record in records)
        assert expected
        assert spent(database, key(unit)) == [expected]


def test_a_period_has_what_came_in_it_and_a_key_what_it_asked_for(tmp_path: Path, database: Database) -> None:
    write(
        tmp_path,
        [
            named(1, started_s=DAY.start_s - 0.001),
            named(2, started_s=float(DAY.start_s)),
            named(3, started_s=DAY.end_s - 0.001, key_id="k2"),
            named(4, started_s=DAY.end_s),
            named(5, tenant="other"),
        ],
    )
    assert spent(
        database,
        key(QuotaUnit.TOKENS),
        key(QuotaUnit.TOKENS, key_id="k2"),
        key(QuotaUnit.TOKENS, tenant="none"),
    ) == [24, 12, 0]
    assert spent(database, key(QuotaUnit.REQUESTS), span=span_of(Period.TOTAL, 0.0)) == [4]


def test_many_tenants_are_summed_in_one_reading_and_as_exactly(tmp_path: Path, database: Database) -> None:
    """Sums of money may be larger than what a database keeps in one number."""
    large = 2**62
    write(
        tmp_path,
        [named(number, tenant=f"t{number % 10}", charge_pico=large + number) for number in range(30)],
    )
    keys = [key(QuotaUnit.MONEY, tenant=f"t{number}") for number in range(10)]
    assert spent(database, *keys) == [3 * large + number + number + 10 + number + 20 for number in range(10)]
    assert spent(database, keys[3]) == [3 * large + 39], "and one by one"


def test_what_was_told_lately_and_is_in_the_sums_is_named(tmp_path: Path, database: Database) -> None:
    """Asked for when the moment of the sums is fixed: whoever adds both up takes it out again."""
    first, second = named(1), named(2)
    write(tmp_path, [first])

    def told(asked: BudgetKey) -> list[RequestId]:
        write(tmp_path, [second])  # after the sums were read
        return [first.request_id, second.request_id, *(RequestId(f"req_{number}") for number in range(600))]

    ((found, counted),) = read_spending(database, [(key(QuotaUnit.REQUESTS), DAY)], told).budgets
    assert (found, counted) == (1, [first.request_id])
    assert spent(database, key(QuotaUnit.REQUESTS)) == [2]


def test_corrections_count_in_the_period_in_which_they_were_made(tmp_path: Path, database: Database) -> None:
    """As money, and of the whole tenant: nobody says for which key."""
    write(tmp_path, [named(1)])
    for number, (tenant, amount, made_s) in enumerate(
        [
            ("acme", -40, DAY.start_s + 5.0),
            ("acme", 7, DAY.start_s - 5.0),
            ("other", 5, DAY.start_s + 5.0),
            ("acme", 3, DAY.end_s - 1.0),
        ],
        start=1,
    ):
        database.execute(
            "INSERT INTO correction (number, tenant, request_id, model, price_version, currency, amount_pico, reason,"
            " created_s) VALUES (?, ?, '', '', '', 'EUR', ?, 'test', ?)",
            (number, tenant, amount, made_s),
        )
    wanted = [key(QuotaUnit.MONEY), key(QuotaUnit.MONEY, key_id="k1"), key(QuotaUnit.TOKENS)]
    before = read_spending(database, [(each, DAY) for each in wanted])
    assert [spent for spent, _ in before.budgets] == [99 - 40 + 3, 99, 12]
    assert before.corrected == 4
    assert [each.number for each in read_corrections(database, after=2)] == [3, 4]
    assert read_spending(database, [(key(QuotaUnit.TOKENS), DAY)]).corrected == 0
