"""`headrace keys`: what callers show who they are with."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.cli import common, durations, identity
from headrace.core import keys
from headrace.stores import key_terms, views
from headrace.stores.key_terms import KeyTerms
from headrace.stores.keys import KeyRecord


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number") from None


@dataclass(frozen=True, slots=True)
class Option:
    """One option of `keys create` that narrows the key.

    Attributes:
        field: The field of stores.key_terms.KeyTerms that it sets.
        is_list: It may be given several times.
    """

    flag: str
    field: str
    metavar: str
    help: str
    read: Callable[[str], object] = _number
    is_list: bool = False


OPTIONS = (
    Option(
        "--model",
        "models",
        "NAME",
        "a model that it's for; repeat it for several (default: all)",
        read=str,
        is_list=True,
    ),
    Option(
        "--endpoint",
        "endpoints",
        "PATH",
        "a path that it's for, such as /v1/embeddings; repeat it for several (default: all)",
        read=str,
        is_list=True,
    ),
    Option(
        "--network",
        "networks",
        "CIDR",
        "where its calls may come from, such as 10.1.2.0/24; repeat it for several (default: anywhere)",
        read=str,
        is_list=True,
    ),
    Option("--user", "user", "LABEL", "which person or program of the tenant's it's for", read=str),
    Option(
        "--requests-per-minute",
        "requests_per_minute",
        "N",
        "sustained rate of this key alone, beside its tenant's (default: no limit)",
    ),
    Option("--requests-burst", "requests_burst", "N", "requests that may come with it at once, at least 1"),
    Option(
        "--tokens-per-minute",
        "tokens_per_minute",
        "N",
        "tokens of prompts and answers, for this key alone (default: no limit)",
    ),
    Option(
        "--tokens-burst",
        "tokens_burst",
        "N",
        "tokens that may come with it at once, and so the most of one request (default: those of a minute)",
    ),
    Option(
        "--concurrency",
        "concurrency_max",
        "N",
        "requests in progress with this key alone (default: no limit)",
    ),
    Option(
        "--quota",
        "quotas",
        "UNIT/PERIOD=N",
        "requests or tokens of this key alone in a day, a month or in total, as tokens/day=20000; repeat it for several",
        read=str,
        is_list=True,
    ),
    Option(
        "--budget",
        "budgets",
        "AMOUNT/PERIOD",
        "money of this key alone in a day, a month or in total, as 5.00/month; repeat it for several",
        read=str,
        is_list=True,
    ),
)


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
    for option in OPTIONS:
        create.add_argument(
            option.flag,
            dest=f"terms.{option.field}",
            type=option.read,
            action="append" if option.is_list else "store",
            default=argparse.SUPPRESS,
            metavar=option.metavar,
            help=option.help,
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
        key_terms.read(_given(arguments))  # what is wrong must not leave a tenant behind
        if not store.has_tenant(arguments.tenant):
            store.create_tenant(arguments.tenant)
            identity.note(
                f"tenant `{arguments.tenant}` did not exist and was created with the default limits"
            )
        record, secret = store.create_key(
            arguments.tenant,
            _given(arguments),
            name=arguments.name,
            environment=arguments.env,
            lifetime_s=arguments.expires,
        )
        revision = store.revision()
    _warn_unconfirmed(identity.in_force(arguments, revision))
    _print_once(record, secret)


def _given(arguments: argparse.Namespace) -> dict[str, object]:
    """What the command line narrows the key to."""
    given = vars(arguments)
    return {
        option.field: given[f"terms.{option.field}"] for option in OPTIONS if f"terms.{option.field}" in given
    }


def _list(arguments: argparse.Namespace) -> None:
    now_s = identity.CLOCK.wall_s()
    with identity.store(arguments, must_exist=True) as store:
        records = store.keys(arguments.tenant)
    if arguments.json:
        common.print_json([views.key(record, now_s=now_s) for record in records])
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
            "never" if record.used_s is None else durations.utc(record.used_s),
            _in_words(record.terms),
        )
        for record in records
    ]
    common.print_table(
        rows, headings=("id", "tenant", "name", "env", "state", "created", "expires", "used", "only")
    )


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


def _in_words(terms: KeyTerms) -> str:
    """What a key is narrowed to, in one line."""
    words = []
    for option in OPTIONS:
        value = getattr(terms, option.field)
        if value:
            words.append(f"{option.flag[2:]}={','.join(value) if option.is_list else value}")
    return " ".join(words) or "-"
