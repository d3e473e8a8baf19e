"""`headrace db`: the databases of a service: their schema, their backup, and the way from one kind to the other."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace import config
from headrace.cli import common, durations, identity
from headrace.core.errors import ConfigError
from headrace.stores import backup, directory, mirror, moving, opening, schema, shipping, sqlite
from headrace.stores.database import Database
from headrace.stores.sqlite import SqliteDatabase

# Steps and copies of large tables take their time.
_PATIENCE_S = 3600.0


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "db",
        None,
        help="look after the databases: schema, backup, PostgreSQL",
        example="headrace db backup /var/backups/headrace-2026-12-01",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_schema(actions)
    _add_backup(actions)
    _add_central(actions)


def _add_schema(actions: Any) -> None:
    common.command(
        actions,
        "status",
        _status,
        help="show which schema each database has, who works with it, and what waits to be shipped",
        example="headrace db status --json",
        with_json=True,
    )
    migrate = common.command(
        actions,
        "migrate",
        _migrate,
        help="bring the databases to the schema of this version; a service does so by itself when it starts",
        example="headrace db migrate",
    )
    downgrade = common.command(
        actions,
        "downgrade",
        _downgrade,
        help="lead the databases back to an older schema, before an older version is installed",
        example="headrace db downgrade --to 4",
    )
    downgrade.add_argument(
        "--lose",
        action="store_true",
        help="also where the older schema has no place for something that is there",
    )
    for parser, is_needed in ((migrate, False), (downgrade, True)):
        parser.add_argument(
            "--to",
            type=int,
            required=is_needed,
            default=schema.NEWEST,
            metavar="N",
            help="the schema's number" if is_needed else f"the schema's number (default: {schema.NEWEST})",
        )
        parser.add_argument(
            "--although-running",
            action="store_true",
            help="also while other gateways work with the central database; they go by their copies until they are upgraded",
        )


def _add_backup(actions: Any) -> None:
    make = common.command(
        actions,
        "backup",
        _backup,
        help="write the database and the pepper into one file, also while the service runs",
        example="headrace db backup /var/backups/headrace-2026-12-01",
        with_json=True,
    )
    make.add_argument(
        "file", metavar="FILE", help="the new file; whoever reads it can check keys, so keep it private"
    )
    restore = common.command(
        actions,
        "restore",
        _restore,
        help="bring a backup back into an empty data directory",
        example="headrace db restore /var/backups/headrace-2026-12-01 --data /var/lib/headrace",
        with_json=True,
    )
    restore.add_argument("file", metavar="FILE", help="what `headrace db backup` wrote")
    restore.add_argument(
        "--force", action="store_true", help="replace the database that is there; it is kept as *.replaced"
    )


def _add_central(actions: Any) -> None:
    move = common.command(
        actions,
        "move",
        _move,
        help="copy tenants, keys, prices, audit log and ledger into an empty PostgreSQL database, and use that from then on",
        example="headrace db move --to env:HEADRACE_DATABASE_URL",
        with_json=True,
    )
    move.add_argument(
        "--to",
        required=True,
        metavar="REFERENCE",
        help="its address, as `stores.database` has it: env:NAME or file:PATH",
    )
    ship = common.command(
        actions,
        "ship",
        _ship,
        help="ship records that wait here to the central database; a running service does so all the time",
        example="headrace db ship --again",
    )
    ship.add_argument(
        "--again",
        action="store_true",
        help="everything that is still here, for a central database that was restored from a backup",
    )


def _data(arguments: argparse.Namespace) -> Path:
    data = config.data_directory(arguments.data)
    if not (data / sqlite.DATABASE_NAME).exists() and not opening.remembered(data):
        raise ConfigError(f"{data}: there is no database yet; name the directory of a service with --data")
    return data


@contextmanager
def _databases(data: Path) -> Iterator[list[Database]]:
    """The local one, and the central one where there is one; whatever their schema is."""
    opened: list[Database] = [SqliteDatabase(data / sqlite.DATABASE_NAME)]
    try:
        if reference := opening.remembered(data):
            opened.append(opening.connect_central(reference, patience_s=_PATIENCE_S))
        yield opened
    finally:
        for database in opened:
            database.close()


def _status(arguments: argparse.Namespace) -> None:
    data = _data(arguments)
    with _databases(data) as databases:
        rows = [
            {
                "database": each.name,
                "kind": each.kind.value,
                "schema": schema.number(each),
                "newest": schema.NEWEST,
            }
            for each in databases
        ]
        local, *central = databases
        facts: dict[str, Any] = {"databases": rows}
        if central and schema.number(local) == schema.NEWEST:
            facts["unshipped"] = shipping.waiting(local)
            facts["copied"] = None if (seen_s := mirror.seen_s(local)) is None else durations.utc(seen_s)
        users = opening.served_by(central[0], data, is_service=False) if central else []
        facts["used_by"] = users or (["the service on this machine"] if directory.is_in_use(data) else [])
    if arguments.json:
        common.print_json(facts)
        return
    common.print_table([tuple(row.values()) for row in rows], headings=tuple(rows[0]))
    for name in ("unshipped", "copied"):
        if name in facts:
            print(f"{name}: {facts[name]}")
    print(f"used by: {', '.join(facts['used_by']) or 'nobody'}")


def _migrate(arguments: argparse.Namespace) -> None:
    _require_known(arguments.to)
    _change(arguments, lambda database: schema.migrate(database, to=arguments.to))


def _downgrade(arguments: argparse.Namespace) -> None:
    _require_known(arguments.to)
    _change(arguments, lambda database: schema.downgrade(database, to=arguments.to, lose=arguments.lose))


def _require_known(number: int) -> None:
    if not 0 <= number <= schema.NEWEST:
        raise ConfigError(f"--to must be from 0 to {schema.NEWEST}, got {number}")


def _change(arguments: argparse.Namespace, take: Any) -> None:
    """Steps on every database, the central one first: it is the one that others may object to."""
    data = _data(arguments)
    if directory.is_in_use(data):
        raise ConfigError(f"{data} is in use by a running service; stop it first")
    with _databases(data) as databases:
        if len(databases) > 1 and not arguments.although_running:
            users = opening.served_by(databases[1], data, is_service=True)
            if users:
                raise ConfigError(
                    f"{databases[1].name} is used by {', '.join(users)}; stop them, or go on with --although-running"
                )
        for database in reversed(databases):
            taken = take(database)
            print(f"{database.name}: schema {schema.number(database)}, {taken} steps taken")


def _backup(arguments: argparse.Namespace) -> None:
    contents = backup.make(config.data_directory(arguments.data), Path(arguments.file), clock=identity.CLOCK)
    _print_contents(arguments, contents, "wrote")
    if opening.remembered(config.data_directory(arguments.data)):
        identity.note("the central database is not in it; see docs/operate/backup.md")


def _restore(arguments: argparse.Namespace) -> None:
    contents = backup.restore(
        Path(arguments.file), config.data_directory(arguments.data), force=arguments.force
    )
    _print_contents(arguments, contents, "restored")


def _print_contents(arguments: argparse.Namespace, contents: backup.Contents, done: str) -> None:
    if arguments.json:
        common.print_json(
            {
                "created": durations.utc(contents.created_s),
                "version": contents.version,
                "schema": contents.schema,
                "records": contents.records,
            }
        )
        return
    print(
        f"{done} {arguments.file}: made {durations.utc(contents.created_s)} by headrace {contents.version},"
        f" schema {contents.schema}, {contents.records} usage records"
    )


def _move(arguments: argparse.Namespace) -> None:
    data = _data(arguments)
    if opening.remembered(data):
        raise ConfigError(f"{data} has a central database already")
    with directory.sole_user(data):
        central = opening.connect_central(arguments.to, patience_s=_PATIENCE_S)
        local = SqliteDatabase(data / sqlite.DATABASE_NAME)
        try:
            schema.bring_up(central, lambda: opening.served_by(central, data, is_service=True))
            schema.migrate(local)
            copied = moving.move(local, central, clock=identity.CLOCK)
        finally:
            local.close()
            central.close()
        opening.remember(data, arguments.to)
    if arguments.json:
        common.print_json(copied)
    else:
        common.print_table(list(copied.items()), headings=("table", "rows"))
    identity.note(f"now set `stores.database` to {arguments.to} in the configuration")


def _ship(arguments: argparse.Namespace) -> None:
    data = _data(arguments)
    reference = opening.remembered(data)
    if not reference:
        raise ConfigError(f"{data} has no central database to ship to")
    local = opening.open_local(data)
    if arguments.again:
        print(f"{shipping.ship_again(local)} records wait to be shipped again")
    if directory.is_in_use(data):
        local.close()
        print("the running service ships what waits")
        return
    shipper = shipping.Shipper(
        local, opening.connect_central(reference, patience_s=_PATIENCE_S), clock=identity.CLOCK
    )
    records, refused, is_last = 0, 0, False
    try:
        while not is_last:
            shipment = shipper.step()
            records += shipment.records
            refused += len(shipment.refused)
            is_last = shipment.is_last
    finally:
        shipper.close()
    print(
        f"{records} records shipped" + (f", {refused} rows refused; see `usage_rejected`" if refused else "")
    )
