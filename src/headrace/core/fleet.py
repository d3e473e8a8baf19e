"""What is offered and what runs: the immutable picture that control publishes and the gateway serves from."""

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from headrace.core.ids import ReplicaId, TargetKey
from headrace.core.isolation import CacheIsolation

CHOICES_MAX = 8  # where nothing narrows it
PPM = 1_000_000  # all of a route's traffic
ARMS_MAX = 3  # so many revisions serve one name at once; see policies/routing.py


class Task(StrEnum):
    """The kind of work a deployment does; each has its own endpoints."""

    CHAT = "chat"
    EMBEDDINGS = "embeddings"


class ReplicaState(Enum):
    """Where a replica stands in its life; only READY receives requests."""

    PENDING = "pending"
    FETCHING = "fetching"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What the gateway must know about an engine to use it safely; the table is in engines/openai_compatible.py.

    Attributes:
        name: The dialect's name, for status and metrics.
        streams_only: The engine runs a non-streamed call to its end when the caller leaves, so we always stream from it.
        isolation: What keeps the prompts of different tenants apart in its prefix cache.
        salted: Paths of the endpoints that take a salt, where that is the isolation.
        tells_cached: Paths whose answers may say how much of a prompt was cached: there the isolation is certain, so it was
            the caller's own.
        cache_risk: What an operator should know about the isolation, "" if nothing.
        reports_progress: Chunks carry cumulative token counts (`timings`) when asked, so that a cancelled answer is counted.
        stream_usage: `stream_options.include_usage` is understood.
        is_ours: We started it and start it again: a lost connection means that its process has ended, and that another
            generation follows.
    """

    name: str = "openai"
    streams_only: bool = False
    isolation: CacheIsolation = CacheIsolation.NONE
    salted: frozenset[str] = frozenset()
    tells_cached: frozenset[str] = frozenset()
    cache_risk: str = ""
    reports_progress: bool = False
    stream_usage: bool = True
    is_ours: bool = False

    @property
    def partitions_slots(self) -> bool:
        return self.isolation is CacheIsolation.SLOTS


@dataclass(frozen=True, slots=True)
class Replica:
    """One running instance of a revision.

    Attributes:
        host, port: Where it listens, without scheme.
        path_prefix: Path in front of `/v1`, "" for most servers.
        slots: Requests it runs at once, at least 1; in-flight never exceeds it.
        authorization: Value of the Authorization header to send, or "". Never logged: kept out of repr.
        is_secure: It speaks TLS, and shows a certificate for `host`.
        ca_file: PEM file of the authorities that are trusted to sign it; "" for those of the system.
        location: Where it runs, by the operator's name for it; "" where nobody said.
        generation: Grows with each launch: two processes behind one ReplicaId never share health or connections.
        slow_start_s: How long it takes to its full share when it joins others; None for as long as the gateway's rules say.
    """

    id: ReplicaId
    host: str
    port: int
    slots: int
    traits: EngineTraits = field(default_factory=EngineTraits)
    path_prefix: str = ""
    authorization: str = field(default="", repr=False)
    generation: int = 0
    is_secure: bool = False
    ca_file: str = ""
    location: str = ""
    slow_start_s: float | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is offered under one model name: one revision of it, a *target* of requests.

    Attributes:
        name: The model name that callers use, of all revisions the same.
        upstream_model: The name that its replicas know it by.
        tasks: What it can do.
        revision: Digest of everything that makes the answers (`sha256:...`), or "unpinned" for servers that others run.
        replicas: The ready ones only.
        context_tokens: Prompt plus output that one request may use; 0 when unknown.
        vocabulary_tokens: Token ids are below this; 0 when unknown.
        constraint_pieces_max: How much may constrain one answer: properties and values in schemas, alternatives in
            grammars. An engine that builds its grammars where it generates holds up every stream while it does.
        takes_media: Whether messages may hold more than text.
        takes_token_ids: Whether a prompt may be token ids. Not where text is put before each prompt to keep caches apart.
        choices_max: Largest `n` that one request may ask for.
        retry_after_s: How long a caller should wait while nothing is ready: the measured cold start where known.
        locations: Where its replicas run, also those that are not ready now.
        version: Which of its applied versions this is; 0 for what has none.
        waiting_room_max: So many requests may wait for its first replica while there is none: it was scaled to zero, and
            their arrival has it started. 0 where being without replicas is a failure.
        ready_expected_s: When the first replica is expected, by the monotonic clock; None: `retry_after_s` from now.
    """

    name: str
    upstream_model: str
    tasks: frozenset[Task]
    revision: str
    replicas: tuple[Replica, ...] = ()
    context_tokens: int = 0
    vocabulary_tokens: int = 0
    constraint_pieces_max: int = 10_000
    takes_media: bool = True
    takes_token_ids: bool = True
    choices_max: int = CHOICES_MAX
    created_s: int = 0
    owner: str = "headrace"
    retry_after_s: float = 5.0
    locations: tuple[str, ...] = ()
    version: int = 0
    waiting_room_max: int = 0
    ready_expected_s: float | None = None

    @property
    def key(self) -> TargetKey:
        """Which target this is."""
        return target_key(self.name, self.version) if self.version else self.name

    @property
    def cache_isolation(self) -> CacheIsolation | None:
        """What a prompt can count on, whichever replica it meets: the weakest isolation; None while there are none."""
        order = tuple(CacheIsolation)
        return max((replica.traits.isolation for replica in self.replicas), key=order.index, default=None)


def target_key(name: str, version: int) -> TargetKey:
    return f"{name}@v{version}" if version else name


@dataclass(frozen=True, slots=True)
class Arm:
    """One target's share of the requests for a name, in millionths."""

    target: TargetKey
    weight_ppm: int


@dataclass(frozen=True, slots=True)
class Mirror:
    """A target that gets copies of so many millionths of the requests that were delivered; nobody sees its answers."""

    target: TargetKey
    share_ppm: int


@dataclass(frozen=True, slots=True)
class Route:
    """Which targets serve one name. A name without a route is served by the target of that name.

    Attributes:
        arms: At least one. The first is the accepted revision: it takes over what the others can't serve.
        is_sticky: A conversation stays with its arm.
        is_experiment: Every arm is accepted: each takes over from one that has no ready replica.
    """

    arms: tuple[Arm, ...]
    is_sticky: bool = True
    mirror: Mirror | None = None
    is_experiment: bool = False

    def __post_init__(self) -> None:
        assert 0 < len(self.arms) <= ARMS_MAX, f"a route has 1 to {ARMS_MAX} arms"
        assert len({arm.target for arm in self.arms}) == len(self.arms), "each arm is another target"
        assert all(arm.weight_ppm >= 0 for arm in self.arms), "no arm takes less than nothing"
        assert sum(arm.weight_ppm for arm in self.arms) == PPM, "the arms share all of the traffic"

    @property
    def accepted(self) -> TargetKey:
        return self.arms[0].target


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """Everything that is offered at one moment; replaced whole, never edited.

    Attributes:
        version: Grows by one with every publication.
        deployments: By their `key`.
        routes: By the name that callers use, of the names that need one.
    """

    version: int = 0
    deployments: dict[TargetKey, Deployment] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
