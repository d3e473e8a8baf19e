"""What does the controller keep, so that another one can go on after it? Its lease, replicas, states, and what it decided."""

from headrace.stores.database import Dialects

# One row. Who takes the lease makes `epoch` one greater, and a write with an older one is refused. `generation` numbers
# launches: never two of them alike.
CONTROLLER_LEASE = """
CREATE TABLE controller_lease (
    "only" INTEGER NOT NULL PRIMARY KEY CHECK ("only" = 1),
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL,
    taken_s REAL NOT NULL,
    generation INTEGER NOT NULL
) STRICT
"""

# A row stands before anything is launched for it, and until nothing of it is left. Moments are the machine's monotonic clock.
REPLICA = """
CREATE TABLE replica (
    id TEXT NOT NULL PRIMARY KEY,
    deployment TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 0),
    generation INTEGER NOT NULL,
    token TEXT NOT NULL,
    is_draining INTEGER NOT NULL CHECK (is_draining IN (0, 1)),
    decided_s REAL NOT NULL,
    failures INTEGER NOT NULL CHECK (failures >= 0),
    epoch INTEGER NOT NULL
) STRICT
"""

# `rollout` is what policies/rollout.py wants kept; `accepted` is in it too, and stands here for people and for SQL.
DEPLOYMENT_STATE = """
CREATE TABLE deployment_state (
    name TEXT NOT NULL PRIMARY KEY,
    accepted INTEGER,
    rollout TEXT NOT NULL,
    epoch INTEGER NOT NULL
) STRICT
"""

SCALE_STATE = """
CREATE TABLE scale_state (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    scale TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) STRICT
"""

DECISION = """
CREATE TABLE decision (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_s REAL NOT NULL,
    epoch INTEGER NOT NULL,
    kind TEXT NOT NULL,
    deployment TEXT NOT NULL,
    reason TEXT NOT NULL,
    inputs TEXT NOT NULL,
    outcome TEXT NOT NULL
) STRICT
"""

# The oldest go when there are too many; none is ever changed.
DECISION_KEPT = Dialects(
    sqlite=(
        "CREATE TRIGGER decision_no_update BEFORE UPDATE ON decision"
        " BEGIN SELECT RAISE(ABORT, 'rows of decision are never changed'); END",
    ),
    postgres=(),
)

COLD_START = """
CREATE TABLE cold_start (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    deployment TEXT NOT NULL,
    digest TEXT NOT NULL,
    hardware TEXT NOT NULL,
    at_s REAL NOT NULL,
    stages TEXT NOT NULL
) STRICT
"""

TABLES = ("controller_lease", "replica", "deployment_state", "scale_state", "decision", "cold_start")

UP = (
    CONTROLLER_LEASE,
    REPLICA,
    DEPLOYMENT_STATE,
    SCALE_STATE,
    DECISION,
    DECISION_KEPT,
    "CREATE INDEX decision_by_kind ON decision (kind, seq)",
    "CREATE INDEX decision_by_deployment ON decision (deployment, seq)",
    COLD_START,
    "CREATE INDEX cold_start_by_digest ON cold_start (digest, number)",
    "CREATE INDEX cold_start_by_deployment ON cold_start (deployment, number)",
)
DOWN = tuple(f"DROP TABLE {table}" for table in TABLES)
