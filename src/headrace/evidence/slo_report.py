"""How does it read whether promises were kept? In words, as a section of a report, and as facts for programs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from headrace.core.slo import Metric, Slo
from headrace.core.verdicts import Verdict
from headrace.evidence.numbers import number, seconds, share
from headrace.evidence.page import Section, Table
from headrace.policies.slo import FAILURES, Attainment, Kept

WORDS = {
    Verdict.PASS: "proven",
    Verdict.FAIL: "refuted",
    Verdict.INCONCLUSIVE: "not enough samples",
    Verdict.ERROR: "could not be judged",
}
_MEASURES = {
    Metric.TTFT: "the first of the answer comes within {}",
    Metric.ITL: "no pause in the stream is longer than {}",
    Metric.TPOT: "each further token takes no more than {}, on average over the answer",
    Metric.TOTAL: "the whole answer is there within {}",
}


def promised(slo: Slo) -> Iterator[str]:
    """The file in sentences."""
    if slo.failure_share_max is not None:
        yield f"Of all requests at most {share(slo.failure_share_max)} are refused, fail, break, or are late, by our fault."
    for each in slo.objectives:
        measure = _MEASURES[each.metric].format(seconds(each.within_s))
        yield f"Of all requests at least {share(each.share)}: {measure}."
    limits = list(_limits(slo))
    yield f"It holds for {', '.join(limits)}." if limits else "It holds whatever the load is."
    if slo.cost.per_qualified_result_max:
        yield (
            f"A qualified result costs at most {slo.cost.per_qualified_result_max} {slo.cost.currency}:"
            " whole, within every bound, and as good as the quality floor asks."
        )
    yield (
        f"The error budget is that of {number(slo.window_days)} days: at one request per second"
        f" {_budget(slo)} requests may miss."
    )


def _budget(slo: Slo) -> str:
    """For scale, of the promise that allows least."""
    shares = [each.miss_share_max for each in slo.objectives]
    least = min([*shares, *([slo.failure_share_max] if slo.failure_share_max is not None else [])])
    return number(round(least * slo.window_s))


def _limits(slo: Slo) -> Iterator[str]:
    load = slo.load
    if load.requests_per_s_max is not None:
        yield f"up to {number(load.requests_per_s_max)} requests per second"
    if load.concurrency_max is not None:
        yield f"up to {number(load.concurrency_max)} requests at once"
    if load.input_tokens_max is not None:
        yield f"prompts of up to {number(load.input_tokens_max)} tokens"
    if load.output_tokens_max is not None:
        yield f"answers of up to {number(load.output_tokens_max)} tokens"


def section(found: Attainment, *, heading: str, prose: Sequence[str] = ()) -> Section:
    """What became of the requests, promise by promise."""
    fates = ", ".join(f"{count:,} {fate}" for fate, count in sorted(found.fates.items())) or "none"
    return Section(
        heading,
        (f"{found.intended:,} requests were due: {fates}.", *prose, *map(sentence, found.kept)),
        (_table(found),),
        verdict=found.verdict,
        says=f"{WORDS[found.verdict]}: {_says(found)}",
    )


def _says(found: Attainment) -> str:
    refuted = [each.promise.name for each in found.kept if each.verdict is Verdict.FAIL]
    open_ = [each.promise.name for each in found.kept if each.verdict is Verdict.INCONCLUSIVE]
    if refuted:
        return f"{', '.join(refuted)} not kept"
    return f"{', '.join(open_)} not shown" if open_ else "every promise was kept"


def _table(found: Attainment) -> Table:
    return Table(
        (
            "promise",
            "at least",
            "counted",
            "good",
            "missed",
            "excused",
            "share",
            "bounds",
            "budget left",
            "verdict",
        ),
        [_row(each) for each in found.kept],
        caption="Counted are all requests but the excused. The bounds are wrong with a chance of at most 5 % each."
        " What is left of the budget is of what so many requests may miss.",
        left=1,
    )


def _row(kept: Kept) -> tuple[str, ...]:
    tally, left = kept.tally, kept.budget.left_share
    return (
        kept.promise.name,
        share(1 - kept.promise.miss_share_max),
        f"{tally.counted:,}",
        f"{tally.good:,}",
        causes(tally.bad),
        causes(tally.excused),
        share(kept.share.estimate),
        f"{share(kept.share.low)} to {share(kept.share.high)}",
        share(left),
        WORDS[kept.verdict],
    )


def causes(counts: Mapping[str, int]) -> str:
    """`31 (23 slow, 8 refused)`."""
    if not counts:
        return "0"
    total = sum(counts.values())
    listed = ", ".join(f"{count:,} {cause}" for cause, count in sorted(counts.items(), key=_largest_first))
    return f"{total:,} ({listed})"


def _largest_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def sentence(kept: Kept) -> str:
    """Which promise, what came of it and why."""
    tally, name = kept.tally, kept.promise.name
    what = "failed, were refused, broke or were late" if name == FAILURES else f"missed {name}"
    counted = f"{name} {WORDS[kept.verdict]}: {causes(tally.bad)} of {tally.counted:,} {what}, {share(kept.promise.miss_share_max)} is allowed"
    if kept.requests_needed > tally.counted:
        counted += f"; with no more than that many it takes {kept.requests_needed:,} requests"
    return counted + "."


def burned(burns: Iterable[tuple[str, Mapping[str, float | None]]], windows: Sequence[str]) -> Table:
    """Burn rates by promise and window."""
    return Table(
        ("burn rate", *windows),
        [(name, *(_burn(rates.get(window)) for window in windows)) for name, rates in burns],
        caption="How many times faster than allowed the error budget went; at 1 it lasts just as long as its window.",
    )


def _burn(rate: float | None) -> str:
    return "-" if rate is None else number(rate)


def facts(slo: Slo, found: Attainment) -> dict[str, Any]:
    """The same for programs, with the sums that people see."""
    built: dict[str, Any] = msgspec.to_builtins(found)
    for each, row in zip(found.kept, built["kept"], strict=True):
        row |= {
            "verdict": each.verdict.value,
            "misses": each.tally.misses,
            "counted": each.tally.counted,
            "budget_left_share": each.budget.left_share,
        }
    return {"slo": msgspec.to_builtins(slo), "verdict": found.verdict.value, **built}
