"""Rows outlive the way back and forth of the schema, in every table and on both kinds of database."""

from collections import Counter

import pytest

from headrace.stores import schema
from headrace.stores.database import Database, Kind, columns
from tests.stores.conftest import Connect

# At least one row of every table of the newest schema, in an order that references allow. Those that an older schema can't
# hold say something that it has no column for.
ROWS = {
    "tenant": "(name, created_s, weight, terms) VALUES ('acme', 1.5, 3, '{\"is_durable\":true}'), ('plain', 2.5, 1, '{}')",
    "api_key": "(id, digest, tenant, environment, name, created_s, terms)"
    " VALUES ('k1', {digest}, 'acme', 'live', 'ci', 1.5, '{\"models\":[\"m\"]}')",
    "key_use": "(key_id, used_s) VALUES ('k1', 9.5)",
    "admin": "(id, digest, role, name, created_s) VALUES ('a1', {digest}, 'viewer', 'x', 1.5)",
    "price": "(number, tenant, model, currency, valid_from_s, stated) VALUES (1, '', 'm', 'EUR', 1.5, '{}')",
    "usage": "(request_id, tenant, key_id, model, revision, endpoint, is_streaming, started_s, outcome, reason, status,"
    " prompt_tokens, completion_tokens, cached_tokens, usage_source, queue_wait_s, total_s, attempts, replica, generation,"
    ' served_started_s, served_s, charge_pico, "user")'
    " VALUES ('req_1', 'acme', 'k1', 'm', 'r', 'e', 1, 1.5, 'delivered', 'ok', 200, 3, 2, 1, 'final', 0.0, 1.0, 2, 'r1', 0,"
    " 1.75, 0.5, 7, 'me')",
    "attempt": "(request_id, attempt, replica, generation, started_s, duration_s, outcome, upstream_status, prompt_tokens,"
    " completion_tokens, cached_tokens, usage_source, revision)"
    " VALUES ('req_1', 1, 'r0', 0, 1.5, 0.25, 'upstream_lost', 0, 0, 0, 0, 'unknown', 'sha256:canary')",
    "usage_rejected": "(request_id, error, record) VALUES ('req_x', 'e', '{}')",
    "orphan": "(request_id, tenant, key_id, model, replica, generation, attempt, started_s, found_s)"
    " VALUES ('req_o', 'acme', 'k1', 'm', 'r0', 0, 1, 1.5, 2.5)",
    "engine_count": "VALUES ('r0', 0, 1, 1.5, 2.5, 10, 20, 5, 9)",
    "audit": "(number, at_s, actor, action, target, tenant, changes, digest)"
    " VALUES (1, 1.5, 'cli:me', 'tenant.create', 'acme', 'acme', '{}', {digest})",
    "correction": "(number, tenant, request_id, model, price_version, currency, amount_pico, reason, created_s)"
    " VALUES (1, 'acme', 'req_1', 'm', 'p1', 'EUR', -5, 'why', 1.5)",
    "invoice": "(number, tenant, period, begins_s, ends_s, issued_s, document, digest)"
    " VALUES (1, 'acme', '2026-11', 1.5, 2.5, 3.5, '{}', {digest})",
    "invoiced": "(correction, invoice) VALUES (1, 1)",
    "outbox": "(created_s, records, request_ids) VALUES (1.5, 1, '[\"req_1\"]')",
    "mirror": "(\"only\", seen_s, source) VALUES (1, 1.5, 'x')",
    "deployment_version": "(name, version, file_text, spec, lock, digest, actor, applied_s, template_text)"
    " VALUES ('chat', 1, 'f', '{}', '{}', 'sha256:1', 'cli:me', 1.5, 't'), ('bare', 1, 'f', '{}', '{}', '', 'a', 1.5, '')",
    "deployment_wanted": "(number, name, version, reason, actor, at_s) VALUES (1, 'chat', 1, 'apply', 'cli:me', 1.5)",
    "rollout_word": "(number, name, command, version, actor, at_s) VALUES (1, 'chat', 'promote', 1, 'cli:me', 1.5)",
    "controller_lease": "(\"only\", epoch, holder, taken_s, generation) VALUES (1, 1, 'x', 1.5, 1)",
    "replica": "(id, deployment, version, generation, token, is_draining, decided_s, failures, epoch)"
    " VALUES ('chat-0', 'chat', 1, 1, 't', 0, 1.5, 0, 1)",
    "deployment_state": "(name, accepted, rollout, epoch) VALUES ('chat', 1, '{}', 1)",
    "scale_state": "(name, version, scale, epoch) VALUES ('chat', 1, '{}', 1)",
    "decision": "(at_s, epoch, kind, deployment, reason, inputs, outcome) VALUES (1.5, 1, 'scale', 'chat', 'r', '{}', '{}')",
    "cold_start": "(deployment, digest, hardware, at_s, stages) VALUES ('chat', 'sha256:1', 'h', 1.5, '{}')",
    "capacity_record": "(model, digest, runtime, hardware, measured_s, record)"
    " VALUES ('chat', 'sha256:1', 'r', '{}', 1.5, '{}')",
    "gateway": "(id, host, pid, version, schema_number, seen_s) VALUES ('g', 'h', 1, 'v', 1, 1.5)",
}
MADE_WITH_THEIR_TABLE = {"tenancy", "audit_head", "shipping", "installation"}
Held = dict[str, "Counter[tuple[tuple[str, object], ...]]"]


