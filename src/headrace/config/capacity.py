"""What does a file in `capacity/` say? The whole of it as a CapacityPlan, or an error in the file's own words."""

from collections.abc import Iterator
from pathlib import Path

from headrace.config import files, text
from headrace.core import money
from headrace.core.capacity_plan import CapacityPlan, CostTerms, ReplicaTerms

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
    yield from _replica("replica", plan.replica, plan)
    for number, choice in enumerate(plan.choices):
        yield from _replica(f"choices[{number}].replica", choice.replica, plan)
        yield from _amount(f"choices[{number}].hour", choice.hour)
    if plan.costs is not None:
        yield from _costs(plan.costs)


def _replica(where: str, replica: ReplicaTerms, plan: CapacityPlan) -> Iterator[str]:
    """Either its pace and the lengths of requests, or what a request takes."""
    has_pace = replica.prefill_tokens_per_s > 0 and replica.step_s > 0
    if has_pace and not plan.load.output_tokens:
        yield f"`{where}` has a pace, and `load.output_tokens` is missing: give the mean lengths of requests"
    if not has_pace and not replica.time_s:
        yield f"`{where}`: give `time_s`, or `prefill_tokens_per_s` and `step_s`"


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
