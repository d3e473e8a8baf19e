"""Was a promise kept, how surely, and how much may still go wrong? Attainment, error budget and burn rate of an SLO.

Every request that was intended is counted once: as good, as bad with its cause, or as excused with its reason. Nothing leaves
the count because it got no answer, and an attainment says how much was excused. What is excused nobody promised: what was
larger than the promise covers, what its caller did itself, and what has no such measure (a single token has no pace).

The verdict is a binomial test. With m misses among n requests a share of at most e is proven when so few misses would come
with a chance of at most alpha if the true share were e, and refuted when so many would; else there are not enough samples.
MLPerf's early stopping decides by the same tail. It takes requests as independent, which those of one queue are not quite:
give it several runs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

import msgspec

from headrace.core.deployment_terms import SloTerms
from headrace.core.slo import LoadLimits, Metric, Objective, Slo
from headrace.core.verdicts import Interval, Judgement, Verdict
from headrace.policies import distributions, proportions
from headrace.policies.proportions import Share

FAILURES = "failures"
REQUESTS_MAX = 10**9


class Fate(StrEnum):
    """What became of a request, as far as a promise goes.

    WHOLE: its caller got a whole answer. LATE: it did, or would have, after the deadline that it had named.
    REFUSED, FAILED, BROKEN: by our fault. UNSENT: it was due, and was not even sent, as too many were waiting.
    LEFT: its caller went away. CALLERS: wrong, or beyond limits that were agreed with its caller.
    """

    WHOLE = "whole"
    LATE = "late"
    REFUSED = "refused"
    FAILED = "failed"
    BROKEN = "broken"
    UNSENT = "unsent"
    LEFT = "left"
    CALLERS = "callers"


class Seen(NamedTuple):
    """One request as a promise sees it, all times from the moment it was due; None is what it doesn't have.

    Attributes:
        total_s: Until it ended, however it did.
        pause_s: The longest between two events of its stream.
        tpot_s: For each output token but the first, after the first of its answer.
    """

    fate: Fate
    total_s: float | None = None
    ttft_s: float | None = None
    pause_s: float | None = None
    tpot_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class Tally(msgspec.Struct, frozen=True):
    """How requests fared with one promise. intended = good + bad + excused.

    Attributes:
        bad: By cause: `slow`, or their fate.
        excused: By reason: `too_long`, `left`, `callers`, `no_measure`.
    """

    good: int = 0
    bad: dict[str, int] = {}
    excused: dict[str, int] = {}

    @property
    def misses(self) -> int:
        return sum(self.bad.values())

    @property
    def counted(self) -> int:
        """All that the promise was made for."""
        return self.good + self.misses

    @property
    def intended(self) -> int:
        return self.counted + sum(self.excused.values())


class Budget(msgspec.Struct, frozen=True):
    """What may go wrong of so many requests, and what has.

    Attributes:
        allowed: Misses that they leave room for; a part of a request is room too.
        burn_rate: How many times faster than allowed it was spent: at 1 it lasts just as long as its window. None of nothing.
    """

    allowed: float
    spent: int
    burn_rate: float | None

    @property
    def left_share(self) -> float | None:
        """Of what was allowed; below 0 where more went wrong than that."""
        return 1 - self.spent / self.allowed if self.allowed else None


class Promise(msgspec.Struct, frozen=True):
    """One promise: at most this share of the requests misses it."""

    name: str
    miss_share_max: float
    objective: Objective | None = None


class Kept(msgspec.Struct, frozen=True):
    """How one promise was kept.

    Attributes:
        share: Of the counted ones that were good, with the bounds that they can bear.
        judgement: Of the share of misses.
        requests_needed: How many it takes, with these misses and no more, until it is proven; 0 where it's decided.
    """

    promise: Promise
    tally: Tally
    share: Interval
    judgement: Judgement
    budget: Budget
    requests_needed: int

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict


class Attainment(msgspec.Struct, frozen=True):
    """How a deployment kept all that was promised of it.

    Attributes:
        fates: Of all that were intended.
        kept: One for each promise, in the order of the file, failures first.
        qualified: Of those that are within every bound at once.
    """

    intended: int
    fates: dict[str, int]
    kept: tuple[Kept, ...]
    qualified: Tally

    @property
    def verdict(self) -> Verdict:
        """FAIL as soon as one promise is refuted; PASS only when all are proven."""
        verdicts = {each.verdict for each in self.kept}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE


def promises(slo: Slo) -> tuple[Promise, ...]:
    """Each by itself; that of failures first."""
    failures = slo.failure_share_max
    return (
        *((Promise(FAILURES, failures),) if failures is not None else ()),
        *(Promise(each.name, each.miss_share_max, each) for each in slo.objectives),
    )


def attainment(
    slo: Slo, requests: Iterable[Seen], *, alike: Mapping[Seen, int] | None = None, alpha: float = 0.05
) -> Attainment:
    """How all of them fared.

    Args:
        alike: More of them, of which many are the same: how many of each.
        alpha: Chance, one-sided, that a verdict is wrong.
    """
    asked = promises(slo)
    counts = [_Count() for _ in asked]
    qualified = _Count()
    fates: Counter[str] = Counter()
    for seen, times in chain(((seen, 1) for seen in requests), (alike or {}).items()):
        fates[seen.fate] += times
        standing = _standing(slo.load, seen)
        marks = [standing or _mark(promise.objective, seen) for promise in asked]
        for count, mark in zip(counts, marks, strict=True):
            count.add(mark, times)
        qualified.add(standing or _together(seen, marks), times)
    return Attainment(
        fates.total(),
        dict(fates),
        tuple(judge(*pair, alpha=alpha) for pair in zip(asked, (c.tally() for c in counts), strict=True)),
        qualified.tally(),
    )


def judge(promise: Promise, tally: Tally, *, alpha: float = 0.05) -> Kept:
    """What that many good and bad ones say of a promise."""
    misses = Share(tally.misses, tally.counted)
    limit = promise.miss_share_max
    judgement = proportions.judge_against_limit(misses, limit=limit, alpha=alpha, needs_proof=True)
    needed = 0
    if judgement.verdict is Verdict.INCONCLUSIVE:
        needed = requests_needed(tally.misses, limit=limit, alpha=alpha)
    return Kept(
        promise,
        tally,
        proportions.exact(Share(tally.good, tally.counted), alpha=alpha),
        judgement,
        budget(tally, limit),
        needed,
    )


def budget(tally: Tally, miss_share_max: float) -> Budget:
    """What these requests were allowed to miss, and what they have."""
    allowed = miss_share_max * tally.counted
    return Budget(allowed, tally.misses, tally.misses / allowed if allowed else None)


def requests_needed(misses: int, *, limit: float, alpha: float) -> int:
    """The fewest requests of which that many misses prove a share of at most `limit`.

    The smallest n with P(X <= misses) <= alpha for X ~ Binomial(n, limit): 299 for none at 0.01 and 0.05, 473 for one.
    """
    return 1 + distributions.last_true(
        misses, REQUESTS_MAX, lambda n: distributions.binomial_at_most(misses, n, limit) > alpha
    )


def contradictions(slo: Slo, terms: SloTerms) -> Iterator[str]:
    """Where the deployment file's [slo], which scaling and rollouts go by, promises something else."""
    for key, metric in (("ttft_p95_ms", Metric.TTFT), ("tpot_p95_ms", Metric.TPOT)):
        aimed_ms = getattr(terms, key)
        if aimed_ms is None:
            continue
        for objective in slo.objectives:
            if objective.metric is not metric:
                continue
            if objective.share >= _P95 and objective.within_ms < aimed_ms:
                yield (
                    f"{objective.name} is promised to {objective.share:.4g} of the requests, and the deployment aims at"
                    f" `slo.{key}` = {aimed_ms:g}, which is later; lower that to {objective.within_ms:g}"
                )
            elif objective.share <= _P95 and objective.within_ms > aimed_ms:
                yield (
                    f"{objective.name} is promised to {objective.share:.4g} of the requests, and the deployment promises"
                    f" `slo.{key}` = {aimed_ms:g} to more of them; lower the one or raise the other"
                )
    ours, aimed = slo.failure_share_max, terms.error_rate
    if ours is not None and aimed is not None and ours != aimed:
        yield f"`failure_share_max` is {ours:g}, and the deployment's `slo.error_rate` {aimed:g}; make them equal"


