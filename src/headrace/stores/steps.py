"""What is a step of the schema, and what do tables of it have in common? See stores.migrations for the steps themselves."""

from dataclasses import dataclass

from headrace.stores.database import Dialects, Statement


@dataclass(frozen=True, slots=True)
class Loss:
    """What a step back destroys for good.

    Attributes:
        rows: What follows `SELECT count(*) FROM` to count it.
        what: What they are, after their number.
    """

    rows: str
    what: str


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: `up` leads to it from the schema before, and `down` back, keeping every row that it can keep."""

    name: str
    up: tuple[Statement, ...]
    down: tuple[Statement, ...]
    loses: tuple[Loss, ...] = ()


def count_changes(table: str) -> Dialects:
    """Every change of a row of that table counts as one of the tenancy, which gateways then read again."""
    events = ("INSERT", "UPDATE", "DELETE")
    return Dialects(
        sqlite=tuple(
            f"CREATE TRIGGER {table}_{event.lower()} AFTER {event} ON {table}"
            " BEGIN UPDATE tenancy SET revision = revision + 1; END"
            for event in events
        ),
        postgres=(
            f"CREATE TRIGGER {table}_changed AFTER {' OR '.join(events)} ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION tenancy_changed()",
        ),
    )


def append_only(table: str) -> Dialects:
    """No row of that table is ever changed or deleted, whoever asks. Dropping the table ends it."""
    says = f"rows of {table} are never changed"
    return Dialects(
        sqlite=tuple(
            f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}"
            f" BEGIN SELECT RAISE(ABORT, '{says}'); END"
            for event in ("UPDATE", "DELETE")
        ),
        postgres=(
            f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN RAISE EXCEPTION '{says}' USING ERRCODE = 'integrity_constraint_violation'; END $$",
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()",
        ),
    )


def append_only_gone(table: str) -> Dialects:
    """What is left of `append_only` once its table was dropped."""
    return Dialects(sqlite=(), postgres=(f"DROP FUNCTION {table}_append_only()",))
