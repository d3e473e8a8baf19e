"""What does the service do under load: at its best, under normal load, in a burst, with long inputs, and with far too much?

Each is one run of evidence.load, judged by the records of its requests, which are kept for the books.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from headrace.core.load_records import LoadRecord, LoadRun, Outcome
from headrace.core.slo import Metric, Slo
from headrace.core.verdicts import Verdict
from headrace.core.workload import ArrivalKind, Arrivals, Cancel, Turns, Workload, at_rate, closed, constant
from headrace.evidence import load, load_call
from headrace.evidence.certify import NotMade, Stage, Terms
from headrace.evidence.drill_instance import DrillError
from headrace.evidence.load_terms import REQUESTS_MAX, LoadTerms
from headrace.evidence.target import Target
from headrace.policies import certification, load_levels, load_report, quantiles, slo_requests
from headrace.policies.certification import (
    ALPHA,
    Asked,
    Figure,
    at_least,
    at_most,
    promise_kept,
    quantile_at_most,
    share_at_most,
    told,
)
from headrace.policies.load_figures import Measure
from headrace.policies.slo import attainment

PACE, SERVICE_S, RATE, QUALIFIED = "pace_per_s", "service_s", "rate_per_s", "qualified_share"
INPUT_TOKENS, LONG_TTFT_S = "input_tokens", "long_ttft_s"
_INPUT_MEDIAN, _OUTPUT_MEDIAN = "input_tokens_median", "output_tokens_median"
_TTFT_P95_S, _TOTAL_P95_S = "ttft_p95_s", "total_p95_s"
_BUSY = {Metric.TTFT: "busy_ttft_s", Metric.TPOT: "busy_tpot_s", Metric.TOTAL: "busy_total_s"}
SUPPORTED = {
    "requests_per_s": RATE,
    "input_tokens_median": _INPUT_MEDIAN,
    "output_tokens_median": _OUTPUT_MEDIAN,
    "ttft_p95_s": _TTFT_P95_S,
    "total_p95_s": _TOTAL_P95_S,
    "qualified_share": QUALIFIED,
    "requests_per_s_at_best": PACE,
    "input_tokens_max": INPUT_TOKENS,
    "long_ttft_s": LONG_TTFT_S,
}
"""What a card says of the load for which it holds, by its name there and here."""
HELD = frozenset({RATE, QUALIFIED, _INPUT_MEDIAN, _OUTPUT_MEDIAN, _TTFT_P95_S, _TOTAL_P95_S})
NORMAL_LOAD = "normal-load"
_LONG_TOKENS, _LONG_OUTPUT_TOKENS = 6000, 8
_LONG_REQUESTS, _SHORT_REQUESTS = 3, 5
_CONTEXT_SHARE, _BEYOND = 0.5, 1.5
_PATIENCE_S = 60.0
# What it takes longer than this to show is left open.
_LOAD_MAX_S = 300.0
_RATE_MAX_PER_S = 1000.0
_OVERLOAD_TIMES, _DEADLINE_TIMES = 5.0, 6.0
_BURST_TIMES = 3
_CONCURRENCY_MAX = 64
_UNKNOWN_SLOTS = 4
_LOOK_EVERY_S = 0.2
# Requests of each caller, at least, that say what a service does at its best.
_ROUNDS = 3
_TOLD = (
    ("time to the first token", Measure.TTFT),
    ("time of an output token", Measure.TPOT),
    ("time of an answer", Measure.TOTAL),
)


async def find_pace(stage: Stage) -> None:
    """As many callers as there are slots, each asking again when it was answered: what the service does at its best."""
    slots = _slots(stage)
    run = await _at_best(stage, slots)
    level = load_levels.level(run, shape="best")
    best, answered = level.throughput, _of(run.records, Outcome.OK)
    if not answered or not best.estimate:
        raise DrillError(f"nothing is answered: {', '.join(_reasons(run.records))}")
    asked = len(run.records) - len(_of(run.records, Outcome.CANCELLED))
    unanswered = asked - len(answered)
    stage.known[PACE] = best.estimate
    stage.known[SERVICE_S] = sum(record.ended_s - record.due_s for record in answered) / len(answered)
    stage.known.update(_busy(answered))
    stage.add(
        told("requests at once", slots),
        Figure("requests at its best", best.estimate, "/s", low=best.low, high=best.high, samples=len(answered)),
        told("output tokens at its best", level.output_tokens_per_s, "/s"),
        told("time of an answer then, mean", stage.known[SERVICE_S], "s", samples=len(answered)),
        share_at_most("of them not answered whole", unanswered, asked, stage.bounds.failure_share)
        if asked >= stage.size.samples
        else told("of them not answered whole", unanswered, samples=asked),
    )  # fmt: skip


async def _at_best(stage: Stage, slots: int) -> LoadRun:
    """As long as is asked for; and once more, if that is too short for what answers take here."""
    load = closed(stage.terms.workload, slots)
    run = await _drive(stage, load, duration_s=stage.size.load_s / 3)
    answered = _of(run.records, Outcome.OK)
    if not answered or len(answered) >= _ROUNDS * slots:
        return run
    took_s = sum(record.ended_s - record.due_s for record in answered) / len(answered)
    return await _drive(stage, load, duration_s=_ROUNDS * took_s)


def _busy(answered: Sequence[LoadRecord]) -> Iterator[tuple[str, float]]:
    """What 19 of 20 take at most while all slots are busy, each measure as a promise counts it."""
    seen = [slo_requests.of_record(record) for record in answered]
    for name, taken in (
        (_BUSY[Metric.TTFT], [each.ttft_s for each in seen]),
        (_BUSY[Metric.TPOT], [each.tpot_s for each in seen]),
        (_BUSY[Metric.TOTAL], [each.total_s for each in seen]),
    ):
        if known := sorted(value for value in taken if value is not None):
            yield name, quantiles.nearest_rank(known, 0.95)


def promised(terms: Terms, known: Mapping[str, float]) -> Slo:
    """What is held against the service: what was stated, and where that may be completed, what it does when it is busy."""
    busy_s = {metric: known[name] for metric, name in _BUSY.items() if name in known}
    if not terms.completes_slo:
        return terms.slo
    return certification.completed(terms.slo, busy_s, share=terms.bounds.good_share)


async def carry_normal_load(stage: Stage) -> None:
    """Requests that are due whatever became of those before; judged by the promises made of it."""
    best, workload = await _pace(stage), stage.terms.workload
    slo = promised(stage.terms, stage.known)
    rate = stage.terms.rate_per_s or min(_RATE_MAX_PER_S, stage.terms.load_share * best)
    duration_s = min(_LOAD_MAX_S, max(stage.size.load_s, stage.size.samples / rate))
    run = await _drive(stage, at_rate(workload, rate), duration_s=duration_s)
    kept = attainment(slo, slo_requests.of_run(run), alpha=ALPHA)
    stage.known[RATE] = rate
    stage.known[QUALIFIED] = kept.qualified.good / max(1, kept.qualified.counted)
    stage.known.update(_typical(run))
    stage.add(
        told("requests meant to be sent", kept.intended),
        told("rate", rate, "/s"),
        *(promise_kept(each) for each in kept.kept),
        told("within every promise at once", stage.known[QUALIFIED], samples=kept.qualified.counted),
        *_times(run),
    )
    if added := len(slo.objectives) - len(stage.terms.slo.objectives):
        stage.notes.append(
            f"{added} of the promises are stated nowhere: they are {certification.BUSY_TIMES:g} times what 19 of 20 requests"
            " take at most with all slots busy"
        )
    stage.notes.append(f"the workload `{workload.name}`, {workload.digest}: {workload.about}")
    stage.notes += _reasons(run.records)
    stage.notes += [
        f"{each.promise.name}: it takes {each.requests_needed} requests without a further miss"
        for each in kept.kept
        if each.requests_needed
    ]
    if kept.verdict is Verdict.FAIL:
        _must_be_theirs(run, slo)


def _typical(run: LoadRun) -> Iterator[tuple[str, float]]:
    """What whole answers were like, and how long 19 of 20 of them took."""
    answered, report = _of(run.records, Outcome.OK), load_report.summarise(run, alpha=ALPHA)
    for name, tokens in (
        (_INPUT_MEDIAN, sorted(record.input_tokens or 0 for record in answered)),
        (_OUTPUT_MEDIAN, sorted(record.output_tokens or 0 for record in answered)),
    ):
        if tokens:
            yield name, float(tokens[len(tokens) // 2])
    for name, measure in ((_TTFT_P95_S, Measure.TTFT), (_TOTAL_P95_S, Measure.TOTAL)):
        if (found := report.of(measure).at(0.95).value) is not None:
            yield name, found


def _times(run: LoadRun) -> Iterator[Figure]:
    """Of whole answers, where there are enough for it."""
    report = load_report.summarise(run, alpha=ALPHA)
    for what, measure in _TOLD:
        for name, quantile in (("median", 0.5), ("p95", 0.95)):
            found = report.of(measure).at(quantile)
            if found.value is not None:
                yield Figure(f"{what}, {name}", found.value, "s", low=found.low, high=found.high, samples=found.worth)  # fmt: skip


def _must_be_theirs(run: LoadRun, slo: Slo) -> None:
    """Times count from when a request was due. What is missed by the generator's own lateness alone is no fault of the service."""
    sent = (
        msgspec.structs.replace(record, due_s=record.sent_s)
        for record in run.records
        if record.sent_s is not None
    )
    if attainment(slo, map(slo_requests.of_record, sent), alpha=ALPHA).verdict is not Verdict.FAIL:
        raise DrillError(
            f"requests were sent up to {run.lateness.max_s:.2f} s late: this machine does other things too"
        )


