"""Which schema has a database, and how does it get to another one? Steps forward and back, each one transaction."""

from collections.abc import Callable, Sequence

from headrace.core.errors import ConfigError
from headrace.stores.database import Database, Dialects, Statement, wordings
from headrace.stores.migrations import MIGRATIONS
from headrace.stores.steps import Migration

NEWEST = len(MIGRATIONS)

_BOOK = Dialects(
    sqlite=(
        "CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL,"
        " applied_s INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER))) STRICT",
    ),
    postgres=(
        "CREATE TABLE IF NOT EXISTS migration (number BIGINT PRIMARY KEY, name TEXT NOT NULL,"
        " applied_s BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM now()) AS BIGINT)))",
    ),
)


def number(database: Database) -> int:
    """How many steps have been taken, 0 where there is no schema yet."""
    if not database.has_table("migration"):
        return 0
    found = database.row("SELECT coalesce(max(number), 0) FROM migration")
    assert found is not None, "an aggregate has one row"
    return int(found[0])


def migrate(database: Database, *, to: int = NEWEST) -> int:
    """Takes the steps forward that are missing. Returns how many it took.

    Raises ConfigError when the database was written by a newer version.
    """
    taken = 0
    reached = number(database)
    while reached < to:
        with database.transaction():
            # Read again inside: another process may be migrating at this moment.
            reached = number(database)
            if reached < to:
                reached += 1
                _step(database, reached)
                taken += 1
    refuse_newer(database, reached)
    return taken


def bring_up(database: Database, running: Callable[[], Sequence[str]]) -> None:
    """Takes the steps that are missing, unless `running` names services that work with the schema as it is."""
    reached = number(database)
    if 0 < reached < NEWEST and (names := running()):
        raise ConfigError(
            f"{database.name}: has schema {reached}, and this version works with {NEWEST}. Stop what works with the old one"
            f" ({', '.join(names)}), then run: headrace db migrate"
        )
    migrate(database)


def refuse_newer(database: Database, reached: int) -> None:
    """Raises ConfigError for a schema that this version doesn't know."""
    if reached > NEWEST:
        raise ConfigError(
            f"{database.name}: written by a newer headrace (schema {reached}, this version knows {NEWEST});"
            " upgrade headrace, or restore the backup made before the upgrade"
        )


def downgrade(database: Database, *, to: int, lose: bool = False) -> int:
    """Takes steps back until `to` are left, all of them or none. Returns how many it took.

    Args:
        lose: Go on although rows are there that an older schema can't hold.
    Raises: ConfigError where a step would lose something.
    """
    with database.transaction():
        reached = before = number(database)
        refuse_newer(database, reached)
        while reached > to:
            migration = MIGRATIONS[reached - 1]
            if not lose and (lost := losses(database, migration)):
                raise ConfigError(
                    f"{database.name}: schema {reached - 1} can't hold {' or '.join(lost)}"
                    f" (step {reached}, {migration.name}); take a backup, and repeat the command with --lose"
                )
            _run(database, migration.down)
            database.execute("DELETE FROM migration WHERE number = ?", (reached,))
            reached -= 1
    return max(0, before - to)


def losses(database: Database, migration: Migration) -> list[str]:
    """What is there that the schema before this step has no place for, as `3 tenants with a share of their own`."""
    found = []
    for loss in migration.loses:
        counted = database.row(f"SELECT count(*) FROM {loss.rows}")
        assert counted is not None, "an aggregate has one row"
        if counted[0]:
            found.append(f"{counted[0]} {loss.what}")
    return found


def _step(database: Database, reached: int) -> None:
    migration = MIGRATIONS[reached - 1]
    _run(database, (_BOOK,))
    _run(database, migration.up)
    database.execute("INSERT INTO migration (number, name) VALUES (?, ?)", (reached, migration.name))


def _run(database: Database, statements: tuple[Statement, ...]) -> None:
    for statement in statements:
        for wording in wordings(statement, database.kind):
            database.execute(wording)
