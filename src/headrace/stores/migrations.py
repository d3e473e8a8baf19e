"""The schema, as the steps that made it and that lead back: append a step, never edit one that has been released.

The SQL of a step is in the words that stores.database lists; statements that SQLite and PostgreSQL don't share are a
`Dialects`. A step that stands behind yours on a rebase goes in front: yours becomes the newest.
"""

from headrace.stores import deployment_tables, fleet_tables, money_tables, record_tables
from headrace.stores.database import Dialects
from headrace.stores.steps import Loss, Migration, append_only, append_only_gone, count_changes

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
    "only" INTEGER PRIMARY KEY CHECK ("only" = 1),
    revision INTEGER NOT NULL,
    pepper_check BLOB
) STRICT
"""

# A trigger of PostgreSQL is a call of a function, which all tables share.
_TENANCY_CHANGED = Dialects(
    sqlite=(),
    postgres=(
        """
CREATE FUNCTION tenancy_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenancy SET revision = revision + 1;
    RETURN NULL;
END $$
""",
    ),
)

_ADMIN = """
CREATE TABLE admin (
    id TEXT NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    name TEXT NOT NULL,
    created_s REAL NOT NULL,
    expires_s REAL,
    revoked_s REAL
) STRICT
"""

_AUDIT = """
CREATE TABLE audit (
    number INTEGER NOT NULL PRIMARY KEY CHECK (number >= 1),
    at_s REAL NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    tenant TEXT NOT NULL,
    changes TEXT NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 32)
) STRICT
"""

# One row: the number and the digest of the newest entry, so that a log that lost its end is found out.
_AUDIT_HEAD = """
CREATE TABLE audit_head (
    "only" INTEGER PRIMARY KEY CHECK ("only" = 1),
    number INTEGER NOT NULL,
    digest BLOB
) STRICT
"""


# Groups of requests in the order of their commits; see stores.shipping.
_OUTBOX = """
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    created_s REAL NOT NULL,
    records INTEGER NOT NULL CHECK (records >= 1),
    request_ids TEXT NOT NULL
) STRICT
"""
# One row: up to which group all is in the central database.
_SHIPPING = """
CREATE TABLE shipping (
    "only" INTEGER PRIMARY KEY CHECK ("only" = 1),
    number INTEGER NOT NULL
) STRICT
"""
# One row in a database whose tenants and keys are a copy: of which installation, and when it was last true.
_MIRROR = """
CREATE TABLE mirror (
    "only" INTEGER PRIMARY KEY CHECK ("only" = 1),
    seen_s REAL NOT NULL,
    source TEXT NOT NULL
) STRICT
"""
# One row: what tells this database from every other.
_INSTALLATION = """
CREATE TABLE installation (
    "only" INTEGER PRIMARY KEY CHECK ("only" = 1),
    id TEXT NOT NULL
) STRICT
"""
_IDENTITY = Dialects(
    sqlite=('INSERT INTO installation ("only", id) VALUES (1, lower(hex(randomblob(16))))',),
    postgres=(
        "INSERT INTO installation (\"only\", id) VALUES (1, replace(gen_random_uuid()::text, '-', ''))",
    ),
)
# The services that use a central database, each by the installation that its own database is; rows of ended ones age.
_GATEWAY = """
CREATE TABLE gateway (
    id TEXT NOT NULL PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    schema_number INTEGER NOT NULL,
    seen_s REAL NOT NULL
) STRICT
"""


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        "usage ledger",
        up=(
            record_tables.USAGE,
            "CREATE INDEX usage_by_time ON usage (started_s)",
            "CREATE INDEX usage_by_tenant ON usage (tenant, started_s)",
            record_tables.EXECUTION,
            record_tables.USAGE_REJECTED,
        ),
        down=("DROP TABLE usage_rejected", "DROP TABLE execution", "DROP TABLE usage"),
        loses=(Loss("usage", "usage records"), Loss("usage_rejected", "records set aside")),
    ),
    Migration(
        "tenants and keys",
        up=(
            _TENANT,
            _API_KEY,
            "CREATE INDEX api_key_by_tenant ON api_key (tenant)",
            _TENANCY,
            'INSERT INTO tenancy ("only", revision) VALUES (1, 0)',
            _TENANCY_CHANGED,
            count_changes("tenant"),
            count_changes("api_key"),
        ),
        down=(
            "DROP TABLE api_key",
            "DROP TABLE tenant",
            "DROP TABLE tenancy",
            Dialects(sqlite=(), postgres=("DROP FUNCTION tenancy_changed()",)),
        ),
        loses=(Loss("tenant", "tenants"), Loss("api_key", "API keys")),
    ),
    Migration(
        "the attempt that served a request is in its row",
        up=(
            "ALTER TABLE usage ADD COLUMN replica TEXT",
            "ALTER TABLE usage ADD COLUMN generation INTEGER CHECK (generation >= 0)",
            "ALTER TABLE usage ADD COLUMN served_started_s REAL",
            "ALTER TABLE usage ADD COLUMN served_s REAL CHECK (served_s >= 0)",
            "ALTER TABLE usage ADD COLUMN served_ttft_s REAL CHECK (served_ttft_s >= 0)",
            "ALTER TABLE execution RENAME TO attempt",
            record_tables.EXECUTION_VIEW,
            record_tables.ONE_PLACE,
            # The key begins with the time of arrival (a UUID version 7), so it is its own index by time.
            "DROP INDEX usage_by_time",
        ),
        down=(
            "CREATE INDEX usage_by_time ON usage (started_s)",
            record_tables.ONE_PLACE_GONE,
            "DROP VIEW execution",
            "ALTER TABLE attempt RENAME TO execution",
            record_tables.SERVED_AS_ROWS,
            *(
                f"ALTER TABLE usage DROP COLUMN {column}"
                for column in ("replica", "generation", "served_started_s", "served_s", "served_ttft_s")
            ),
        ),
    ),
    Migration(
        "shares of tenants",
        up=(
            "ALTER TABLE tenant ADD COLUMN class TEXT NOT NULL DEFAULT 'normal' CHECK (class IN ('low', 'normal', 'high'))",
            "ALTER TABLE tenant ADD COLUMN weight INTEGER NOT NULL DEFAULT 1 CHECK (weight >= 1)",
            "ALTER TABLE tenant ADD COLUMN reserved_slots INTEGER NOT NULL DEFAULT 0 CHECK (reserved_slots >= 0)",
        ),
        down=tuple(
            f"ALTER TABLE tenant DROP COLUMN {column}" for column in ("class", "weight", "reserved_slots")
        ),
        loses=(
            Loss(
                "tenant WHERE class <> 'normal' OR weight <> 1 OR reserved_slots <> 0",
                "tenants with a share of their own",
            ),
        ),
    ),
    Migration(
        "what a request costs, and by which price",
        up=(
            "ALTER TABLE usage ADD COLUMN price_version TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE usage ADD COLUMN charge_pico INTEGER NOT NULL DEFAULT 0 CHECK (charge_pico >= 0)",
            "ALTER TABLE usage ADD COLUMN reasoning_tokens INTEGER NOT NULL DEFAULT 0 CHECK (reasoning_tokens >= 0)",
            "ALTER TABLE usage ADD COLUMN units INTEGER NOT NULL DEFAULT 0 CHECK (units >= 0)",
            "ALTER TABLE usage ADD COLUMN \"user\" TEXT NOT NULL DEFAULT ''",
        ),
        down=tuple(
            f'ALTER TABLE usage DROP COLUMN "{column}"'
            for column in ("price_version", "charge_pico", "reasoning_tokens", "units", "user")
        ),
        loses=(
            Loss(
                "usage WHERE price_version <> '' OR charge_pico <> 0 OR reasoning_tokens <> 0 OR units <> 0"
                " OR \"user\" <> ''",
                "usage records with a charge, a user, or units of their own",
            ),
        ),
    ),
    Migration(
        "terms of tenants",
        up=("ALTER TABLE tenant ADD COLUMN terms TEXT NOT NULL DEFAULT '{}'",),
        down=("ALTER TABLE tenant DROP COLUMN terms",),
        loses=(Loss("tenant WHERE terms <> '{}'", "tenants with terms of their own"),),
    ),
    Migration(
        "audit log",
        up=(
            _AUDIT,
            "CREATE INDEX audit_by_tenant ON audit (tenant, number)",
            append_only("audit"),
            _AUDIT_HEAD,
            'INSERT INTO audit_head ("only", number) VALUES (1, 0)',
        ),
        down=("DROP TABLE audit_head", "DROP TABLE audit", append_only_gone("audit")),
        loses=(Loss("audit", "entries of the audit log"),),
    ),
    Migration(
        "several gateways and one central database",
        up=(
            _OUTBOX,
            _SHIPPING,
            'INSERT INTO shipping ("only", number) VALUES (1, 0)',
            _MIRROR,
            _INSTALLATION,
            _IDENTITY,
            _GATEWAY,
        ),
        down=tuple(
            f"DROP TABLE {table}" for table in ("gateway", "installation", "mirror", "shipping", "outbox")
        ),
        loses=(
            Loss(
                "outbox WHERE number > (SELECT number FROM shipping)",
                "groups of records that wait to be shipped",
            ),
        ),
    ),
    Migration(
        "terms and uses of keys",
        up=(
            "ALTER TABLE api_key ADD COLUMN terms TEXT NOT NULL DEFAULT '{}'",
            # Beside the key and not in its row: a change of that row makes every gateway read all keys again.
            "CREATE TABLE key_use (key_id TEXT NOT NULL PRIMARY KEY, used_s REAL NOT NULL) STRICT",
        ),
        down=("DROP TABLE key_use", "ALTER TABLE api_key DROP COLUMN terms"),
        loses=(Loss("api_key WHERE terms <> '{}'", "keys that are narrowed, and would be wide without it"),),
    ),
    Migration(
        "price book",
        up=(money_tables.PRICE, append_only("price"), count_changes("price")),
        down=("DROP TABLE price", append_only_gone("price")),
        loses=(Loss("price", "versions of prices"),),
    ),
    Migration(
        "requests that a crash cut off",
        up=(record_tables.ORPHAN,),
        down=("DROP TABLE orphan",),
        loses=(Loss("orphan", "requests that a crash cut off"),),
    ),
    Migration(
        "invoices and corrections",
        up=(
            money_tables.CORRECTION,
            "CREATE INDEX correction_by_tenant ON correction (tenant, created_s)",
            "CREATE INDEX correction_by_request ON correction (request_id)",
            money_tables.INVOICE,
            "CREATE INDEX invoice_by_tenant ON invoice (tenant, begins_s)",
            money_tables.INVOICED,
            *(append_only(table) for table in ("correction", "invoice", "invoiced")),
            money_tables.USAGE_KEPT,
        ),
        down=(
            money_tables.USAGE_FREE,
            *(f"DROP TABLE {table}" for table in ("invoiced", "invoice", "correction")),
            *(append_only_gone(table) for table in ("correction", "invoice", "invoiced")),
        ),
        loses=(Loss("invoice", "issued invoices"), Loss("correction", "corrections")),
    ),
    Migration(
        "admin tokens",
        up=(_ADMIN,),
        down=("DROP TABLE admin",),
        loses=(Loss("admin", "admin tokens"),),
    ),
    Migration(
        "what engines count by themselves",
        up=(record_tables.ENGINE_COUNT,),
        down=("DROP TABLE engine_count",),
        loses=(Loss("engine_count", "readings of the engines' own counters"),),
    ),
    Migration(
        "the user of a usage record can be erased",
        up=(money_tables.USAGE_FREE, money_tables.USAGE_ERASABLE),
        down=(money_tables.USAGE_ERASABLE_GONE, money_tables.USAGE_KEPT),
    ),
    Migration(
        "a copy of the price book follows its original",
        up=(money_tables.PRICE_COPIED,),
        down=(money_tables.PRICE_KEPT,),
    ),
    Migration(
        "applied deployments",
        up=(
            deployment_tables.DEPLOYMENT_VERSION,
            deployment_tables.DEPLOYMENT_WANTED,
            "CREATE INDEX deployment_wanted_by_name ON deployment_wanted (name, number)",
            *(append_only(table) for table in ("deployment_version", "deployment_wanted")),
        ),
        down=tuple(
            step
            for table in ("deployment_wanted", "deployment_version")
            for step in (f"DROP TABLE {table}", append_only_gone(table))
        ),
        loses=(Loss("deployment_version", "applied versions of deployments"),),
    ),
    Migration(
        "what the controller keeps",
        up=fleet_tables.UP,
        down=fleet_tables.DOWN,
        loses=(
            Loss("decision", "decisions of the controller"),
            Loss("cold_start", "measured starts of engines"),
        ),
    ),
    Migration(
        "the revision of each attempt",
        up=(
            "DROP VIEW execution",
            "ALTER TABLE attempt ADD COLUMN revision TEXT NOT NULL DEFAULT ''",
            record_tables.EXECUTION_VIEW_WITH_REVISION,
        ),
        down=(
            "DROP VIEW execution",
            "ALTER TABLE attempt DROP COLUMN revision",
            record_tables.EXECUTION_VIEW,
        ),
        loses=(Loss("attempt WHERE revision <> ''", "attempts of another revision than their request's"),),
    ),
    Migration(
        "prompt templates of applied deployments",
        up=("ALTER TABLE deployment_version ADD COLUMN template_text TEXT NOT NULL DEFAULT ''",),
        down=("ALTER TABLE deployment_version DROP COLUMN template_text",),
        loses=(
            Loss("deployment_version WHERE template_text <> ''", "prompt templates of applied deployments"),
        ),
    ),
    Migration(
        "what operators say to rollouts",
        up=(deployment_tables.ROLLOUT_WORD,),
        down=("DROP TABLE rollout_word",),
    ),
    Migration(
        "what was measured of replicas",
        up=(
            deployment_tables.CAPACITY_RECORD,
            "CREATE INDEX capacity_record_by_model ON capacity_record (model, number)",
        ),
        down=("DROP TABLE capacity_record",),
        loses=(Loss("capacity_record", "measurements of replicas"),),
    ),
)
