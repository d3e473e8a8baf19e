"""What do the tables hold that people are billed by, and who may change them? Nobody: they only grow."""

from headrace.stores.database import Dialects
from headrace.stores.steps import append_only

# Prices as they were stated, a JSON object of decimals by item; null for a version that withdraws.
PRICE = """
CREATE TABLE price (
    number INTEGER NOT NULL PRIMARY KEY CHECK (number >= 1),
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    currency TEXT NOT NULL,
    valid_from_s REAL NOT NULL,
    stated TEXT NOT NULL
) STRICT
"""

CORRECTION = """
CREATE TABLE correction (
    number INTEGER NOT NULL PRIMARY KEY CHECK (number >= 1),
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    model TEXT NOT NULL,
    price_version TEXT NOT NULL,
    currency TEXT NOT NULL,
    amount_pico INTEGER NOT NULL CHECK (amount_pico <> 0),
    reason TEXT NOT NULL,
    created_s REAL NOT NULL
) STRICT
"""

# The document is kept as it was issued, byte for byte: its digest is told to whom it was sent.
INVOICE = """
CREATE TABLE invoice (
    number INTEGER NOT NULL PRIMARY KEY CHECK (number >= 1),
    tenant TEXT NOT NULL,
    period TEXT NOT NULL,
    begins_s REAL NOT NULL,
    ends_s REAL NOT NULL,
    issued_s REAL NOT NULL,
    document TEXT NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 32)
) STRICT
"""

# Which invoice a correction is on: one at most.
INVOICED = """
CREATE TABLE invoiced (
    correction INTEGER NOT NULL PRIMARY KEY REFERENCES correction (number),
    invoice INTEGER NOT NULL REFERENCES invoice (number)
) STRICT
"""

# Prices only grow where they are made. A copy of them (stores.mirror) follows its original, which may have come back from a
# backup with less, or with others under the same numbers.
PRICE_COPIED = Dialects(
    sqlite=tuple(
        wording
        for event in ("update", "delete")
        for wording in (
            f"DROP TRIGGER price_no_{event}",
            f"CREATE TRIGGER price_no_{event} BEFORE {event.upper()} ON price WHEN NOT EXISTS (SELECT 1 FROM mirror)"
            " BEGIN SELECT RAISE(ABORT, 'rows of price are never changed'); END",
        )
    ),
    postgres=(),
)
PRICE_KEPT = Dialects(
    sqlite=("DROP TRIGGER price_no_update", "DROP TRIGGER price_no_delete", *append_only("price").sqlite),
    postgres=(),
)

# Usage is what people are billed by. Only a gateway forgets it, once the central database has it.
USAGE_KEPT = Dialects(
    sqlite=(
        "CREATE TRIGGER usage_no_update BEFORE UPDATE ON usage"
        " BEGIN SELECT RAISE(ABORT, 'rows of usage are never changed'); END",
        "CREATE TRIGGER usage_no_delete BEFORE DELETE ON usage WHEN (SELECT number FROM shipping) = 0"
        " BEGIN SELECT RAISE(ABORT, 'rows of usage are never changed'); END",
    ),
    postgres=append_only("usage").postgres,
)
USAGE_FREE = Dialects(
    sqlite=("DROP TRIGGER usage_no_update", "DROP TRIGGER usage_no_delete"),
    postgres=("DROP TRIGGER usage_append_only ON usage", "DROP FUNCTION usage_append_only()"),
)

# One change there is: the name of a user goes, when the data of its tenant is erased (stores/erasure.py), and none comes.
_RECORDED = (
    "request_id, tenant, key_id, model, revision, endpoint, is_streaming, started_s, outcome, reason, status, prompt_tokens, "
    "completion_tokens, cached_tokens, usage_source, queue_wait_s, ttft_s, total_s, attempts, replica, generation, "
    "served_started_s, served_s, served_ttft_s, price_version, charge_pico, reasoning_tokens, units"
)


def _columns(row: str) -> str:
    return ", ".join(f"{row}.{column}" for column in _RECORDED.split(", "))


_SAYS = "rows of usage are never changed"
USAGE_ERASABLE = Dialects(
    sqlite=(
        "CREATE TRIGGER usage_no_update BEFORE UPDATE ON usage WHEN NEW.\"user\" NOT LIKE 'erased-%'"
        f" OR ({_columns('NEW')}) IS NOT ({_columns('OLD')}) BEGIN SELECT RAISE(ABORT, '{_SAYS}'); END",
        USAGE_KEPT.sqlite[1],
    ),
    postgres=(
        "CREATE FUNCTION usage_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF TG_OP = 'UPDATE' AND TG_LEVEL = 'ROW' THEN"
        f" IF NEW.\"user\" LIKE 'erased-%' AND ({_columns('NEW')}) IS NOT DISTINCT FROM ({_columns('OLD')})"
        " THEN RETURN NEW; END IF; END IF;"
        f" RAISE EXCEPTION '{_SAYS}' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        "CREATE TRIGGER usage_append_only BEFORE UPDATE OR DELETE ON usage"
        " FOR EACH ROW EXECUTE FUNCTION usage_append_only()",
        "CREATE TRIGGER usage_no_truncate BEFORE TRUNCATE ON usage"
        " FOR EACH STATEMENT EXECUTE FUNCTION usage_append_only()",
    ),
)
USAGE_ERASABLE_GONE = Dialects(
    sqlite=USAGE_FREE.sqlite,
    postgres=("DROP TRIGGER usage_no_truncate ON usage", *USAGE_FREE.postgres),
)
