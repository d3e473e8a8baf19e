"""The ledger writes every record exactly once, waits out a disk that refuses, and never troubles the event loop."""

import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.outcome import AttemptOutcome, Outcome
from headrace.core.usage import ExecutionRecord, UsageRecord, UsageSource
from headrace.stores import sqlite
from headrace.stores.ledger import Ledger
from headrace.stores.usage_report import Group, UsageReport

PATIENCE_S = 20.0


def usage_record(name: str, **changes: object) -> UsageRecord:
    record = UsageRecord(
        request_id=RequestId(name),
        tenant=TenantId("acme"),
        key_id=KeyId("k3x9q2ab"),
        model="m",
        revision="unpinned",
        endpoint="/v1/chat/completions",
        is_streaming=True,
        started_s=1_700_000_000.0,
        outcome="delivered",
        reason="ok",
        status=200,
        prompt_tokens=10,
        completion_tokens=5,
        cached_tokens=4,
        usage_source="final",
        queue_wait_s=0.0,
        ttft_s=0.1,
        total_s=1.0,
        attempts=1,
    )
    return msgspec.structs.replace(record, **changes)


def execution_record(name: str, attempt: int = 1, **changes: object) -> ExecutionRecord:
    record = ExecutionRecord(
        request_id=RequestId(name),
        attempt=attempt,
        replica=ReplicaId("r0"),
        generation=0,
        started_s=1_700_000_000.0,
        duration_s=1.0,
        ttft_s=None,
        outcome="completed",
        upstream_status=200,
        prompt_tokens=10,
        completion_tokens=5,
        cached_tokens=4,
        usage_source="final",
    )
    return msgspec.structs.replace(record, **changes)


