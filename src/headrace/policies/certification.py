"""May a service be offered? The figures of each step of a certification against bounds that were stated before.

A step passes when all of its figures do. A figure that many samples stand behind is judged by what they can show: within the
bound, beyond it, or not enough evidence for either.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from headrace.core.deployment_terms import SloTerms
from headrace.core.errors import ConfigError
from headrace.core.slo import Metric, Objective, Slo
from headrace.core.verdicts import Judgement, Verdict
from headrace.policies import proportions, quality, quantiles, ranks
from headrace.policies.proportions import Share
from headrace.policies.slo import Kept

ALPHA = 0.05
# Each token of an input attends to all before it, so a long one is read more slowly than a short one, token for token.
LONG_TIMES = 3.0
# Under normal load now and then as many come at once as there are slots, or a few more.
BUSY_TIMES = 2.0


class Sense(StrEnum):
    """On which side of its bound a figure must lie."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


class Figure(msgspec.Struct, frozen=True):
    """One figure of a step.

    Attributes:
        value: None where it has never come.
        bound: None for a figure that is told and not judged; its verdict is None then too.
        low, high: What the samples can bear; None where the figure is exact, or they can't bear it.
        samples: How many stand behind it; 0 where it is no statistic.
    """

    what: str
    value: float | None
    unit: str = ""
    sense: Sense = Sense.AT_MOST
    bound: float | None = None
    verdict: Verdict | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0


class StepReport(msgspec.Struct, frozen=True):
    """What one step found.

    Attributes:
        verdict: None where the step wasn't made, which says nothing about the service.
        detail: In a sentence, why it isn't a pass, or wasn't made.
        figures: In the order in which they were taken.
        notes: What else a reader should know, a sentence each.
    """

    name: str
    question: str
    verdict: Verdict | None
    detail: str = ""
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    took_s: float = 0.0


class Bounds(msgspec.Struct, frozen=True):
    """What a service must keep to, where neither its SLO file nor its deployment says otherwise.

    Attributes:
        good_share: Of all requests that were meant to be sent under normal load, those that keep each of the promises.
        failure_share: Of them, those that fail, break or are lost; a refusal counts too, as nobody asked for too much.
        ttft_s, tpot_s, total_s: The promises, from when a request was due; 0 takes what 19 of 20 requests take with all slots
            busy, times BUSY_TIMES.
        long_ttft_s: To the first token of a long input; 0 takes what short ones need for each token, times LONG_TIMES.
        burst_answered_s: After a burst, until a single request is in time again.
        quality_floor: Share of the acceptance set that must be answered rightly; 0 only measures.
        cached_share: Of a prompt that was just asked, the part that the prefix cache gives back.
        cancel_s: From the caller's leaving until the engine has stopped working for it.
        refusal_s: In which the 95th of a hundred refusals is told.
        goodput_share: Of what the service answers at its best, what it still answers in time when far more is asked.
        revoked_s: Until a key that is made or revoked is known as that.
        unanswered_s: After the loss of one of several replicas, until the last request was due that got no whole answer.
        recovery_s: Until all is as before: a lost replica replaced, a bad release rolled back, an overload forgotten.
        leak_p: Chance below which a difference of times tells what another tenant has asked.
        memory_bytes_per_request: Growth of the service's own processes.
        books_off: Requests without exactly one record, and other faults of the books.
    """

    good_share: float = 0.95
    failure_share: float = 0.03
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    total_s: float = 0.0
    long_ttft_s: float = 0.0
    burst_answered_s: float = 30.0
    quality_floor: float = 0.0
    cached_share: float = 0.5
    cancel_s: float = 1.0
    refusal_s: float = 0.25
    goodput_share: float = 0.8
    revoked_s: float = 2.0
    unanswered_s: float = 5.0
    recovery_s: float = 60.0
    leak_p: float = 0.01
    memory_bytes_per_request: float = 4096.0
    books_off: float = 0.0


def changed(bounds: Bounds, given: Mapping[str, float]) -> Bounds:
    """The bounds with others for those that are named. Raises ConfigError for a name that is none, or a value below 0."""
    known = Bounds.__struct_fields__
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"no bound {name!r}; there are {', '.join(known)}")
        if not value >= 0:
            raise ConfigError(f"bound {name}: {value:g} is no bound; it takes a number of at least 0")
    return msgspec.structs.replace(bounds, **given)


