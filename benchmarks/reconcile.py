"""How long does it take to compare the books of a million requests, and how much memory?

A ledger of that many requests (a tenth of them tried twice, all of them priced) is written, and `headrace reconcile` compares it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks import machine, table
from headrace.core.clock import SystemClock
from headrace.core.endings import Charge
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.prices import Item, rates_of
from headrace.core.usage import ExecutionRecord, TokenUsage, UsageRecord, UsageSource
from headrace.policies import charging
from headrace.stores import sqlite
from headrace.stores.ledger import Ledger
from headrace.stores.opening import open_database
from headrace.stores.prices import Draft, PriceStore

PRICES = {Item.INPUT: "0.15", Item.CACHED_INPUT: "0.075", Item.OUTPUT: "0.60"}
SPAN_S = 86_400.0
RETRIED_EVERY = 10
BOUND_S, BOUND_MB = 60.0, 500.0


def fill(data: Path, count: int) -> None:
    """A day's requests, through the ledger's own writer."""
    clock = SystemClock()
    since_s = clock.wall_s() - SPAN_S
    book = PriceStore(open_database(data), clock=clock, actor="benchmark")
    [price] = book.enter([Draft("EUR", PRICES, valid_from_s=since_s - 1.0)])
    book.close()
    usage = TokenUsage(120, 64, 32, UsageSource.FINAL)
    charge_pico = charging.charge(Charge.GENERATED, usage, rates_of(PRICES), unit=None)
    ledger = Ledger(data / sqlite.DATABASE_NAME, clock=clock, on_failure=print)
    ledger.start()
    for number in range(count):
        at_s = since_s + SPAN_S * number / count
        name = RequestId(f"req_{int(at_s * 1000):012x}{number:020x}")
        attempts = 2 if number % RETRIED_EVERY == 0 else 1
        record = UsageRecord(
            name, TenantId(f"tenant-{number % 50}"), KeyId("k3x9q2ab"), "smollm2-135m-instruct", "sha256:" + "0" * 64,
            "/v1/chat/completions", True, at_s, "delivered", "ok", 200, 120, 64, 32, "final", 0.001, 0.12, 1.4, attempts,
            price.version, charge_pico,
        )  # fmt: skip
        served = ExecutionRecord(
            name, attempts, ReplicaId("smollm2-0"), 0, at_s, 1.4, 0.12, "completed", 200, 120, 64, 32, "final"
        )
        failed = msgspec.structs.replace(served, attempt=1, outcome="upstream_lost", completion_tokens=0)
        ledger.append(record, [served] if attempts == 1 else [failed, served])
        while ledger.backlog > 8_000:
            time.sleep(0.005)
    ledger.stop()
    assert ledger.committed == count, (
        f"{ledger.committed} of {count} records are on the disk: {ledger.failed}"
    )


def measure(data: Path, count: int) -> dict[str, float]:
    """One run of the command, as a person would start it."""
    started_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "reconcile", "--json", "--data", str(data)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    told = json.loads(process.stdout.read())
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert (process.returncode, told["faults"], told["requests"]) == (0, 0, count), told
    return {"took_s": time.perf_counter() - started_s, "resident_mb": used.ru_maxrss / 1024}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python -m benchmarks.reconcile --requests 100000",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--requests", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    table.add_json_argument(parser, "reconcile")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        print(f"writing {arguments.requests:,} requests ...", file=sys.stderr)
        fill(data, arguments.requests)
        runs = [measure(data, arguments.requests) for _ in range(arguments.rounds)]
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    print(
        table.rows(
            ("", "median", "bound"),
            [
                ("seconds", table.number(found["took_s"], 1), table.number(BOUND_S, 0)),
                ("resident MB", table.number(found["resident_mb"], 0), table.number(BOUND_MB, 0)),
            ],
        )
    )
    path = table.write_json(
        arguments.json, "reconcile", machine.facts(), {"requests": arguments.requests, "runs": runs, **found}
    )
    print(f"written to {path}", file=sys.stderr)
    return 0 if found["took_s"] < BOUND_S and found["resident_mb"] < BOUND_MB else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
