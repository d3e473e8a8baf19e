"""Does a promise hold on so many replicas? Several runs of a simulated fleet, each a sample, and what they say together.

Runs differ in their seed and in nothing else, and the runs of two fleets with the same seeds meet the same requests (common
random numbers), so that a difference between them is one of the fleets. What arrives before a fleet is warm isn't counted.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from headrace.core.outcome import Outcome
from headrace.core.slo import Slo
from headrace.core.verdicts import Interval, Verdict
from headrace.evidence.simulate_fleet import Fixed, FleetModel, Loss
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_run import End
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies import proportions, replications
from headrace.policies import slo as slos
from headrace.policies.proportions import Share
from headrace.policies.quantiles import nearest_rank
from headrace.policies.slo import Fate, Seen, Tally

RUNS = 10
SEARCH_RUNS = 3
WARMUP_SHARE = 0.2
REPLICAS_MAX = 4096
TOGETHER = "kept"
"""What all bounds of a promise are called together."""
MISSED = "missed"
_ALPHA = 0.05
_COLUMNS = (
    "attainment", "excused", "refused", "busy", "ttft_p50_s", "ttft_p99_s", "total_p50_s", "total_p99_s",
)  # fmt: skip

Works = Callable[[int], Iterable[Work]]
"""The requests of a seed, in the order of their arrival."""


class Case(NamedTuple):
    """What is simulated.

    Attributes:
        seconds: How long requests arrive; the first WARMUP_SHARE of it isn't counted.
        share: Of the requests, how many are to be answered as `promise` says.
        slo: Takes the place of that: each of its promises has a share of its own.
        losses: Replicas that are lost together, as counting begins.
    """

    works: Works
    pace: Pace
    promise: Promise
    seconds: float
    share: float = 0.99
    slo: Slo | None = None
    losses: int = 0


class Kept(NamedTuple):
    """One promise, and the share of the requests to which it was kept."""

    name: str
    share: float
    reached: Interval

    @property
    def verdict(self) -> Verdict:
        low, high = self.reached.low, self.reached.high
        if low is None or high is None:
            return Verdict.INCONCLUSIVE
        if low >= self.share:
            return Verdict.PASS
        return Verdict.FAIL if high < self.share else Verdict.INCONCLUSIVE


class Figures(NamedTuple):
    """What several runs say; quantiles of the times are of all that got an answer, in each run.

    Attributes:
        kept: Each promise by itself.
        attainment: Of all that was asked, but for callers who left, how much was answered as everything that is promised asks.
        excused: Of all that was asked, what is longer than the SLO covers.
        refused: Of all that was asked.
        busy: Of the slots, in the mean over the run.
    """

    replicas: int
    runs: int
    requests: int
    kept: tuple[Kept, ...]
    attainment: Interval
    excused: Interval
    refused: Interval
    busy: Interval
    ttft_p50_s: Interval
    ttft_p99_s: Interval
    total_p50_s: Interval
    total_p99_s: Interval

    @property
    def verdict(self) -> Verdict:
        """Whether everything that is promised is kept."""
        verdicts = {each.verdict for each in self.kept}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE


def replicate(case: Case, replicas: int, *, seeds: Sequence[int]) -> Figures:
    """One run for each seed."""
    columns: dict[str, list[float]] = {name: [] for name in _COLUMNS}
    kept: dict[str, list[Tally]] = {name: [] for name, _ in _promised(case)}
    requests = 0
    for seed in seeds:
        counted, figures, tallies = _one(case, replicas, seed)
        requests += counted
        for name, value in figures.items():
            columns[name].append(value)
        for name, tally in tallies.items():
            kept[name].append(tally)
    return Figures(
        replicas,
        len(seeds),
        requests,
        tuple(Kept(name, share, _over_runs(kept[name])) for name, share in _promised(case)),
        **{name: replications.mean(values) for name, values in columns.items()},
    )


def _over_runs(tallies: Sequence[Tally]) -> Interval:
    """The mean of the runs; its bounds are never nearer than those of as many requests that depend on nothing, so that a few
    of which none was missed don't show a promise."""
    runs = [each for each in tallies if each.counted]
    found = replications.mean([each.good / each.counted for each in runs])
    if found.low is None or found.high is None:
        return found
    good, counted = sum(each.good for each in runs), sum(each.counted for each in runs)
    exact = proportions.exact(Share(good, counted), alpha=_ALPHA / 2)
    return Interval(
        found.estimate,
        min(found.low, exact.low or 0.0),
        max(found.high, 1.0 if exact.high is None else exact.high),
    )


