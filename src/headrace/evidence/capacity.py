"""How many replicas does a plan need, what do they cost, and what else would do? Arithmetic first, then simulation."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from headrace.core.capacity_plan import CapacityPlan, CostTerms, LoadTerms, ReplicaTerms
from headrace.core.errors import ConfigError
from headrace.core.slo import Slo
from headrace.core.verdicts import Verdict
from headrace.evidence import simulate, simulate_load
from headrace.evidence.capacity_memory import FIRST, Fitting
from headrace.evidence.simulate import SEARCH_RUNS, Case, Figures
from headrace.evidence.simulate_load import has_pace, mean_time, pace_of, promise_of, promise_of_slo
from headrace.policies import capacity, cost
from headrace.policies.capacity import Occupancy, Sizing, TwoViews
from headrace.policies.cost import Bill, BreakEven, Use

_TIMES_MIN = 10  # of one request, so that a run is more than its beginning
_BURST = 3.0
_REQUESTS_MAX = 1_000_000  # of one run, which takes a minute
_FLEETS = 5  # that are shown
NORMAL = "normal"


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
        at_once: Requests that one replica runs; 0 where its memory can't hold the model.
        is_measured: By a capacity record; else by figures that somebody published.
        replicas: None where no number of them keeps the promise.
        per_hour, per_result: Pico-units at the mean load; None without prices.
    """

    name: str
    at_once: int
    is_measured: bool
    replicas: int | None
    per_hour: int | None
    per_result: int | None


class Answer(NamedTuple):
    """The whole answer.

    Attributes:
        is_measured: The first replica, by a capacity record; else by figures that somebody published.
        slo: What is promised; None where the plan itself says it.
        memory: Of every replica whose memory is known.
        views: By the tail and by the mean, where both are known.
        fleets, tail_fleets: What several sizes look like at the mean load, by the mean and as if each took the tail's time.
        replicas: That are needed; None where no number of them keeps the promise.
    """

    plan: CapacityPlan
    is_measured: bool
    slo: Slo | None
    memory: tuple[Fitting, ...]
    time_s: float
    sizing: Sizing
    views: TwoViews | None
    fleets: tuple[Occupancy, ...]
    tail_fleets: tuple[Occupancy, ...]
    replicas: int | None
    situations: tuple[Situation, ...]
    options: tuple[Option, ...]
    bills: tuple[Bill, ...]
    break_even: tuple[tuple[str, BreakEven], ...]

    @property
    def is_bound_by_prompts(self) -> bool:
        """Whether a replica computes fewer prompts than its slots could answer."""
        return full_rate(self.plan.load, self.plan.replica) < self.plan.replica.at_once / self.time_s

    @property
    def is_affordable(self) -> bool | None:
        """Whether a qualified result costs no more than the SLO says, at the mean load; None where nobody said, or without prices."""
        most = self.slo.cost.max_pico if self.slo is not None else None
        normal = next((each.per_result for each in self.bills if each.use.name == NORMAL), None)
        return None if most is None or normal is None else normal <= most

    @property
    def verdict(self) -> Verdict:
        """Whether what is promised holds wherever it was tried."""
        verdicts = {each.verdict for each in self.situations}
        if self.replicas is None or Verdict.FAIL in verdicts or self.is_affordable is False:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE


def time_of(load: LoadTerms, replica: ReplicaTerms) -> float:
    """What a request holds its slot for in the mean, on a replica with as much to do as it serves well."""
    alone_s, each_s = _time(load, replica)
    return alone_s + each_s * replica.at_once


def _time(load: LoadTerms, replica: ReplicaTerms) -> tuple[float, float]:
    """What a request takes in the mean without others, and how much more for each that is with it."""
    if not has_pace(replica):
        return mean_time(replica).mean_s, 0.0
    steps = max(0, load.output_tokens - 1)
    alone_s = replica.overhead_s + load.input_tokens / replica.prefill_tokens_per_s + steps * replica.step_s
    return alone_s, steps * replica.step_per_active_s