def shapes(database: Database) -> dict[str, list[str]]:
    """The columns of every table, and of the view of attempts."""
    if database.kind is Kind.POSTGRES:
        found = database.rows(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        )
    else:
        found = database.rows(
            "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type IN ('table', 'view')"
        )
    shown: dict[str, list[str]] = {}
    for table, column in found:
        if table not in ("migration", "sqlite_sequence"):
            shown.setdefault(table, []).append(column)
    return shown


def held(database: Database, shape: dict[str, list[str]]) -> Held:
    """All rows, in those tables and columns."""
    return {
        table: Counter(
            tuple(zip(names, row, strict=True))
            for row in database.rows(f"SELECT {columns(names)} FROM {table}")
        )
        for table, names in shape.items()
    }


def common(one: dict[str, list[str]], other: dict[str, list[str]]) -> dict[str, list[str]]:
    """What both schemas can hold."""
    return {
        table: [name for name in names if name in other[table]]
        for table, names in one.items()
        if table in other
    }


@pytest.fixture
def database(connect_empty: Connect) -> Database:
    """With rows in every table."""
    opened = connect_empty()
    schema.migrate(opened)
    digest = "decode(repeat('00', 32), 'hex')" if opened.kind is Kind.POSTGRES else "zeroblob(32)"
    for table, row in ROWS.items():
        opened.execute(f"INSERT INTO {table} {row.replace('{digest}', digest)}")
    return opened


def test_every_table_has_a_row_here(database: Database) -> None:
    shape = shapes(database)
    assert set(shape) == {*ROWS, *MADE_WITH_THEIR_TABLE, "execution"}
    assert [table for table, rows in held(database, shape).items() if not rows] == []


def test_what_both_schemas_can_hold_survives_each_step_back_and_forth(database: Database) -> None:
    def step(take: object) -> None:
        before_shape = shapes(database)
        before = held(database, before_shape)
        take()  # type: ignore[operator]
        shape = common(before_shape, shapes(database))
        kept = {
            table: Counter(
                tuple(pair for pair in row if pair[0] in shape[table]) for row in before[table].elements()
            )
            for table in shape
        }
        assert held(database, shape) == kept

    for number in range(schema.NEWEST - 1, -1, -1):
        step(lambda number=number: schema.downgrade(database, to=number, lose=True))
    for number in range(1, schema.NEWEST + 1):
        step(lambda number=number: schema.migrate(database, to=number))


def test_the_way_back_to_the_first_schema_asks_before_each_loss(database: Database) -> None:
    for migration in reversed(schema.MIGRATIONS):
        lost = schema.losses(database, migration)
        assert not migration.loses or lost, migration.name
        schema.downgrade(database, to=schema.number(database) - 1, lose=bool(lost))
    assert shapes(database) == {}