async def take_burst(stage: Stage) -> None:
    """Several times what fits, at one moment; and how long until a single caller is served in time again."""
    count, limit_s = _BURST_TIMES * _slots(stage), stage.bounds.burst_answered_s
    run = await _drive(stage, closed(_alone(stage), count), requests_max=count)
    settled_s = await _until_in_time(stage, limit_s=limit_s)
    stage.add(
        told("requests at one moment", count),
        told("of them answered whole", len(_of(run.records, Outcome.OK))),
        told("until the last had its answer", max(record.ended_s for record in run.records), "s"),
        *_said_so(run.records),
        at_most("until one request is in time again", settled_s, limit_s, "s"),
    )
    stage.notes += _reasons(run.records)


async def take_long_inputs(stage: Stage) -> None:
    """Inputs that fill much of the context, one by one; and one that doesn't fit, which is the caller's to change."""
    context = _context_tokens(stage)
    tokens = min(_LONG_TOKENS, int(context * _CONTEXT_SHARE)) if context else _LONG_TOKENS
    short = await _drive(stage, closed(_alone(stage), 1), requests_max=_SHORT_REQUESTS)
    limit_s = certification.long_ttft_s(
        stage.bounds,
        short=[(took_s, record.input_tokens or 0) for record, took_s in _begun(short)],
        tokens=tokens,
    )
    patience_s = max(_PATIENCE_S, 2 * limit_s)  # one that comes too late is told with its time
    run = await _drive(stage, _long(tokens), requests_max=_LONG_REQUESTS, deadline_s=patience_s)
    unanswered = len(run.records) - len(_of(run.records, Outcome.OK))
    begun = _begun(run)
    longest = max((record.input_tokens or 0 for record, _ in begun), default=0)
    first_s = max((took_s for _, took_s in begun), default=None)
    stage.known[INPUT_TOKENS] = float(longest)
    if first_s is not None:
        stage.known[LONG_TTFT_S] = first_s
    stage.add(
        told("longest input, in the engine's tokens", longest),
        at_most("not answered whole", unanswered, 0, samples=len(run.records)),
        at_most("longest time to the first token", first_s, limit_s, "s", samples=len(begun)),
    )
    if not stage.bounds.long_ttft_s:
        stage.notes.append(
            f"the bound is {certification.LONG_TIMES:g} times what short inputs take for each token"
        )
    stage.notes += _reasons(run.records)
    if context:
        beyond = await _drive(stage, _long(int(context * _BEYOND)), requests_max=1)
        unsaid = sum(record.status != 400 for record in beyond.records)
        stage.add(at_most("inputs beyond the context that aren't refused with 400", unsaid, 0, samples=1))


