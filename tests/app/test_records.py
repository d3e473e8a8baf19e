"""Whoever waits for a commit hears of it, at whatever moment it comes."""

import asyncio
from pathlib import Path

from headrace.app.records import OwnRecords
from headrace.core.clock import SystemClock
from headrace.stores import sqlite
from headrace.stores.journal import Journal
from headrace.stores.ledger import Ledger
from tests.stores.test_ledger import execution_record, usage_record, wait_until


class OvertakingLedger(Ledger):
    """Its thread has committed everything by the time that anybody has asked how much that is."""

    @property
    def appended(self) -> int:
        wait_until(lambda: not self.backlog)
        return super().appended


def test_a_commit_between_the_first_look_and_the_wait_is_heard_of(tmp_path: Path) -> None:
    """A durable answer would wait for the next commit otherwise, or until its deadline."""
    records: list[OwnRecords] = []
    failures: list[str] = []
    ledger = OvertakingLedger(
        tmp_path / sqlite.DATABASE_NAME,
        clock=SystemClock(),
        on_failure=failures.append,
        on_commit=lambda settled: records[0].committed(settled),
    )
    ledger.start()
    records.append(
        OwnRecords(ledger, Journal(tmp_path / "1.journal", records_max=10, marks_max=4), is_lenient=False)
    )

    async def confirm() -> bool:
        records[0].append(usage_record("req_1"), [execution_record("req_1")])
        confirmation = records[0].confirm()
        return confirmation.over.is_set and confirmation.is_good

    try:
        assert asyncio.run(confirm())
    finally:
        ledger.stop()
        records[0].close()
    assert failures == []
