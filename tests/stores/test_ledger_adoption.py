"""What the dead leave behind gets into the ledger: whole, once, however often it is tried; and what took another end."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.core.clock import SystemClock
from headrace.stores import sqlite
from headrace.stores.journal import Journal
from headrace.stores.ledger import Adoption, Ledger
from headrace.stores.usage_report import UsageReport
from tests.stores.test_journal import REPLICA, append, make, request
from tests.stores.test_ledger import execution_record, usage_record, wait_until


class Rig:
    """One database, the ledgers on it, and what they adopted."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / sqlite.DATABASE_NAME
        self.journals = folder / "run" / "journal"
        self.failures: list[str] = []
        self.adopted: list[Adoption] = []
        self._ledgers: list[Ledger] = []

    def journal(self, name: str = "1") -> Journal:
        return make(self.journals / f"{name}.journal")

    def ledger(self, *journals: Path, **options: object) -> Ledger:
        made = Ledger(
            self.path,
            clock=SystemClock(),
            on_failure=self.failures.append,
            on_adoption=self.adopted.append,
            **options,  # type: ignore[arg-type]
        )
        made.start(journals)
        self._ledgers.append(made)
        return made

    def outcomes(self) -> dict[str, str]:
        report = UsageReport(sqlite.open_file(self.path))
        try:
            return {record.request_id: record.outcome for record in report.requests()}
        finally:
            report.close()

    def orphans(self) -> list[str]:
        report = UsageReport(sqlite.open_file(self.path))
        try:
            return [orphan.request_id for orphan in report.orphans()]
        finally:
            report.close()

    def stop(self) -> None:
        for ledger in self._ledgers:
            ledger.stop()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.stop()


def test_records_and_orphans_of_a_dead_process_are_there_when_the_ledger_has_started(rig: Rig) -> None:
    """T28: with their attempts; and what was an orphan by its mark alone is none if it has a record."""
    left = rig.journal()
    for name in ("req_1", "req_2", "req_3"):
        left.begin(request(name), REPLICA, 1)
    append(left, "req_1")
    ledger = rig.ledger(left.path)
    assert rig.outcomes() == {"req_1": "delivered"}
    assert rig.orphans() == ["req_3", "req_2"]
    (adoption,) = rig.adopted
    assert [usage.request_id for usage, _ in adoption.entries] == ["req_1"]
    assert (len(adoption.orphans), adoption.torn, adoption.kept) == (2, 0, None)
    assert not left.path.exists()
    assert (ledger.committed, ledger.duplicates, rig.failures) == (0, 0, [])


def test_what_was_committed_before_the_journal_knew_is_no_duplicate_and_no_orphan(rig: Rig) -> None:
    """T28: the process died between a commit and what follows from it."""
    left = rig.journal()
    first = rig.ledger()
    for name in ("req_1", "req_2"):
        append(left, name)
        first.append(usage_record(name), [execution_record(name)])
    left.begin(request("req_1"), REPLICA, 1)  # its mark was to go when the process died
    wait_until(lambda: first.committed == 2)
    append(left, "req_3")
    first.adopt(left.path)
    wait_until(lambda: bool(rig.adopted))
    assert [usage.request_id for usage, _ in rig.adopted[0].entries] == ["req_3"]
    assert set(rig.outcomes()) == {"req_1", "req_2", "req_3"}
    assert (first.duplicates, rig.orphans()) == (0, [])


def test_a_journal_is_adopted_after_what_its_process_had_handed_over(rig: Rig) -> None:
    """Otherwise the same records would come twice, and that counts as a bug."""
    left = rig.journal()
    ledger = rig.ledger()
    for number in range(3000):
        name = f"req_{number:04d}"
        append(left, name) if number % 2 else None
        ledger.append(usage_record(name), [execution_record(name)])
    ledger.adopt(left.path)
    wait_until(lambda: bool(rig.adopted))
    ledger.stop()
    assert (ledger.committed, ledger.duplicates) == (3000, 0)
    assert len(rig.adopted[0].entries) == 0


