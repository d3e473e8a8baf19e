"""Does a promise hold on so many replicas? Several runs of a simulated fleet, each a sample, and what they say together.

Runs differ in their seed and in nothing else, and the runs of two fleets with the same seeds meet the same requests (common
random numbers), so that a difference between them is one of the fleets. What arrives before a fleet is warm isn't counted.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from headrace.core.outcome import Outcome
from headrace.core.verdicts import Interval, Verdict
from headrace.evidence.simulate_fleet import Fixed, FleetModel, Loss
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies import replications
from headrace.policies.quantiles import nearest_rank

RUNS = 10
SEARCH_RUNS = 3
WARMUP_SHARE = 0.2
REPLICAS_MAX = 4096

Works = Callable[[int], Iterable[Work]]
"""The requests of a seed, in the order of their arrival."""


class Case(NamedTuple):
    """What is simulated.

    Attributes:
        seconds: How long requests arrive; the first WARMUP_SHARE of it isn't counted.
        losses: Replicas that are lost together, as counting begins.
    """

    works: Works
    pace: Pace
    promise: Promise
    seconds: float
    losses: int = 0


class Figures(NamedTuple):
    """What several runs say; quantiles of the times are of all that got an answer, in each run.

    Attributes:
        attainment: Of all that was asked, but for callers who left, how much was answered as promised.
        refused: Of all that was asked.
        busy: Of the slots, in the mean over the run.
    """

    replicas: int
    runs: int
    requests: int
    attainment: Interval
    refused: Interval
    busy: Interval
    ttft_p50_s: Interval
    ttft_p99_s: Interval
    total_p50_s: Interval
    total_p99_s: Interval

    def verdict(self, share: float) -> Verdict:
        """Whether that share is answered as promised."""
        low, high = self.attainment.low, self.attainment.high
        if low is None or high is None:
            return Verdict.INCONCLUSIVE
        if low >= share:
            return Verdict.PASS
        return Verdict.FAIL if high < share else Verdict.INCONCLUSIVE


def replicate(case: Case, replicas: int, *, seeds: Sequence[int]) -> Figures:
    """One run for each seed."""
    columns: dict[str, list[float]] = {name: [] for name in Figures._fields[3:]}
    requests = 0
    for seed in seeds:
        counted, figures = _one(case, replicas, seed)
        requests += counted
        for name, value in figures.items():
            columns[name].append(value)
    return Figures(
        replicas,
        len(seeds),
        requests,
        **{name: replications.mean(values) for name, values in columns.items() if name != "requests"},
    )


def _one(case: Case, replicas: int, seed: int) -> tuple[int, dict[str, float]]:
    warm_s = WARMUP_SHARE * case.seconds
    losses = [Loss(warm_s, case.losses)] if case.losses else []
    run = FleetModel(
        case.works(seed), Fixed(replicas), pace=case.pace, promise=case.promise, replicas=replicas, seed=seed,
        losses=losses,
    ).run()  # fmt: skip
    # Who left as planned was neither served nor failed.
    ends = [end for end in run.ends(from_s=warm_s) if end.outcome is not Outcome.CANCELLED]
    whole = [end for end in ends if end.outcome is Outcome.DELIVERED]
    ttfts_s, totals_s = sorted(end.ttft_s for end in whole), sorted(end.total_s for end in whole)
    asked = max(1, len(ends))
    figures = {
        "attainment": sum(end.is_well for end in ends) / asked if ends else 1.0,
        "refused": sum(end.outcome is Outcome.REFUSED for end in ends) / asked,
        "busy": run.busy_s / (replicas * case.pace.slots * max(run.seconds, 1e-9)),
    }
    if whole:
        figures |= {
            "ttft_p50_s": nearest_rank(ttfts_s, 0.5),
            "ttft_p99_s": nearest_rank(ttfts_s, 0.99),
            "total_p50_s": nearest_rank(totals_s, 0.5),
            "total_p99_s": nearest_rank(totals_s, 0.99),
        }
    return len(ends), figures


def fewest(case: Case, *, share: float, least: int, seeds: Sequence[int]) -> int | None:
    """The smallest fleet that keeps the promise for that share in the mean of the runs; by bisection, as more is never worse.
    None if not even REPLICAS_MAX do.

    Args:
        least: Fewer can't carry the load; at least 1.
    """

    def holds(replicas: int) -> bool:
        estimate = replicate(case, replicas, seeds=seeds).attainment.estimate
        return estimate is not None and estimate >= share

    too_few, enough = least - 1, least
    while not holds(enough):
        too_few, enough = enough, enough + max(1, (enough - least) * 2 or enough // 10)
        if enough > REPLICAS_MAX:
            return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if holds(middle):
            enough = middle
        else:
            too_few = middle
    return enough
