"""What of an autoscaler's decisions is told? Gauges at every look, and a log line for what changes something."""

from headrace.control.steering import TargetSeen
from headrace.policies.autoscale import ScaleDecision
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


class ScaleNews:
    """Gauges and log lines; the gauges of a version end with `forget`."""

    def __init__(self, *, metrics: Metrics, log: Log) -> None:
        self._metrics = metrics
        self._log = log

    def decided(self, target: TargetSeen, decision: ScaleDecision, is_news: bool) -> None:
        """One look at one version.

        Args:
            is_news: It is recorded.
        """
        applied, metrics = target.applied, self._metrics
        metrics.scale_replicas_wanted.labels(applied.key).set(decision.replicas)
        metrics.scale_replicas_advised.labels(applied.key).set(decision.advised)
        if not is_news:
            return
        metrics.scale_decisions.labels(applied.name, decision.reason.value).add()
        self._log.event(
            "scale.decided",
            model=applied.name,
            version=applied.version,
            replicas=decision.replicas,
            advised=decision.advised,
            ready=sum(each.ready_s is not None and not each.is_draining for each in target.replicas),
            asked=decision.asked,
            reason=decision.reason.value,
            guards=" ".join(note.guard.value for note in decision.guards),
        )

    def forget(self, key: str) -> None:
        """That version is gone."""
        self._metrics.scale_replicas_wanted.remove(key)
        self._metrics.scale_replicas_advised.remove(key)
