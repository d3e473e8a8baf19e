"""What is known about each replica, for operators: the picture behind the snapshot that the gateway gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.fleet import EngineTraits, ReplicaState
from headrace.core.ids import ReplicaId

COLD_START_STAGES = ("capacity_s", "fetch_s", "launch_s", "load_s", "warm_s")


@dataclass(frozen=True, slots=True)
class ColdStart:
    """How long the last successful start took, by stage.

    Attributes:
        launch_s: From the launch to a process that begins to load.
        load_s: Until it listens: weights read, memory laid out.
        warm_s: Until a first request was answered.
        fetch_s: Before the launch, until its files were here and checked.
        capacity_s: Until there was room for it: what ran in its place before had ended.
    """

    launch_s: float
    load_s: float
    warm_s: float
    fetch_s: float = 0.0
    capacity_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self.stages().values())

    def stages(self) -> dict[str, float]:
        """Seconds by stage, in the order in which they come."""
        return {name: getattr(self, name) for name in COLD_START_STAGES}


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica of one deployment at one moment.

    Attributes:
        reason: Why it is not ready, or why it last ended; "" when there is nothing to say.
        pid: The engine's process, None for servers that others run and while there is none.
        restarts: Starts after the first one.
        gauges: The engine's own metrics as last scraped, without its prefix.
        traits: What kind of engine it is; None while that isn't known.
        location: Where it runs; "" where nobody said.
        version: The applied version that it runs; 0 for what has none.
        code: The reason in one word (policies.replica_life.Reason); "" for servers that others run.
        since_s: When it came into its state, by the machine's monotonic clock.
        ready_s: Since when it serves, by that clock; None while it doesn't.
        failures: Lives in a row that ended soon.
        is_stuck: Waiting for it is in vain: it crashes again and again, or what it lacks won't come by itself.
    """

    deployment: str
    replica: ReplicaId
    generation: int
    state: ReplicaState
    reason: str = ""
    pid: int | None = None
    restarts: int = 0
    cold_start: ColdStart | None = None
    gauges: Mapping[str, float] = field(default_factory=dict)
    traits: EngineTraits | None = None
    location: str = ""
    version: int = 0
    code: str = ""
    since_s: float = 0.0
    ready_s: float | None = None
    failures: int = 0
    is_stuck: bool = False


def announcement(status: ReplicaStatus, *, is_ours: bool) -> str | None:
    """What the person who started the service reads of a change, if anything.

    Args:
        is_ours: An engine that we start, not a server that others run.
    """
    model, where, cold = status.deployment, status.replica, status.cold_start
    match status.state:
        case ReplicaState.READY if is_ours and cold is not None:
            stages = f"launch {cold.launch_s:.2f}, load {cold.load_s:.2f}, first answer {cold.warm_s:.2f}"
            return f"ready        {model} after {cold.total_s:.2f} s ({stages})"
        case ReplicaState.READY:
            risk = status.traits.cache_risk if status.traits is not None else ""
            return f"ready        {model} at {where}" + (f"; its prompt cache: {risk}" if risk else "")
        case ReplicaState.FAILED if is_ours:
            return f"failed       {model}: {status.reason}"
        case ReplicaState.PENDING if is_ours and status.reason:
            return f"lost         {model}: {status.reason}; starting it again"
        case ReplicaState.FAILED if model:
            return f"lost         {model} at {where}: {status.reason}; asking again"
        case ReplicaState.PENDING if status.reason:
            return f"no answer    {where}: {status.reason}; asking again"
        case _:
            return None
