"""`headrace reload`: put a changed headrace.toml in force, without a stop."""

import argparse
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, status
from headrace.policies.reloading import Reloaded, told

LATE = 1
# The service waits less long for its workers and its controller.
ANSWER_LIMIT_S = 60.0


def add(commands: Any) -> None:
    """Registers the command."""
    common.command(
        commands,
        "reload",
        run,
        help="have the running service read its configuration file again: what can be is in force at once, the rest is named",
        example="headrace reload --json",
        with_json=True,
    )


def run(arguments: argparse.Namespace) -> int | None:
    _, answer = status.fetch(
        config.data_directory(arguments.data),
        "/admin/v1/config/reload",
        method="POST",
        limit_s=ANSWER_LIMIT_S,
    )
    if arguments.json:
        common.print_json(answer)
    done = msgspec.convert(answer, Reloaded)
    if not arguments.json:
        print("\n".join(told(done)))
    return LATE if done.late else None
