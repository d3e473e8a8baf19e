"""What does the usage ledger cost the event loop, and how do its statements compare with `executemany`?

A pure-Python loop plays a busy event loop that never lets go of the interpreter lock by itself, which is the worst
case, and appends records at a fixed rate; the ledger's own thread writes them. Each way runs several times, in turns,
between two runs of the loop alone; the table shows medians.
"""

import argparse
import json
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.core.clock import SystemClock
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.stores import ledger, ledger_rows, sqlite


def records(number: int, wall_s: float) -> tuple[UsageRecord, list[ExecutionRecord]]:
    """The records of one ordinary delivered request."""
    name = RequestId(f"req_{int(wall_s * 1000):012x}{number:020x}")
    usage = UsageRecord(
        name, TenantId("acme"), KeyId("k3x9q2ab"), "smollm2-135m-instruct", "sha256:" + "0" * 64,
        "/v1/chat/completions", True, wall_s, "delivered", "ok", 200, 120, 64, 32, "final", 0.001, 0.12, 1.4, 1,
    )  # fmt: skip
    execution = ExecutionRecord(
        name, 1, ReplicaId("smollm2-0"), 0, wall_s, 1.4, 0.12, "completed", 200, 120, 64, 32, "final"
    )
    return usage, [execution]


def insert_row_by_row(connection: sqlite3.Connection, table: object, rows: Sequence[ledger_rows.Row]) -> int:
    """The obvious way, in the place of the ledger's own `_insert`."""
    if rows:
        statement = table.statements[1]  # type: ignore[attr-defined]
        connection.executemany(statement, rows)
    return 0


def busy_loop(seconds: float, rate_per_s: float, append: Callable[..., None] | None) -> tuple[int, int]:
    """Turns of the loop and records appended within that time."""
    wall_s = time.time()
    started_s = time.perf_counter()
    turns = appended = 0
    while (elapsed_s := time.perf_counter() - started_s) < seconds:
        for _ in range(100):
            turns += 1
        due = int(rate_per_s * elapsed_s)
        while appended < due:
            usage, executions = records(appended, wall_s)
            if append is not None:
                append(usage, executions)
            appended += 1
    return turns, appended


def measure(
    way: str, *, rate_per_s: float, seconds: float, directory: Path, batch_max: int
) -> dict[str, float]:
    """One run: the loop alone (it makes the records and drops them), with the ledger, and alone again."""
    before, _ = busy_loop(seconds, rate_per_s, None)
    path = Path(tempfile.mkdtemp(dir=directory)) / sqlite.DATABASE_NAME
    own_insert = ledger_rows._insert
    if way == "executemany":
        ledger_rows._insert = insert_row_by_row  # type: ignore[assignment]
    try:
        store = ledger.Ledger(path, clock=SystemClock(), batch_max=batch_max, on_failure=print)
        store.start()
        together, appended = busy_loop(seconds, rate_per_s, store.append)
        committed, backlog = store.committed, store.backlog
        store.stop()
    finally:
        ledger_rows._insert = own_insert
    assert store.backlog == 0
    after, _ = busy_loop(seconds, rate_per_s, None)
    return {
        "appended_per_s": appended / seconds,
        "committed_per_s": committed / seconds,
        "backlog_at_end": backlog,
        "loop_slowdown": 1 - together / ((before + after) / 2),
    }


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python benchmarks/ledger.py --rate 15000 --rounds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=float, default=15_000, help="records per second (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way (default: %(default)s)")
    parser.add_argument(
        "--batch-max", type=int, nargs="*", default=[256, 1024], help="records in one transaction"
    )
    parser.add_argument("--directory", type=Path, help="where the databases go: a real disk, not tmpfs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures, machine and date there")
    arguments = parser.parse_args(argv)
    ways = [(way, size) for size in arguments.batch_max for way in ("executemany", "multi-row VALUES")]
    results: dict[tuple[str, int], list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for _ in range(arguments.rounds):
            for way, size in ways:
                results[way, size].append(
                    measure(way, rate_per_s=arguments.rate, seconds=arguments.seconds,
                            directory=Path(directory), batch_max=size)
                )  # fmt: skip
    table = [
        {"way": way, "batch_max": size}
        | {fact: statistics.median(run[fact] for run in runs) for fact in runs[0]}
        | {
            "committed_per_s_min": min(run["committed_per_s"] for run in runs),
            "slowdown_min": min(r["loop_slowdown"] for r in runs),
            "slowdown_max": max(r["loop_slowdown"] for r in runs),
        }
        for (way, size), runs in results.items()
    ]
    print(
        f"{'WAY':<17} {'BATCH':>5} {'COMMITTED/S':>11} {'WORST':>7} {'BACKLOG':>7} {'SLOWDOWN':>8}  MIN..MAX"
    )
    for row in table:
        print(
            f"{row['way']:<17} {row['batch_max']:>5} {row['committed_per_s']:>11,.0f}"
            f" {row['committed_per_s_min']:>7,.0f} {row['backlog_at_end']:>7,.0f} {row['loop_slowdown']:>8.1%}"
            f"  {row['slowdown_min']:.1%}..{row['slowdown_max']:.1%}"
        )
    if arguments.json:
        facts = {
            "benchmark": "ledger", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "machine": platform.platform(),
            "rate_per_s": arguments.rate, "seconds": arguments.seconds, "rounds": arguments.rounds, "results": table,
        }  # fmt: skip
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
