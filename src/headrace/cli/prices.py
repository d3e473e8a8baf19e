"""`headrace prices`: what tenants pay, from when on."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace import config
from headrace.cli import common, durations, identity
from headrace.core.errors import ConfigError
from headrace.core.prices import EVERY_MODEL, EVERY_TENANT, MEASURES, Item, Price
from headrace.stores import price_file, prices, views
from headrace.stores.prices import Draft, PriceStore

_FILE_BYTES_MAX = 4 * 1024 * 1024

# How each item is asked for; the words say per what, because a price without it is a trap.
_FLAGS = {
    Item.INPUT: "--input",
    Item.CACHED_INPUT: "--cached-input",
    Item.OUTPUT: "--output",
    Item.REASONING_OUTPUT: "--reasoning-output",
    Item.REQUEST: "--per-request",
    Item.VECTOR: "--per-1000-vectors",
    Item.IMAGE: "--per-image",
    Item.AUDIO: "--per-audio-second",
    Item.ACTION_CHUNK: "--per-action-chunk",
}


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "prices",
        None,
        help="set and list what tenants pay; versions are never changed, a later one takes over",
        example="headrace prices set --model chat --currency EUR --input 0.15 --output 0.60",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_set(actions)
    listing = common.command(
        actions,
        "list",
        _list,
        help="list the prices that hold now and those that are to come",
        example="headrace prices list --tenant acme --all",
        with_json=True,
    )
    listing.add_argument("--tenant", help="what this tenant pays: its own prices, and those for everybody")
    listing.add_argument("--model", help="only prices of this model, or of every model")
    listing.add_argument("--all", action="store_true", help="past and withdrawn versions too")
    show = common.command(
        actions, "show", _show, help="show one version", example="headrace prices show p3", with_json=True
    )
    show.add_argument("version", metavar="VERSION", help="as in `prices list` and in records")
    read = common.command(
        actions,
        "import",
        _import,
        help="add the versions in a TOML file, all or none; those that are known already are left out",
        example="headrace prices import prices.toml",
    )
    read.add_argument("file", metavar="FILE", help="as `prices export` writes it")
    common.command(
        actions,
        "export",
        _export,
        help="write all versions to standard output, as TOML",
        example="headrace prices export",
    )


def _add_set(actions: Any) -> None:
    parser = common.command(
        actions,
        "set",
        _set,
        help="add a version; prices that aren't given are 0, but cached input costs what input costs,"
        " and reasoning what output costs",
        example="headrace prices set --tenant acme --model chat --currency EUR --input 0.12 --output 0.48"
        " --valid-from 2026-12-01",
    )
    parser.add_argument(
        "--model", default=EVERY_MODEL, help="the model that it is for (default: `*`, every one)"
    )
    parser.add_argument(
        "--tenant", default=EVERY_TENANT, help="only for this tenant (default: for everybody)"
    )
    parser.add_argument("--currency", required=True, metavar="CODE", help="ISO 4217, such as EUR")
    parser.add_argument(
        "--valid-from",
        type=durations.moment,
        metavar="TIME",
        help="requests that arrive from then on, UTC (default: in two seconds, when every worker knows it)",
    )
    for item, flag in _FLAGS.items():
        parser.add_argument(flag, dest=item.value, metavar="AMOUNT", help=f"price: {MEASURES[item].label}")
    parser.add_argument(
        "--withdraw",
        action="store_true",
        help="end what holds for exactly this tenant and model; the more general price takes over",
    )


@contextmanager
def _store(arguments: argparse.Namespace, *, must_exist: bool) -> Iterator[PriceStore]:
    data = config.data_directory(arguments.data)
    opened = prices.open_prices(data, clock=identity.CLOCK, actor=identity.actor(), must_exist=must_exist)
    try:
        yield opened
    finally:
        opened.close()


def _set(arguments: argparse.Namespace) -> None:
    stated = {item: text for item in Item if (text := getattr(arguments, item.value)) is not None}
    if arguments.withdraw == bool(stated):
        raise ConfigError("give at least one price, such as --input 0.15, or --withdraw and none")
    moment = arguments.valid_from
    draft = Draft(
        currency=arguments.currency,
        stated=None if arguments.withdraw else stated,
        model=arguments.model,
        tenant=arguments.tenant,
        valid_from_s=None if moment is None else durations.unix_s(moment, now_s=identity.CLOCK.wall_s()),
    )
    _enter(arguments, [draft])


def _import(arguments: argparse.Namespace) -> None:
    data = Path(arguments.file).read_bytes()
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{arguments.file}: larger than {_FILE_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{arguments.file}: is no UTF-8 text") from None
    _enter(arguments, price_file.read(text, file=arguments.file))


def _enter(arguments: argparse.Namespace, drafts: Sequence[Draft]) -> None:
    with _store(arguments, must_exist=False) as store:
        entered = store.enter(drafts)
        revision = store.revision()
    if not entered:
        identity.note("nothing to do: these versions are in the book already")
        return
    for price in entered:
        identity.note(f"{price.version}: {_holder(price)}, from {durations.utc(price.valid_from_s)}")
    confirmed = identity.in_force(arguments, revision)
    if confirmed:
        identity.note(f"{len(entered)} in the book{confirmed}")


def _list(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=True) as store:
        found = prices.listed(
            store.versions(),
            wall_s=None if arguments.all else identity.CLOCK.wall_s(),
            tenant=arguments.tenant,
            model=arguments.model,
        )
    if arguments.json:
        common.print_json([views.price(price) for price in found])
        return
    used = [item for item in Item if any(price.stated and item in price.stated for price in found)]
    headings = (
        "version",
        "tenant",
        "model",
        "currency",
        "valid from",
        *(MEASURES[item].label for item in used),
    )
    rows = [
        (
            price.version,
            price.tenant or "every",
            price.model,
            price.currency,
            durations.utc(price.valid_from_s),
            *(None if price.stated is None else price.stated.get(item) for item in used),
        )
        for price in found
    ]
    common.print_table(rows, headings=headings)


def _show(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=True) as store:
        price = store.book().version(arguments.version)
    if price is None:
        raise ConfigError(f"no price version `{arguments.version}`; see `headrace prices list --all`")
    if arguments.json:
        common.print_json(views.price(price))
        return
    print(f"{price.version}: {_holder(price)}, in {price.currency}, from {durations.utc(price.valid_from_s)}")
    rows = [(MEASURES[item].label, text) for item, text in (price.stated or {}).items()]
    if rows:
        common.print_table(rows, headings=("price", price.currency))
    else:
        print("withdrawn: the more general price holds")


def _export(arguments: argparse.Namespace) -> None:
    with _store(arguments, must_exist=True) as store:
        sys.stdout.write(price_file.write(store.versions()))


def _holder(price: Price) -> str:
    whom = f"tenant `{price.tenant}`" if price.tenant != EVERY_TENANT else "every tenant"
    what = f"model `{price.model}`" if price.model != EVERY_MODEL else "every model"
    return f"{what} for {whom}"
