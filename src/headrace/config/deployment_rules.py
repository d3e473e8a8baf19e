"""Do the values of a deployment file go together? Each rule names its keys, and what would be accepted."""

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from headrace.core import money
from headrace.core.deployment_terms import BudgetTerms, Gate, LifecycleTerms, RolloutTerms, ScaleTerms
from headrace.core.deployments import DeploymentSpec, EngineKind, ModelTerms, RevisionTerms

WITHOUT_WEIGHTS = (EngineKind.SCRIPTED, EngineKind.REMOTE)
METRICS = (
    "failure_rate",
    "ttft_p95",
    "itl_p95",
    "total_p95",
    "cost_per_request",
    "cost_per_qualified_result",
    "agreement",
)
AMOUNTS = ("replica_hour", "per_day")
QUALITY = "quality:"
GAIN_SANE = 2.0

_TAIL = re.compile(r"(ttft|itl|total)_p[1-9][0-9]?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REGISTRY = re.compile(r"mlflow:models:/.+")


def problems(spec: DeploymentSpec) -> list[str]:
    """Everything that can't be meant, in the order of the file; empty for a file that may be planned."""
    return [
        *_not_finite(spec),
        *_revision(spec.revision, spec.deployment.engine),
        *_scale(spec.scale),
        *_budget(spec.budget, spec.scale),
        *_lifecycle(spec.lifecycle),
        *_rollout(spec.rollout),
    ]


def warnings(spec: DeploymentSpec) -> list[str]:
    """What is possible, and seldom what somebody wants."""
    found = []
    scale, budget = spec.scale, spec.budget
    if scale.max > scale.min and scale.up.max_factor > GAIN_SANE:
        found.append(
            f"`scale.up.max_factor` {scale.up.max_factor:g} is above {GAIN_SANE:g}: a gain like that makes a fleet swing"
        )
    most = scale.max * 24 * budget.replica_hour_pico
    if budget.per_day_pico and most > budget.per_day_pico:
        found.append(
            f"`scale.max` replicas for a day cost {money.format_amount(most)} {budget.currency}, more than"
            f" `budget.per_day`; then `budget.on_exceed` = {budget.on_exceed!r} holds"
        )
    if spec.rollout.strategy == "recreate":
        found.append('`rollout.strategy` = "recreate" serves nobody between the old version and the new one')
    return found


def _not_finite(spec: DeploymentSpec) -> Iterator[str]:
    """TOML has nan and inf, which pass comparisons that are written the other way round."""
    for key, value in _leaves(msgspec.to_builtins(spec), ""):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"`{key}` must be a number, got {value}"


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{key}[{index}]")
    else:
        yield key, value


def _revision(terms: RevisionTerms, engine: EngineKind) -> Iterator[str]:
    if engine in WITHOUT_WEIGHTS:
        for name in ("weights", "tokenizer", "template"):
            # The scripted engine reads no weights, but they are fetched and checked before it starts, as for any other.
            may_have = name == "weights" and engine is EngineKind.SCRIPTED
            if getattr(terms, name) is not None and not may_have:
                yield f"`revision.{name}`: the engine {engine.value!r} takes none"
        if terms.source:
            yield f"`revision.source`: the engine {engine.value!r} takes none"
    elif (terms.weights is None) == (not terms.source):
        yield (
            "`revision.weights` is required: a source or a name of the model store, as `{ uri = ... }`; or"
            " `revision.source`, and not both"
        )
    if terms.source and not _REGISTRY.fullmatch(terms.source):
        yield f"`revision.source` must be an alias such as mlflow:models:/chat@champion, got {terms.source!r}"
    if (engine is EngineKind.REMOTE) != bool(terms.urls):
        yield '`revision.urls` and `deployment.engine` = "remote" go together: the servers\' addresses'
    for url in terms.urls:
        if "@" in url.partition("//")[2].partition("/")[0]:
            yield "`revision.urls` must not hold credentials; give the key by reference, as `revision.api_key`"
        elif not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
            yield f"`revision.urls` holds {url!r}; an address is such as http://127.0.0.1:8001"
    if terms.api_key and not re.fullmatch(r"(env|file):.+", terms.api_key):
        yield "`revision.api_key` must be a reference, env:NAME or file:PATH, never the key itself"
    for name in ("weights", "tokenizer"):
        if (model := getattr(terms, name)) is not None:
            yield from _pinned(f"revision.{name}", model)


def _pinned(key: str, model: ModelTerms) -> Iterator[str]:
    """Nothing that runs may depend on what a name means today."""
    if not model.uri:
        yield f"`{key}.uri` is required"
    if not model.uri.startswith("hf://"):
        if model.rev:
            yield f"`{key}.rev` is for repositories, hf://ORG/REPO/FILE; pin others with `{key}.sha256`"
        return
    repository, _, named = model.uri.removeprefix("hf://").partition("@")
    commit = named.partition("/")[0]
    if commit and not _COMMIT.fullmatch(commit):
        yield f"`{key}.uri`: {commit!r} is a branch or a tag, which move; name the commit, 40 hexadecimal digits"
    elif commit and model.rev and commit != model.rev:
        yield f"`{key}.rev` is {model.rev}, and `{key}.uri` says {commit}"
    elif not commit and not model.rev:
        yield f"`{key}.rev` is required for {repository}: the commit, 40 hexadecimal digits, not a branch"


def _scale(scale: ScaleTerms) -> Iterator[str]:
    if scale.min > scale.max:
        yield f"`scale.min` must be at most `scale.max`, got {scale.min} and {scale.max}"
    if scale.warm > scale.max:
        yield f"`scale.warm` must be at most `scale.max`, got {scale.warm} and {scale.max}"
    if (scale.min == 0) != (scale.idle_to_zero_s > 0):
        yield "`scale.min` = 0 and `scale.idle_to_zero_s` go together: after how long without a request the last one ends"
    if scale.down.delay_s < scale.window_s:
        yield (
            f"`scale.down.delay_s` must be at least `scale.window_s`, got {scale.down.delay_s:g} and {scale.window_s:g}:"
            " a shorter one removes replicas for load that the window still averages out"
        )
    if scale.panic.window_s >= scale.window_s:
        yield (
            f"`scale.panic.window_s` must be below `scale.window_s`, got {scale.panic.window_s:g}"
            f" and {scale.window_s:g}"
        )


def _budget(budget: BudgetTerms, scale: ScaleTerms) -> Iterator[str]:
    if not money.is_currency(budget.currency):
        yield f"`budget.currency` must be three capital letters such as EUR, got {budget.currency!r}"
    amounts = {}
    for name in AMOUNTS:
        try:
            amounts[name] = money.parse_amount(getattr(budget, name))
        except money.NotAnAmount as error:
            yield f"`budget.{name}`: {error}"
            continue
        if amounts[name] < 0:
            yield f"`budget.{name}` must be at least 0, got {getattr(budget, name)}"
    if len(amounts) < len(AMOUNTS) or not amounts["per_day"]:
        return
    if not amounts["replica_hour"]:
        yield "`budget.per_day` needs `budget.replica_hour`: nothing else says what is spent"
    if (least := scale.min * 24 * amounts["replica_hour"]) > amounts["per_day"]:
        yield (
            f"`budget.per_day` is {budget.per_day} {budget.currency}, and `scale.min` = {scale.min} replicas for a day"
            f" cost {money.format_amount(least)}"
        )


def _lifecycle(terms: LifecycleTerms) -> Iterator[str]:
    for stage in ("fetch", "start"):
        stall, whole = getattr(terms, f"{stage}_stall_s"), getattr(terms, f"{stage}_timeout_s")
        if stall > whole:
            yield (
                f"`lifecycle.{stage}_stall_s` must be at most `lifecycle.{stage}_timeout_s`, got {stall:g} and {whole:g}"
            )


def _rollout(terms: RolloutTerms) -> Iterator[str]:
    weights = [step.weight for step in terms.steps]
    if any(weight >= after for weight, after in pairwise(weights)):
        yield f"`rollout.steps` must grow in `weight`, got {', '.join(f'{weight:g}' for weight in weights)}"
    if terms.strategy == "canary" and not terms.steps:
        yield '`rollout.steps` needs at least one step for `rollout.strategy` = "canary"'
    if terms.strategy == "shadow" and not terms.mirror.percent:
        yield '`rollout.mirror.percent` is required for `rollout.strategy` = "shadow"'
    least_s = sum(max(step.min_s, terms.interval_s) for step in terms.steps)
    if terms.strategy == "canary" and least_s > terms.max_duration_s:
        yield (
            f"`rollout.max_duration_s` must be at least {least_s:g}, which the steps take, got {terms.max_duration_s:g}"
        )
    for index, gate in enumerate(terms.gate):
        yield from _gate(f"rollout.gate[{index}]", gate)


def _gate(key: str, gate: Gate) -> Iterator[str]:
    is_quality = gate.metric.startswith(QUALITY) and len(gate.metric) > len(QUALITY)
    if gate.metric not in METRICS and not is_quality and not _TAIL.fullmatch(gate.metric):
        yield f"`{key}.metric` must be one of {', '.join(METRICS)} or {QUALITY}SET, got {gate.metric!r}"
    relative = [name for name in ("max_ratio", "max_delta", "min_delta") if getattr(gate, name) is not None]
    absolute = [name for name in ("max", "min") if getattr(gate, name) is not None]
    if not relative and not absolute:
        yield f"`{key}` needs a bound: max_ratio, max_delta or min_delta against the accepted version, or max or min"
    if gate.compare == "absolute" and relative:
        yield f'`{key}.{relative[0]}` needs `{key}.compare` = "control"'
