"""`headrace keys`: what callers show who they are with."""

import argparse
from typing import Any

from headrace.cli import common, durations, identity
from headrace.core import keys
from headrace.stores.keys import KeyRecord


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "keys",
        None,
        help="create, list, rotate and revoke API keys",
        example="headrace keys create --tenant acme",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = common.command(
        actions,
        "create",
        _create,
        help="make a key and print it, alone and once, on standard output",
        example="KEY=$(headrace keys create --tenant acme --name ci --expires 30d)",
    )
    create.add_argument("--tenant", required=True, help="whose key it is; created when it doesn't exist")
    create.add_argument("--name", default="", metavar="LABEL", help="what it's for, to tell keys apart")
    create.add_argument(
        "--expires", type=durations.duration_s, metavar="SPAN", help="30d, 12h ... (default: never)"
    )
    create.add_argument(
        "--env", choices=keys.ENVIRONMENTS, default="live", help="the key's second part (default: live)"
    )
    listing = common.command(
        actions,
        "list",
        _list,
        help="list keys: everything about them but the keys",
        example="headrace keys list --tenant acme",
        with_json=True,
    )
    listing.add_argument("--tenant", help="only this tenant's")
    revoke = common.command(
        actions, "revoke", _revoke, help="end a key now", example="headrace keys revoke k3x9q2ab"
    )
    rotate = common.command(
        actions,
        "rotate",
        _rotate,
        help="make a key like an old one, print it once, and let the old one end",
        example="KEY=$(headrace keys rotate k3x9q2ab --overlap 24h)",
    )
    rotate.add_argument(
        "--overlap",
        type=durations.duration_s,
        default=durations.duration_s("24h"),
        metavar="SPAN",
        help="how long the old key goes on working (default: 24h; 0s ends it now)",
    )
    for parser in (revoke, rotate):
        parser.add_argument("id", metavar="ID", help="the key's public part, as `keys list` shows it")


def _create(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=False) as store:
        if not store.has_tenant(arguments.tenant):
            store.create_tenant(arguments.tenant)
            identity.note(
                f"tenant `{arguments.tenant}` did not exist and was created with the default limits"
            )
        record, secret = store.create_key(
            arguments.tenant, name=arguments.name, environment=arguments.env, lifetime_s=arguments.expires
        )
        revision = store.revision()
    _warn_unconfirmed(identity.in_force(arguments, revision))
    _print_once(record, secret)


def _list(arguments: argparse.Namespace) -> None:
    now_s = identity.CLOCK.wall_s()
    with identity.store(arguments, must_exist=True) as store:
        records = store.keys(arguments.tenant)
    if arguments.json:
        common.print_json([_json(record, now_s=now_s) for record in records])
        return
    rows = [
        (
            record.id,
            record.tenant,
            record.name or "-",
            record.environment,
            record.state(now_s),
            durations.utc(record.created_s),
            "never" if record.expires_s is None else durations.utc(record.expires_s),
        )
        for record in records
    ]
    common.print_table(rows, headings=("id", "tenant", "name", "env", "state", "created", "expires"))


def _revoke(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=True) as store:
        record = store.revoke(arguments.id)
        revision = store.revision()
    identity.note(
        f"key `{record.id}` of tenant `{record.tenant}` is revoked{identity.in_force(arguments, revision)}"
    )


def _rotate(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=True) as store:
        record, secret = store.rotate(arguments.id, overlap_s=arguments.overlap)
        old = next(key for key in store.keys(record.tenant) if key.id == record.replaces)
        revision = store.revision()
    _warn_unconfirmed(identity.in_force(arguments, revision))
    assert old.expires_s is not None, "a rotated key has an end"
    identity.note(f"key `{old.id}` ends at {durations.utc(old.expires_s)}")
    _print_once(record, secret)


def _warn_unconfirmed(what_came_of_it: str) -> None:
    if "not confirmed" in what_came_of_it:
        identity.note(f"the change is stored{what_came_of_it}")


def _print_once(record: KeyRecord, secret: str) -> None:
    """The key alone on standard output, so that `KEY=$(...)` takes it; what people want to know beside it."""
    identity.note(f"key `{record.id}` of tenant `{record.tenant}`; store it now, it can't be shown again:")
    print(secret)


def _json(record: KeyRecord, *, now_s: float) -> dict[str, object]:
    def optional(moment_s: float | None) -> str | None:
        return None if moment_s is None else durations.utc(moment_s)

    return {
        "id": record.id,
        "tenant": record.tenant,
        "name": record.name,
        "env": record.environment,
        "state": record.state(now_s),
        "created": durations.utc(record.created_s),
        "expires": optional(record.expires_s),
        "revoked": optional(record.revoked_s),
        "replaces": record.replaces,
    }
