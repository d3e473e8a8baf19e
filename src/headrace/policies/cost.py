"""What does a qualified result cost, and at which utilisation does a price pay for it?

A result is qualified if it is whole, within the promise, and accepted by the quality check. Everything that is paid for is
divided by those: replicas that work and that wait, the network, storage, monitoring, operations, attempts that failed. So an
hour without work costs what an hour with work does, but for the network.
"""

from typing import NamedTuple

from headrace.core import money
from headrace.core.capacity_plan import CostTerms

HOURS_PER_MONTH = 730
HOUR_S = 3600.0
MTOK = 1_000_000
_GB = 1_000_000_000


class Use(NamedTuple):
    """One hour of a kind.

    Attributes:
        rate_per_s: Requests that came.
        utilisation: Of the replicas, by all attempts.
    """

    name: str
    rate_per_s: float
    replicas: int
    utilisation: float


class Bill(NamedTuple):
    """An hour's cost in pico-units, part by part.

    Attributes:
        working, idle: Of the hardware, by utilisation.
        wasted: Of all of it, what went into results that aren't qualified; no part of its own.
        per_result: For each qualified result; None if there were none.
    """

    use: Use
    working: int
    idle: int
    network: int
    storage: int
    monitoring: int
    operations: int
    qualified: float
    wasted: int
    per_result: int | None

    @property
    def total(self) -> int:
        return self.working + self.idle + self.network + self.storage + self.monitoring + self.operations


def bill(costs: CostTerms, use: Use, *, output_tokens: float) -> Bill:
    """What such an hour costs, and each qualified result of it."""
    hardware = use.replicas * money.parse_amount(costs.replica_hour)
    working = round(hardware * min(1.0, use.utilisation))
    requests = use.rate_per_s * HOUR_S
    sent_gb = requests * costs.attempts * output_tokens * costs.bytes_per_token / _GB
    network = round(money.parse_amount(costs.network_gb) * sent_gb)
    storage, monitoring, operations = (
        money.parse_amount(amount) // HOURS_PER_MONTH
        for amount in (costs.storage_month, costs.monitoring_month, costs.operations_month)
    )
    share = qualified_share(costs)
    qualified = requests * share
    made = Bill(
        use, working, hardware - working, network, storage, monitoring, operations, qualified, 0, None
    )
    wasted = round((working + network) * (1.0 - share / costs.attempts))
    return made._replace(wasted=wasted, per_result=round(made.total / qualified) if qualified else None)


def qualified_share(costs: CostTerms) -> float:
    """Of all requests."""
    return costs.completed * costs.within * costs.accepted


class BreakEven(NamedTuple):
    """Where the price pays for ready capacity.

    Attributes:
        ready_hour: What the fleet costs in an hour, used or not; pico-units.
        full_hour: What an hour at full use brings in; network_hour: what goes out then costs, which is paid by the use.
        utilisation: At which what comes in is what is paid; above 1 the price never pays. None where nothing is left of it.
    """

    ready_hour: int
    full_hour: int
    network_hour: int
    utilisation: float | None


def break_even(
    costs: CostTerms,
    *,
    replicas: int,
    full_rate_per_s: float,
    input_tokens: float,
    output_tokens: float,
    price_factor: float = 1.0,
    cost_factor: float = 1.0,
) -> BreakEven:
    """Where so many replicas are paid for by their tokens. Sold are results that qualify, and no others.

    Args:
        full_rate_per_s: Attempts that all of them do at most.
        price_factor, cost_factor: To see what changes if the one or the other does.
    """
    rate_per_s = full_rate_per_s / costs.attempts
    idle = bill(costs, Use("ready", 0.0, replicas, 0.0), output_tokens=output_tokens)
    busy = bill(costs, Use("full", rate_per_s, replicas, 1.0), output_tokens=output_tokens)
    per_request = (
        money.parse_amount(costs.price_input_mtok or "0") * input_tokens
        + money.parse_amount(costs.price_output_mtok or "0") * output_tokens
    ) / MTOK
    brings = round(per_request * busy.qualified * price_factor)
    ready, network = round(idle.total * cost_factor), round(busy.network * cost_factor)
    left = brings - network
    return BreakEven(ready, brings, network, ready / left if left > 0 else None)
