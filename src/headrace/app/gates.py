"""Can the quality gates of a rollout ever be met? Their sets of cases must be here, and large enough for what they should show."""

from collections.abc import Iterator
from pathlib import Path

from headrace.config.deployment_rules import QUALITY
from headrace.core.deployment_terms import Gate
from headrace.core.deployments import DeploymentSpec
from headrace.core.errors import ConfigError
from headrace.evidence import cases
from headrace.policies import looks, quality_gate
from headrace.policies.quality import SetKind


def refusals(spec: DeploymentSpec, data: Path) -> Iterator[str]:
    """Why a gate can't be judged at all."""
    for index, gate in _of_quality(spec):
        try:
            _cases(gate, data)
        except ConfigError as error:
            yield f"`rollout.gate[{index}].metric`: {error.message}"


def warnings(spec: DeploymentSpec, data: Path) -> Iterator[str]:
    """Gates that would stay inconclusive even if every answer were as good as before."""
    for index, gate in _of_quality(spec):
        if gate.min_delta is None:
            continue
        try:
            count = _cases(gate, data)
        except ConfigError:
            continue  # refused
        # What the first look at the set may be wrong with: later ones have less.
        margin, alpha = -gate.min_delta, looks.alpha_at(1, alpha=1.0 - gate.confidence)
        if not quality_gate.is_provable(count, margin=margin, alpha=alpha):
            least = quality_gate.margin_provable(count, alpha=alpha)
            yield (
                f"`rollout.gate[{index}].min_delta` = {gate.min_delta:g} can't be shown with the {count} cases of"
                f" {gate.metric.removeprefix(QUALITY)}, so the gate stays inconclusive; they can show {-least:.3f} at best"
            )


def _of_quality(spec: DeploymentSpec) -> Iterator[tuple[int, Gate]]:
    return ((index, gate) for index, gate in enumerate(spec.rollout.gates) if gate.metric.startswith(QUALITY))


def _cases(gate: Gate, data: Path) -> int:
    """How many the acceptance set has. Raises ConfigError where there is none, or it is damaged."""
    kind = SetKind.ACCEPTANCE
    found = cases.find(gate.metric.removeprefix(QUALITY), kind, data=data)
    return len(cases.load(found, expected=kind).cases)
