"""How many replicas does a plan need, what do they cost, and what else would do? Arithmetic first, then simulation."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from headrace.core.capacity_plan import CapacityPlan, CostTerms, LoadTerms, ReplicaTerms
from headrace.core.verdicts import Verdict
from headrace.evidence import simulate, simulate_load
from headrace.evidence.simulate import SEARCH_RUNS, Case, Figures
from headrace.evidence.simulate_load import has_pace, mean_time, pace_of, promise_of
from headrace.policies import capacity, cost
from headrace.policies.capacity import Occupancy, Sizing, TwoViews
from headrace.policies.cost import Bill, BreakEven, Use

_TIMES_MIN = 10  # of one request, so that a run is more than its beginning
_BURST = 3.0


class Situation(NamedTuple):
    """One load, on the fleet of the answer.

    Attributes:
        sizing: By Little's law.
        figures: By simulation; None for a load that wasn't simulated.
    """

    name: str
    rate_per_s: float
    sizing: Sizing
    figures: Figures
    verdict: Verdict


class Option(NamedTuple):
    """Another way to do the same.

    Attributes:
        replicas: None where no number of them keeps the promise.
        per_hour, per_result: Pico-units at the mean load; None without prices.
    """

    name: str
    replicas: int | None
    per_hour: int | None
    per_result: int | None


class Answer(NamedTuple):
    """The whole answer.

    Attributes:
        is_measured: By a capacity record; else by figures that somebody published.
        views: By the tail and by the mean, where both are known.
        replicas: That are needed; None where no number of them keeps the promise.
    """

    plan: CapacityPlan
    is_measured: bool
    time_s: float
    sizing: Sizing
    views: TwoViews | None
    fleets: tuple[Occupancy, ...]
    replicas: int | None
    situations: tuple[Situation, ...]
    options: tuple[Option, ...]
    bills: tuple[Bill, ...]
    break_even: tuple[tuple[str, BreakEven], ...]

    @property
    def verdict(self) -> Verdict:
        """Whether the promise holds wherever it was tried."""
        verdicts = {each.verdict for each in self.situations}
        if self.replicas is None or Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE


def time_of(load: LoadTerms, replica: ReplicaTerms) -> float:
    """What a request holds its slot for in the mean, on a replica with as much to do as it serves well."""
    if not has_pace(replica):
        return mean_time(replica).mean_s
    step_s = replica.step_s + replica.step_per_active_s * replica.at_once
    return (
        replica.overhead_s
        + load.input_tokens / replica.prefill_tokens_per_s
        + max(0, load.output_tokens - 1) * step_s
    )


def full_rate(load: LoadTerms, replica: ReplicaTerms) -> float:
    """Requests a second that one replica does at most: by its slots, or by its prompts, one after another."""
    by_slots = replica.at_once / time_of(load, replica)
    if not has_pace(replica) or not load.input_tokens:
        return by_slots
    return min(by_slots, replica.prefill_tokens_per_s / load.input_tokens)


def answer(
    plan: CapacityPlan,
    *,
    is_measured: bool = False,
    runs: int = simulate.RUNS,
    requests_max: int = 5000,
    progress: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Everything that the plan asks.

    Args:
        requests_max: Of one run, about.
    """
    load, replica = plan.load, plan.replica
    time_s = time_of(load, replica)
    sizing = capacity.size(
        rate_per_s=load.rate_per_s, time_s=time_s, per_replica=replica.at_once, spare_share=plan.spare.share
    )
    views = None
    if replica.time_share and not has_pace(replica):
        views = capacity.both(
            rate_per_s=load.rate_per_s, tail_s=replica.time_s, tail_share=replica.time_share,
            per_replica=replica.at_once, spare_share=plan.spare.share, cv=replica.time_spread,
        )  # fmt: skip
    seeds = range(plan.seed, plan.seed + runs)
    progress("the smallest fleet that keeps the promise at the peak")
    replicas = _needed(plan, replica, requests_max=requests_max, seed=plan.seed)
    shown = capacity.whole(load.rate_per_s * time_s / replica.at_once)
    fleets = tuple(
        capacity.occupancy(load.rate_per_s * time_s, per_replica=replica.at_once, replicas=number)
        for number in sorted({*range(max(1, shown), max(1, shown) + 5), *([replicas] if replicas else [])})
    )
    situations = (
        tuple(_situations(plan, replicas, seeds=seeds, requests_max=requests_max, progress=progress))
        if replicas
        else ()
    )
    return Answer(
        plan, is_measured, time_s, sizing, views, fleets, replicas, situations,
        tuple(_options(plan, replicas, requests_max=requests_max, progress=progress)),
        tuple(_bills(plan, replicas)) if replicas else (),
        tuple(_break_even(plan, replicas)) if replicas else (),
    )  # fmt: skip


def _case(
    plan: CapacityPlan,
    replica: ReplicaTerms,
    rate: float,
    *,
    burstiness: float,
    requests_max: int,
    losses: int = 0,
) -> Case:
    seconds = max(_TIMES_MIN * time_of(plan.load, replica), requests_max / rate)
    return Case(
        simulate_load.of_means(plan.load, replica, rate_per_s=rate, burstiness=burstiness, seconds=seconds),
        pace_of(replica), promise_of(plan.promise), seconds, losses,
    )  # fmt: skip