_P95 = 0.95
_GOOD = ""
_SLOW = "slow"
_NO_MEASURE = "no_measure"
_TOO_LONG = "too_long"
_AT_FAULT = frozenset({Fate.LATE, Fate.REFUSED, Fate.FAILED, Fate.BROKEN, Fate.UNSENT})


class _Mark(NamedTuple):
    """What one request is to one promise."""

    is_excused: bool
    why: str


_KEPT = _Mark(False, _GOOD)
_LEFT = _Mark(True, Fate.LEFT)


class _Count:
    """Marks, counted."""

    def __init__(self) -> None:
        self._marks: Counter[_Mark] = Counter()

    def add(self, mark: _Mark, times: int) -> None:
        self._marks[mark] += times

    def tally(self) -> Tally:
        return Tally(
            self._marks[_KEPT],
            {mark.why: count for mark, count in self._marks.items() if not mark.is_excused and mark.why},
            {mark.why: count for mark, count in self._marks.items() if mark.is_excused},
        )


def _standing(limits: LoadLimits, seen: Seen) -> _Mark | None:
    """What it is to every promise alike; None where that depends on the promise."""
    if seen.fate is Fate.CALLERS:
        return _Mark(True, Fate.CALLERS)
    if is_too_long(limits, seen):
        return _Mark(True, _TOO_LONG)
    return _Mark(False, seen.fate) if seen.fate in _AT_FAULT else None