def _promised(case: Case) -> list[tuple[str, float]]:
    """Each promise by its name, with its share."""
    if case.slo is None:
        return [(TOGETHER, case.share)]
    return [(_name(each), round(1.0 - each.miss_share_max, 9)) for each in slos.promises(case.slo)]


def _name(promise: slos.Promise) -> str:
    """Of what is kept, where the SLO's own names are of what may go wrong."""
    return "answered whole" if promise.objective is None else promise.name


def _one(case: Case, replicas: int, seed: int) -> tuple[int, dict[str, float], dict[str, Tally]]:
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
    figures, reached = _reached(case, ends)
    figures |= {
        "refused": sum(end.outcome is Outcome.REFUSED for end in ends) / max(1, len(ends)),
        "busy": run.busy_s / (replicas * case.pace.slots * max(run.seconds, 1e-9)),
    }
    if whole:
        figures |= {
            "ttft_p50_s": nearest_rank(ttfts_s, 0.5),
            "ttft_p99_s": nearest_rank(ttfts_s, 0.99),
            "total_p50_s": nearest_rank(totals_s, 0.5),
            "total_p99_s": nearest_rank(totals_s, 0.99),
        }
    return len(ends), figures, reached


def _reached(case: Case, ends: Sequence[End]) -> tuple[dict[str, float], dict[str, Tally]]:
    """The share that was answered as everything that is promised asks, none of nothing; and each promise's own."""
    if case.slo is None:
        well = sum(end.is_well for end in ends)
        share = well / len(ends) if ends else 1.0
        return {"attainment": share, "excused": 0.0}, {TOGETHER: Tally(well, {MISSED: len(ends) - well})}
    found = slos.attainment(case.slo, map(_seen, ends))
    together = found.qualified
    figures = {"excused": sum(together.excused.values()) / max(1, found.intended)}
    if together.counted:
        figures["attainment"] = together.good / together.counted
    return figures, {_name(each.promise): each.tally for each in found.kept}


_FATES = {Outcome.DELIVERED: Fate.WHOLE, Outcome.REFUSED: Fate.REFUSED, Outcome.BROKEN: Fate.BROKEN}


def _seen(end: End) -> Seen:
    """A simulated request as a promise sees it."""
    is_whole = end.outcome is Outcome.DELIVERED
    return Seen(
        _FATES.get(end.outcome, Fate.FAILED),
        total_s=end.total_s,
        ttft_s=end.ttft_s if is_whole else None,
        tpot_s=end.itl_s if is_whole and end.output_tokens > 1 else None,
        input_tokens=end.asked_tokens[0],
        output_tokens=end.asked_tokens[1],
    )


def _is_kept_alone(case: Case, seed: int) -> bool:
    """Whether the promises would be kept if each request had a replica to itself, which no fleet can better."""
    pace, promise = case.pace, case.promise
    step_s = pace.step_of_s(1)
    ends = []
    for work in case.works(seed):
        ttft_s = pace.overhead_s + (work.prompt_tokens - work.cached_tokens) / pace.prefill_tokens_per_s
        total_s = ttft_s + max(0, work.output_tokens - 1) * step_s
        itl_s = step_s if work.output_tokens > 1 else 0.0
        is_well = ttft_s <= promise.ttft_s and itl_s <= promise.tpot_s and total_s <= promise.total_s
        sizes = (work.prompt_tokens, work.output_tokens)
        ends.append(
            End(
                work.arrival_s,
                Outcome.DELIVERED,
                is_well,
                0.0,
                ttft_s,
                total_s,
                itl_s,
                work.output_tokens,
                0,
                sizes,
            )
        )
    _, tallies = _reached(case, ends)
    shares = dict(_promised(case))
    return all(each.good >= shares[name] * each.counted for name, each in tallies.items())


def fewest(case: Case, *, least: int, seeds: Sequence[int]) -> int | None:
    """The smallest fleet that keeps what is promised in the mean of the runs; by bisection, as more is never worse.
    None if not even REPLICAS_MAX do, or if it would not be kept by as many as there are requests.

    Args:
        least: Fewer can't carry the load; at least 1.
    """

    def holds(replicas: int) -> bool:
        kept = replicate(case, replicas, seeds=seeds).kept
        return all((each.reached.estimate or 0.0) >= each.share for each in kept)

    if not case.pace.prefixes_max and not _is_kept_alone(case, seeds[0]):
        return None
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
