"""The control plane, put together: engines and upstreams kept true, and each change of them told and counted."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.config import Config, resolve_secret
from headrace.control.launchers import Launcher, Lifeline
from headrace.control.reconciler import Reconciler, refuse_twins
from headrace.control.replica import EngineSpec
from headrace.control.status import ReplicaStatus, announcement
from headrace.control.upstreams import Remembered
from headrace.control.upstreams import Upstream as UpstreamServer
from headrace.core.clock import Clock
from headrace.core.fleet import FleetSnapshot, ReplicaState
from headrace.core.ids import ReplicaId
from headrace.core.isolation import CacheIsolation
from headrace.stores.registry import StoredModel
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


class ControlPlane:
    """Publishes what is offered, to one data plane or to many.

    Args:
        before: What an earlier one has published, and what is in force.
        remembered: What it knew of the upstreams.
        publish: Gets every new snapshot.
        found: Gets the id of a server that answers a probe after it had not answered one.
        tell: Gets lines for the person who started the service.
        changed: Called after each change of a replica, once it is told and counted.
    """

    def __init__(
        self,
        config: Config,
        data: Path,
        models: Sequence[StoredModel],
        *,
        before: FleetSnapshot,
        remembered: Mapping[ReplicaId, Remembered],
        publish: Callable[[FleetSnapshot], None],
        found: Callable[[ReplicaId], None],
        tell: Callable[[str], None],
        changed: Callable[[], None],
        metrics: Metrics,
        log: Log,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._tell = tell
        self._changed = changed
        self._metrics = metrics
        self._log = log
        self._lifeline = Lifeline()
        self._seen: dict[tuple[str, str], tuple[ReplicaState, int, bool]] = {}  # by replica and model
        self._engines = frozenset(model.name for model in models)
        self._reconciler = Reconciler(
            [_engine_spec(config, model) for model in models],
            _upstreams(config),
            launcher=Launcher(
                run=data / "run" / "replicas",
                logs=data / "logs",
                lifeline_fd=self._lifeline.reading_fd,
                clock=clock,
            ),
            clock=clock,
            chance=chance,
            publish=publish,
            observe=self._observed,
            found=found,
            before=before,
            remembered=remembered,
        )
        for status in self._reconciler.status():
            if status.replica in remembered:  # told by who learned it
                self._count(status)
                self._is_news(status)

    async def run(self) -> None:
        """Until cancelled; then every engine is stopped within its grace."""
        try:
            await self._reconciler.run()
        finally:
            self._lifeline.close()

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Every replica at this moment."""
        return self._reconciler.status()

    def remember(self) -> dict[ReplicaId, Remembered]:
        """What is known of the upstreams, for the next one in this one's place."""
        return self._reconciler.remember()

    def _observed(self, status: ReplicaStatus) -> None:
        """A replica changed or was scraped: gauges, and for news a log line and a word to the terminal."""
        self._count(status)
        if self._is_news(status):
            self._log_change(status)
            if line := announcement(status, is_ours=status.deployment in self._engines):
                self._tell(line)
        self._changed()

    def _count(self, status: ReplicaStatus) -> None:
        metrics, labels = self._metrics, (status.deployment, status.replica)
        metrics.replica_ready.labels(*labels).set(status.state is ReplicaState.READY)
        metrics.replica_restarts.labels(*labels).set(status.restarts)
        for family, gauge in (
            (metrics.engine_requests_processing, "requests_processing"),
            (metrics.engine_requests_deferred, "requests_deferred"),
            (metrics.engine_prompt_tokens, "prompt_tokens_total"),
            (metrics.engine_generated_tokens, "tokens_predicted_total"),
            (metrics.engine_cached_tokens, "prompt_tokens_cached_total"),
        ):
            if gauge in status.gauges:
                family.labels(*labels).set(status.gauges[gauge])

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
                stages = (
                    {}
                    if cold is None
                    else {"launch_s": cold.launch_s, "load_s": cold.load_s, "warm_s": cold.warm_s}
                )
                self._log.event("replica.ready", **facts, pid=status.pid, **stages)
                for stage, seconds in stages.items():
                    self._metrics.replica_cold_start_seconds.labels(
                        status.deployment, status.replica, stage.removesuffix("_s")
                    ).set(seconds)
            case ReplicaState.FAILED:
                self._log.event("replica.failed", **facts, reason=status.reason, restarts=status.restarts)
            case ReplicaState.PENDING if status.reason:
                self._log.event("replica.lost", **facts, reason=status.reason, restarts=status.restarts)
            case _:
                pass


def check(config: Config, models: Sequence[StoredModel]) -> None:
    """Raises ConfigError for what no control plane could keep true, before anything is started."""
    refuse_twins("engine", [model.name for model in models])
    for upstream in _upstreams(config):
        upstream.address()


def _upstreams(config: Config) -> list[UpstreamServer]:
    """Raises ConfigError for a secret that isn't there."""
    return [
        UpstreamServer(
            upstream.url,
            upstream.slots,
            f"Bearer {resolve_secret(upstream.api_key, key=f'upstreams[{index}].api_key')}"
            if upstream.api_key
            else "",
            upstream.ca_file,
            None if upstream.cache_isolation == "auto" else CacheIsolation(upstream.cache_isolation),
            upstream.shared_cache_reason,
            upstream.location or config.server.location,
        )
        for index, upstream in enumerate(config.upstreams)
    ]


def _engine_spec(config: Config, model: StoredModel) -> EngineSpec:
    engine = config.engine
    return EngineSpec(
        deployment=model.name,
        model_path=model.path,
        model_sha256=model.sha256,
        task=model.task,
        slots=engine.slots,
        context_tokens=engine.context_tokens,
        threads=engine.threads,
        location=engine.location or config.server.location,
    )
