"""What is known about each replica, for operators: the picture behind the snapshot that the gateway gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.fleet import EngineTraits, ReplicaState
from headrace.core.ids import ReplicaId


@dataclass(frozen=True, slots=True)
class ColdStart:
    """How long the last successful start took, by stage.

    Attributes:
        launch_s: From the launch to a process that begins to load.
        load_s: Until it listens: weights read, memory laid out.
        warm_s: Until a first request was answered.
    """

    launch_s: float
    load_s: float
    warm_s: float

    @property
    def total_s(self) -> float:
        return self.launch_s + self.load_s + self.warm_s


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
