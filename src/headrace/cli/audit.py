"""`headrace audit`: who changed what, and whether the log of it is whole."""

import argparse
import json
from typing import Any

from headrace.cli import common, durations, identity
from headrace.stores import views
from headrace.stores.audit import Entry


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "audit",
        None,
        help="show and verify the log of administrative acts",
        example="headrace audit list --since 7d",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = common.command(
        actions,
        "list",
        _list,
        help="list administrative acts, the oldest first; all times are UTC",
        example="headrace audit list --since 7d --tenant acme",
        with_json=True,
    )
    listing.add_argument(
        "--since",
        type=durations.moment,
        metavar="TIME",
        help="2026-11-01, or a span back from now such as 24h",
    )
    listing.add_argument("--tenant", default="", help="only what concerns this tenant")
    listing.add_argument(
        "--after", type=common.positive, default=0, metavar="N", help="only entries behind number N"
    )
    listing.add_argument(
        "--limit", type=common.positive, default=1000, metavar="N", help="how many at most (default: 1000)"
    )
    verify = common.command(
        actions,
        "verify",
        _verify,
        help="follow the chain of digests from the first entry to the last; status 1 where it's broken",
        example="headrace audit verify --head 17:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        with_json=True,
    )
    verify.add_argument(
        "--head",
        default="",
        metavar="N:DIGEST",
        help="a head that an earlier `verify` printed, and that must still be part of the chain",
    )


def _list(arguments: argparse.Namespace) -> None:
    now_s = identity.CLOCK.wall_s()
    since_s = 0.0 if arguments.since is None else durations.unix_s(arguments.since, now_s=now_s)
    with identity.store(arguments, must_exist=True) as store:
        entries = store.audit_entries(
            since_s=since_s, tenant=arguments.tenant, after=arguments.after, limit=arguments.limit
        )
    if arguments.json:
        common.print_json([views.act(entry) for entry in entries])
        return
    common.print_table(
        [
            (
                entry.number,
                durations.utc(entry.at_s),
                entry.actor,
                entry.action,
                entry.target,
                entry.tenant or "-",
                _in_words(entry),
            )
            for entry in entries
        ],
        headings=("number", "time", "actor", "action", "target", "tenant", "changes"),
    )


def _verify(arguments: argparse.Namespace) -> int:
    with identity.store(arguments, must_exist=True) as store:
        verdict = store.verify_audit(head=arguments.head)
    if arguments.json:
        common.print_json(views.verdict(verdict))
    elif verdict.problem:
        identity.note(
            f"the audit log is broken: {verdict.problem}; the {verdict.entries} before it are in order"
        )
    else:
        print(f"{verdict.entries} entries, unbroken; head {verdict.head or '-'}")
    return 1 if verdict.problem else 0


def _in_words(entry: Entry) -> str:
    return ", ".join(
        f"{name}: {json.dumps(old)} -> {json.dumps(new)}" for name, (old, new) in entry.changes.items()
    )