def test_an_adoption_that_the_disk_interrupts_is_done_again(rig: Rig) -> None:
    left = rig.journal()
    append(left, "req_1")
    left.begin(request("req_2"), REPLICA, 1)
    ledger = rig.ledger()
    with closing(sqlite3.connect(rig.path)) as database:
        database.execute("ALTER TABLE orphan RENAME TO elsewhere")
        ledger.adopt(left.path)
        wait_until(lambda: ledger.failed is not None)
        assert left.path.exists()
        database.execute("ALTER TABLE elsewhere RENAME TO orphan")
    wait_until(lambda: bool(rig.adopted))
    assert rig.orphans() == ["req_2"]
    assert set(rig.outcomes()) == {"req_1"}
    assert not left.path.exists()
    wait_until(lambda: ledger.failed is None)


def test_of_a_torn_journal_all_that_is_whole_is_taken_and_the_file_is_kept(rig: Rig) -> None:
    """T30."""
    left = rig.journal()
    for name in ("req_1", "req_2", "req_3"):
        append(left, name)
    content = bytearray(left.path.read_bytes())
    content[content.index(b"req_2")] ^= 1
    left.path.write_bytes(content)
    rig.ledger(left.path)
    assert set(rig.outcomes()) == {"req_1", "req_3"}
    (adoption,) = rig.adopted
    assert adoption.torn == 1
    assert adoption.kept is not None
    assert adoption.kept.read_bytes() == content
    assert not left.path.exists()


def test_a_record_that_took_another_end_replaces_the_one_that_waits(rig: Rig) -> None:
    ledger = rig.ledger(flush_s=0.1)
    ledger.append(usage_record("req_1"), [execution_record("req_1")])
    ledger.append(usage_record("req_2"), [execution_record("req_2")])
    ledger.replace(usage_record("req_1", outcome="broken"), [execution_record("req_1")])
    ledger.stop()
    assert rig.outcomes() == {"req_1": "broken", "req_2": "delivered"}
    assert (ledger.committed, ledger.duplicates, ledger.rejected) == (3, 0, 0)


def test_a_record_that_is_committed_is_not_replaced(rig: Rig) -> None:
    ledger = rig.ledger()
    ledger.append(usage_record("req_1"), [execution_record("req_1")])
    wait_until(lambda: ledger.committed == 1)
    ledger.replace(usage_record("req_1", outcome="broken"), [execution_record("req_1")])
    wait_until(lambda: ledger.committed == 2)
    ledger.append(usage_record("req_1", outcome="cancelled"), [])
    ledger.stop()
    assert rig.outcomes() == {"req_1": "delivered"}
    assert ledger.duplicates == 1, "only the last one was nobody's replacement"


def test_a_lenient_ledger_is_behind_only_when_too_many_records_wait(rig: Rig) -> None:
    """T29: and none of them is lost."""
    ledger = rig.ledger(is_lenient=True, queue_max=50)
    with closing(sqlite3.connect(rig.path)) as database:
        database.execute("ALTER TABLE usage RENAME TO elsewhere")
        for number in range(40):
            ledger.append(usage_record(f"req_{number:02d}"), [])
        wait_until(lambda: ledger.failed is not None)
        assert not ledger.is_behind
        for number in range(40, 99):
            ledger.append(usage_record(f"req_{number:02d}"), [])
        assert ledger.is_behind
        database.execute("ALTER TABLE elsewhere RENAME TO usage")
    wait_until(lambda: ledger.backlog == 0)
    assert not ledger.is_behind
    assert len(rig.outcomes()) == 99


def test_what_is_new_in_the_ledger_is_told_although_the_disk_refused_the_rest_at_first(rig: Rig) -> None:
    """T30: budgets count what an adoption tells; records that were written by a first try must be among it."""
    left = rig.journal()
    for name in ("req_1", "req_2"):
        left.begin(request(name), REPLICA, 1)
    append(left, "req_1")
    connections: list[sqlite3.Connection] = []

    def connect(path: Path) -> sqlite3.Connection:
        connection = sqlite.connect(path)
        if not connections:
            connection.execute(
                "CREATE TEMP TRIGGER full BEFORE INSERT ON orphan BEGIN SELECT RAISE(ABORT, 'full'); END"
            )
        connections.append(connection)
        return connection

    ledger = rig.ledger(connect=connect)
    ledger.adopt(left.path)
    wait_until(lambda: rig.adopted)
    (adoption,) = rig.adopted
    assert len(connections) == 2, "it was tried twice"
    assert [usage.request_id for usage, _ in adoption.entries] == ["req_1"]
    assert [mark.request_id for mark in adoption.orphans] == ["req_2"]
    assert len(rig.failures) == 1
