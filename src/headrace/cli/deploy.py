"""`headrace plan`, `apply` and `rollback`: what deployment files would do, do it, and take it back."""

import argparse
from collections.abc import Sequence
from typing import Any

from headrace import config
from headrace.cli import common, desk, identity, plan_text, rollout_wait
from headrace.config import deployments
from headrace.config.deployments import DeploymentFile
from headrace.policies.planning import Plan

REFUSED = 2


def add(commands: Any) -> None:
    """Registers the three commands."""
    plan = common.command(
        commands,
        "plan",
        _plan,
        help="say what applying deployment files would change, take and cost; exit status 2 where it is refused",
        example="headrace plan deployments/chat.toml",
        with_json=True,
    )
    _add_files(plan)
    apply = common.command(
        commands,
        "apply",
        _apply,
        help="apply deployment files, all or none: freeze what they mean now, and want it from now on",
        example="headrace apply --wait",
        with_json=True,
    )
    _add_files(apply)
    _add_wait(apply)
    rollback = common.command(
        commands,
        "rollback",
        _rollback,
        help="want an older version of a deployment again: the one that served before, or the one that is named",
        example="headrace rollback chat-small --to 3",
        with_json=True,
    )
    rollback.add_argument("name", metavar="NAME", help="as `deployments list` shows it")
    rollback.add_argument("--to", type=common.positive, metavar="VERSION", help="that version")
    _add_wait(rollback)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILES",
        help=f"TOML files, or folders of them (default: {deployments.FOLDER}/)",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the service's configuration, where no service runs to be asked (default: $HEADRACE_CONFIG)",
    )


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        action="store_true",
        help="follow the rollout to its end; exit status 1 where it was rolled back",
    )


def _plan(arguments: argparse.Namespace) -> int | None:
    files = _files(arguments)
    with desk.desk(arguments) as at:
        plans = at.plan(files)
    _show(arguments, plans)
    return REFUSED if any(plan.is_refused for plan in plans) else None


def _apply(arguments: argparse.Namespace) -> int | None:
    files = _files(arguments)
    with desk.desk(arguments) as at:
        plans = at.plan(files)
        if any(plan.is_refused for plan in plans):
            _show(arguments, plans)
            return REFUSED
        answer = at.apply(files)
        if not arguments.json:
            for plan in plans:
                print("\n".join(plan_text.lines(plan)))
        return _done(arguments, answer, verb="applied", is_served=at.is_served)


def _rollback(arguments: argparse.Namespace) -> int | None:
    with desk.desk(arguments) as at:
        answer = at.rollback(arguments.name, arguments.to)
        return _done(arguments, answer, verb="wanted again", is_served=at.is_served)


def _done(arguments: argparse.Namespace, answer: desk.Json, *, verb: str, is_served: bool) -> int | None:
    applied = answer["applied"]
    if arguments.json:
        common.print_json(answer)
    for each in applied:
        name, version, digest = each["name"], each["version"], plan_text.digest(each["digest"])
        told = f"version {version} {verb}" if each["changed"] else f"unchanged, version {version}"
        identity.note(f"{name}: {told} ({digest})")
    if not is_served:
        identity.note("no service runs here: the next one begins with this")
        return None
    if not arguments.wait:
        return None
    data = config.data_directory(arguments.data)
    return rollout_wait.follow(data, {each["name"]: each["version"] for each in applied})


def _files(arguments: argparse.Namespace) -> list[DeploymentFile]:
    return deployments.load_all(deployments.find(arguments.files))


def _show(arguments: argparse.Namespace, plans: Sequence[Plan]) -> None:
    if arguments.json:
        common.print_json({"plans": desk.facts(plans)})
        return
    print("\n\n".join("\n".join(plan_text.lines(plan)) for plan in plans))
