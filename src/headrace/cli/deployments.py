"""`headrace deployments`: which were applied, what exactly is wanted of each, and the end of one."""

import argparse
import sys
from typing import Any

from headrace.cli import common, desk, identity, plan_text


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "deployments",
        None,
        help="list, show and remove deployments that were applied",
        example="headrace deployments list",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    common.command(
        actions,
        "list",
        _list,
        help="list every deployment that was applied, with the version that is wanted",
        example="headrace deployments list --json",
        with_json=True,
    )
    show = common.command(
        actions,
        "show",
        _show,
        help="show one: its versions, when each was wanted, and what the wanted one was resolved to",
        example="headrace deployments show chat-small --file",
        with_json=True,
    )
    show.add_argument("name", metavar="NAME", help="as `deployments list` shows it")
    show.add_argument("--file", action="store_true", help="the file as it was applied, and nothing else")
    remove = common.command(
        actions,
        "remove",
        _remove,
        help="want no version of it any more; its requests are drained, its versions are kept",
        example="headrace deployments remove chat-small",
        with_json=True,
    )
    remove.add_argument("name", metavar="NAME", help="as `deployments list` shows it")


def _list(arguments: argparse.Namespace) -> None:
    with desk.desk(arguments) as at:
        found = at.listed()["deployments"]
    if arguments.json:
        common.print_json(found)
        return
    common.print_table(
        [
            (
                each["name"],
                each["version"] or "removed",
                each["engine"],
                each["task"],
                plan_text.digest(each["digest"]),
                each["reason"],
                each["actor"],
                each["changed"],
            )
            for each in found
        ],
        headings=("name", "version", "engine", "task", "revision", "by", "actor", "since"),
    )


def _show(arguments: argparse.Namespace) -> None:
    with desk.desk(arguments) as at:
        found = at.shown(arguments.name)
    if arguments.file:
        sys.stdout.write(found["file"] or "")
        return
    if arguments.json:
        common.print_json(found)
        return
    version = "removed" if found["version"] is None else f"version {found['version']}"
    print(f"{found['name']}: {version}, {found['digest'] or 'no revision'}")
    for key, value in _facts(found["revision"] or {}):
        print(f"  {key}: {value}")
    print()
    common.print_table(
        [
            (each["version"], plan_text.digest(each["digest"]), each["applied"], each["actor"])
            for each in found["versions"]
        ],
        headings=("version", "revision", "applied", "actor"),
    )
    print()
    common.print_table(
        [
            (each["time"], each["version"] or "none", each["reason"], each["actor"])
            for each in found["history"]
        ],
        headings=("wanted from", "version", "by", "actor"),
    )


def _remove(arguments: argparse.Namespace) -> None:
    with desk.desk(arguments) as at:
        answer = at.remove(arguments.name)
    if arguments.json:
        common.print_json(answer)
    else:
        identity.note(f"{arguments.name}: " + ("removed" if answer["removed"] else "was removed already"))


def _facts(value: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """What a revision was resolved to, one fact a line, without what is empty."""
    found: list[tuple[str, object]] = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            found += _facts(inner, f"{prefix}{key}.")
        elif isinstance(inner, list):
            found += [(f"{prefix}{key}", f"{len(inner)} files")] if inner else []
        elif inner not in (None, "", 0):
            found.append((f"{prefix}{key}", inner))
    return found
