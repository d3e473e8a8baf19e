"""What of a replica's changes is told, and to whom? Gauges for every change, and for news a log line and a word to the terminal."""

from collections.abc import Callable
from typing import Any

from headrace.control.status import COLD_START_STAGES, ReplicaStatus, announcement
from headrace.core.fleet import ReplicaState
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


class ReplicaNews:
    """State: `_seen`, what was last told, by replica and model.

    Args:
        engines: Names of models that are ours from the start; those of applied deployments say it themselves.
        tell: Gets lines for the person who started the service.
    """

    def __init__(
        self, engines: frozenset[str], *, tell: Callable[[str], None], metrics: Metrics, log: Log
    ) -> None:
        self._engines = engines
        self._tell = tell
        self._metrics = metrics
        self._log = log
        self._seen: dict[tuple[str, str], tuple[ReplicaState, int, bool]] = {}

    def take(self, status: ReplicaStatus) -> None:
        """A replica changed or was scraped."""
        self._count(status)
        if self._is_news(status):
            self._log_change(status)
            is_ours = status.version > 0 or status.deployment in self._engines
            if line := announcement(status, is_ours=is_ours):
                self._tell(line)

    def know(self, status: ReplicaStatus) -> None:
        """What an earlier controller has told already."""
        self._count(status)
        self._is_news(status)

    def forget(self, status: ReplicaStatus) -> None:
        """The replica is gone, and its series with it."""
        metrics, labels = self._metrics, (status.deployment, status.replica)
        self._seen.pop((status.replica, status.deployment), None)
        for family in (metrics.replica_ready, metrics.replica_restarts, *self._scraped().values()):
            family.remove(*labels)
        for stage in COLD_START_STAGES:
            metrics.replica_cold_start_seconds.remove(*labels, stage.removesuffix("_s"))

    def _count(self, status: ReplicaStatus) -> None:
        labels = status.deployment, status.replica
        self._metrics.replica_ready.labels(*labels).set(status.state is ReplicaState.READY)
        self._metrics.replica_restarts.labels(*labels).set(status.restarts)
        for gauge, family in self._scraped().items():
            if gauge in status.gauges:
                family.labels(*labels).set(status.gauges[gauge])

    def _scraped(self) -> dict[str, Any]:
        metrics = self._metrics
        return {
            "requests_processing": metrics.engine_requests_processing,
            "requests_deferred": metrics.engine_requests_deferred,
            "prompt_tokens_total": metrics.engine_prompt_tokens,
            "tokens_predicted_total": metrics.engine_generated_tokens,
            "prompt_tokens_cached_total": metrics.engine_cached_tokens,
        }

    def _is_news(self, status: ReplicaStatus) -> bool:
        key = (status.replica, status.deployment)
        # An engine that ended is first withdrawn, and only then is it known why; other reasons come and go untold.
        is_explained = status.state is ReplicaState.PENDING and status.reason != ""
        news = (status.state, status.generation, is_explained)
        is_new = self._seen.get(key) != news
        self._seen[key] = news
        return is_new

    def _log_change(self, status: ReplicaStatus) -> None:
        facts: dict[str, Any] = {
            "replica": status.replica,
            "model": status.deployment,
            "generation": status.generation,
        }
        match status.state:
            case ReplicaState.STARTING:
                self._log.event("replica.starting", **facts, pid=status.pid, restarts=status.restarts)
            case ReplicaState.READY:
                cold = status.cold_start
                stages = {} if cold is None else cold.stages()
                self._log.event("replica.ready", **facts, pid=status.pid, **stages)
                for stage, seconds in stages.items():
                    self._metrics.replica_cold_start_seconds.labels(
                        status.deployment, status.replica, stage.removesuffix("_s")
                    ).set(seconds)
            case ReplicaState.FAILED:
                self._log.event(
                    "replica.failed",
                    **facts,
                    reason=status.reason,
                    code=status.code,
                    restarts=status.restarts,
                )
            case ReplicaState.PENDING if status.reason:
                self._log.event(
                    "replica.lost", **facts, reason=status.reason, code=status.code, restarts=status.restarts
                )
            case ReplicaState.DRAINING | ReplicaState.STOPPED:
                self._log.event(f"replica.{status.state.value}", **facts)
            case _:
                pass
