"""What every command shares: help with an example, the data directory, tables and JSON."""

import argparse
import asyncio
import json
import math
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace import config

T = TypeVar("T")
Run = Callable[[argparse.Namespace], int | None]
_TERMINATED = 128 + signal.SIGTERM


def command(
    commands: Any,
    name: str,
    run: Run | None,
    *,
    help: str,
    example: str,
    with_data: bool = True,
    with_json: bool = False,
    with_config: bool = False,
) -> argparse.ArgumentParser:
    """Adds one command. `run` gets the parsed arguments and returns an exit status, or None for 0."""
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help,
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if with_data:
        added.add_argument(
            "--data",
            metavar="DIR",
            help="data directory (default: $HEADRACE_DATA, else the user's data home)",
        )
    if with_config:
        added.add_argument(
            "--config", metavar="FILE", help="headrace.toml (default: none, every value has a default)"
        )
    if with_json:
        added.add_argument("--json", action="store_true", help="print the same facts as JSON")
    if run is not None:
        added.set_defaults(run=run)
    return added


def run(work: Coroutine[Any, Any, T]) -> T:
    """All of it. Who is told to end (SIGTERM) ends what it has started first, and takes its temporary folders away."""

    async def held() -> T:
        task = asyncio.current_task()
        assert task is not None, "this runs in one"
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(held())
    except asyncio.CancelledError:
        raise SystemExit(_TERMINATED) from None


def settings(arguments: argparse.Namespace) -> config.Config:
    """What headrace.toml says: that of `--config`, else of HEADRACE_CONFIG, else every default."""
    file = settings_file(arguments)
    return config.load(Path(file) if file else None)


def settings_file(arguments: argparse.Namespace) -> str | None:
    """Which one that is; None or "" for none."""
    return arguments.config if arguments.config is not None else config.environment("config")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=False, ensure_ascii=False))


def print_table(rows: Sequence[Sequence[object]], *, headings: Sequence[str]) -> None:
    """As `table`."""
    print("\n".join(table(rows, headings=headings)))


def table(
    rows: Sequence[Sequence[object]], *, headings: Sequence[str], numeric: Sequence[bool] | None = None
) -> list[str]:
    """Left-aligned columns, two spaces apart; numbers to the right. An empty table has only its headings.

    Args:
        numeric: Which columns are of numbers, where these are text already; None looks.
    """
    cells = [[str(h).upper() for h in headings], *([_cell(value) for value in row] for row in rows)]
    if numeric is None:
        numeric = [
            bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
            for i in range(len(headings))
        ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    return [
        "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]


def progress_is_live() -> bool:
    """Whether progress may redraw one line (a terminal) or must print plain lines."""
    return sys.stderr.isatty()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)


def positive(text: str) -> int:
    """A whole number of at least 1; an argparse type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number, at least 1")
    return int(text)


def above_zero(text: str) -> float:
    """A number above 0; an argparse type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: a number above 0")
    return value