def wait_until(claim: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


class Rig:
    """Ledgers on one database; each is stopped at the end, and what they complained of is in `failures`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failures: list[str] = []
        self._started: list[Ledger] = []

    def ledger(self, **options: object) -> Ledger:
        made = Ledger(self.path, clock=SystemClock(), on_failure=self.failures.append, **options)  # type: ignore[arg-type]
        made.start()
        self._started.append(made)
        return made

    def stop_all(self) -> None:
        for ledger in self._started:
            ledger.stop()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "data" / sqlite.DATABASE_NAME)
    yield made
    made.stop_all()


def test_a_record_comes_back_as_it_was_appended(rig: Rig) -> None:
    ledger = rig.ledger()
    usage = usage_record("req_1", is_streaming=False, ttft_s=None, attempts=2, started_s=1_700_000_000.123456,
                         price_version="p1", charge_pico=2**63 - 1, reasoning_tokens=3, units=7, user="ada")  # fmt: skip
    executions = [
        execution_record("req_1", 1, outcome="upstream_lost"),
        execution_record("req_1", 2, ttft_s=0.25),
    ]
    ledger.append(usage, executions)
    ledger.stop()
    report = UsageReport(sqlite.open_file(rig.path))
    assert report.requests() == [usage]
    assert report.executions("req_1") == executions
    report.close()


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 127, 1000, 1024, 3001])
def test_any_number_of_records_is_written_whole(rig: Rig, count: int) -> None:
    ledger = rig.ledger()
    for number in range(count):
        ledger.append(
            usage_record(f"req_{number}"),
            [execution_record(f"req_{number}", a) for a in range(1, 1 + number % 3)],
        )
    ledger.stop()
    assert (ledger.committed, ledger.backlog, ledger.duplicates, ledger.rejected) == (count, 0, 0, 0)
    assert rows(rig.path, "SELECT count(*) FROM usage") == [(count,)]
    assert rows(rig.path, "SELECT count(*) FROM execution") == [(sum(n % 3 for n in range(count)),)]


def test_a_record_is_on_the_disk_soon_after_without_stop(rig: Rig) -> None:
    ledger = rig.ledger()
    ledger.append(usage_record("req_1"), [])
    wait_until(lambda: ledger.committed == 1)
    assert rows(rig.path, "SELECT request_id FROM usage") == [("req_1",)]


def test_an_append_wakes_a_writer_that_went_to_sleep(rig: Rig) -> None:
    ledger = rig.ledger(flush_s=0.0005)  # asleep after 25 ms without work
    for number in range(5):
        time.sleep(0.1)  # gives it the time to fall asleep; the claim holds whether it did or not
        ledger.append(usage_record(f"req_{number}"), [])
        wait_until(lambda number=number: ledger.committed == number + 1)  # type: ignore[misc]


def test_a_repeated_key_is_counted_and_changes_nothing(rig: Rig) -> None:
    """T28: a record can't be billed twice, whatever a bug appends."""
    ledger = rig.ledger()
    ledger.append(usage_record("req_1"), [execution_record("req_1")])
    ledger.append(usage_record("req_1", completion_tokens=99), [execution_record("req_1")])
    ledger.stop()
    assert ledger.duplicates == 2
    assert rows(rig.path, "SELECT completion_tokens FROM usage") == [(5,)]
    assert rows(rig.path, "SELECT count(*) FROM execution") == [(1,)]


def test_every_outcome_and_source_of_the_vocabulary_is_accepted(rig: Rig) -> None:
    ledger = rig.ledger()
    for outcome in Outcome:
        ledger.append(usage_record(f"req_{outcome.value}", outcome=outcome.value), [])
    for source in UsageSource:
        ledger.append(
            usage_record(f"req_{source.value}", usage_source=source.value),
            [execution_record(f"req_{source.value}", usage_source=source.value)],
        )
    for ending in AttemptOutcome:
        ledger.append(
            usage_record(f"req_a_{ending.value}"),
            [execution_record(f"req_a_{ending.value}", outcome=ending.value)],
        )
    ledger.stop()
    assert (ledger.rejected, ledger.duplicates) == (0, 0)
    assert ledger.committed == len(Outcome) + len(UsageSource) + len(AttemptOutcome)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": -1},
        {"completion_tokens": 2**64},
        {"total_s": math.nan},
        {"model": "\ud800"},
        {"status": None},
        {"reason": object()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_record_that_breaks_a_rule_is_set_aside_and_holds_nobody_up(
    rig: Rig, changes: dict[str, object]
) -> None:
    """T31: a negative count never reaches a sum, and neither disappears nor stops the records around it."""
    ledger = rig.ledger()
    ledger.append(usage_record("req_1"), [execution_record("req_1")])
    ledger.append(usage_record("req_2", **changes), [execution_record("req_2")])
    ledger.append(usage_record("req_3"), [execution_record("req_3")])
    ledger.stop()
    assert (ledger.rejected, ledger.failed, ledger.backlog) == (1, None, 0)
    assert rows(rig.path, "SELECT request_id FROM usage ORDER BY 1") == [("req_1",), ("req_3",)]
    assert rows(rig.path, "SELECT count(*) FROM execution") == [(3,)]
    assert rows(rig.path, "SELECT count(*) FROM usage_rejected WHERE record LIKE '%req_2%'") == [(1,)]
    assert len(rig.failures) == 1


def test_a_full_disk_is_reported_and_its_records_are_written_later(rig: Rig) -> None:
    """T29: nothing is lost and nothing raises while the disk is full; `is_behind` closes the door meanwhile."""
    is_full = threading.Event()
    is_full.set()

    def connect(path: Path) -> sqlite3.Connection:
        connection = sqlite.connect(path)
        if is_full.is_set():
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    outages: list[float] = []
    ledger = rig.ledger(connect=connect, on_recovery=outages.append)
    for number in range(500):
        ledger.append(usage_record(f"req_{number}"), [execution_record(f"req_{number}")])
    wait_until(lambda: ledger.failed is not None)
    assert "full" in (ledger.failed or "")
    assert ledger.is_behind
    assert ledger.committed + ledger.backlog == 500
    is_full.clear()
    wait_until(lambda: ledger.backlog == 0)
    wait_until(lambda: not ledger.is_behind)
    assert ledger.failed is None
    assert (ledger.committed, ledger.duplicates) == (500, 0)
    assert len(rig.failures) == 1
    assert len(outages) == 1
    assert outages[0] > 0
    assert rows(rig.path, "SELECT count(*), count(DISTINCT request_id) FROM usage") == [(500, 500)]


DISK_LIMIT_PROGRAM = """
import resource, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_ledger import Ledger, SystemClock, execution_record, usage_record, wait_until

ledger = Ledger(Path(sys.argv[1]), clock=SystemClock(), on_failure=print)
ledger.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY))
for number in range(2000):
    ledger.append(usage_record(f"req_{number}"), [execution_record(f"req_{number}")])
wait_until(lambda: ledger.failed is not None)
assert ledger.is_behind
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
wait_until(lambda: ledger.backlog == 0)
ledger.stop()
assert (ledger.committed, ledger.duplicates, ledger.failed) == (2000, 0, None)
"""


@pytest.mark.slow
def test_a_write_that_the_system_refuses_loses_nothing(tmp_path: Path) -> None:
    """T29 with a real failing write: the kernel refuses to let a file grow (RLIMIT_FSIZE), then allows it again."""
    path = tmp_path / sqlite.DATABASE_NAME
    program = [sys.executable, "-c", DISK_LIMIT_PROGRAM, str(path), str(Path(__file__).parent)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=45, check=False)
    assert done.returncode == 0, done.stderr
    assert rows(path, "SELECT count(*), count(DISTINCT request_id) FROM usage") == [(2000, 2000)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_writer_that_cannot_keep_up_is_behind(rig: Rig) -> None:
    """T29: past queue_max the gateway is told to refuse work, so the queue in memory has a bound."""
    ledger = rig.ledger(queue_max=10)
    holder = sqlite3.connect(rig.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")  # another process has the write lock
    for number in range(2000):
        ledger.append(usage_record(f"req_{number}"), [])
    assert ledger.is_behind
    holder.execute("ROLLBACK")
    holder.close()
    wait_until(lambda: ledger.backlog == 0)
    assert not ledger.is_behind


def test_a_directory_that_cannot_be_made_is_an_operator_error_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ledger = Ledger(tmp_path / "file" / sqlite.DATABASE_NAME, clock=SystemClock(), on_failure=print)
    with pytest.raises(ConfigError, match="file"):
        ledger.start()


def test_a_newer_schema_is_refused_and_left_alone(rig: Rig) -> None:
    sqlite.open_database(rig.path).close()
    connection = sqlite3.connect(rig.path)
    connection.execute("INSERT INTO migration (number, name) VALUES (999, 'from the future')")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigError, match="newer headrace"):
        sqlite.open_database(rig.path)
    assert rows(rig.path, "SELECT max(number) FROM migration") == [(999,)]


def test_a_file_that_is_no_database_is_an_operator_error(tmp_path: Path) -> None:
    path = tmp_path / sqlite.DATABASE_NAME
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(ConfigError, match=r"headrace\.db"):
        sqlite.open_database(path)


def test_the_database_is_durable_and_private(rig: Rig) -> None:
    connection = sqlite.open_database(rig.path)
    pragmas = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys")
    ]
    connection.close()
    assert pragmas == ["wal", 2, 1]
    assert rig.path.stat().st_mode & 0o077 == 0


def test_two_processes_may_make_the_database_at_once(tmp_path: Path) -> None:
    path = tmp_path / sqlite.DATABASE_NAME
    program = (
        "import sys; from pathlib import Path; from headrace.stores import sqlite;"
        " sys.stdin.read(1); sqlite.open_database(Path(sys.argv[1])).close()"
    )
    command = [sys.executable, "-c", program, str(path)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()


def id_at(wall_s: int, rest: str = "") -> str:
    """A request id as the gateway makes them: it begins with the milliseconds."""
    return f"req_{wall_s * 1000:012x}{rest}"


def test_sums_count_unknown_usage_and_never_add_it_as_zero(rig: Rig) -> None:
    """T31: unknown is never zero."""
    ledger = rig.ledger()
    ledger.append(usage_record(id_at(1_700_000_000)), [])
    ledger.append(
        usage_record(
            id_at(1_700_086_400), usage_source="estimated", outcome="cancelled", started_s=1_700_086_400.0
        ),
        [],
    )
    unknown = {"usage_source": "unknown", "prompt_tokens": 7, "completion_tokens": 7, "cached_tokens": 7}
    ledger.append(usage_record(id_at(1_700_000_000, "3"), outcome="broken", **unknown), [])
    ledger.append(usage_record(id_at(1_700_000_000, "4"), tenant="globex", outcome="broken", **unknown), [])
    ledger.stop()
    report = UsageReport(sqlite.open_file(rig.path))
    acme, globex = report.summary(group_by=(Group.TENANT,))
    assert (acme.group, acme.requests, acme.delivered, acme.broken, acme.cancelled) == (("acme",), 3, 1, 1, 1)
    assert (acme.prompt_tokens, acme.completion_tokens, acme.estimated_tokens, acme.unknown) == (
        20,
        10,
        15,
        1,
    )
    assert (globex.prompt_tokens, globex.completion_tokens, globex.unknown) == (None, None, 1)
    days = report.summary(group_by=(Group.DAY,), tenant="acme")
    assert [(day.group, day.requests) for day in days] == [(("2023-11-14",), 2), (("2023-11-15",), 1)]
    assert [s.requests for s in report.summary(since_s=1_700_000_001.0, until_s=1_800_000_000.0)] == [1]
    assert [r.request_id for r in report.requests(limit=2)] == [
        id_at(1_700_086_400),
        id_at(1_700_000_000, "4"),
    ]
    assert report.requests(tenant="nobody") == []
    assert report.tenants() == ["acme", "globex"]
    report.close()


@pytest.mark.parametrize("step_s", [3601, -3601])
def test_a_record_whose_id_was_made_before_the_clock_was_set_is_in_the_report_of_its_time(
    rig: Rig, step_s: int
) -> None:
    """T32: by an hour, either way."""
    ledger = rig.ledger()
    started_s = 1_700_000_000
    ledger.append(usage_record(id_at(started_s - step_s), started_s=float(started_s)), [])
    ledger.stop()
    report = UsageReport(sqlite.open_file(rig.path))
    (found,) = report.summary(since_s=started_s - 1.0, until_s=started_s + 1.0)
    assert found.requests == 1
    report.close()


def test_the_attempt_that_made_the_answer_is_told_once_and_shown_with_the_others(rig: Rig) -> None:
    """The row of a delivered request says who served it; attempts that failed, or differ from it in anything, have rows of
    their own, and the view `execution` shows all of them."""
    ledger = rig.ledger()
    failed = execution_record("req_1", 1, outcome="upstream_lost")
    served = execution_record("req_1", 2)
    ledger.append(usage_record("req_1", attempts=2), [failed, served])
    differs = execution_record("req_2", 1, completion_tokens=9)
    ledger.append(usage_record("req_2", attempts=1), [differs])
    cancelled = execution_record("req_3", 1, outcome="cancelled")
    ledger.append(usage_record("req_3", attempts=1, outcome="cancelled", status=499), [cancelled])
    ledger.stop()
    assert rows(rig.path, "SELECT request_id, attempt FROM attempt ORDER BY request_id") == [
        ("req_1", 1), ("req_2", 1), ("req_3", 1)
    ]  # fmt: skip
    report = UsageReport(sqlite.open_file(rig.path))
    assert report.executions("req_1") == [failed, served]
    assert report.executions("req_2") == [differs]
    assert report.executions("req_3") == [cancelled]
    report.close()
