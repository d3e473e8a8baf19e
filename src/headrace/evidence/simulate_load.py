"""Which requests does a simulation play? Those of a workload file, or of a load of which only means are known."""

import math
from collections.abc import Iterable, Iterator
from random import Random

import msgspec

from headrace.config import AdmissionConfig
from headrace.core.capacity import CapacityRecord
from headrace.core.capacity_plan import LoadTerms, PromiseTerms, ReplicaTerms
from headrace.core.errors import ConfigError
from headrace.core.slo import Metric, Slo
from headrace.core.workload import Workload
from headrace.evidence import requests
from headrace.evidence.simulate import Works
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies.capacity import Lognormal
from headrace.policies.workload_plan import Planned

# Where only times are known, an answer is so many steps long in the mean.
_STEPS = 1000
_NO_TIME = 1e12  # tokens of a prompt a second


def of_workload(workload: Workload, *, seconds: float, rate_per_s: float | None = None) -> Works:
    """The requests that the workload makes, other ones for each seed."""

    def works(seed: int) -> Iterator[Work]:
        seeded = msgspec.structs.replace(workload, seed=seed)
        return map(_work, requests.requests(seeded, duration_s=seconds, rate_per_s=rate_per_s))

    return works


def _work(planned: Planned) -> Work:
    return Work(
        planned.due_s or 0.0,
        planned.input_tokens,
        planned.output_tokens,
        prefix="" if planned.prefix_group is None else f"group {planned.prefix_group}",
        prefix_tokens=planned.prefix_tokens,
        deadline_s=planned.deadline_s or 0.0,
        cancel_after_s=planned.cancel_after_s or 0.0,
        cancel_after_tokens=planned.cancel_after_tokens or 0,
    )


def of_means(
    load: LoadTerms, replica: ReplicaTerms, *, rate_per_s: float, burstiness: float, seconds: float
) -> Works:
    """Gaps by a gamma distribution, lengths (or times) by lognormal ones."""
    by_pace = has_pace(replica)
    outputs = load.output_tokens if by_pace else _STEPS
    spread = load.spread if by_pace else mean_time(replica).cv

    def works(seed: int) -> Iterable[Work]:
        gaps, sizes = Random(f"{seed} gaps"), Random(f"{seed} sizes")
        shape = 1.0 / burstiness**2
        at_s = 0.0
        while (at_s := at_s + gaps.gammavariate(shape, 1.0 / (shape * rate_per_s))) < seconds:
            prompt = _drawn(load.input_tokens, load.spread, sizes) if by_pace else 1
            yield Work(at_s, prompt, _drawn(outputs, spread, sizes))

    return works


def _drawn(mean: float, spread: float, chance: Random) -> int:
    sigma = math.sqrt(math.log1p(spread * spread))
    return max(1, round(chance.lognormvariate(math.log(max(mean, 1)) - sigma * sigma / 2, sigma)))


def has_pace(replica: ReplicaTerms) -> bool:
    """Whether it is known how fast it works; else only what a request takes."""
    return replica.prefill_tokens_per_s > 0 and replica.step_s > 0


def mean_time(replica: ReplicaTerms) -> Lognormal:
    """The times of a replica of which nothing else is known."""
    if replica.time_share:
        return Lognormal.of_quantile(replica.time_s, share=replica.time_share, cv=replica.time_spread)
    return Lognormal(replica.time_s, replica.time_spread)


def pace_of(replica: ReplicaTerms) -> Pace:
    starts = {"start": replica.start_s}
    if not has_pace(replica):
        return Pace(
            slots=replica.at_once, prefill_tokens_per_s=_NO_TIME, step_s=mean_time(replica).mean_s / _STEPS,
            step_per_active_s=0.0, stages_s=starts,
        )  # fmt: skip
    return Pace(
        slots=replica.at_once, overhead_s=replica.overhead_s, prefill_tokens_per_s=replica.prefill_tokens_per_s,
        step_s=replica.step_s, step_per_active_s=replica.step_per_active_s, stages_s=starts,
    )  # fmt: skip


def promise_of(terms: PromiseTerms) -> Promise:
    """With the queue that a gateway has by default."""
    queue = AdmissionConfig()
    return Promise(
        ttft_s=_or_any(terms.ttft_s), tpot_s=_or_any(terms.tpot_s), total_s=_or_any(terms.total_s),
        queue_max=queue.queue_length_max, wait_max_s=queue.queue_wait_max_s,
    )  # fmt: skip


def promise_of_slo(slo: Slo) -> Promise:
    """The tightest bound of each metric, for all together."""
    bounds_s = {
        metric: min((each.within_s for each in slo.objectives if each.metric is metric), default=None)
        for metric in Metric
    }
    return promise_of(
        PromiseTerms(
            ttft_s=bounds_s[Metric.TTFT], tpot_s=bounds_s[Metric.TPOT], total_s=bounds_s[Metric.TOTAL]
        )
    )


def simulated(slo: Slo) -> tuple[Slo, list[str]]:
    """What of it a simulation can judge, and what is left out, in words. Raises ConfigError where that is everything."""
    judged = tuple(each for each in slo.objectives if each.metric is not Metric.ITL)
    if not judged and slo.failure_share_max is None:
        raise ConfigError(
            f"the SLO of {slo.deployment!r} promises pauses in streams alone (`itl`), which no simulation knows: judge it by"
            " `headrace load` and `headrace slo check`"
        )
    left = [
        f"{each.name} is not judged here: of pauses in streams a simulation knows the mean alone."
        for each in slo.objectives
        if each.metric is Metric.ITL
    ]
    return msgspec.structs.replace(slo, objectives=judged), left


def refuse_lengths(slo: Slo, load: LoadTerms) -> None:
    """Raises ConfigError where the mean request is longer than the SLO covers: whatever became of such, nobody promised it."""
    limits = slo.load
    for key, tokens, most in (
        ("input_tokens", load.input_tokens, limits.input_tokens_max),
        ("output_tokens", load.output_tokens, limits.output_tokens_max),
    ):
        if most is not None and tokens > most:
            raise ConfigError(
                f"`load.{key}` is {tokens} in the mean, and the SLO of {slo.deployment!r} covers requests of at most {most}:"
                f" raise its `load.{key}_max`, or plan for shorter ones"
            )


def _or_any(bound_s: float | None) -> float:
    return math.inf if bound_s is None else bound_s


def measured(record: CapacityRecord, *, start_s: float) -> ReplicaTerms:
    """What a measurement says of a replica. It has a pace, or what a request took at saturation.

    Raises ValueError for a record without either.
    """
    if not record.saturation:
        raise ValueError("the record has no saturation: measure a replica again")
    knee = max(record.saturation, key=lambda each: each.concurrency)
    at_once, pace = min(record.slots, knee.concurrency) or record.slots, record.pace
    source = f"{record.model} on {record.runtime}, {record.hardware.cpu}"
    if pace is None:
        return ReplicaTerms(at_once, source=source, time_s=knee.service_s, start_s=start_s)
    return ReplicaTerms(
        at_once, source=source, overhead_s=pace.overhead_s,
        prefill_tokens_per_s=pace.prefill_tokens_per_s or _NO_TIME,
        step_s=pace.step_s, step_per_active_s=pace.step_per_active_s, start_s=start_s,
    )  # fmt: skip
