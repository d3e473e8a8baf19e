"""`headrace admins`: who may come to the admin port, and as what."""

import argparse
from typing import Any

from headrace.cli import common, durations, identity
from headrace.core.roles import ROLES
from headrace.stores import views


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "admins",
        None,
        help="create, list and revoke tokens for the admin port",
        example="headrace admins create --role viewer --name grafana",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = common.command(
        actions,
        "create",
        _create,
        help="make a token for the admin port and print it, alone and once, on standard output",
        example="TOKEN=$(headrace admins create --role operator --name on-call --expires 90d)",
    )
    create.add_argument(
        "--role", choices=tuple(ROLES), required=True, help="what it may do; see docs/reference/admin-api.md"
    )
    create.add_argument("--name", default="", metavar="LABEL", help="whose it is, to tell tokens apart")
    create.add_argument(
        "--expires", type=durations.duration_s, metavar="SPAN", help="30d, 12h ... (default: never)"
    )
    common.command(
        actions,
        "list",
        _list,
        help="list admin tokens: everything about them but the tokens",
        example="headrace admins list",
        with_json=True,
    )
    revoke = common.command(
        actions,
        "revoke",
        _revoke,
        help="end an admin token now",
        example="headrace admins revoke k3x9q2ab",
    )
    revoke.add_argument("id", metavar="ID", help="the token's public part, as `admins list` shows it")


def _create(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=False) as store:
        record, secret = store.create_admin(
            ROLES[arguments.role], name=arguments.name, lifetime_s=arguments.expires
        )
    identity.note(f"{record.role.word} `{record.id}`; store the token now, it can't be shown again:")
    print(secret)


def _list(arguments: argparse.Namespace) -> None:
    now_s = identity.CLOCK.wall_s()
    with identity.store(arguments, must_exist=True) as store:
        records = store.admins()
    if arguments.json:
        common.print_json([views.admin(record, now_s=now_s) for record in records])
        return
    common.print_table(
        [
            (
                record.id,
                record.role.word,
                record.name or "-",
                record.state(now_s),
                durations.utc(record.created_s),
                "never" if record.expires_s is None else durations.utc(record.expires_s),
            )
            for record in records
        ],
        headings=("id", "role", "name", "state", "created", "expires"),
    )


def _revoke(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=True) as store:
        record = store.revoke_admin(arguments.id)
    identity.note(f"{record.role.word} `{record.id}` is revoked")