def at_most(what: str, value: float | None, bound: float, unit: str = "", *, samples: int = 0) -> Figure:
    """A figure that was measured or counted itself, and isn't estimated; one that never came is beyond its bound."""
    verdict = Verdict.PASS if value is not None and value <= bound else Verdict.FAIL
    return Figure(what, _float(value), unit, Sense.AT_MOST, float(bound), verdict, samples=samples)


def at_least(what: str, value: float | None, bound: float, unit: str = "", *, samples: int = 0) -> Figure:
    """As `at_most`."""
    verdict = Verdict.PASS if value is not None and value >= bound else Verdict.FAIL
    return Figure(what, _float(value), unit, Sense.AT_LEAST, float(bound), verdict, samples=samples)


def told(what: str, value: float | None, unit: str = "", *, samples: int = 0) -> Figure:
    """A figure without a bound."""
    return Figure(what, _float(value), unit, samples=samples)


def share_at_most(what: str, events: int, trials: int, limit: float) -> Figure:
    """A share of bad events: passes where it isn't shown to be above the limit by trials enough to show that."""
    needed = proportions.trials_without_event(limit, alpha=ALPHA) if 0 < limit < 1 else 1
    judged = proportions.judge_against_limit(
        Share(events, trials), limit=limit, alpha=ALPHA, samples_min=needed
    )
    return _judged(what, judged, Sense.AT_MOST, limit, "")


def promise_kept(kept: Kept) -> Figure:
    """One promise of an SLO, as its share of good requests."""
    promise, share = kept.promise, kept.share
    return Figure(
        f"{promise.name}, kept for",
        share.estimate,
        "",
        Sense.AT_LEAST,
        round(1 - promise.miss_share_max, 9),
        kept.verdict,
        share.low,
        share.high,
        kept.tally.counted,
    )


def default_slo(deployment: str, terms: SloTerms, bounds: Bounds) -> Slo:
    """What is held against a deployment that has no SLO file: its own [slo], and the bounds for what that leaves out.

    What is stated in neither is for `completed` to say.
    """
    aimed = (
        (Metric.TTFT, terms.ttft_p95_ms or bounds.ttft_s * 1000),
        (Metric.TPOT, terms.tpot_p95_ms or bounds.tpot_s * 1000),
        (Metric.TOTAL, bounds.total_s * 1000),
    )
    return Slo(
        deployment,
        failure_share_max=terms.error_rate or bounds.failure_share,
        objectives=tuple(
            Objective(metric, within_ms, bounds.good_share) for metric, within_ms in aimed if within_ms
        ),
    )


def completed(slo: Slo, busy_s: Mapping[Metric, float], *, share: float) -> Slo:
    """The SLO with a promise for each of these that it has none for.

    Args:
        busy_s: What 19 of 20 requests take at most with all slots busy.
    """
    stated = {each.metric for each in slo.objectives}
    added = (
        Objective(metric, max(1.0, float(round(BUSY_TIMES * most_s * 1000))), share)
        for metric, most_s in busy_s.items()
        if metric not in stated
    )
    return msgspec.structs.replace(slo, objectives=(*slo.objectives, *added))


