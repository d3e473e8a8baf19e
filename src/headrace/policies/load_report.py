"""What did a load test show? Every request that was intended is counted once, and no percentile mixes two outcomes.

docs/reference/load-report.md has each definition with its formula.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from headrace.core.load_records import Lateness, LoadRecord, LoadRun, Outcome, Window
from headrace.core.verdicts import Interval, Verdict
from headrace.policies import blocks, proportions
from headrace.policies.load_figures import (
    Distribution,
    Measure,
    Since,
    of_answers,
    of_endings,
    of_everyone,
)
from headrace.policies.proportions import Share

INPUT_BANDS = (128, 512, 2048, 8192, 32768)
OUTPUT_BANDS = (32, 128, 512, 2048)


class Limits(msgspec.Struct, frozen=True):
    """What the generator may be like at most; beyond it the run says nothing of the service.

    Attributes:
        late_p99_s: How late one request in a hundred was sent.
        cpu_share: Of one core, of the busiest process.
        unsent_share: Of the intended requests.
    """

    late_p99_s: float = 0.05
    cpu_share: float = 0.9
    unsent_share: float = 0.01


LIMITS = Limits()


class Ended(msgspec.Struct, frozen=True):
    """Requests with one outcome, of one reason, told apart by whether they were told when to come back.

    Attributes:
        came: From the actual send until that was known.
    """

    outcome: Outcome
    reason: str
    has_retry_after: bool
    count: int
    came: Distribution


class Goodput(msgspec.Struct, frozen=True):
    """Requests that got a whole answer within their deadline.

    Attributes:
        share: Of the intended ones, with bounds.
    """

    per_s: float
    share: Interval


class Rates(msgspec.Struct, frozen=True):
    """By second of the window, of the requests that were due in it. Tokens are those of whole answers, as the service counted
    them; `uncounted` of these said none."""

    intended_per_s: float
    sent_per_s: float
    input_tokens_per_s: float
    cached_tokens_per_s: float
    output_tokens_per_s: float
    uncounted: int


class Stratum(msgspec.Struct, frozen=True):
    """Those requests that have something in common.

    Attributes:
        times: Of its whole answers, from the intended send.
    """

    by: str
    name: str
    intended: int
    outcomes: dict[str, int]
    times: tuple[Distribution, ...]


class Generator(msgspec.Struct, frozen=True):
    """How well the generator did.

    Attributes:
        void: Why the run says nothing of the service; empty if it does.
    """

    lateness: Lateness
    cpu_share: float
    processes: int
    unsent: int
    limits: Limits
    void: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """A void run is a check that could not be made."""
        return Verdict.ERROR if self.void else Verdict.PASS


class LoadReport(msgspec.Struct, frozen=True):
    """The whole report. intended = sent + unsent, and both are the sum of their outcomes.

    Attributes:
        window: Only what was due in it counts; `before` and `after` are how many requests are left out by that.
        outcomes: Of all that were intended.
        times: Of whole answers in time; TTFT and TOTAL from the intended send, and then from the actual one.
        everyone: TTFT and TOTAL of all, where who got no answer waits for ever.
        alpha: Chance, one-sided, that a bound is wrong: two of 0.05 are a 90 % interval.
    """

    workload: str
    digest: str
    seed: int
    model: str
    url: str
    revisions: tuple[str, ...]
    window: Window
    before: int
    after: int
    intended: int
    sent: int
    unsent: int
    outcomes: dict[str, int]
    ended: tuple[Ended, ...]
    goodput: Goodput
    rates: Rates
    times: tuple[Distribution, ...]
    everyone: tuple[Distribution, ...]
    strata: tuple[Stratum, ...]
    generator: Generator
    alpha: float

    def of(self, measure: Measure, since: Since | None = Since.INTENDED) -> Distribution:
        """That of whole answers in time."""
        clock = since if measure in _CLOCKED else None
        return next(each for each in self.times if (each.measure, each.since) == (measure, clock))


def summarise(run: LoadRun, *, alpha: float = 0.05, limits: Limits = LIMITS) -> LoadReport:
    """What the records of a run add up to."""
    records = sorted((record for record in run.records if run.window.holds(record)), key=_due_s)
    outcomes = Counter(str(record.outcome) for record in records)
    unsent = outcomes[Outcome.UNSENT]
    return LoadReport(
        workload=run.workload,
        digest=run.digest,
        seed=run.seed,
        model=run.model,
        url=run.url,
        revisions=tuple(sorted({record.revision for record in records if record.revision})),
        window=run.window,
        before=sum(record.due_s < run.window.from_s for record in run.records),
        after=sum(record.due_s >= run.window.to_s for record in run.records),
        intended=len(records),
        sent=len(records) - unsent,
        unsent=unsent,
        outcomes={str(outcome): outcomes[outcome] for outcome in Outcome},
        ended=tuple(_ended(records, alpha=alpha)),
        goodput=_goodput(records, run.window, alpha=alpha),
        rates=_rates(records, run.window),
        times=tuple(_times(records, alpha=alpha)),
        everyone=tuple(of_everyone(records, measure, alpha=alpha) for measure in _CLOCKED),
        strata=tuple(_strata(records, alpha=alpha)),
        generator=_generator(run, records, limits),
        alpha=alpha,
    )


_CLOCKED = (Measure.TTFT, Measure.TOTAL)


def _due_s(record: LoadRecord) -> float:
    return record.due_s


def _length_s(window: Window) -> float:
    return max(1e-9, window.to_s - window.from_s)


def _ended(records: Sequence[LoadRecord], *, alpha: float) -> Iterator[Ended]:
    """The whole answers first, and then what was most frequent."""
    groups: dict[tuple[Outcome, str, bool], list[LoadRecord]] = {}
    for record in records:
        key = (record.outcome, record.reason, record.has_retry_after)
        groups.setdefault(key, []).append(record)
    order = sorted(groups.items(), key=lambda item: (item[0][0] is not Outcome.OK, -len(item[1]), item[0]))
    for key, group in order:
        yield Ended(*key, len(group), of_endings(group, alpha=alpha))


def _goodput(records: Sequence[LoadRecord], window: Window, *, alpha: float) -> Goodput:
    good = sum(record.outcome is Outcome.OK for record in records)
    parts = [
        Share(sum(record.outcome is Outcome.OK for record in part), len(part)) for part in blocks.cut(records)
    ]
    share = good / len(records) if records else None
    bounds = Interval(None, None, None)
    if share is not None:
        # As if there had been only as many requests as these are worth, with the same share of them good.
        worth = blocks.worth(parts)
        bounds = proportions.exact(Share(round(share * worth), worth), alpha=alpha)
    return Goodput(good / _length_s(window), Interval(share, bounds.low, bounds.high))


def _rates(records: Sequence[LoadRecord], window: Window) -> Rates:
    length_s = _length_s(window)
    answers = [record for record in records if record.outcome is Outcome.OK]
    sent = sum(record.sent_s is not None for record in records)
    return Rates(
        len(records) / length_s,
        sent / length_s,
        sum(record.input_tokens or 0 for record in answers) / length_s,
        sum(record.cached_tokens or 0 for record in answers) / length_s,
        sum(record.output_tokens or 0 for record in answers) / length_s,
        sum(record.output_tokens is None for record in answers),
    )


def _times(records: Sequence[LoadRecord], *, alpha: float) -> Iterator[Distribution]:
    for measure in Measure:
        for since in Since if measure in _CLOCKED else (Since.INTENDED,):
            yield of_answers(records, measure, since, alpha=alpha)


def _strata(records: Sequence[LoadRecord], *, alpha: float) -> Iterator[Stratum]:
    for by, name_of in _BY.items():
        groups: dict[tuple[int, str], list[LoadRecord]] = {}
        for record in records:
            groups.setdefault(name_of(record), []).append(record)
        for (_, name), group in sorted(groups.items()):
            counts = Counter(str(record.outcome) for record in group)
            times = (
                of_answers(group, measure, alpha=alpha)
                for measure in (Measure.TTFT, Measure.TPOT, Measure.TOTAL)
            )
            yield Stratum(by, name, len(group), dict(counts), tuple(times))


def _prefix(record: LoadRecord) -> tuple[int, str]:
    if record.prefix_group is None:
        return 2, "none shared"
    if record.sent_s is None:
        return 3, "never sent"
    return (0, "first of its prefix") if record.is_cold else (1, "prefix asked before")


def _cache(record: LoadRecord) -> tuple[int, str]:
    if record.cached_tokens is None:
        return 2, "not said"
    return (0, "hit") if record.cached_tokens else (1, "miss")


def _turn(record: LoadRecord) -> tuple[int, str]:
    return (0, "first") if record.turn == 1 else (1, "later")


def _answer(record: LoadRecord) -> tuple[int, str]:
    return (0, "streamed") if record.is_streamed else (1, "whole")


def _input_band(record: LoadRecord) -> tuple[int, str]:
    return _band(record.input_tokens or record.planned_input_tokens, INPUT_BANDS)


def _output_band(record: LoadRecord) -> tuple[int, str]:
    """By what was asked for: what came is known of answers only."""
    return _band(record.planned_output_tokens, OUTPUT_BANDS)


def _band(tokens: int, bands: Sequence[int]) -> tuple[int, str]:
    index = sum(tokens >= edge for edge in bands)
    if not index:
        return index, f"under {bands[0]} tokens"
    if index == len(bands):
        return index, f"{bands[-1]} tokens and more"
    return index, f"{bands[index - 1]} to {bands[index] - 1} tokens"


_BY: dict[str, Callable[[LoadRecord], tuple[int, str]]] = {
    "prefix": _prefix,
    "cache": _cache,
    "turn": _turn,
    "answer": _answer,
    "input": _input_band,
    "output": _output_band,
}


def generator_faults(run: LoadRun, *, limits: Limits = LIMITS) -> Iterator[str]:
    """What the generator did to the run, whatever the service did: none where it kept up."""
    if run.lateness.p99_s > limits.late_p99_s:
        yield (
            f"one request in a hundred was sent {run.lateness.p99_s:.3f} s late or later, of which {limits.late_p99_s:g} s"
            " are allowed: use more processes, or another machine"
        )
    if run.cpu_share > limits.cpu_share:
        yield (
            f"a process of the generator used {run.cpu_share:.0%} of its core, of which {limits.cpu_share:.0%} are allowed:"
            " use more processes"
        )
    for process in run.processes:
        if process.lost:
            yield f"process {process.number} of the generator was lost: {process.lost}"


def _generator(run: LoadRun, records: Sequence[LoadRecord], limits: Limits) -> Generator:
    unsent = sum(record.outcome is Outcome.UNSENT for record in records)
    void = list(generator_faults(run, limits=limits))
    if unsent > limits.unsent_share * len(records):
        void.append(
            f"{unsent} of {len(records)} requests were due and not sent, of which {limits.unsent_share:.0%} are allowed"
        )
    if not records:
        void.append("no request was due in the window")
    return Generator(run.lateness, run.cpu_share, len(run.processes), unsent, limits, tuple(void))
