"""Of a usage record one thing may go, its user's name, and nothing may come or change; on both kinds of database."""

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.stores.database import Database
from headrace.stores.tenants import TenantStore

INSERT = (
    "INSERT INTO usage (request_id, tenant, key_id, model, revision, endpoint, is_streaming, started_s, outcome, reason, status,"
    ' prompt_tokens, completion_tokens, cached_tokens, usage_source, queue_wait_s, total_s, attempts, "user")'
    " VALUES (?, 'acme', 'k', 'm', 'r', 'e', 0, 0.0, 'delivered', 'ok', 200, 1, 1, 0, 'final', 0.0, 1.0, 1, ?)"
)


def add(database: Database, request_id: str, user: str) -> None:
    with database.transaction():
        database.execute(INSERT, (request_id, user))


def test_of_a_usage_record_only_its_user_can_go(database: Database) -> None:
    add(database, "one", "anna")
    for change in (
        "\"user\" = 'bert'", "\"user\" = ''", "charge_pico = 1", "\"user\" = 'erased-1', charge_pico = 1", "tenant = 'other'",
        "\"user\" = 'erased-1', replica = 'r'", "ttft_s = 1.0",
    ):  # fmt: skip
        with pytest.raises(Exception, match="never changed"), database.transaction():
            database.execute(f"UPDATE usage SET {change}")
    with pytest.raises(Exception, match="never changed"), database.transaction():
        database.execute("DELETE FROM usage")
    with database.transaction():
        assert database.execute("UPDATE usage SET \"user\" = 'erased-1'") == 1


def test_late_records_are_covered_by_a_second_time(database: Database, clock: ManualClock) -> None:
    """A request that was in progress writes its user's name after the tenant is gone."""
    store = TenantStore(database, b"p" * 32, clock=clock)
    store.create_tenant("acme")
    store.create_key("acme", {"user": "anna"}, name="laptop")
    add(database, "early", "anna")
    first = store.erase_tenant("acme")["erased"]
    assert (first["tenants"], first["keys"], first["key_users"], first["usage_records_without_user"]) == (
        1,
        1,
        1,
        1,
    )
    with pytest.raises(ConfigError, match="no tenant"):
        store.erase_tenant("acme")
    add(database, "late", "anna")
    again = store.erase_tenant("acme")
    assert (again["erased"]["tenants"], again["erased"]["usage_records_without_user"]) == (0, 1)
    assert store.verify_audit(head=again["head"]).problem == ""
    with pytest.raises(ConfigError, match="no tenant"):
        store.erase_tenant("acme")
