"""What does a file in `capacity/` say? The whole of it as a CapacityPlan, or an error in the file's own words."""

from collections.abc import Iterator
from pathlib import Path

from headrace.config import files, text
from headrace.core import money
from headrace.core.capacity_plan import (
    ArchitectureTerms,
    CapacityPlan,
    CostTerms,
    MemoryTerms,
    PromiseTerms,
    ReplicaTerms,
)
from headrace.policies.memory_plan import NUMBER_BYTES

FILE_BYTES_MAX = 64 * 1024
_FORMS = {"name": "1 to 63 of a-z, 0-9 and `._-`, a letter or digit first"}
_AMOUNTS = (
    "replica_hour", "storage_month", "monitoring_month", "operations_month", "network_gb", "price_input_mtok",
    "price_output_mtok",
)  # fmt: skip


def load(path: Path) -> CapacityPlan:
    """Raises ConfigError naming file, key and what it takes."""
    return parse(files.read(path, bytes_max=FILE_BYTES_MAX), file=str(path))


def parse(content: str, *, file: str) -> CapacityPlan:
    """What the TOML says. Raises ConfigError; where several values can't be meant, it names all."""
    raw = text.table(content, file=file)
    plan = text.convert(raw, CapacityPlan, file=file, forms=_FORMS)
    text.refuse(_problems(plan), file=file)
    return plan


def _problems(plan: CapacityPlan) -> Iterator[str]:
    if plan.promise.slo and plan.promise != PromiseTerms(plan.promise.slo):
        yield "`promise.slo` takes the place of every other key of `[promise]`: give the one or the others"
    yield from _replica("replica", plan.replica, plan, is_first=True)
    for number, choice in enumerate(plan.choices):
        yield from _replica(f"choices[{number}].replica", choice.replica, plan, is_first=False)
        yield from _amount(f"choices[{number}].hour", choice.hour)
    if plan.costs is not None:
        yield from _costs(plan.costs)


def _replica(where: str, replica: ReplicaTerms, plan: CapacityPlan, *, is_first: bool) -> Iterator[str]:
    """Either its pace and the lengths of requests, or what a request takes; and how many it runs, or what its memory is."""
    has_pace = replica.prefill_tokens_per_s > 0 and replica.step_s > 0
    if has_pace and not plan.load.output_tokens:
        yield f"`{where}` has a pace, and `load.output_tokens` is missing: give the mean lengths of requests"
    if not has_pace and not replica.time_s:
        yield f"`{where}`: give `time_s`, or `prefill_tokens_per_s` and `step_s`"
    if replica.memory is not None:
        yield from _memory(f"{where}.memory", replica.memory, plan, is_first=is_first)
    elif not replica.at_once:
        yield f"`{where}`: give `at_once`, or `[{where}.memory]`, from which it follows"


def _memory(where: str, memory: MemoryTerms, plan: CapacityPlan, *, is_first: bool) -> Iterator[str]:
    """Of which model, how large its weights are, and how long requests are."""
    first = plan.replica.memory
    is_as_first = not is_first and first is not None and not memory.model and memory.architecture is None
    if memory.model and memory.architecture is not None:
        yield f"`{where}`: `model` has an architecture of its own: give the one or the other"
    elif not memory.model and memory.architecture is None and not is_as_first:
        yield f"`{where}`: give `model`, or `[{where}.architecture]` and `parameters`"
    elif memory.architecture is not None and not (memory.parameters and memory.weights_bits):
        yield f"`{where}`: give `parameters` and `weights_bits`: an architecture doesn't say how large the weights are"
    if not plan.load.output_tokens and not memory.context_tokens:
        yield f"`{where}`: give `load.input_tokens` and `load.output_tokens`, or `context_tokens`: requests have lengths"
    if memory.kv_cache_type not in NUMBER_BYTES:
        yield f"`{where}.kv_cache_type` must be one of {', '.join(NUMBER_BYTES)}, got {memory.kv_cache_type!r}"
    if memory.architecture is not None:
        yield from _architecture(f"{where}.architecture", memory.architecture)


def _architecture(where: str, architecture: ArchitectureTerms) -> Iterator[str]:
    if architecture.windowed_layers > architecture.layers:
        yield f"`{where}.windowed_layers` must be at most `layers`, {architecture.layers}"
    if bool(architecture.windowed_layers) != bool(architecture.window_tokens):
        yield f"`{where}`: `window_tokens` and `windowed_layers` go together"
    if architecture.position_size and not architecture.latent_size:
        yield f"`{where}.position_size` is of latent attention: give `latent_size` too"


def _costs(costs: CostTerms) -> Iterator[str]:
    for name in _AMOUNTS:
        yield from _amount(f"costs.{name}", getattr(costs, name))
    if not money.is_currency(costs.currency):
        yield f"`costs.currency` must be three capital letters, got {costs.currency!r}"


def _amount(where: str, written: str) -> Iterator[str]:
    try:
        if written and money.parse_amount(written) < 0:
            yield f"`{where}` must not be below 0"
    except money.NotAnAmount as error:
        yield f"`{where}`: {error}"