def _needed(plan: CapacityPlan, replica: ReplicaTerms, *, requests_max: int, seed: int) -> int | None:
    """For the peak, with the agreed losses; and never fewer than carry the mean with the spare."""
    load = plan.load
    peak = load.rate_per_s * max(1.0, load.peak)
    case = _case(
        plan, replica, peak, burstiness=load.burstiness, requests_max=requests_max, losses=plan.spare.losses
    )
    with_spare = math.ceil(load.rate_per_s / full_rate(load, replica) * (1.0 + plan.spare.share) - 1e-9)
    least = max(1, math.ceil(peak / full_rate(load, replica)), plan.spare.losses + 1)
    found = simulate.fewest(
        case, share=plan.promise.share, least=least, seeds=range(seed, seed + SEARCH_RUNS)
    )
    return None if found is None else max(found, with_spare)


def _situations(
    plan: CapacityPlan,
    replicas: int,
    *,
    seeds: Sequence[int],
    requests_max: int,
    progress: Callable[[str], None],
) -> Iterator[Situation]:
    load, replica = plan.load, plan.replica
    peak = load.rate_per_s * max(1.0, load.peak)
    kinds = (
        ("quiet", load.rate_per_s * load.quiet, load.burstiness, 0),
        ("mean", load.rate_per_s, load.burstiness, 0),
        ("peak", peak, load.burstiness, 0),
        ("burst", load.rate_per_s, max(_BURST, load.burstiness), 0),
        (f"peak, {plan.spare.losses} lost", peak, load.burstiness, plan.spare.losses),
    )
    for name, rate, burstiness, losses in kinds:
        if rate <= 0 or (name.endswith("lost") and not losses):
            continue
        progress(f"{name}: {rate:g} requests/s on {replicas}")
        case = _case(plan, replica, rate, burstiness=burstiness, requests_max=requests_max, losses=losses)
        figures = simulate.replicate(case, replicas, seeds=seeds)
        sizing = capacity.size(
            rate_per_s=rate, time_s=time_of(load, replica), per_replica=replica.at_once,
            spare_share=plan.spare.share,
        )  # fmt: skip
        yield Situation(name, rate, sizing, figures, figures.verdict(plan.promise.share))


def _options(
    plan: CapacityPlan, replicas: int | None, *, requests_max: int, progress: Callable[[str], None]
) -> Iterator[Option]:
    yield _option("as planned", plan, plan.replica, replicas, plan.costs)
    for choice in plan.choices:
        progress(choice.name)
        needed = _needed(plan, choice.replica, requests_max=requests_max, seed=plan.seed)
        costs = plan.costs
        if costs is not None:
            changes = {
                "replica_hour": choice.hour or costs.replica_hour,
                "accepted": costs.accepted if choice.accepted is None else choice.accepted,
            }
            costs = msgspec.structs.replace(costs, **changes)
        yield _option(choice.name, plan, choice.replica, needed, costs)


def _option(
    name: str, plan: CapacityPlan, replica: ReplicaTerms, replicas: int | None, costs: CostTerms | None
) -> Option:
    if replicas is None or costs is None:
        return Option(name, replicas, None, None)
    load = plan.load
    use = Use(name, load.rate_per_s, replicas, load.rate_per_s / (full_rate(load, replica) * replicas))
    made = cost.bill(costs, use, output_tokens=load.output_tokens)
    return Option(name, replicas, made.total, made.per_result)


def _bills(plan: CapacityPlan, replicas: int) -> Iterator[Bill]:
    """The fleet has one size: what an autoscaler saves is for `headrace simulate` to say."""
    load, costs = plan.load, plan.costs
    if costs is None:
        return
    full = full_rate(load, plan.replica) * replicas
    for name, ratio in (("quiet", load.quiet), ("normal", 1.0), ("peak", load.peak)):
        rate = load.rate_per_s * ratio
        yield cost.bill(costs, Use(name, rate, replicas, rate / full), output_tokens=load.output_tokens)


def _break_even(plan: CapacityPlan, replicas: int) -> Iterator[tuple[str, BreakEven]]:
    """With the price and the costs as they are, and each of them a fifth lower and higher."""
    costs, load = plan.costs, plan.load
    if costs is None or not (costs.price_input_mtok or costs.price_output_mtok):
        return
    for name, price, spent in (
        ("as planned", 1.0, 1.0), ("price -20 %", 0.8, 1.0), ("price +20 %", 1.2, 1.0), ("costs -20 %", 1.0, 0.8),
        ("costs +20 %", 1.0, 1.2),
    ):  # fmt: skip
        yield name, cost.break_even(
            costs, replicas=replicas, full_rate_per_s=full_rate(load, plan.replica) * replicas,
            input_tokens=load.input_tokens, output_tokens=load.output_tokens, price_factor=price,
            cost_factor=spent,
        )  # fmt: skip
