"""The control plane, put together: engines and upstreams kept true, and each change of them told and counted."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.config import Config, resolve_secret
from headrace.control.launchers import ProcessLauncher
from headrace.control.reconciler import Reconciler
from headrace.control.replica import EngineSpec
from headrace.control.status import ReplicaStatus, announcement
from headrace.control.upstreams import Upstream as UpstreamServer
from headrace.core.clock import Clock
from headrace.core.fleet import Deployment, FleetSnapshot, ReplicaState
from headrace.core.ids import ReplicaId
from headrace.core.isolation import CacheIsolation
from headrace.stores.registry import StoredModel
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


class ControlPlane:
    """Publishes what is offered, to one data plane or to many.

    Args:
        publish: Gets every new snapshot.
        found: Gets the id of a server that answers a probe after it had not answered one.
        tell: Gets lines for the person who started the service.
        first_ready: Called once, when the first replica is ready.
    """

    def __init__(
        self,
        config: Config,
        data: Path,
        models: Sequence[StoredModel],
        *,
        publish: Callable[[FleetSnapshot], None],
        found: Callable[[ReplicaId], None],
        tell: Callable[[str], None],
        first_ready: Callable[[], None],
        metrics: Metrics,
        log: Log,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._publish = publish
        self._tell = tell
        self._first_ready = first_ready
        self._metrics = metrics
        self._log = log
        self._was_ready = False
        self._seen: dict[tuple[str, str], tuple[ReplicaState, int, bool]] = {}  # by replica and model
        self._engines = frozenset(model.name for model in models)
        self.deployments: dict[str, Deployment] = {}
        self._reconciler = Reconciler(
            [_engine_spec(config, model) for model in models],
            [
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
            ],
            launcher=ProcessLauncher(logs=data / "logs"),
            clock=clock,
            chance=chance,
            publish=self._published,
            observe=self._observed,
            found=found,
        )

    async def run(self) -> None:
        """Until cancelled; then every engine is stopped within its grace."""
        await self._reconciler.run()

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Every replica at this moment."""
        return self._reconciler.status()

    def _published(self, snapshot: FleetSnapshot) -> None:
        self.deployments = snapshot.deployments
        self._publish(snapshot)

    def _observed(self, status: ReplicaStatus) -> None:
        """A replica changed or was scraped: gauges, and for changes a log line and a word to the terminal."""
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
        key = (status.replica, status.deployment)
        # An engine that ended is first withdrawn, and only then is it known why; other reasons come and go untold.
        is_explained = status.state is ReplicaState.PENDING and status.reason != ""
        if self._seen.get(key) == (status.state, status.generation, is_explained):
            return
        self._seen[key] = (status.state, status.generation, is_explained)
        self._replica_changed(status)
        if line := announcement(status, is_ours=status.deployment in self._engines):
            self._tell(line)

    def _replica_changed(self, status: ReplicaStatus) -> None:
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
                if not self._was_ready:
                    self._was_ready = True
                    self._first_ready()
            case ReplicaState.FAILED:
                self._log.event("replica.failed", **facts, reason=status.reason, restarts=status.restarts)
            case ReplicaState.PENDING if status.reason:
                self._log.event("replica.lost", **facts, reason=status.reason, restarts=status.restarts)
            case _:
                pass


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
