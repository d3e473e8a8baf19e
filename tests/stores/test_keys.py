"""The rows of API keys, on both kinds of database."""

from headrace.core.ids import KeyId, TenantId
from headrace.stores import keys
from headrace.stores.database import Database
from headrace.stores.key_terms import KeyTerms
from headrace.stores.sqlite import SqliteDatabase

PEPPER = bytes(32)


def test_the_uses_of_many_keys_are_written_in_a_few_statements(database: Database) -> None:
    """T39: to a database across a network; a round trip for each would keep the news of a revoked key waiting."""
    database.execute("INSERT INTO tenant (name, created_s) VALUES (?, ?)", ("acme", 1.0))
    with database.transaction():
        made = [
            keys.insert(
                database,
                PEPPER,
                TenantId("acme"),
                "live",
                "",
                created_s=1.0,
                expires_s=None,
                terms=KeyTerms(),
            )[0].id
            for _ in range(700)
        ]
    statements: list[str] = []
    if isinstance(database, SqliteDatabase):
        database.connection.set_trace_callback(statements.append)
    with database.transaction():
        keys.note_uses(database, {key_id: float(number) for number, key_id in enumerate(made)})
    with database.transaction():
        keys.note_uses(database, {made[9]: 3.0, KeyId("nobody's"): 5.0, made[0]: 7.0})
    assert sum("INSERT INTO key_use" in each for each in statements) <= 3
    used_s = {record.id: record.used_s for record in keys.select(database)}
    assert used_s == {key_id: float(number) if number else 7.0 for number, key_id in enumerate(made)}, (
        "the latest, and only of keys"
    )
