"""`headrace tenants` and `headrace keys`: who may call, within which limits."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace import config
from headrace.cli import common, durations, status
from headrace.core import keys
from headrace.core.clock import SystemClock
from headrace.core.errors import HeadraceError
from headrace.core.tenant import PRIORITIES, WEIGHT_MAX, TenantShare
from headrace.stores import directory, tenants
from headrace.stores.tenants import KeyRecord, LimitOverrides, TenantRecord, TenantStore

_CLOCK = SystemClock()
IN_FORCE_LIMIT_S = 5.0
_LIMITS = ("requests_per_minute", "requests_burst", "concurrency_max")


def add(commands: Any) -> None:
    """Registers both command groups."""
    _add_tenants(commands)
    _add_keys(commands)


def _add_tenants(commands: Any) -> None:
    group = common.command(
        commands,
        "tenants",
        None,
        help="create and list tenants, set their limits and shares",
        example="headrace tenants create acme --requests-per-minute 1200",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = common.command(
        actions,
        "create",
        _create_tenant,
        help="create a tenant; what isn't given is the service's default",
        example="headrace tenants create acme --requests-per-minute 1200 --concurrency 32",
    )
    change = common.command(
        actions,
        "set",
        _set_tenant,
        help="change a tenant; what isn't given stays as it is",
        example="headrace tenants set acme --concurrency default --weight 3",
    )
    for parser in (create, change):
        parser.add_argument("name", metavar="NAME", help="a-z, 0-9 and `-`, at most 63 characters")
        _add_limits(parser)
        _add_share(parser)
    common.command(
        actions,
        "list",
        _list_tenants,
        help="list tenants with their own limits and shares",
        example="headrace tenants list --json",
        with_json=True,
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for flag, name, text in (
        ("--requests-per-minute", "requests_per_minute", "sustained rate; 0 means no limit"),
        ("--requests-burst", "requests_burst", "requests that may come at once, at least 1"),
        ("--concurrency", "concurrency_max", "requests in progress; 0 means no limit"),
    ):
        parser.add_argument(
            flag, dest=name, type=_limit, default=argparse.SUPPRESS, metavar="N", help=f"{text}; or `default`"
        )


def _add_share(parser: argparse.ArgumentParser) -> None:
    """What a tenant gets while others wait too."""
    parser.add_argument(
        "--class",
        dest="priority_max",
        choices=tuple(PRIORITIES),
        default=argparse.SUPPRESS,
        help="highest priority that its requests may ask for (default: normal)",
    )
    for flag, name, text in (
        ("--weight", "weight", f"its part of the time while others wait too, 1 to {WEIGHT_MAX} (default: 1)"),
        ("--reserved-slots", "reserved_slots", "slots of each model that are its own (default: 0)"),
    ):
        parser.add_argument(flag, dest=name, type=int, default=argparse.SUPPRESS, metavar="N", help=text)


def _add_keys(commands: Any) -> None:
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
        _create_key,
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
        _list_keys,
        help="list keys: everything about them but the keys",
        example="headrace keys list --tenant acme",
        with_json=True,
    )
    listing.add_argument("--tenant", help="only this tenant's")
    revoke = common.command(
        actions, "revoke", _revoke_key, help="end a key now", example="headrace keys revoke k3x9q2ab"
    )
    rotate = common.command(
        actions,
        "rotate",
        _rotate_key,
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


def _limit(text: str) -> int | None:
    if text == "default":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number, or `default`") from None


@contextmanager
def _store(arguments: argparse.Namespace, *, must_exist: bool) -> Iterator[TenantStore]:
    store = tenants.open_tenants(config.data_directory(arguments.data), clock=_CLOCK, must_exist=must_exist)
    try:
        yield store
    finally:
        store.close()


def _limits(arguments: argparse.Namespace, own: LimitOverrides) -> LimitOverrides:
    """The limits on the command line, over those that are there."""
    given = vars(arguments)
    return LimitOverrides(**{name: given.get(name, getattr(own, name)) for name in _LIMITS})


def _share(arguments: argparse.Namespace, own: TenantShare) -> TenantShare:
    """The share on the command line, over the one that is there."""
    given = vars(arguments)
    return TenantShare(
        priority_max=PRIORITIES[given.get("priority_max", own.priority_max.word)],
        weight=given.get("weight", own.weight),
        reserved_slots=given.get("reserved_slots", own.reserved_slots),
    )


def _create_tenant(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=False) as store:
        store.create_tenant(
            arguments.name, _limits(arguments, LimitOverrides()), _share(arguments, TenantShare())
        )
    _note(f"tenant `{arguments.name}` created; its first key: headrace keys create --tenant {arguments.name}")


def _set_tenant(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=True) as store:
        own = store.tenant(arguments.name)
        store.set_tenant(arguments.name, _limits(arguments, own.limits), _share(arguments, own.share))
        revision = store.revision()
    _note(f"tenant `{arguments.name}` changed{_in_force(arguments, revision)}")


def _list_tenants(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=True) as store:
        records = store.tenants()
    if arguments.json:
        common.print_json([_tenant_json(record) for record in records])
        return
    rows = [
        (
            record.name,
            *("default" if (own := getattr(record.limits, name)) is None else str(own) for name in _LIMITS),
            record.share.priority_max.word,
            record.share.weight,
            record.share.reserved_slots,
            durations.utc(record.created_s),
        )
        for record in records
    ]
    headings = ("tenant", "requests/min", "burst", "concurrency", "class", "weight", "reserved", "created")
    common.print_table(rows, headings=headings)


def _create_key(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=False) as store:
        if not store.has_tenant(arguments.tenant):
            store.create_tenant(arguments.tenant)
            _note(f"tenant `{arguments.tenant}` did not exist and was created with the default limits")
        record, secret = store.create_key(
            arguments.tenant, name=arguments.name, environment=arguments.env, lifetime_s=arguments.expires
        )
        revision = store.revision()
    _warn_unconfirmed(_in_force(arguments, revision))
    _print_once(record, secret)


def _list_keys(arguments: argparse.Namespace) -> None:
    now_s = _CLOCK.wall_s()
    with _store(arguments, must_exist=True) as store:
        records = store.keys(arguments.tenant)
    if arguments.json:
        common.print_json([_key_json(record, now_s=now_s) for record in records])
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


def _revoke_key(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=True) as store:
        record = store.revoke(arguments.id)
        revision = store.revision()
    _note(f"key `{record.id}` of tenant `{record.tenant}` is revoked{_in_force(arguments, revision)}")


def _rotate_key(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=True) as store:
        record, secret = store.rotate(arguments.id, overlap_s=arguments.overlap)
        old = next(key for key in store.keys(record.tenant) if key.id == record.replaces)
        revision = store.revision()
    _warn_unconfirmed(_in_force(arguments, revision))
    assert old.expires_s is not None, "a rotated key has an end"
    _note(f"key `{old.id}` ends at {durations.utc(old.expires_s)}")
    _print_once(record, secret)


def _in_force(arguments: argparse.Namespace, revision: int) -> str:
    """Waits until the running service, if there is one, goes by the change; says so, or what the operator can expect."""
    data = config.data_directory(arguments.data)
    if not directory.is_in_use(data):
        return ""
    until_s = _CLOCK.now_s() + IN_FORCE_LIMIT_S
    while _CLOCK.now_s() < until_s:
        try:
            _, answer = status.fetch(data)
        except HeadraceError:
            # What is left of a service that was killed: the next one reads the change when it starts.
            return ""
        if answer.get("keys", {}).get("revision", 0) >= revision:
            return ", and the running service goes by it"
        time.sleep(0.02)
    return f", but the running service has not confirmed it within {IN_FORCE_LIMIT_S:.0f} s; see: headrace status"


def _warn_unconfirmed(what_came_of_it: str) -> None:
    if "not confirmed" in what_came_of_it:
        _note(f"the change is stored{what_came_of_it}")


def _print_once(record: KeyRecord, secret: str) -> None:
    """The key alone on standard output, so that `KEY=$(...)` takes it; what people want to know beside it."""
    _note(f"key `{record.id}` of tenant `{record.tenant}`; store it now, it can't be shown again:")
    print(secret)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tenant_json(record: TenantRecord) -> dict[str, object]:
    limits = {name: getattr(record.limits, name) for name in _LIMITS}
    share = {
        "class": record.share.priority_max.word,
        "weight": record.share.weight,
        "reserved_slots": record.share.reserved_slots,
    }
    return {"tenant": record.name, **limits, **share, "created": durations.utc(record.created_s)}


def _key_json(record: KeyRecord, *, now_s: float) -> dict[str, object]:
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