def _begun(run: LoadRun) -> list[tuple[LoadRecord, float]]:
    """Whole answers, each with its time to the first token."""
    return [
        (record, record.first_s - record.due_s)
        for record in _of(run.records, Outcome.OK)
        if record.first_s is not None
    ]


async def refuse_overload(stage: Stage) -> None:
    """T7 in short: several times what it can do, open loop; what it can't do is refused at once, and it keeps its pace."""
    best, bounds = await _pace(stage), stage.bounds
    rate = min(_RATE_MAX_PER_S, _OVERLOAD_TIMES * best)
    if rate < 2 * best:
        raise NotMade(f"no more than {rate:g} requests/s are asked for, and it answers {best:g}")
    deadline_s = max(1.0, _DEADLINE_TIMES * stage.known[SERVICE_S])
    duration_s = max(stage.size.load_s / 3, deadline_s)
    run = await _drive(
        stage,
        at_rate(stage.terms.workload, rate),
        duration_s=deadline_s + duration_s,
        warmup_s=deadline_s,
        deadline_s=deadline_s,
    )
    settled_s = await _until_in_time(stage, limit_s=bounds.recovery_s)
    good = load_levels.level(run, shape="overload").throughput.estimate or 0.0
    refused = _of(run.records, Outcome.REFUSED)
    quick = [record.ended_s - record.sent_s for record in refused if record.sent_s is not None]
    stage.add(
        told("requests meant to be sent", len(run.records)),
        told("rate", rate, "/s"),
        told("of its best", rate / best, "times"),
        told("of them answered in time", len(_of(run.records, Outcome.OK))),
        told("of them refused", len(refused)),
        at_least("answered in time each second, of its best", good / best, bounds.goodput_share),
        *_said_so(run.records),
        quantile_at_most("time of a refusal, p95", quick, 0.95, bounds.refusal_s)
        if len(quick) >= quantiles.samples_needed(0.95, alpha=ALPHA)
        else at_most("slowest refusal", max(quick, default=None), bounds.refusal_s, "s", samples=len(quick)),
        at_most("until one request is in time again", settled_s, bounds.recovery_s, "s"),
    )  # fmt: skip
    stage.notes.append(f"every caller waits for {deadline_s:.1f} s, and says so")
    stage.notes += _reasons(run.records)


