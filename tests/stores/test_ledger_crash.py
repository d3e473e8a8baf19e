"""What the ledger has reported as committed survives `kill -9`, once each."""

import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 15

# Appends without end; after each commit it reports on the pipe how many of its records are on the disk.
PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_ledger import Ledger, SystemClock, execution_record, usage_record

ledger = Ledger(Path(sys.argv[1]), clock=SystemClock(), flush_s=0.002, on_failure=print)
ledger.start()
appended = reported = 0
while True:
    for _ in range(20):
        name = f"req_{sys.argv[3]}_{appended:06d}"
        ledger.append(usage_record(name), [execution_record(name)])
        appended += 1
    committed = ledger.committed
    if committed > reported:
        reported = committed
        print(reported, flush=True)
    time.sleep(0.001)
"""


@pytest.mark.slow
def test_what_was_committed_is_there_exactly_once_after_kill_9(tmp_path: Path) -> None:
    """T28: rounds of one growing database, each killed at a random point of its work."""
    path = tmp_path / "headrace.db"
    chance = random.Random(28)
    reported: dict[int, int] = {}
    for round_number in range(ROUNDS):
        command = [sys.executable, "-c", PROGRAM, str(path), str(Path(__file__).parent), str(round_number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 12)):
                reported[round_number] = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                # What it had reported before the signal came; a last line may be cut.
                if line.endswith("\n"):
                    reported[round_number] = int(line)
        assert process.returncode == -signal.SIGKILL
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for table in ("usage", "execution"):
        names = [name for (name,) in connection.execute(f"SELECT request_id FROM {table}")]
        assert len(names) == len(set(names))
        for round_number, count in reported.items():
            expected = {f"req_{round_number}_{number:06d}" for number in range(count)}
            assert expected <= set(names)
    connection.close()
