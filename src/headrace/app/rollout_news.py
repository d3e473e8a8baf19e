"""What of a rollout is told, and to whom? A log line for each step that a person may ask for, counts, and a word to the terminal."""

from collections.abc import Callable

from headrace.core.fleet import target_key
from headrace.policies.rollout_state import WHOLE_PPM, Ended, Result, Rollout, RolloutState
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


class RolloutNews:
    """Args:
    tell: Gets lines for the person who started the service.
    """

    def __init__(self, *, tell: Callable[[str], None], metrics: Metrics, log: Log) -> None:
        self._tell = tell
        self._metrics = metrics
        self._log = log

    def observed(self, name: str, reason: str, before: RolloutState, after: RolloutState) -> None:
        """Something is recorded of that deployment's rollouts."""
        current, ended = after.rollout, after.ended
        share = 0.0 if current is None else current.weight_ppm / WHOLE_PPM
        self._metrics.rollout_share.labels(name).set(share)
        if ended is not None and ended != before.ended:
            self._ended(name, ended)
        if current is not None and current.checked:
            self._checked(name, before.rollout, current)
        if current is not None and (ended is None or ended == before.ended):
            self._log.event(
                "rollout.moved",
                model=name,
                version=current.candidate,
                reason=reason,
                stage=current.stage.value,
                step=current.step + 1,
                share=share,
                waits_for=current.waits_for.value,
            )
        if after.rehearsed is not None and after.rehearsed != before.rehearsed:
            shown = after.rehearsed
            self._metrics.rollout_rehearsed_s.labels(name).set(shown.at_s)
            self._log.event(
                "rollout.rehearsed",
                model=name,
                version=shown.version,
                verdict=shown.verdict.value,
                ready_s=shown.ready_s,
                reason=shown.detail,
            )

    def _checked(self, name: str, before: Rollout | None, current: Rollout) -> None:
        if before is None or before.checked != current.checked or before.check_s > current.check_s:
            for each in current.checked:
                self._metrics.rollout_checks.labels(name, each.metric, each.judgement.verdict.value).add()

    def _ended(self, name: str, ended: Ended) -> None:
        self._metrics.rollouts.labels(name, ended.result.value).add()
        is_bad = ended.result is Result.ROLLED_BACK
        self._log.event(
            "rollout.rolled_back" if is_bad else "rollout.ended",
            model=name,
            version=ended.candidate,
            result=ended.result.value,
            reason=ended.reason.value,
            stage=ended.stage.value,
            detail=ended.detail,
            elapsed_s=ended.age_s,
        )
        why = ended.detail or ended.reason.value.replace("_", " ")
        key, result = target_key(name, ended.candidate), ended.result.value.replace("_", " ")
        self._tell(f"rollout      {key} {result}" + (f": {why}" if is_bad else ""))
