"""`headrace decisions`: what the controller decided, why and from what, and whether it would decide the same again."""

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.app import decisions
from headrace.app.decisions import Record
from headrace.cli import common, identity
from headrace.core.errors import ConfigError
from headrace.stores import sqlite
from headrace.stores.fleet import FleetStore

LIMIT = 50
FAILED = 1
OUTCOME_SHOWN = 100


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "decisions",
        None,
        help="list what the controller decided and why, and decide it again",
        example="headrace decisions list --deployment chat-small",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    listed = common.command(
        actions,
        "list",
        _list,
        help="list the newest decisions, the oldest of them first",
        example="headrace decisions list --deployment chat-small --kind rollout",
        with_json=True,
    )
    _choices(listed)
    again = common.command(
        actions,
        "replay",
        _replay,
        help="decide again, by the same code, from what was recorded, and compare; ends with 1 where anything differs",
        example="headrace decisions replay decisions.json",
        with_json=True,
    )
    again.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="what `decisions list --json` wrote, here or elsewhere (default: those of the data directory)",
    )
    _choices(again)


def _choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deployment", metavar="NAME", help="of that deployment alone")
    parser.add_argument("--kind", metavar="KIND", help="of that kind alone: scale or rollout")
    parser.add_argument(
        "--limit", metavar="N", type=int, default=LIMIT, help=f"so many of them (default {LIMIT})"
    )


def _list(arguments: argparse.Namespace) -> None:
    records = _kept(arguments)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(records)).decode() + "\n")
        return
    common.print_table(
        [
            (each.seq, each.at, each.deployment, each.kind, each.reason, _brief(bytes(each.outcome).decode()))
            for each in records
        ],
        headings=("number", "at", "deployment", "kind", "reason", "outcome"),
    )


def _replay(arguments: argparse.Namespace) -> int | None:
    records = decisions.read(Path(arguments.file)) if arguments.file else _kept(arguments)
    chosen = [
        each
        for each in records
        if arguments.deployment in (None, each.deployment) and arguments.kind in (None, each.kind)
    ]
    again = decisions.replay(chosen[-arguments.limit :])
    other = [each for each in again if each.different]
    unknown = [each for each in again if each.different is None]
    if arguments.json:
        common.print_json(
            {
                "decided": len(again),
                "same": len(again) - len(other) - len(unknown),
                "different": [
                    {"seq": each.record.seq, "kind": each.record.kind, "difference": each.different}
                    for each in other
                ],
                "unknown": [each.record.seq for each in unknown],
            }
        )
    else:
        for each in other:
            print(
                f"{each.record.seq} {each.record.deployment} {each.record.kind}: {_brief(each.different or '')}"
            )
        print(
            f"{len(again)} decided again: {len(again) - len(other) - len(unknown)} the same, {len(other)} different"
            + (f", {len(unknown)} of a kind that nobody decides here" if unknown else "")
        )
    return FAILED if other else None


def _kept(arguments: argparse.Namespace) -> list[Record]:
    if arguments.limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {arguments.limit}")
    data = config.data_directory(arguments.data)
    database = sqlite.open_file(data / sqlite.DATABASE_NAME, must_exist=True)
    with closing(FleetStore(database, clock=identity.CLOCK)) as store:
        kept = store.decisions(deployment=arguments.deployment, kind=arguments.kind, most=arguments.limit)
    return [decisions.record(each) for each in kept]


def _brief(text: str) -> str:
    return text if len(text) <= OUTCOME_SHOWN else f"{text[: OUTCOME_SHOWN - 3]}..."
