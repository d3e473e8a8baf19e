"""What is known about each replica, for operators: the picture behind the snapshot that the gateway gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.fleet import ReplicaState
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
