"""Do `headrace measure` and `headrace capacity` find what a replica can do? Three scripted engines whose capacity is known.

An engine has so many slots, takes so long to the first token and so long for each further one: it does slots / service time
requests a second, and no more. Both commands are run as anybody runs them, the second with the record of the first.
"""

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine, table
from headrace.cli.main import main as headrace
from tests.support.scripted import scripted_engine

INPUT_TOKENS = (64, 256)
_PLAN = """
api = "v1"
name = "measured"
[load]
rate_per_s = {rate_per_s}
input_tokens = {input_tokens}
output_tokens = {output_tokens}
[promise]
total_s = 60.0
share = 0.9
[replica]
source = "the record takes its place"
at_once = 1
time_s = 1.0
"""


class Engine(NamedTuple):
    """One whose capacity is known."""

    slots: int
    ttft_ms: float
    itl_ms: float
    tokens: int

    @property
    def per_s(self) -> float:
        return 1000 * self.slots / (self.ttft_ms + (self.tokens - 1) * self.itl_ms)


ENGINES = (Engine(1, 60, 6, 12), Engine(4, 60, 6, 20), Engine(8, 80, 8, 20))


def _measured(engine: Engine, folder: Path, level_s: float) -> dict[str, Any]:
    """The record, which is kept in that folder's data directory too."""
    record = folder / "record.json"
    lengths = ",".join(f"{tokens}/{engine.tokens}" for tokens in INPUT_TOKENS)
    with scripted_engine(
        slots=engine.slots, ttft_ms=engine.ttft_ms, itl_ms=engine.itl_ms, tokens=engine.tokens
    ) as server:
        _run(
            "measure", "--url", server.url, "--model", "scripted", "--lengths", lengths, "--level", f"{level_s}s",
            "--hold", "0s", "--out", str(record), "--data", str(folder / "data"),
        )  # fmt: skip
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def _planned(engine: Engine, folder: Path) -> float:
    """Requests a second that a plan takes one replica to do, by the newest record."""
    plan = folder / "plan.toml"
    plan.write_text(
        _PLAN.format(rate_per_s=engine.per_s, input_tokens=INPUT_TOKENS[0], output_tokens=engine.tokens)
    )
    said = _run(
        "capacity", str(plan), "--record", "scripted", "--runs", "2", "--requests", "500", "--json",
        "--data", str(folder / "data"),
    )  # fmt: skip
    answer = json.loads(said)
    at_once: int = answer["sizing"]["per_replica"]
    return float(at_once / answer["time_s"])


def _run(*arguments: str) -> str:
    """What that command prints; how it ended is in what it found."""
    said, told = io.StringIO(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(told):
        status = headrace(list(arguments))
    if status in (2, 4):
        raise SystemExit(f"headrace {' '.join(arguments)} ended with {status}:\n{told.getvalue()}")
    return said.getvalue()


def _row(engine: Engine, level_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        record = _measured(engine, Path(folder), level_s)
        planned = _planned(engine, Path(folder))
    first = record["saturation"][0]
    return {
        "engine": engine._asdict(), "true_per_s": engine.per_s, "callers": first["concurrency"], "bound": first["bound"],
        "measured": first["requests_per_s"], "confirmed_per_s": first["confirmed_rate_per_s"],
        "planned_per_s": planned, "took_s": record["took_s"],
    }  # fmt: skip


def _cells(row: dict[str, Any]) -> list[str]:
    true, found = row["true_per_s"], row["measured"]
    engine = Engine(**row["engine"])

    def error(value: float | None) -> str:
        return "-" if value is None else f"{100 * (value / true - 1):+.1f} %"

    return [
        f"{engine.slots} x ({engine.ttft_ms:g} + {engine.tokens - 1} x {engine.itl_ms:g} ms)",
        f"{true:.2f}", f"{found['estimate']:.2f} ({found['low']:.2f} to {found['high']:.2f})", error(found["estimate"]),
        str(row["callers"]), f"{row['confirmed_per_s'] or 0:.2f}", f"{row['planned_per_s']:.2f}",
        error(row["planned_per_s"]), f"{row['took_s']:.0f} s",
    ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--level", type=float, default=3.0, metavar="S", help="of each level (default: 3)")
    table.add_json_argument(parser, "measure")
    arguments = parser.parse_args(argv)
    rows = [_row(engine, arguments.level) for engine in ENGINES]
    headings = (
        "engine", "truth/s", "measured/s", "error", "callers", "confirmed/s", "planned/s", "error", "took"
    )  # fmt: skip
    print(table.rows(headings, [_cells(row) for row in rows]))
    written = table.write_json(arguments.json, "measure", machine.facts(), {"rows": rows})
    print(f"\nplanned: what `headrace capacity` takes a replica to do, by the record. Samples: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
