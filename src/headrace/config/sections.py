"""What may stand in headrace.toml? Each section with its keys and their defaults, as frozen values."""

from typing import Literal

import msgspec

from headrace.core.tenant import NameOrNone, TenantLimits
from headrace.policies.issuers import Issuer
from headrace.policies.spending import Assumptions


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public and the admin port.

    Attributes:
        host: Address of the public port. Loopback by default: anything wider needs TLS, here or in front.
        tls_certificate, tls_key: PEM files that make the public port speak TLS: the certificate with its chain, and its
            private key. "" means plain HTTP.
        connections_max: Client connections at once; above it new ones are closed at accept.
        header_timeout_s: A request's headers must be complete this long after its first byte (or the connection's start).
        idle_timeout_s: A kept-alive connection without a request is closed after this.
        body_bytes_per_s_min: A body that arrives more slowly than this is refused with 408; nobody gets ahead of it by more
            than `header_timeout_s`.
        body_bytes_max: Largest request body, and largest message over WebSocket.
        websocket_origins: Web pages that may open a WebSocket, as `https://app.example`; `*` is all. Programs need no entry.
        trusted_proxies: Networks of proxies that are believed in `X-Forwarded-For` when a key's networks are checked.
        drain_s: After SIGTERM, how long requests in progress may go on.
        workers: Processes that serve the public port; see docs/operate/workers.md.
        location: Where everything runs that doesn't say.
        core_dumps: Whether a process that crashes may leave its memory behind, with prompts and keys.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 9000
    tls_certificate: str = ""
    tls_key: str = ""
    connections_max: int = 4096
    header_timeout_s: float = 10.0
    idle_timeout_s: float = 75.0
    body_bytes_per_s_min: int = 1024
    body_bytes_max: int = 4 * 1024 * 1024
    websocket_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    drain_s: float = 30.0
    workers: int = 1
    location: NameOrNone = ""
    core_dumps: bool = False

    @property
    def scheme(self) -> str:
        """What callers write in front of the public port's address."""
        return "https" if self.tls_certificate else "http"


class RequestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time and retries of one request.

    Attributes:
        deadline_s: Time that a request has when it doesn't say (`X-Headrace-Deadline-Ms`).
        deadline_max_s: Longest time that a request may ask for.
        first_event_limit_s: A replica that sends nothing for this long after the request is stalled.
        stall_limit_s: The same between two events of an answer.
        write_stall_limit_s: A caller that takes nothing off its connection for this long is cut.
        heartbeat_s: Silence after which a streaming caller gets a comment line.
        attempts_max: Replicas tried for one request, at least 1.
        retry_ratio: Retries allowed per request over time (a budget that the requests of a model share).
        retry_floor_per_s: Retries per second that are allowed on top.
        retry_backoff_s: Pause before the first retry; doubles with each further one, and is cut by up to half at random.
    """

    deadline_s: float = 600.0
    deadline_max_s: float = 3600.0
    first_event_limit_s: float = 300.0
    stall_limit_s: float = 30.0
    write_stall_limit_s: float = 60.0
    heartbeat_s: float = 15.0
    attempts_max: int = 2
    retry_ratio: float = 0.2
    retry_floor_per_s: float = 1.0
    retry_backoff_s: float = 0.05


class AdmissionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The queue in front of each deployment.

    Attributes:
        queue_length_max: Waiting requests; then one is refused with 503, the next one or one that has less right to wait.
        queue_bytes_max: The same for the bytes of their bodies.
        queue_wait_max_s: Longest wait, whatever the deadline; then 503.
        adaptive_concurrency: Whether fewer requests than its slots are sent to an upstream whose first tokens come late.
    """

    queue_length_max: int = 64
    queue_bytes_max: int = 64 * 1024 * 1024
    queue_wait_max_s: float = 60.0
    adaptive_concurrency: bool = True


class HealthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a replica is taken out of balancing by what its requests show.

    Attributes:
        failures_to_eject: Failures in a row.
        ejection_s, ejection_max_s: First time out, doubled with each further ejection up to the maximum.
        slow_start_s: How long a replica that returns, or that joins others, takes to its full share.
        rest_s: How long a replica that answers 429 or 503 is left alone if it doesn't say.
        quiet_s: A replica that has work and says nothing for this long is used only where no other has a free slot.
    """

    failures_to_eject: int = 3
    ejection_s: float = 5.0
    ejection_max_s: float = 120.0
    slow_start_s: float = 10.0
    rest_s: float = 1.0
    quiet_s: float = 1.0


class IdempotencyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of requests with an Idempotency-Key, in memory.

    Attributes:
        keep_s: How long, from the arrival of the first request with the key.
        keys_max, bytes_max: Keys, and bytes of their answers; beyond that the oldest are forgotten.
        answer_bytes_max: A larger answer is delivered but not kept.
    """

    keep_s: float = 86400.0
    keys_max: int = 10_000
    bytes_max: int = 64 * 1024 * 1024
    answer_bytes_max: int = 1024 * 1024


class LedgerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done while usage records can't be written.

    Attributes:
        mode: "strict": new work is refused at once. "lenient": only when `records_max` records wait.
        records_max: Records that may wait for the disk, in memory and in each process's journal.
        reconcile_every_s: Pause between two comparisons of the books, each of the last three such pauses; 0 for none.
        counters_every_s: Pause between two readings of the engines' own counters.
    """

    mode: Literal["strict", "lenient"] = "strict"
    records_max: int = 10_000
    reconcile_every_s: float = 300.0
    counters_every_s: float = 15.0

    @property
    def is_lenient(self) -> bool:
        return self.mode == "lenient"


class PressureConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When keep-alive, and then new work, is given up; see policies.pressure.

    Attributes:
        memory_bytes_max: Resident memory of this process; 0 means that only the cgroup and the machine set a limit.
        lag_s_max: Event loop lag, several times in a row, at which new work is refused; from half of it on nothing is
            kept alive.
        hold_s: A level stays at least this long after what led to it.
    """

    memory_bytes_max: int = 0
    lag_s_max: float = 1.0
    hold_s: float = 5.0


class MediaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """URLs of pictures, sound and files in messages; what is sent inline, as a `data:` URL, needs none of this.

    Attributes:
        urls: "refuse", or "fetch": we fetch them, from the public internet alone, and engines get the content.
        bytes_max: What one request may have fetched for it.
        time_s: For one URL with its redirects.
        redirects_max: Redirects followed for one URL.
        fetches_max: Requests that media is fetched for at once.
        networks: Networks that may be fetched from although they are not the public internet, such as "10.1.2.0/24".
    """

    urls: Literal["refuse", "fetch"] = "refuse"
    bytes_max: int = 20 * 1024 * 1024
    time_s: float = 10.0
    redirects_max: int = 3
    fetches_max: int = 16
    networks: tuple[str, ...] = ()


class TenantDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a tenant that has none of its own, and shadow limits, as core.tenant.TenantLimits and TenantTerms have them."""

    requests_per_minute: int = 600
    requests_burst: int = 60
    concurrency_max: int = 64
    tokens_per_minute: int = 0
    tokens_burst: int = 0
    shadow: TenantLimits = TenantLimits()

    @property
    def limits(self) -> TenantLimits:
        """Those that hold."""
        return TenantLimits(
            self.requests_per_minute,
            self.requests_burst,
            self.concurrency_max,
            self.tokens_per_minute,
            self.tokens_burst,
        )


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity providers whose tokens are accepted beside API keys.

    Attributes:
        issuers: The providers.
        keys_refresh_s: How often each one's keys are fetched.
        keys_gap_s: However many tokens name a key that isn't there, they are not fetched again sooner than this.
        keys_keep_s: A provider that can't be reached is believed for so long by the keys that it had.
    """

    issuers: tuple[Issuer, ...] = ()
    keys_refresh_s: float = 300.0
    keys_gap_s: float = 60.0
    keys_keep_s: float = 86400.0


class StoresConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where tenants, keys and the ledger are kept.

    Attributes:
        database: Reference to the address of a PostgreSQL database that several gateways share, `env:NAME` or `file:PATH`;
            never the address itself, which holds a password. "" keeps all in the data directory.
        stale_max_s: How long the copy of its tenants and keys is gone by while that database can't be asked.
        shipped_keep_s: How long records stay in the data directory after they were shipped there.
    """

    database: str = ""
    stale_max_s: float = 3600.0
    shipped_keep_s: float = 35 * 86400.0


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How several hosts share what is agreed with a tenant; see docs/operate/several-hosts.md.

    Attributes:
        store: Reference to the address of the Valkey or Redis server that lends rates to all hosts, `env:NAME` or `file:PATH`;
            never the address itself, which may hold a password. "" leaves rates to each host alone.
        hosts_max: How many hosts there are at most. Each has an even part of every quota, budget and, with a store, bound on
            concurrency, and falls back to an even part of every rate while the store can't be had.
        host: This host's name among them; "" makes one of the machine's name and the data directory's id.
    """

    store: str = ""
    hosts_max: int = 1
    host: str = ""


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedded engine.

    Attributes:
        chat_model, embedding_model: Names in the model store or catalog; "" switches one off.
        slots: Requests that each engine runs at once.
        context_tokens: Prompt plus output of one request, per slot.
        threads: 0 means all cores but one, which the gateway needs.
        location: Where it runs; "" for `server.location`.
    """

    chat_model: str = "smollm2-135m-instruct"
    embedding_model: str = "all-minilm-l6-v2"
    slots: int = 4
    context_tokens: int = 4096
    threads: int = 0
    location: NameOrNone = ""


class S3Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object storage behind `s3://` sources.

    Attributes:
        endpoint: Base URL of an S3-compatible storage; "" for Amazon's in that region.
        region: What requests are signed for.
        access_key, secret_key, session_token: References to them, `env:NAME` or `file:PATH`; never the secrets themselves.
            Without them the storage is asked as anybody.
        allow_http: The endpoint may be asked without TLS.
    """

    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    allow_http: bool = False


class MlflowConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The registry behind `mlflow:` sources.

    Attributes:
        url: Base URL of the MLflow server; "" where there is none.
        token: Reference to a bearer token, `env:NAME` or `file:PATH`.
        username, password: For a server that asks for them instead; the password by reference.
        allow_http: The server may be asked without TLS.
    """

    url: str = ""
    token: str = ""
    username: str = ""
    password: str = ""
    allow_http: bool = False


class ModelsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model store.

    Attributes:
        disk_bytes_max: What it may hold. Beyond that, what wasn't used for longest goes, and never what a running revision or
            a rollback needs; 0 keeps everything.
    """

    disk_bytes_max: int = 0
    s3: S3Config = S3Config()
    mlflow: MlflowConfig = MlflowConfig()


class PrefixCacheConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names of prefix cache partitions; see core.isolation.

    Attributes:
        salt_rotation: Raise it, and whatever engines have cached so far is found by nobody any more.
    """

    salt_rotation: int = 0


class UpstreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server that already runs.

    Attributes:
        url: Base URL, with or without `/v1`.
        slots: Requests that it may get at once.
        api_key: Reference to its key, `env:NAME` or `file:PATH`; never the key itself.
        ca_file: PEM file of the authorities that may sign its certificate; "" for those of the system.
        cache_isolation: What keeps the prompts of different tenants apart in its prefix cache: "auto", by what kind of
            server it is, or one of "salt", "slots", "prompt", "off_per_request", "none"; see docs/concepts/cache-isolation.md.
        shared_cache_reason: Why tenants may share its cache; required for "none", and shown in `headrace status`.
        location: Where it runs; "" for `server.location`.
    """

    url: str
    slots: int = 64
    api_key: str = ""
    ca_file: str = ""
    cache_isolation: Literal["auto", "salt", "slots", "prompt", "off_per_request", "none"] = "auto"
    shared_cache_reason: str = ""
    location: NameOrNone = ""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of headrace.toml."""

    server: ServerConfig = ServerConfig()
    request: RequestConfig = RequestConfig()
    admission: AdmissionConfig = AdmissionConfig()
    health: HealthConfig = HealthConfig()
    idempotency: IdempotencyConfig = IdempotencyConfig()
    ledger: LedgerConfig = LedgerConfig()
    pressure: PressureConfig = PressureConfig()
    tenant_defaults: TenantDefaults = TenantDefaults()
    auth: AuthConfig = AuthConfig()
    budgets: Assumptions = Assumptions()
    media: MediaConfig = MediaConfig()
    stores: StoresConfig = StoresConfig()
    limits: LimitsConfig = LimitsConfig()
    engine: EngineConfig = EngineConfig()
    models: ModelsConfig = ModelsConfig()
    prefix_cache: PrefixCacheConfig = PrefixCacheConfig()
    upstreams: tuple[UpstreamConfig, ...] = ()


# What stands in the file more than once, as `[[...]]`.
TABLES: dict[str, type[msgspec.Struct]] = {"upstreams": UpstreamConfig, "auth.issuers": Issuer}
