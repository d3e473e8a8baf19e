"""What would applying a deployment change, what would it take and cost, and what speaks against it?

Everything was resolved before (app/planning.py): here are only values. A refusal says what to change, by its key.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from headrace.core import money
from headrace.core.deployments import AppliedVersion, DeploymentSpec, Revision
from headrace.policies import licenses
from headrace.policies.memory_plan import MIB, Architecture, Fit, MemoryPlan

HOURS_PER_DAY = 24
TP_LEAST = 2
_NOTHING: tuple[object, ...] = (None, "", [], ())
CREATE, CHANGE, UNCHANGED = "create", "change", "unchanged"


class Change(msgspec.Struct, frozen=True):
    """One key that would have another value; None where it has none."""

    key: str
    old: Any
    new: Any


class Machine(msgspec.Struct, frozen=True):
    """What replicas can be put on.

    Attributes:
        memory_bytes: That the machine or its container has, less what the service itself needs.
        gpus: Devices there are.
    """

    memory_bytes: int
    gpus: int = 0


class Capacity(msgspec.Struct, frozen=True):
    """How much work it can take, by Little's law: requests per second = slots / time that each holds its slot.

    Attributes:
        slots: Requests that one replica runs at once.
        service_s: Time that a request holds a slot; None before anything was measured.
        basis: Where `service_s` is from, in words.
        min_per_s, max_per_s: Requests per second of the least and of the most replicas.
    """

    slots: int
    service_s: float | None = None
    basis: str = "not measured yet"
    min_per_s: float | None = None
    max_per_s: float | None = None


class Cost(msgspec.Struct, frozen=True):
    """What replicas cost, as exact decimals of the budget's currency; "0.00" where nobody counts it.

    Attributes:
        per_day: The bound of the budget, "" for none.
    """

    currency: str
    min_per_day: str
    max_per_day: str
    per_day: str
    on_exceed: str


class Start(msgspec.Struct, frozen=True):
    """What cold starts took.

    Attributes:
        p95_s: Of the whole; stages: of each stage.
        is_like: Of another revision or machine, since this one has never started here.
    """

    p95_s: float
    stages: dict[str, float]
    starts: int
    is_like: bool = False


class Plan(msgspec.Struct, frozen=True):
    """What applying one file would do.

    Attributes:
        action: CREATE, CHANGE or UNCHANGED.
        version: That it would have, or has.
        replaces: The version that is wanted now; 0 for none.
        digest: Of the revision; "" where it could not be resolved.
        start: None before anything like it has started.
        refusals: Why it can't be applied, each with what to change; none where it can.
    """

    file: str
    name: str
    action: str
    version: int
    replaces: int
    digest: str
    changes: tuple[Change, ...]
    revision: Revision | None
    memory: MemoryPlan | None
    fit: Fit | None
    capacity: Capacity
    cost: Cost
    start: Start | None
    warnings: tuple[str, ...]
    refusals: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        return bool(self.refusals)


def differences(
    old: AppliedVersion | None, spec: DeploymentSpec, revision: Revision | None
) -> tuple[Change, ...]:
    """Every key of the file, and every resolved fact, that would be another; of a new one, what isn't a default."""
    after = {**_flat(spec, ""), **(_resolved(revision) if revision is not None else {})}
    if old is None:
        defaults = _flat(DeploymentSpec(spec.deployment), "")
        told = {key: value for key, value in after.items() if value not in _NOTHING}
        return tuple(
            Change(key, None, value)
            for key, value in told.items()
            if key.startswith("deployment.") or key not in defaults or defaults[key] != value
        )
    before = {**_flat(old.spec, ""), **(_resolved(old.revision) if revision is not None else {})}
    return tuple(
        Change(key, before.get(key), after.get(key))
        for key in dict.fromkeys((*after, *before))
        if before.get(key) != after.get(key)
    )


def _flat(value: Any, key: str) -> dict[str, Any]:
    """Every key of a struct with its value."""
    built = msgspec.to_builtins(value)
    return dict(_leaves(built, key))


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{key}[{index}]")
    else:
        yield key, list(value) if isinstance(value, tuple) else value


def _resolved(revision: Revision) -> dict[str, Any]:
    """The facts behind the file's words."""
    facts = {f"resolved.{name}": artifact.identity for name, artifact in revision.artifacts().items()}
    facts |= {f"resolved.args.{name}": value for name, value in _flat(revision.args, "").items()}
    for name in ("runtime", "image", "source"):
        if value := getattr(revision, name):
            facts[f"resolved.{name}"] = value
    facts["resolved.digest"] = revision.digest
    return facts


def capacity(spec: DeploymentSpec, *, slots: int, service_s: float | None, basis: str = "") -> Capacity:
    """The load that it can take, where it is known how long a request holds its slot."""
    if not service_s:
        return Capacity(slots)
    per_replica = slots / service_s
    return Capacity(slots, service_s, basis, spec.scale.min * per_replica, spec.scale.max * per_replica)


def cost(spec: DeploymentSpec) -> Cost:
    """What the least and the most replicas cost in a day."""
    budget, scale = spec.budget, spec.scale
    a_day = HOURS_PER_DAY * budget.replica_hour_pico
    return Cost(
        budget.currency,
        money.format_amount(scale.min * a_day),
        money.format_amount(scale.max * a_day),
        money.format_amount(budget.per_day_pico) if budget.per_day_pico else "",
        budget.on_exceed,
    )