def _said_so(records: Sequence[LoadRecord]) -> list[Figure]:
    """Whoever isn't served is told, and when to come back. That the caller's deadline has passed is a word too."""
    refused = _of(records, Outcome.REFUSED)
    unsaid = sum(not record.has_retry_after for record in refused)
    lost = len(_of(records, Outcome.FAILED, Outcome.BROKEN)) + sum(
        record.reason in load_call.WORDLESS for record in _of(records, Outcome.LATE)
    )
    return [
        at_most("refused without Retry-After", unsaid, 0, samples=len(refused)),
        at_most("neither answered nor refused", lost, 0, samples=len(records)),
    ]


def _reasons(records: Sequence[LoadRecord]) -> list[str]:
    counted = Counter(
        f"{record.outcome} ({record.reason})" for record in records if record.outcome is not Outcome.OK
    )
    return [f"{count} x {reason}" for reason, count in counted.most_common()]


def _of(records: Sequence[LoadRecord], *outcomes: Outcome) -> list[LoadRecord]:
    return [record for record in records if record.outcome in outcomes]


def _alone(stage: Stage) -> Workload:
    """Requests of its lengths, of which each stands for itself and is waited for."""
    return msgspec.structs.replace(stage.terms.workload, turns=Turns(), cancel=Cancel(), stream_share=1.0)


def _long(tokens: int) -> Workload:
    return Workload(
        "certify-long",
        Arrivals(ArrivalKind.CLOSED, concurrency=1),
        input_tokens=constant(tokens),
        output_tokens=constant(_LONG_OUTPUT_TOKENS),
    )


async def _until_in_time(stage: Stage, *, limit_s: float) -> float | None:
    began_s, slo = stage.clock.now_s(), promised(stage.terms, stage.known)
    while (since_s := stage.clock.now_s() - began_s) <= limit_s:
        run = await _drive(stage, closed(_alone(stage), 1), requests_max=1)
        if attainment(slo, slo_requests.of_run(run)).qualified.good:
            return round(since_s, 3)
        await asyncio.sleep(_LOOK_EVERY_S)
    return None


async def _drive(
    stage: Stage, workload: Workload, *, duration_s: float = _LOAD_MAX_S, requests_max: int = REQUESTS_MAX,
    warmup_s: float = 0.0, deadline_s: float = _PATIENCE_S,
) -> LoadRun:  # fmt: skip
    """One run; its requests are like those of no other run, and are kept for the books."""
    owner, history = stage.subject.owner, stage.subject.history
    run = await load.run_load(
        Target(owner.url, owner.model, owner.key, stage.subject.ca_file),
        msgspec.structs.replace(workload, seed=stage.terms.seed + len(history)),
        clock=stage.clock,
        terms=LoadTerms(
            duration_s=duration_s,
            requests_max=requests_max,
            warmup_s=warmup_s,
            deadline_s=deadline_s,
            learns_lengths=False,  # its lessons would stand in the ledger, and in nobody's records
        ),
    )
    history.extend(_asked(record, owner.tenant) for record in run.records if record.sent_s is not None)
    return run


def _asked(record: LoadRecord, tenant: str) -> Asked:
    """As the books have it."""
    is_whole = record.outcome is Outcome.OK or (
        record.outcome is Outcome.LATE and record.reason == load_call.LATE
    )
    return Asked(
        record.request_id, tenant, is_whole, record.status, record.input_tokens, record.output_tokens
    )


async def _pace(stage: Stage) -> float:
    if PACE not in stage.known:
        await find_pace(Stage(stage.subject, stage.terms, stage.known, stage.progress))
    return stage.known[PACE]


def _slots(stage: Stage) -> int:
    """Of all replicas, as the file says; at a URL nobody knows."""
    file = stage.subject.file
    if file is None:
        return _UNKNOWN_SLOTS
    args, replicas = file.spec.revision.args, max(1, file.spec.scale.min)
    return min(_CONCURRENCY_MAX, (args.slots or _UNKNOWN_SLOTS) * replicas)


def _context_tokens(stage: Stage) -> int | None:
    file = stage.subject.file
    return None if file is None else file.spec.revision.args.context_tokens
