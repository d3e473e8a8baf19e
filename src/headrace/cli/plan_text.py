"""In which words does a plan speak to people? What changes, what it takes and costs, and what speaks against it."""

from collections.abc import Iterator
from typing import Any

from headrace.policies import planning
from headrace.policies.memory_plan import MIB
from headrace.policies.planning import Plan, Start

_SHOWN = 100
_DIGEST_SHOWN = 19  # `sha256:` and 12 digits


def lines(plan: Plan) -> Iterator[str]:
    """The plan for one file."""
    yield f"{plan.name}: {_title(plan)}  ({plan.file})"
    if plan.action == planning.UNCHANGED:
        return
    for change in plan.changes:
        yield f"  {change.key}: {_change(change.old, change.new)}"
    if plan.memory is not None:
        yield f"  memory    {_memory(plan)}"
    yield f"  capacity  {_capacity(plan)}"
    if plan.start is not None:
        yield f"  start     {_start(plan.start)}"
    yield f"  cost      {_cost(plan)}"
    for warning in plan.warnings:
        yield f"  warning   {_behind_file(warning, plan)}"
    for refusal in plan.refusals:
        yield f"  refused   {refusal}"


def digest(text: str | None) -> str:
    """As much of a digest as people compare."""
    return (text or "-")[:_DIGEST_SHOWN]


def _title(plan: Plan) -> str:
    refused = ", refused" if plan.is_refused else ""
    match plan.action:
        case planning.UNCHANGED:
            return f"unchanged, version {plan.version}"
        case planning.CHANGE:
            return f"version {plan.replaces} -> {plan.version}{refused}"
        case _:
            return f"new, version {plan.version}{refused}"


def _change(old: Any, new: Any) -> str:
    return _value(new) if old is None else f"{_value(old)} -> {_value(new)}"


def _value(value: Any) -> str:
    if value is None:
        return "(nothing)"
    text = str(value) if isinstance(value, int | float) else f"{value}"
    text = "".join(each if each.isprintable() else "?" for each in text) or '""'
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _memory(plan: Plan) -> str:
    memory, fit = plan.memory, plan.fit
    assert memory is not None, "asked for"
    cache = "not known yet" if memory.kv_bytes is None else f"{memory.kv_bytes / MIB:,.0f}"
    told = (
        f"{planning.mib(memory.replica_bytes)} a replica (weights {memory.weights_bytes / MIB:,.0f},"
        f" KV cache {cache}, workspace {memory.workspace_bytes / MIB:,.0f},"
        f" process {memory.process_bytes / MIB:,.0f})"
    )
    if fit is None:
        return told
    return (
        f"{told}; with all at their least {planning.mib(fit.least_bytes)} of {planning.mib(fit.usable_bytes)}"
    )


def _capacity(plan: Plan) -> str:
    capacity = plan.capacity
    told = f"{capacity.slots} at once a replica"
    if capacity.min_per_s is None or capacity.max_per_s is None or capacity.service_s is None:
        return f"{told}; requests per second {capacity.basis}"
    span = _span(f"{capacity.min_per_s:.3g}", f"{capacity.max_per_s:.3g}")
    return f"{told}; {span} requests/s at {capacity.service_s:.3g} s each ({capacity.basis})"


def _start(start: Start) -> str:
    stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in start.stages.items())
    whose = "similar starts" if start.is_like else "starts"
    return f"{start.p95_s:.1f} s at the 95th of 100 ({stages}), by {start.starts} {whose}"


def _cost(plan: Plan) -> str:
    cost = plan.cost
    told = f"{_span(cost.min_per_day, cost.max_per_day)} {cost.currency} a day"
    return f"{told}, of {cost.per_day}, then {cost.on_exceed}" if cost.per_day else told


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _behind_file(text: str, plan: Plan) -> str:
    """The file's name stands in the title."""
    return text.removeprefix(f"{plan.file}: ")