def full_rate(load: LoadTerms, replica: ReplicaTerms) -> float:
    """Requests a second that one replica does at most: by its slots, or by its prompts, one after another."""
    by_slots = replica.at_once / time_of(load, replica)
    if not has_pace(replica) or not load.input_tokens:
        return by_slots
    return min(by_slots, replica.prefill_tokens_per_s / load.input_tokens)


def answer(
    plan: CapacityPlan,
    *,
    slo: Slo | None = None,
    memory: tuple[Fitting, ...] = (),
    is_measured: bool = False,
    runs: int = simulate.RUNS,
    requests_max: int = 5000,
    progress: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Everything that the plan asks, whose replicas all know how many requests they run at once.

    Args:
        slo: In place of what the plan promises.
        memory: How they know it, to be told with the answer.
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
    replicas = _needed(plan, replica, slo=slo, requests_max=requests_max, seed=plan.seed)
    fleets = tuple(_fleets(plan, replica, replicas))
    situations = (
        tuple(_situations(plan, replicas, slo=slo, seeds=seeds, requests_max=requests_max, progress=progress))
        if replicas
        else ()
    )
    return Answer(
        plan, is_measured, slo, memory, time_s, sizing, views, fleets, () if views is None else tuple(_tail_fleets(views)), replicas, situations,
        tuple(_options(plan, replicas, slo=slo, is_measured=is_measured, requests_max=requests_max, progress=progress)),
        tuple(_bills(plan, replicas)) if replicas else (),
        tuple(_break_even(plan, replicas)) if replicas else (),
    )  # fmt: skip


def _fleets(plan: CapacityPlan, replica: ReplicaTerms, replicas: int | None) -> Iterator[Occupancy]:
    """From the fewest that carry the load on, and the answer."""
    load = plan.load
    alone_s, each_s = _time(load, replica)

    def in_progress(number: int) -> float:
        return capacity.in_progress(
            rate_per_s=load.rate_per_s, alone_s=alone_s, each_s=each_s, per_replica=replica.at_once,
            replicas=number,
        )  # fmt: skip

    least = max(1, capacity.whole(load.rate_per_s / full_rate(load, replica)))
    for number in sorted({*range(least, least + _FLEETS), *([replicas] if replicas else [])}):
        yield capacity.occupancy(in_progress, per_replica=replica.at_once, replicas=number)


def _tail_fleets(views: TwoViews) -> Iterator[Occupancy]:
    """Likewise, where what is promised of the slowest is taken for what all take."""
    tail = views.by_tail
    for number in range(max(1, tail.carrying), max(1, tail.carrying) + _FLEETS):
        yield capacity.occupancy(
            lambda _: tail.in_progress, per_replica=round(tail.per_replica), replicas=number
        )


def _case(
    plan: CapacityPlan,
    replica: ReplicaTerms,
    rate: float,
    *,
    slo: Slo | None,
    burstiness: float,
    requests_max: int,
    losses: int = 0,
) -> Case:
    seconds = max(_TIMES_MIN * time_of(plan.load, replica), requests_max / rate)
    if rate * seconds > _REQUESTS_MAX:
        raise ConfigError(
            f"{rate:g} requests/s of {time_of(plan.load, replica):.3g} s each are {rate * seconds:,.0f} for one run, more than"
            f" {_REQUESTS_MAX:,}: plan for a part of the load (`--rate`) that a part of the fleet carries"
        )
    return Case(
        simulate_load.of_means(plan.load, replica, rate_per_s=rate, burstiness=burstiness, seconds=seconds),
        pace_of(replica), promise_of(plan.promise) if slo is None else promise_of_slo(slo), seconds,
        plan.promise.share, slo, losses,
    )  # fmt: skip


def _needed(
    plan: CapacityPlan, replica: ReplicaTerms, *, slo: Slo | None, requests_max: int, seed: int
) -> int | None:
    """For the peak, with the agreed losses; and never fewer than carry the mean with the spare."""
    load = plan.load
    peak = load.rate_per_s * load.peak
    case = _case(
        plan, replica, peak, slo=slo, burstiness=load.burstiness, requests_max=requests_max,
        losses=plan.spare.losses,
    )  # fmt: skip
    full = full_rate(load, replica)
    with_spare = capacity.whole(load.rate_per_s / full * (1.0 + plan.spare.share))
    least = max(1, capacity.whole(peak / full), plan.spare.losses + 1)
    found = simulate.fewest(case, least=least, seeds=range(seed, seed + SEARCH_RUNS))
    return None if found is None else max(found, with_spare)


def _situations(
    plan: CapacityPlan,
    replicas: int,
    *,
    slo: Slo | None,
    seeds: Sequence[int],
    requests_max: int,
    progress: Callable[[str], None],
) -> Iterator[Situation]:
    load, replica = plan.load, plan.replica
    peak = load.rate_per_s * load.peak
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
        case = _case(
            plan, replica, rate, slo=slo, burstiness=burstiness, requests_max=requests_max, losses=losses
        )
        figures = simulate.replicate(case, replicas, seeds=seeds)
        sizing = capacity.size(
            rate_per_s=rate, time_s=time_of(load, replica), per_replica=replica.at_once,
            spare_share=plan.spare.share,
        )  # fmt: skip
        yield Situation(name, rate, sizing, figures, figures.verdict)


def _options(
    plan: CapacityPlan,
    replicas: int | None,
    *,
    slo: Slo | None,
    is_measured: bool,
    requests_max: int,
    progress: Callable[[str], None],
) -> Iterator[Option]:
    yield _option(FIRST, plan, plan.replica, replicas, plan.costs, is_measured=is_measured)
    for choice in plan.choices:
        progress(choice.name)
        needed = (
            _needed(plan, choice.replica, slo=slo, requests_max=requests_max, seed=plan.seed)
            if choice.replica.at_once
            else None
        )
        costs = plan.costs
        if costs is not None:
            changes = {
                "replica_hour": choice.hour or costs.replica_hour,
                "accepted": costs.accepted if choice.accepted is None else choice.accepted,
            }
            costs = msgspec.structs.replace(costs, **changes)
        yield _option(choice.name, plan, choice.replica, needed, costs, is_measured=False)


def _option(
    name: str,
    plan: CapacityPlan,
    replica: ReplicaTerms,
    replicas: int | None,
    costs: CostTerms | None,
    *,
    is_measured: bool,
) -> Option:
    option = Option(name, replica.at_once, is_measured, replicas, None, None)
    if replicas is None or costs is None:
        return option
    load = plan.load
    made = cost.bill(
        costs, _use(name, load.rate_per_s, costs, load, replica, replicas), output_tokens=load.output_tokens
    )
    return option._replace(per_hour=made.total, per_result=made.per_result)


def _bills(plan: CapacityPlan, replicas: int) -> Iterator[Bill]:
    """The fleet has one size: what an autoscaler saves is for `headrace simulate` to say."""
    load, costs = plan.load, plan.costs
    if costs is None:
        return
    for name, ratio in (("quiet", load.quiet), (NORMAL, 1.0), ("peak", load.peak)):
        use = _use(name, load.rate_per_s * ratio, costs, load, plan.replica, replicas)
        yield cost.bill(costs, use, output_tokens=load.output_tokens)


def _use(
    name: str, rate_per_s: float, costs: CostTerms, load: LoadTerms, replica: ReplicaTerms, replicas: int
) -> Use:
    """An hour of so many requests a second."""
    full = full_rate(load, replica) * replicas
    return Use(name, rate_per_s, replicas, rate_per_s * costs.attempts / full)


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
