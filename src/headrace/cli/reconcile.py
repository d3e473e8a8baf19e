"""`headrace reconcile`: do records, attempts, charges, engines and callers agree? Every difference, with its cause."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.app import records
from headrace.cli import common, durations
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.money import format_amount
from headrace.policies.reconciliation import CallerSaw, Cause, Difference, Findings
from headrace.stores import sqlite
from headrace.stores.reconciliation import Books

_CLOCK = SystemClock()
LISTED_MAX = 100
AGREED, DIFFERENT = 0, 1


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "reconcile",
        _reconcile,
        help="compare records, attempts, charges and engines' counters; exit status 1 where something differs that must not",
        example="headrace reconcile --since 24h\n         headrace reconcile --history answers.jsonl --json",
        with_json=True,
    )
    for flag, text in (("--since", "only requests that arrived then or later"), ("--until", "or before")):
        parser.add_argument(
            flag,
            type=durations.moment,
            metavar="TIME",
            help=f"{text}: 2026-11-01, or a span back from now such as 24h",
        )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help='what a caller saw, a JSON object a line: {"id": "req_...", "has_ended": true, "prompt_tokens": 7, "completion_tokens": 20}',
    )
    parser.add_argument(
        "--list", type=Path, metavar="FILE", help="write every difference there, a JSON object a line"
    )
    parser.add_argument(
        "--limit",
        type=common.positive,
        default=LISTED_MAX,
        metavar="N",
        help=f"differences shown of each cause (default: {LISTED_MAX})",
    )


def _reconcile(arguments: argparse.Namespace) -> int:
    now_s = _CLOCK.wall_s()
    since_s, until_s = (
        None if moment is None else durations.unix_s(moment, now_s=now_s)
        for moment in (arguments.since, arguments.until)
    )
    seen = {} if arguments.history is None else _history(arguments.history)
    # The ledger of this host, also where a central database has them all: engines are compared where they ran.
    data = config.data_directory(arguments.data)
    books = Books(sqlite.open_file(data / sqlite.DATABASE_NAME, must_exist=True))
    findings = Findings(listed_max=arguments.limit)
    began_s = _CLOCK.now_s()
    try:
        with open(arguments.list or "/dev/null", "wb") as listing:
            for difference in books.differences(
                since_s=since_s, until_s=until_s, seen=seen, journals=lambda: records.journals(data)
            ):
                findings.add(difference)
                if arguments.list is not None:
                    listing.write(msgspec.json.encode(_row(difference)) + b"\n")
    finally:
        books.close()
    took_s = _CLOCK.now_s() - began_s
    if arguments.json:
        common.print_json(_as_json(books, findings, took_s=took_s))
    else:
        _print(books, findings, took_s=took_s)
    return DIFFERENT if findings.faults else AGREED


def _history(path: Path) -> dict[str, CallerSaw]:
    decode = msgspec.json.Decoder(CallerSaw).decode
    seen: dict[str, CallerSaw] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                saw = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}:{number}: {error}") from error
            seen[saw.id] = saw
    return seen


def _print(books: Books, findings: Findings, *, took_s: float) -> None:
    print(
        f"compared in {took_s:.1f} s: requests {books.requests}, attempts {books.attempts},"
        f" stretches of engines' counters {books.stretches}"
    )
    if not findings.counts:
        print("no difference")
        return
    print()
    causes = _in_order(findings)
    common.print_table(
        [
            ("FAULT" if cause.is_fault else "stated", cause.value, findings.counts[cause], cause.meaning)
            for cause in causes
        ],
        headings=("", "cause", "count", "meaning"),
    )
    print()
    common.print_table(
        [
            (
                each.cause.value,
                each.subject,
                _amount(each, each.recorded),
                _amount(each, each.found),
                each.unit,
            )
            for cause in causes
            for each in findings.listed[cause]
        ],
        headings=("cause", "request or engine", "recorded", "found", "unit"),
    )
    hidden = sum(findings.counts[cause] - len(findings.listed[cause]) for cause in causes)
    if hidden:
        print(f"... and {hidden} more: --list FILE writes them all")


def _in_order(findings: Findings) -> list[Cause]:
    """Faults first."""
    return sorted(findings.counts, key=lambda cause: (not cause.is_fault, cause.value))


def _amount(difference: Difference, value: int) -> str | None:
    if not difference.unit:
        return None
    return format_amount(value) if difference.unit == "pico" else str(value)


def _row(difference: Difference) -> dict[str, object]:
    facts: dict[str, object] = {
        "cause": difference.cause.value,
        "is_fault": difference.cause.is_fault,
        "subject": difference.subject,
    }
    if difference.unit:
        facts |= {"recorded": difference.recorded, "found": difference.found, "unit": difference.unit}
    return facts


def _as_json(books: Books, findings: Findings, *, took_s: float) -> dict[str, object]:
    return {
        "requests": books.requests,
        "attempts": books.attempts,
        "engine_stretches": books.stretches,
        "took_s": round(took_s, 3),
        "faults": findings.faults,
        "counts": {cause.value: findings.counts[cause] for cause in _in_order(findings)},
        "differences": [_row(each) for cause in _in_order(findings) for each in findings.listed[cause]],
    }
