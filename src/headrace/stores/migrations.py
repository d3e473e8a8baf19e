"""The schema of headrace.db, as the steps that made it: append a step, never edit one that has been released."""

# Words (outcome, usage_source) come from enumerations and are not checked again: those comparisons were a third of the cost
# of a row. Counts are: a negative one would be a lie in the books.
_TOKENS = """
    prompt_tokens INTEGER NOT NULL CHECK (prompt_tokens >= 0),
    completion_tokens INTEGER NOT NULL CHECK (completion_tokens >= 0),
    cached_tokens INTEGER NOT NULL CHECK (cached_tokens >= 0),
    usage_source TEXT NOT NULL
"""

_USAGE = f"""
CREATE TABLE usage (
    request_id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    revision TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    is_streaming INTEGER NOT NULL CHECK (is_streaming IN (0, 1)),
    started_s REAL NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    status INTEGER NOT NULL,
    {_TOKENS},
    queue_wait_s REAL NOT NULL CHECK (queue_wait_s >= 0),
    ttft_s REAL CHECK (ttft_s >= 0),
    total_s REAL NOT NULL CHECK (total_s >= 0),
    attempts INTEGER NOT NULL CHECK (attempts >= 0)
) STRICT, WITHOUT ROWID
"""

_EXECUTION = f"""
CREATE TABLE execution (
    request_id TEXT NOT NULL,
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    replica TEXT NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    started_s REAL NOT NULL,
    duration_s REAL NOT NULL CHECK (duration_s >= 0),
    ttft_s REAL CHECK (ttft_s >= 0),
    outcome TEXT NOT NULL,
    upstream_status INTEGER NOT NULL CHECK (upstream_status >= 0),
    {_TOKENS},
    PRIMARY KEY (request_id, attempt)
) STRICT, WITHOUT ROWID
"""

# Records that the tables above refuse (a bug of ours): kept whole for a person, so that one bad record neither
# stops the ledger nor disappears.
_USAGE_REJECTED = """
CREATE TABLE usage_rejected (
    request_id TEXT NOT NULL,
    error TEXT NOT NULL,
    record TEXT NOT NULL
) STRICT
"""

_TENANT = """
CREATE TABLE tenant (
    name TEXT NOT NULL PRIMARY KEY,
    created_s REAL NOT NULL,
    requests_per_minute INTEGER CHECK (requests_per_minute >= 0),
    requests_burst INTEGER CHECK (requests_burst >= 1),
    concurrency_max INTEGER CHECK (concurrency_max >= 0)
) STRICT
"""

_API_KEY = """
CREATE TABLE api_key (
    id TEXT NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    tenant TEXT NOT NULL REFERENCES tenant (name),
    environment TEXT NOT NULL CHECK (environment IN ('live', 'test')),
    name TEXT NOT NULL,
    created_s REAL NOT NULL,
    expires_s REAL,
    revoked_s REAL,
    replaces TEXT REFERENCES api_key (id)
) STRICT
"""

# One row. `revision` grows with every change of a tenant or a key: by trigger, so that a key revoked by hand with the
# sqlite3 shell reaches the gateway as fast as one revoked by our own command.
_TENANCY = """
CREATE TABLE tenancy (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    revision INTEGER NOT NULL,
    pepper_check BLOB
) STRICT
"""


# The attempt that made the answer is in the row of its request: nearly every request has one attempt, and a second row
# that repeats the first costs half of what the ledger costs. `execution` shows every attempt, wherever it is.
_EXECUTION_VIEW = """
CREATE VIEW execution AS
    SELECT request_id, attempts AS attempt, replica, generation, served_started_s AS started_s, served_s AS duration_s,
        served_ttft_s AS ttft_s, 'completed' AS outcome, status AS upstream_status,
        prompt_tokens, completion_tokens, cached_tokens, usage_source
    FROM usage WHERE replica IS NOT NULL
    UNION ALL
    SELECT request_id, attempt, replica, generation, started_s, duration_s, ttft_s, outcome, upstream_status,
        prompt_tokens, completion_tokens, cached_tokens, usage_source
    FROM attempt
"""

# The key of an attempt holds over both places.
_ONE_PLACE = """
CREATE TRIGGER attempt_in_one_place BEFORE INSERT ON attempt BEGIN
    SELECT RAISE(IGNORE) FROM usage
    WHERE request_id = NEW.request_id AND attempts = NEW.attempt AND replica IS NOT NULL;
END
"""


def _count_changes(table: str) -> tuple[str, ...]:
    return tuple(
        f"CREATE TRIGGER {table}_{event.lower()} AFTER {event} ON {table}"
        " BEGIN UPDATE tenancy SET revision = revision + 1; END"
        for event in ("INSERT", "UPDATE", "DELETE")
    )


MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "usage ledger",
        (
            _USAGE,
            "CREATE INDEX usage_by_time ON usage (started_s)",
            "CREATE INDEX usage_by_tenant ON usage (tenant, started_s)",
            _EXECUTION,
            _USAGE_REJECTED,
        ),
    ),
    (
        "tenants and keys",
        (
            _TENANT,
            _API_KEY,
            "CREATE INDEX api_key_by_tenant ON api_key (tenant)",
            _TENANCY,
            "INSERT INTO tenancy (only, revision) VALUES (1, 0)",
            *_count_changes("tenant"),
            *_count_changes("api_key"),
        ),
    ),
    (
        "the attempt that served a request is in its row",
        (
            "ALTER TABLE usage ADD COLUMN replica TEXT",
            "ALTER TABLE usage ADD COLUMN generation INTEGER CHECK (generation >= 0)",
            "ALTER TABLE usage ADD COLUMN served_started_s REAL",
            "ALTER TABLE usage ADD COLUMN served_s REAL CHECK (served_s >= 0)",
            "ALTER TABLE usage ADD COLUMN served_ttft_s REAL CHECK (served_ttft_s >= 0)",
            "ALTER TABLE execution RENAME TO attempt",
            _EXECUTION_VIEW,
            _ONE_PLACE,
            # The key begins with the time of arrival (a UUID version 7), so it is its own index by time.
            "DROP INDEX usage_by_time",
        ),
    ),
    (
        "shares of tenants",
        (
            "ALTER TABLE tenant ADD COLUMN class TEXT NOT NULL DEFAULT 'normal' CHECK (class IN ('low', 'normal', 'high'))",
            "ALTER TABLE tenant ADD COLUMN weight INTEGER NOT NULL DEFAULT 1 CHECK (weight >= 1)",
            "ALTER TABLE tenant ADD COLUMN reserved_slots INTEGER NOT NULL DEFAULT 0 CHECK (reserved_slots >= 0)",
        ),
    ),
    (
        "what a request costs, and by which price",
        (
            "ALTER TABLE usage ADD COLUMN price_version TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE usage ADD COLUMN charge_pico INTEGER NOT NULL DEFAULT 0 CHECK (charge_pico >= 0)",
            "ALTER TABLE usage ADD COLUMN reasoning_tokens INTEGER NOT NULL DEFAULT 0 CHECK (reasoning_tokens >= 0)",
            "ALTER TABLE usage ADD COLUMN units INTEGER NOT NULL DEFAULT 0 CHECK (units >= 0)",
            "ALTER TABLE usage ADD COLUMN \"user\" TEXT NOT NULL DEFAULT ''",
        ),
    ),
    (
        "terms of tenants",
        ("ALTER TABLE tenant ADD COLUMN terms TEXT NOT NULL DEFAULT '{}'",),
    ),
)
