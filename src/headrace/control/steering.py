"""Who decides which versions of a deployment run, with how many replicas, and who gets which requests?

The controller looks, asks these two, keeps what they want kept, and then carries out what they said:

    scaled = {version: autoscaler.scale(target, ...)}        how many replicas each version would like
    steering = rollouts.steer(deployment, scaled, ...)       which versions there are, their bounds, and the route

Both are asked about every deployment again and again, also when nothing has changed, and answer at once. What they answer is
stored before anything follows from it; saying the same again changes nothing. A driver may have work of its own that takes
long, such as a run of an acceptance set: `run` is a task of the controller for as long as it lives.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from headrace.control.status import ColdStart
from headrace.core.deployments import AppliedVersion
from headrace.core.fleet import ReplicaState, Route
from headrace.core.ids import ReplicaId
from headrace.core.load import TargetLoad
from headrace.policies.decisions import Decision
from headrace.stores.deployments import Word


class ReplicaSeen(msgspec.Struct, frozen=True):
    """One replica of one version, as the controller sees it. Moments are the machine's monotonic clock, which goes on when the
    controller ends.

    Attributes:
        launched_s: When it was decided on.
        since_s: When it came into its state.
        ready_s: Since when it is ready; None while it isn't, and when it drains.
        in_flight: Requests that run on it, at all planes together.
        failures: Starts in a row that failed, or lives that ended soon.
        is_stuck: It gets nowhere: crash-looping, or a stage took longer than it may.
        is_draining: It gets no more requests, and ends.
        gauges: What its engine last said of itself.
    """

    id: ReplicaId
    version: int
    generation: int
    state: ReplicaState
    launched_s: float
    since_s: float
    reason: str = ""
    ready_s: float | None = None
    in_flight: int = 0
    slots: int = 1
    failures: int = 0
    is_stuck: bool = False
    is_draining: bool = False
    gauges: Mapping[str, float] = {}


class TargetSeen(msgspec.Struct, frozen=True):
    """One version of a deployment that is wanted, serves, or still has replicas.

    Attributes:
        load: All that it did since the data planes began to count; None where nobody has said yet.
        load_s: When that was said, by the monotonic clock.
        cold_start: What its last successful start took, by stage.
        refusal: Why no further replica of it fits this machine; "" if one does.
    """

    applied: AppliedVersion
    replicas: tuple[ReplicaSeen, ...] = ()
    load: TargetLoad | None = None
    load_s: float = 0.0
    cold_start: ColdStart | None = None
    refusal: str = ""


class DeploymentSeen(msgspec.Struct, frozen=True):
    """Everything about one name at one moment.

    Attributes:
        wanted: The version that somebody wants; None when the deployment was removed.
        reason: Why that one: "apply", "rollback" or another word of stores.deployments.
        targets: By version: the wanted one, those that the rollout's state names, and those with replicas.
        words: What operators said to its rollouts lately, heard or not; the oldest first.
    """

    name: str
    wanted: AppliedVersion | None
    reason: str
    targets: Mapping[int, TargetSeen]
    words: tuple[Word, ...] = ()


class Bounds(msgspec.Struct, frozen=True):
    """How many replicas a version has, whatever its autoscaler would like; `most` None sets no bound."""

    least: int = 0
    most: int | None = None

    def hold(self, replicas: int) -> int:
        """That number, within these bounds."""
        return max(self.least, replicas if self.most is None else min(replicas, self.most))


class Scaled(msgspec.Struct, frozen=True):
    """What an autoscaler would like for one version.

    Attributes:
        kept: To be handed in next time, by whichever controller; JSON.
        remove: Which replicas go first if any have to; others follow in the controller's order.
        looked_s: When that was found out: what came later isn't ended by it.
        waiting_room: Requests that may wait for a first replica while there is none.
        is_news: Something is new that must not be lost; else `kept` is stored now and then.
    """

    kept: str
    replicas: int
    looked_s: float
    remove: tuple[ReplicaId, ...] = ()
    waiting_room: int = 0
    decisions: tuple[Decision, ...] = ()
    is_news: bool = False
    summary: Mapping[str, Any] = {}


class Steering(msgspec.Struct, frozen=True):
    """How a deployment should be now.

    Attributes:
        kept: As for Scaled.
        accepted: The version that serves; None before the first one does.
        route: Who gets which requests; None where nothing is accepted yet.
        replicas: A version that isn't named should have none.
        kept_versions: Further versions that `targets` shall hold, such as one that may be gone back to.
        summary: What status shows of it: JSON.
    """

    kept: str
    accepted: int | None
    route: Route | None
    replicas: Mapping[int, Bounds]
    kept_versions: tuple[int, ...] = ()
    decisions: tuple[Decision, ...] = ()
    is_news: bool = False
    summary: Mapping[str, Any] = {}


class Autoscaler(Protocol):
    """How many replicas?"""

    def scale(self, target: TargetSeen, kept: str, *, now_s: float, wall_s: float) -> Scaled:
        """`kept` is "" for a version that was never asked about."""
        ...

    def forget(self, key: str) -> None:
        """That target has no replicas any more, and nobody wants it."""
        ...


class Rollouts(Protocol):
    """Which versions, and who gets the requests?"""

    def steer(
        self, seen: DeploymentSeen, scaled: Mapping[int, Scaled], kept: str, *, now_s: float, wall_s: float
    ) -> Steering:
        """`kept` is "" for a deployment that was never asked about."""
        ...

    def begun(self, accepted: int) -> str:
        """The state of a deployment in which that version serves already: what headrace.toml offers has no rollout."""
        ...

    def versions(self, kept: str) -> frozenset[int]:
        """The versions that this state speaks of, so that they are looked at."""
        ...

    async def run(self) -> None:
        """Work of its own, until cancelled."""
        ...


class FixedScale:
    """As many replicas as the file says at least."""

    def scale(self, target: TargetSeen, kept: str, *, now_s: float, wall_s: float) -> Scaled:
        return Scaled(kept, target.applied.spec.scale.min, now_s)

    def forget(self, key: str) -> None:
        """Nothing is known."""