def long_ttft_s(bounds: Bounds, *, short: Iterable[tuple[float, int]], tokens: int) -> float:
    """The bound for inputs of so many tokens: the one that is stated, or by what short ones took, but at least what all are promised.

    Args:
        short: Of each short input seconds to the first token, and its tokens.
    """
    paces = sorted(ttft_s / max(1, count) for ttft_s, count in short)
    if bounds.long_ttft_s or not paces:
        return bounds.long_ttft_s or bounds.ttft_s
    return max(bounds.ttft_s, LONG_TIMES * tokens * paces[len(paces) // 2])


def quantile_at_most(
    what: str, values: Sequence[float], quantile: float, limit: float, unit: str = "s"
) -> Figure:
    """A quantile; too few samples for one are no evidence."""
    judged = quantiles.judge_against_limit(
        quantiles.Samples(values), quantile=quantile, limit=limit, alpha=ALPHA
    )
    return _judged(what, judged, Sense.AT_MOST, limit, unit)


def slope_at_most(what: str, points: Sequence[tuple[float, float]], limit: float, unit: str = "") -> Figure:
    """How much the second grows with the first: a pass is shown to be below the limit, a failure shown to be above."""
    found = ranks.slope(points, alpha=ALPHA)
    if found.low is None or found.high is None:
        verdict = Verdict.INCONCLUSIVE
    elif found.low > limit:
        verdict = Verdict.FAIL
    else:
        verdict = Verdict.PASS if found.high <= limit else Verdict.INCONCLUSIVE
    return Figure(
        what, found.estimate, unit, Sense.AT_MOST, limit, verdict, found.low, found.high, len(points)
    )


class Asked(msgspec.Struct, frozen=True):
    """One request of a certification, as its caller keeps it for the books.

    Attributes:
        request_id: "" where no head of an answer came.
        is_whole: The end of the answer was seen.
        prompt_tokens, completion_tokens: From the answer's usage; None where it said none.
    """

    request_id: str
    tenant: str
    is_whole: bool = False
    status: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Books(msgspec.Struct, frozen=True):
    """What a certification's requests are in the ledger.

    Attributes:
        unrecorded: Answered whole, and without a record.
        doubled: Recorded more than once.
        strangers: Records beyond one for each request that was sent.
    """

    asked: int
    recorded: int
    unrecorded: int
    doubled: int
    strangers: int


def compare_books(asked: Iterable[Asked], recorded: Iterable[str]) -> Books:
    """Every request once.

    Args:
        recorded: The request id of each record of the tenants of the certification.
    """
    listed, ids = list(asked), list(recorded)
    own = {each.request_id for each in listed if each.request_id}
    nameless = sum(not each.request_id for each in listed)
    unknown = len({each for each in ids if each not in own})
    return Books(
        asked=len(listed),
        recorded=len(ids),
        # A refusal needs no record: who is turned away before anything is known of the request leaves none.
        unrecorded=len(
            {each.request_id for each in listed if each.is_whole and each.status == 200} - set(ids)
        ),
        doubled=len(ids) - len(set(ids)),
        strangers=max(0, unknown - nameless),
    )


def verdict(figures: Iterable[Figure]) -> tuple[Verdict, str]:
    """Of a step, and in a sentence which figures it rests on where it isn't a pass."""
    judged = [figure for figure in figures if figure.verdict is not None]
    found = quality.together(figure.verdict for figure in judged if figure.verdict is not None)
    if found is Verdict.PASS:
        return found, ""
    return found, "; ".join(_says(figure) for figure in judged if figure.verdict is found)


def overall(steps: Sequence[StepReport]) -> Verdict:
    """A step that wasn't made decides nothing; without any that was, nothing is known."""
    made = [step.verdict for step in steps if step.verdict is not None]
    return quality.together(made) if made else Verdict.ERROR


def in_words(figure: Figure) -> str:
    """Its value as a person reads it."""
    return "never" if figure.value is None else _number(figure.value, figure.unit)


def bound_in_words(figure: Figure) -> str:
    """Its bound; "" where it has none."""
    return "" if figure.bound is None else f"{figure.sense} {_number(figure.bound, figure.unit)}"


def _float(value: float | None) -> float | None:
    """Counts and truths are numbers too; a card's JSON has one kind of them."""
    return None if value is None else float(value)


def _says(figure: Figure) -> str:
    few = f" of {figure.samples}" if figure.samples else ""
    doubt = ", which so few can't show" if figure.verdict is Verdict.INCONCLUSIVE else ""
    return f"{figure.what}: {in_words(figure)}{few}, {bound_in_words(figure)}{doubt}"


def _number(value: float, unit: str) -> str:
    return f"{value:.4g} {unit}".strip()


def _judged(what: str, found: Judgement, sense: Sense, bound: float, unit: str) -> Figure:
    measure = found.measure
    return Figure(
        what,
        measure.estimate,
        unit,
        sense,
        bound,
        found.verdict,
        measure.low,
        measure.high,
        found.candidate_samples,
    )
