"""Reports say the same of the same rows on either kind of database."""

import msgspec

from headrace.stores.database import Database, columns
from headrace.stores.usage_report import Group, UsageReport
from tests.stores.test_ledger import execution_record, id_at, usage_record


def insert(database: Database, table: str, row: dict[str, object]) -> None:
    places = ", ".join("?" * len(row))
    database.execute(f"INSERT INTO {table} ({columns(row)}) VALUES ({places})", tuple(row.values()))


def test_sums_single_records_and_attempts(database: Database) -> None:
    records = [
        usage_record(id_at(1_700_000_000), user="me", charge_pico=2**53 + 1),
        usage_record(id_at(1_700_000_000, "2"), model="M", outcome="broken", usage_source="unknown"),
        usage_record(id_at(1_700_086_400), started_s=1_700_086_400.25, is_streaming=False, ttft_s=None),
        usage_record(
            id_at(1_700_086_400, "4"), started_s=1_700_086_400.5, tenant="globex", usage_source="estimated"
        ),
    ]
    for record in records:
        insert(database, "usage", msgspec.structs.asdict(record))
    failed = execution_record(id_at(1_700_000_000), 1, outcome="upstream_lost", ttft_s=0.25)
    insert(database, "attempt", msgspec.structs.asdict(failed))
    report = UsageReport(database)
    by_day = report.summary(group_by=(Group.DAY, Group.TENANT))
    assert [(row.group, row.requests) for row in by_day] == [
        (("2023-11-14", "acme"), 2), (("2023-11-15", "acme"), 1), (("2023-11-15", "globex"), 1)
    ]  # fmt: skip
    assert [row.group for row in report.summary()] == [("acme", "M"), ("acme", "m"), ("globex", "m")], (
        "by bytes"
    )
    unknown, known, estimated = report.summary()
    assert (unknown.prompt_tokens, unknown.unknown, unknown.broken) == (None, 1, 1)
    assert (known.prompt_tokens, known.delivered, known.estimated_tokens) == (20, 2, 0)
    assert (estimated.estimated_tokens, type(estimated.estimated_tokens)) == (15, int)
    assert report.requests(limit=2) == [records[3], records[2]]
    assert report.requests(tenant="acme", since_s=1_700_000_001.0) == [records[2]]
    assert report.executions(records[0].request_id) == [failed]
    assert sorted(report.tenants()) == ["acme", "globex"]


def test_all_records_of_a_time_come_in_the_order_in_which_they_began(database: Database) -> None:
    records = [
        usage_record(id_at(1_700_000_000 + number), started_s=1_700_000_000.0 + (number ^ 1), model=model)
        for number, model in enumerate(("a", "a", "b", "a", "a"))
    ]
    for record in records:
        insert(database, "usage", msgspec.structs.asdict(record))
    report = UsageReport(database)
    assert list(report.each()) == [records[number] for number in (1, 0, 3, 2, 4)]
    asked = report.each(since_s=1_700_000_001.0, until_s=1_700_000_005.0, model="a", tenant="acme")
    assert list(asked) == [records[0], records[3]]