def refuse_place(spec: DeploymentSpec, machine: Machine) -> Iterator[str]:
    """What this version of headrace, or this machine, has no place for."""
    shape, args = spec.shape, spec.revision.args
    if shape.kind not in ("single", "tp"):
        yield f'`shape.kind` = {shape.kind!r} is not offered yet; use "single" or "tp"'
    if shape.backend != "local":
        yield f'`shape.backend` = {shape.backend!r} is not offered yet; use "local"'
    needed = max(1, spec.scale.min) * shape.gpus
    if needed > machine.gpus:
        yield (
            f"`shape.gpus` = {shape.gpus} for {max(1, spec.scale.min)} replicas needs {needed} GPUs, and this machine"
            f" has {machine.gpus}; lower `shape.gpus` or `scale.min`"
        )
    devices = (args.tensor_parallel or 1) * (args.pipeline_parallel or 1) * (args.data_parallel or 1)
    if devices > max(1, shape.gpus):
        yield (
            f"`revision.args` split one replica over {devices} devices, and `shape.gpus` is {shape.gpus}; make it"
            f" {devices}"
        )
    if shape.kind == "tp" and shape.gpus < TP_LEAST:
        yield '`shape.kind` = "tp" needs `shape.gpus` of at least 2; for one device it is "single"'


def refuse_deadline(spec: DeploymentSpec, *, deadline_max_s: float) -> Iterator[str]:
    """A replica that is removed must be able to end what it has begun."""
    drain_s = spec.lifecycle.drain_s
    if drain_s < deadline_max_s and not spec.lifecycle.may_cut_requests:
        yield (
            f"`lifecycle.drain_s` is {drain_s:g}, and a request may take {deadline_max_s:g} s (`request.deadline_max_s`):"
            " make it at least that, or say `lifecycle.may_cut_requests = true`"
        )


def refuse_context(architecture: Architecture | None, context_tokens: int) -> Iterator[str]:
    """Beyond what it was trained for a model answers nonsense, with status 200."""
    trained = architecture.context_tokens_max if architecture is not None else 0
    if trained and context_tokens > trained:
        yield (
            f"`revision.args.context_tokens` is {context_tokens}, and the model was trained for {trained}; lower it"
        )


def refuse_memory(spec: DeploymentSpec, memory: MemoryPlan, fit: Fit, *, is_replacing: bool) -> Iterator[str]:
    """What doesn't fit at its least."""
    if spec.shape.memory_mib and memory.replica_bytes > spec.shape.memory_mib * MIB:
        yield (
            f"one replica needs {mib(memory.replica_bytes)}, and `shape.memory_mib` allows {spec.shape.memory_mib};"
            " raise it, or lower `revision.args.slots` or `revision.args.context_tokens`"
        )
    if not fit.fits:
        yield (
            f"it does not fit: {mib(fit.least_bytes)} with every deployment at its least, of {mib(fit.usable_bytes)}"
            " that are left for replicas; lower `revision.args.slots`, `revision.args.context_tokens` or `scale.min`,"
            " or remove another deployment"
        )
    elif is_replacing and not fit.fits_change and spec.rollout.strategy != "recreate":
        yield (
            f"the old and the new version do not fit together: {mib(fit.change_bytes)} of {mib(fit.usable_bytes)}; lower"
            ' `scale.min`, or say `rollout.strategy` = "recreate", which serves nobody in between'
        )


def warn(
    spec: DeploymentSpec, fit: Fit | None, memory: MemoryPlan | None, *, cold_start_s: float | None
) -> Iterator[str]:
    """What may be applied, and what its operator should know before."""
    if memory is not None and memory.kv_bytes is None:
        yield "the size of the KV cache is not known before the weights are here: the memory plan is a lower bound"
    if fit is not None and fit.fits_change and not fit.fits_most:
        yield (
            f"at most replicas it would not fit: {mib(fit.most_bytes)} of {mib(fit.usable_bytes)}; replicas that find no"
            " room stay pending"
        )
    ttft_ms = spec.slo.ttft_p95_ms
    if spec.scale.min == 0 and ttft_ms is not None:
        start = (
            "a cold start, not measured yet,"
            if cold_start_s is None
            else f"{cold_start_s:.1f} s of cold start"
        )
        if cold_start_s is None or cold_start_s * 1000 > ttft_ms:
            yield (
                f"`scale.min` = 0: the first request after a rest waits for {start} and misses"
                f" `slo.ttft_p95_ms` = {ttft_ms:g}"
            )


def refuse_license(stated: str, found: str, allow: Sequence[str], *, accepted: str = "") -> Iterator[str]:
    """Why the weights may not be offered.

    Args:
        stated: By the file.
        found: By the source; "" where it says nothing.
        allow: Licenses that the file allows; none for those that need nobody's acceptance.
        accepted: Terms that the operator accepted by name when the model was pulled.
    """
    mine, theirs = licenses.canonical(stated), licenses.canonical(found)
    if mine and theirs and mine.casefold() != theirs.casefold():
        yield f"`revision.license.id` is {mine}, and the source says {theirs}; correct it"
        return
    license = theirs or mine
    if not license:
        yield "nothing says what the license of the weights is; find out, and state it as `revision.license.id`"
    elif allow:
        if not licenses.is_allowed(license, allow):
            yield f"its license is {license}, and `revision.license.allow` has {', '.join(allow)}"
    elif (
        not licenses.is_permissive(license) and licenses.canonical(accepted).casefold() != license.casefold()
    ):
        yield (
            f"its license, {license}, must be accepted by name: read its terms, and then list it in"
            " `revision.license.allow`"
        )


def mib(size_bytes: int) -> str:
    """A size as people read it."""
    return f"{size_bytes / MIB:,.0f} MiB"


def facts(plan: Plan) -> Mapping[str, Any]:
    """The plan as JSON has it."""
    built: dict[str, Any] = msgspec.to_builtins(plan)
    if plan.memory is not None:
        built["memory"]["replica_bytes"] = plan.memory.replica_bytes
    return built
