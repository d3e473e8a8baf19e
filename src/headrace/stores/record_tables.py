"""What is kept of a request? Its record, its attempts, what no record is left of, and what engines counted themselves."""

from headrace.stores.database import Dialects

# Words (outcome, usage_source) come from enumerations and are not checked again: those comparisons were a third of the cost
# of a row. Counts are: a negative one would be a lie in the books.
_TOKENS = """
    prompt_tokens INTEGER NOT NULL CHECK (prompt_tokens >= 0),
    completion_tokens INTEGER NOT NULL CHECK (completion_tokens >= 0),
    cached_tokens INTEGER NOT NULL CHECK (cached_tokens >= 0),
    usage_source TEXT NOT NULL
"""

USAGE = f"""
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

EXECUTION = f"""
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
USAGE_REJECTED = """
CREATE TABLE usage_rejected (
    request_id TEXT NOT NULL,
    error TEXT NOT NULL,
    record TEXT NOT NULL
) STRICT
"""

# The attempt that made the answer is in the row of its request: nearly every request has one attempt, and a second row
# that repeats the first costs half of what the ledger costs. `execution` shows every attempt, wherever it is.
EXECUTION_VIEW = """
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

# What an attempt's replica ran, where that isn't the revision of the request's record: another revision took over.
EXECUTION_VIEW_WITH_REVISION = EXECUTION_VIEW.replace(
    "usage_source\n    FROM usage", "usage_source, '' AS revision\n    FROM usage"
).replace("usage_source\n    FROM attempt", "usage_source, revision\n    FROM attempt")

# The key of an attempt holds over both places.
ONE_PLACE = Dialects(
    sqlite=(
        """
CREATE TRIGGER attempt_in_one_place BEFORE INSERT ON attempt BEGIN
    SELECT RAISE(IGNORE) FROM usage
    WHERE request_id = NEW.request_id AND attempts = NEW.attempt AND replica IS NOT NULL;
END
""",
    ),
    postgres=(
        """
CREATE FUNCTION attempt_in_one_place() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM usage
        WHERE request_id = NEW.request_id AND attempts = NEW.attempt AND replica IS NOT NULL)
    THEN RETURN NULL; END IF;
    RETURN NEW;
END $$
""",
        "CREATE TRIGGER attempt_in_one_place BEFORE INSERT ON attempt"
        " FOR EACH ROW EXECUTE FUNCTION attempt_in_one_place()",
    ),
)
ONE_PLACE_GONE = Dialects(
    sqlite=("DROP TRIGGER attempt_in_one_place",),
    postgres=("DROP TRIGGER attempt_in_one_place ON attempt", "DROP FUNCTION attempt_in_one_place()"),
)

# The attempts that made an answer go back to rows of their own.
SERVED_AS_ROWS = """
INSERT INTO execution (request_id, attempt, replica, generation, started_s, duration_s, ttft_s, outcome, upstream_status,
    prompt_tokens, completion_tokens, cached_tokens, usage_source)
SELECT request_id, attempts, replica, generation, served_started_s, served_s, served_ttft_s, 'completed', status,
    prompt_tokens, completion_tokens, cached_tokens, usage_source
FROM usage WHERE replica IS NOT NULL
"""

# Requests that a replica had when the process died that had sent them, and of which no record is left. Listed, never billed.
ORPHAN = """
CREATE TABLE orphan (
    request_id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    replica TEXT NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    started_s REAL NOT NULL,
    found_s REAL NOT NULL
) STRICT, WITHOUT ROWID
"""

# Two readings of an engine's own counters; see policies.engine_counts.
ENGINE_COUNT = """
CREATE TABLE engine_count (
    replica TEXT NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    incarnation INTEGER NOT NULL CHECK (incarnation >= 0),
    since_s REAL NOT NULL,
    until_s REAL NOT NULL CHECK (until_s >= since_s),
    prompt_before INTEGER NOT NULL,
    prompt_after INTEGER NOT NULL CHECK (prompt_after >= prompt_before),
    completion_before INTEGER NOT NULL,
    completion_after INTEGER NOT NULL CHECK (completion_after >= completion_before),
    PRIMARY KEY (replica, generation, incarnation, since_s)
) STRICT, WITHOUT ROWID
"""
