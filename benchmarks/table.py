"""How a benchmark says what it found: one table for people, one JSON file for whoever wants to check it."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def rows(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be, the first one to the left."""
    lines = [list(headings), *map(list, cells)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    )


def number(figure: float | None, digits: int) -> str:
    return "-" if figure is None or math.isnan(figure) else f"{figure:,.{digits}f}"


def add_json_argument(parser: argparse.ArgumentParser, benchmark: str) -> None:
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help=f"where figures, raw samples, machine, versions and date go (default: results/{benchmark}-DATE.json here)",
    )  # fmt: skip


def write_json(path: Path | None, benchmark: str, facts: dict[str, Any], found: dict[str, Any]) -> Path:
    """Writes the file and says where."""
    if path is None:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{benchmark}-{facts['date'].replace(':', '')}.json"
    path.write_text(json.dumps({"benchmark": benchmark, **facts, **found}, indent=1) + "\n", encoding="utf-8")
    return path