def _mark(objective: Objective | None, seen: Seen) -> _Mark:
    """What one that was whole, or whose caller left, is to a promise; None is that of failures."""
    has_left = seen.fate is Fate.LEFT
    if objective is None:
        return _LEFT if has_left else _KEPT
    took_s = _measure(objective.metric, seen)
    waited_s = seen.total_s if has_left and took_s is None and objective.metric is Metric.TTFT else took_s
    if waited_s is not None and waited_s > objective.within_s:
        return _Mark(False, _SLOW)  # who had waited too long already when it left was let down
    if has_left:
        is_settled = objective.metric is Metric.TTFT and took_s is not None
        return _KEPT if is_settled else _LEFT
    return _Mark(True, _NO_MEASURE) if took_s is None else _KEPT


def _measure(metric: Metric, seen: Seen) -> float | None:
    return {
        Metric.TTFT: seen.ttft_s,
        Metric.ITL: seen.pause_s,
        Metric.TPOT: seen.tpot_s,
        Metric.TOTAL: seen.total_s,
    }[metric]


def is_too_long(limits: LoadLimits, seen: Seen) -> bool:
    """Whether it asks for more than the promise covers."""
    pairs = (
        (limits.input_tokens_max, seen.input_tokens),
        (limits.output_tokens_max, seen.output_tokens),
    )
    return any(most is not None and has is not None and has > most for most, has in pairs)


def _together(seen: Seen, marks: Iterable[_Mark]) -> _Mark:
    """A request is bad if it is so to any promise, and good if it is whole and bad to none."""
    missed = next((mark for mark in marks if not mark.is_excused and mark.why), None)
    return missed or (_LEFT if seen.fate is Fate.LEFT else _KEPT)
