"""`headrace tenants`: who may call, within which limits, and what else is agreed with them."""

import argparse
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any

from headrace.cli import common, durations, identity, limit_text, tenant_show
from headrace.core.clock import SystemClock
from headrace.core.tenant import PRIORITIES, WEIGHT_MAX, CacheBoundary
from headrace.stores import agreements, views


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number, or `default`") from None


def _since_s(text: str) -> int:
    """Unix seconds, rounded up: of two tokens from the second of the moment itself, nobody knows which was first."""
    now_s = SystemClock().wall_s()
    return math.ceil(now_s if text == "now" else durations.unix_s(durations.moment(text), now_s=now_s))


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r}: `on`, `off`, or `default`")
    return text == "on"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of `tenants create` and `tenants set`.

    Attributes:
        flag: As it's written on the command line.
        field: The public name of the field that it sets; see stores.agreements.FIELDS.
        metavar: What stands for its value in the help.
        help: What it sets, and its default where that isn't the service's.
        read: The field's value out of the option's text, as JSON would hold it; raises argparse.ArgumentTypeError. Every
            option also takes `default`.
        is_list: It may be given several times, and sets all of its field.
        heading: Its column in `tenants list`; "" for a field that only `--json` shows.
    """

    flag: str
    field: str
    metavar: str
    help: str
    read: Callable[[str], object] = _number
    heading: str = ""
    is_list: bool = False


OPTIONS = (
    Option(
        "--requests-per-minute",
        "requests_per_minute",
        "N",
        "sustained rate; 0 means no limit",
        heading="requests/min",
    ),
    Option(
        "--requests-burst",
        "requests_burst",
        "N",
        "requests that may come at once, at least 1",
        heading="burst",
    ),
    Option(
        "--concurrency",
        "concurrency_max",
        "N",
        "requests in progress; 0 means no limit",
        heading="concurrency",
    ),
    Option(
        "--tokens-per-minute",
        "tokens_per_minute",
        "N",
        "sustained rate of tokens, prompts and answers together; 0 means no limit",
        heading="tokens/min",
    ),
    Option(
        "--tokens-burst",
        "tokens_burst",
        "N",
        "tokens that may come at once, and so the most of one request; 0 means those of a minute",
    ),
    Option(
        "--model-limits",
        "model_limits",
        "TEXT",
        "limits for single models: `MODEL:LIMITS`, separated by blanks, with LIMITS such as"
        " tokens_per_minute=20000,concurrency_max=4; `none` for none (default: none)",
        read=limit_text.model_limits,
    ),
    Option(
        "--shadow",
        "shadow",
        limit_text.METAVAR,
        "limits that refuse nothing; what they would refuse is counted; `none` for none",
        read=limit_text.limits,
    ),
    Option(
        "--shadow-key",
        "shadow_key",
        limit_text.METAVAR,
        "the same, for each of its keys (default: none)",
        read=limit_text.limits,
    ),
    Option(
        "--shadow-models",
        "shadow_models",
        "TEXT",
        "the same, for single models, as in --model-limits (default: none)",
        read=limit_text.model_limits,
    ),
    Option(
        "--class",
        "class",
        "CLASS",
        f"highest priority that its requests may ask for: {', '.join(PRIORITIES)} (default: normal)",
        read=str,
        heading="class",
    ),
    Option(
        "--weight",
        "weight",
        "N",
        f"its part of the time while others wait too, 1 to {WEIGHT_MAX} (default: 1)",
        heading="weight",
    ),
    Option(
        "--reserved-slots",
        "reserved_slots",
        "N",
        "slots of each model that are its own (default: 0)",
        heading="reserved",
    ),
    Option(
        "--organization",
        "organization",
        "NAME",
        "whose tenant it is, where one customer has several; a-z, 0-9 and `-` (default: nobody's)",
        read=str,
        heading="organization",
    ),
    Option(
        "--tokens-valid-from",
        "tokens_valid_from_s",
        "WHEN",
        "refuse tokens of identity providers issued before: `now`, a date or time, a span back (default: refuse none)",
        read=_since_s,
    ),
    Option(
        "--durable",
        "is_durable",
        "on/off",
        "end each answer only when its usage record is on disk (default: off)",
        read=_switch,
        heading="durable",
    ),
    Option(
        "--cache-group",
        "cache_group",
        "NAME",
        "share prefix caches with the other tenants of that group; a-z, 0-9 and `-` (default: with nobody)",
        read=str,
        heading="cache group",
    ),
    Option(
        "--cache-boundary",
        "cache_boundary",
        "WHAT",
        f"whose prompts may share a prefix cache within it: {', '.join(CacheBoundary)} (default: tenant)",
        read=str,
    ),
    Option(
        "--quota",
        "quotas",
        "UNIT/PERIOD=N",
        "requests or tokens in a day, a month (UTC) or in total, as tokens/day=2000000; may be given several times",
        read=str,
        is_list=True,
    ),
    Option(
        "--budget",
        "budgets",
        "AMOUNT/PERIOD",
        "money in a day, a month or in total, as 50.00/month; may be given several times",
        read=str,
        is_list=True,
    ),
    Option(
        "--retention",
        "retention_s",
        "SECONDS",
        "keep answers under an Idempotency-Key for no longer; 0 keeps none (default: idempotency.keep_s)",
    ),
    Option(
        "--location",
        "locations",
        "NAME",
        "where its requests may run, as in the configuration; may be given several times (default: anywhere)",
        read=str,
        is_list=True,
    ),
)


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "tenants",
        None,
        help="create and list tenants, set their limits, shares and terms",
        example="headrace tenants create acme --requests-per-minute 1200",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = common.command(
        actions,
        "create",
        _create,
        help="create a tenant; what isn't given is the service's default",
        example="headrace tenants create acme --requests-per-minute 1200 --concurrency 32",
    )
    change = common.command(
        actions,
        "set",
        _set,
        help="change a tenant; what isn't given stays as it is",
        example="headrace tenants set acme --concurrency default --weight 3",
    )
    for parser in (create, change):
        parser.add_argument("name", metavar="NAME", help="a-z, 0-9 and `-`, at most 63 characters")
        for option in OPTIONS:
            parser.add_argument(
                option.flag,
                dest=f"agreed.{option.field}",
                type=_or_default(option.read),
                action="append" if option.is_list else "store",
                default=argparse.SUPPRESS,
                metavar=option.metavar,
                help=f"{option.help}; or `default`",
            )
    delete = common.command(
        actions,
        "delete",
        _delete,
        help="remove a tenant whose keys have all ended; what it used stays in the ledger",
        example="headrace tenants delete acme",
    )
    delete.add_argument("name", metavar="NAME", help="whose name it is")
    erase = common.command(
        actions,
        "erase",
        _erase,
        help="remove a tenant, its keys, also those that work, and its users' names from its records; prints the receipt",
        example="headrace tenants erase acme",
    )
    erase.add_argument("name", metavar="NAME", help="whose data it is; there is no way back")
    tenant_show.add(actions)
    common.command(
        actions,
        "list",
        _list,
        help="list tenants with their own limits, shares and terms",
        example="headrace tenants list --json",
        with_json=True,
    )


def _or_default(read: Callable[[str], object]) -> Callable[[str], object]:
    """None for the word `default`, else what `read` makes of the text."""

    def read_either(text: str) -> object:
        return None if text == "default" else read(text)

    return read_either


def _given(arguments: argparse.Namespace) -> dict[str, object]:
    """The fields that are on the command line; None for those that go back to their default."""
    given: dict[str, object] = {}
    for option in OPTIONS:
        value = getattr(arguments, f"agreed.{option.field}", MISSING)
        if value is not MISSING:
            is_default = option.is_list and isinstance(value, list) and None in value
            given[option.field] = None if is_default else value
    return given


def _create(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=False) as store:
        store.create_tenant(arguments.name, _given(arguments))
    identity.note(
        f"tenant `{arguments.name}` created; its first key: headrace keys create --tenant {arguments.name}"
    )


def _set(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=True) as store:
        store.change_tenant(arguments.name, _given(arguments))
        revision = store.revision()
    identity.note(f"tenant `{arguments.name}` changed{identity.in_force(arguments, revision)}")


def _delete(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=True) as store:
        store.delete_tenant(arguments.name)
        revision = store.revision()
    identity.note(f"tenant `{arguments.name}` deleted{identity.in_force(arguments, revision)}")


def _erase(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=True) as store:
        receipt = store.erase_tenant(arguments.name)
        revision = store.revision()
    common.print_json(receipt)
    identity.note(f"tenant `{arguments.name}` erased{identity.in_force(arguments, revision)}")


def _list(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=True) as store:
        records = store.tenants()
    if arguments.json:
        common.print_json([views.tenant(record) for record in records])
        return
    columns = [option for option in OPTIONS if option.heading]
    common.print_table(
        [
            (
                record.name,
                *(_cell(record.agreement.values()[option.field], option.field) for option in columns),
                durations.utc(record.created_s),
            )
            for record in records
        ],
        headings=("tenant", *(option.heading for option in columns), "created"),
    )


def _cell(value: object, field: str) -> object:
    if value is None and (field in agreements.LIMIT_FIELDS or field in agreements.TOKEN_FIELDS):
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value == "" else value
