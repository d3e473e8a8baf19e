"""`headrace rollout`: how a new version takes over, step by step, and what an operator can say to that."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace import config
from headrace.cli import common, identity, rollout_text, status
from headrace.core.errors import HeadraceError

FAILED = 1
WATCH_EVERY_S = 1.0
LOOK_EVERY_S = 0.25
Json = dict[str, Any]

_WORDS = {
    "hold": ("hold", "stay in the present step; a failed gate still rolls back"),
    "resume": ("resume", "go on after `hold`"),
    "abort": ("abort", "give all traffic back to the accepted version, now"),
    "retry": ("retry", "begin the rollout that was rolled back or aborted last once more"),
}


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "rollout",
        None,
        help="look at rollouts, hold, promote or abort them, and rehearse a rollback",
        example="headrace rollout status chat-small",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    look = common.command(
        actions,
        "status",
        _status,
        help="show the rollout of one deployment or of all: stage, share, checks, and what it waits for",
        example="headrace rollout status chat-small --watch",
        with_json=True,
    )
    look.add_argument("name", nargs="?", metavar="NAME", help="one deployment (default: all)")
    look.add_argument("--watch", action="store_true", help="again every second, until interrupted")
    promote = _word(
        actions,
        "promote",
        "leave the present step or stage, whatever its checks say; replicas still come first",
    )
    promote.add_argument(
        "--full", action="store_true", help="leave out everything that is left, not one step"
    )
    for action, (_, help) in _WORDS.items():
        _word(actions, action, help)
    rehearse = _word(
        actions,
        "rehearse",
        "start the version that a rollback would go to beside everything else, and see whether it still works",
    )
    rehearse.add_argument(
        "--version", type=int, metavar="N", help="another version (default: the one accepted before)"
    )
    rehearse.add_argument(
        "--no-wait", action="store_true", help="don't wait for its end; exit status 0 says only that it began"
    )


def _word(actions: Any, name: str, help: str) -> argparse.ArgumentParser:
    parser = common.command(
        actions, name, _say, help=help, example=f"headrace rollout {name} chat-small", with_json=True
    )
    parser.add_argument("name", metavar="NAME", help="as `headrace deployments list` shows it")
    return parser


def _status(arguments: argparse.Namespace) -> None:
    data = config.data_directory(arguments.data)
    while True:
        rows = _rows(data, arguments.name)
        if arguments.json:
            common.print_json(rows if arguments.name is None else rows[0])
        else:
            print(
                "\n\n".join("\n".join(rollout_text.lines(row)) for row in rows) or "no deployment was applied"
            )
        if not arguments.watch:
            return
        print(flush=True)
        time.sleep(WATCH_EVERY_S)


def _say(arguments: argparse.Namespace) -> int | None:
    data = config.data_directory(arguments.data)
    word, fields = arguments.action, Json()
    if word == "promote" and arguments.full:
        word = "promote_fully"
    before = None
    if word == "rehearse":
        fields = {} if arguments.version is None else {"version": arguments.version}
        before = _rows(data, arguments.name)[0].get("rehearsed")
    _, answer = status.fetch(
        data,
        f"/admin/v1/deployments/{quote(arguments.name, safe='')}/rollout",
        method="POST",
        fields={"command": word, **fields},
        limit_s=30.0,
    )
    is_refused = answer["is_done"] is False and word != "abort"
    if word == "rehearse" and answer["is_done"] and not arguments.no_wait:
        identity.note(answer["text"])
        return _rehearsed(data, arguments.name, before, is_json=arguments.json)
    if arguments.json:
        common.print_json(answer)
    else:
        identity.note(answer["text"])
    return FAILED if is_refused else None


def _rehearsed(data: Path, name: str, before: Json | None, *, is_json: bool) -> int | None:
    """Until the rehearsal is over, which has its own limit (`rollout.max_duration_s`)."""
    while True:
        row = _rows(data, name)[0]
        found = row.get("rehearsed")
        if found is not None and found != before and not row.get("rehearsing"):
            break
        time.sleep(LOOK_EVERY_S)
    if is_json:
        common.print_json(found)
    else:
        print(rollout_text.rehearsed(name, found))
    return None if found["verdict"] == "pass" else FAILED


def _rows(data: Path, name: str | None) -> Sequence[Json]:
    """What the controller last said of each deployment. Raises HeadraceError for a name that it doesn't know."""
    _, now = status.fetch(data)
    rows = [
        {**row["rollout"], **{key: row[key] for key in ("name", "wanted", "accepted")}}
        for row in now["rollouts"]
    ]
    if name is None:
        return rows
    found = [row for row in rows if row["name"] == name]
    if not found:
        known = ", ".join(row["name"] for row in rows) or "none was applied"
        raise HeadraceError(f"no deployment `{name}` runs; there are: {known}")
    return found
