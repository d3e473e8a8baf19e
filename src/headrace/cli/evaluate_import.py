"""`headrace eval import`: makes a set of cases out of a file that was written for another program."""

import argparse
from pathlib import Path
from typing import Any

from headrace.cli import common
from headrace.evidence import importing
from headrace.evidence.foreign_cases import Format
from headrace.policies.quality import SetKind


def add(actions: Any) -> None:
    """Registers the command."""
    parser = common.command(
        actions,
        "import",
        _import,
        help="make a set of cases out of a file that was written for another program, and say what was left out",
        example="headrace eval import dev.json --format squad --out cases/mine/tuning.jsonl",
        with_data=False,
        with_json=True,
    )
    parser.add_argument("file", metavar="FILE", help="what to read")
    parser.add_argument(
        "--format",
        type=Format,
        choices=list(Format),
        required=True,
        metavar="F",
        help=f"whose form it has: {', '.join(Format)}",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the set to write, and to seal")
    parser.add_argument(
        "--set",
        dest="into",
        type=SetKind,
        choices=list(SetKind),
        default=SetKind.TUNING,
        metavar="KIND",
        help="what it is for, tuning or acceptance (default: tuning)",
    )
    parser.add_argument("--language", default="en", metavar="L", help="of its questions (default: en)")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="an expected text is the whole answer (default: the answer contains it)",
    )


def _import(arguments: argparse.Namespace) -> int:
    found = importing.convert(
        Path(arguments.file),
        arguments.format,
        Path(arguments.out),
        into=arguments.into,
        language=arguments.language,
        is_exact=arguments.exact,
    )
    if arguments.json:
        common.print_json(
            {
                "file": arguments.out,
                "name": found.header.name,
                "set": found.header.set,
                "digest": found.header.digest,
                "taken": found.taken,
                "categories": found.categories,
                "left_out": [
                    {"reason": reason, "cases": count, "first": where}
                    for reason, (count, where) in found.left.items()
                ],
            }
        )
        return 0
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(found.categories.items()))
    print(f"{arguments.out}: {found.header.set} set {found.header.name}, {found.taken} cases taken: {kinds}")
    for reason, (count, where) in found.left.items():
        print(f"left out {count}, the first is {where}: {reason}")
    print(found.header.digest)
    return 0
