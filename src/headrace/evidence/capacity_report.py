"""How does a capacity plan read? As sections of a page, which say of every figure where it comes from."""

from collections.abc import Iterator

from headrace.core import money
from headrace.core.capacity_plan import CapacityPlan
from headrace.core.verdicts import Interval
from headrace.evidence.capacity import Answer, Situation
from headrace.evidence.numbers import number, seconds, share
from headrace.evidence.page import WORDS, Section, Table
from headrace.evidence.plot_axes import Axis, Kind, Limit
from headrace.evidence.plot_lines import Lines, Series
from headrace.policies.capacity import Sizing
from headrace.policies.cost import Bill

PUBLISHED = "From published figures, not measured: take everything as right to 30 %, and measure one replica before you promise."
_DECIMALS = 6


def sections(answer: Answer) -> list[Section]:
    """The whole answer."""
    found = [_law(answer), _chance(answer), _simulated(answer)]
    if len(answer.options) > 1 or answer.plan.costs is not None:
        found.append(_options(answer))
    if answer.bills:
        found.append(_costs(answer))
    if answer.break_even:
        found.append(_price(answer))
    if answer.is_measured:
        return found
    return [each._replace(heading=f"{each.heading} (published figures)") for each in found]


def lead(answer: Answer) -> list[str]:
    """What is said before all of it."""
    plan = answer.plan
    says = [plan.about] if plan.about else []
    if answer.is_measured:
        return [*says, f"Measured: {plan.replica.source}."]
    return [*says, PUBLISHED, *([f"Source: {plan.replica.source}."] if plan.replica.source else [])]


def _law(answer: Answer) -> Section:
    rows, prose = [], []
    views = answer.views
    if views is not None and views.spread is not None:
        tail = share(answer.plan.replica.time_share)
        rows = [_sizing(f"bound by the tail ({tail} of the requests)", views.by_tail)]
        prose = [
            f"Little's law wants the mean, and {seconds(answer.plan.replica.time_s)} are what {tail} of the requests take at"
            f" most. If times are lognormal with a standard deviation of {share(views.spread.cv)} of their mean, which is"
            f" assumed here, the mean is {seconds(views.spread.mean_s)}, and far fewer replicas carry the load. The number by"
            " the tail is safe and too large; measure the mean before you buy by the other."
        ]
    named = "by the measured mean" if answer.is_measured else "by the mean"
    rows.append(_sizing(named, answer.sizing))
    columns = ("", "rate", "time", "in progress", "one runs", "carrying", "with spare")
    return Section("Little's law", prose, [Table(columns, rows)])


def _sizing(name: str, sizing: Sizing) -> tuple[str, ...]:
    return (
        name, f"{number(sizing.rate_per_s)}/s", seconds(sizing.time_s), number(sizing.in_progress),
        number(sizing.per_replica), str(sizing.carrying), f"{sizing.replicas} (+{share(sizing.spare_share)})",
    )  # fmt: skip


def _chance(answer: Answer) -> Section:
    rows = [
        (
            str(each.replicas), share(each.utilisation) if each.is_stable else f"{share(each.utilisation)}: unstable",
            share(each.full_share), share(each.waiting_share), share(each.utilisation_after_loss) if each.replicas > 1 else "none left",
            share(each.full_share_after_loss),
        )
        for each in answer.fleets
    ]  # fmt: skip
    columns = (
        "replicas",
        "utilisation",
        "full, spread by chance",
        "wait, one queue",
        "with one lost",
        "then full",
    )
    prose = (
        "At the mean load. A replica is full by chance before the fleet is (Poisson), unless one queue gives each free slot to"
        " its first (Erlang C). What is spare pays for uneven spread, bursts and a lost replica, hardly for chance.",
    )
    return Section("What chance and a loss do", prose, [Table(columns, rows)])


def _simulated(answer: Answer) -> Section:
    plan = answer.plan
    if answer.replicas is None:
        return Section(
            "Simulation", tables=(), verdict=answer.verdict,
            says="no number of such replicas keeps the promise: one request alone may take too long",
        )  # fmt: skip
    rows = [_situation(each) for each in answer.situations]
    columns = ("load", "requests/s", "kept", "refused", "busy", "TTFT p99", "total p99", "verdict")
    points = [(index, each.figures.attainment.estimate) for index, each in enumerate(answer.situations)]
    bands = [_band(each.figures.attainment) for each in answer.situations]
    plot = Lines(
        "Share of the requests that are served as promised, by load in the order of the table", Axis("load"),
        Axis("kept", kind=Kind.SHARE), [Series("kept", points, bands)],
        limits=[Limit(plan.promise.share, "promised")],
    )  # fmt: skip
    runs = answer.situations[0].figures.runs if answer.situations else 0
    prose = (
        f"A fleet of {answer.replicas} on a virtual clock, its requests dispatched by the policies that the gateway goes by:"
        f" {runs} runs of each load, bounds by Student's t (95 %). {share(plan.promise.share)} are to be within"
        f" {_promised(plan)}. What the gateway itself takes isn't in it.",
    )
    return Section(
        "Simulation", prose, [Table(columns, rows)], [plot], answer.verdict, f"{answer.replicas} replicas"
    )


def _promised(plan: CapacityPlan) -> str:
    bounds = (("TTFT", plan.promise.ttft_s), ("TPOT", plan.promise.tpot_s), ("total", plan.promise.total_s))
    return ", ".join(f"{name} {seconds(bound)}" for name, bound in bounds if bound is not None) or "any time"


def _situation(each: Situation) -> tuple[str, ...]:
    figures = each.figures
    kept = figures.attainment
    bounds = (
        ""
        if kept.low is None or kept.high is None
        else f" ({share(kept.low)} to {share(min(1.0, kept.high))})"
    )
    return (
        each.name, number(each.rate_per_s), f"{share(kept.estimate)}{bounds}", share(figures.refused.estimate),
        share(figures.busy.estimate), seconds(figures.ttft_p99_s.estimate), seconds(figures.total_p99_s.estimate),
        WORDS[each.verdict],
    )  # fmt: skip


def _band(interval: Interval) -> tuple[float, float] | None:
    if interval.low is None or interval.high is None:
        return None
    return interval.low, min(1.0, interval.high)


def _options(answer: Answer) -> Section:
    rows = [
        (
            each.name, "none keeps the promise" if each.replicas is None else str(each.replicas),
            _amount(each.per_hour, answer), _amount(each.per_result, answer),
        )
        for each in answer.options
    ]  # fmt: skip
    columns = ("", "replicas", "an hour", "a qualified result")
    prose = (
        "For the same load and promise, each with its own simulation. What a smaller or quantised model answers worse is in"
        " the results only as far as `accepted` says so.",
    )
    return Section("What else would do", prose, [Table(columns, rows)])


def _costs(answer: Answer) -> Section:
    rows = [_bill(bill, answer) for bill in answer.bills]
    columns = (
        "load", "requests/s", "used", "working", "idle", "network", "storage", "monitoring", "operations", "total", "wasted",
        "a qualified result",
    )  # fmt: skip
    costs = answer.plan.costs
    assert costs is not None, "there are bills"
    prose = (
        f"An hour of each kind, in {costs.currency}, at prices of {costs.date}. A result is qualified if it is whole, within"
        " the promise, and accepted by the quality check; everything else that was paid for is divided by those. What is"
        " wasted is part of the hardware and the network.",
    )
    return Section("What a qualified result costs", prose, [Table(columns, rows)])


def _bill(bill: Bill, answer: Answer) -> tuple[str, ...]:
    parts = (
        bill.working,
        bill.idle,
        bill.network,
        bill.storage,
        bill.monitoring,
        bill.operations,
        bill.total,
        bill.wasted,
    )
    return (
        bill.use.name, number(bill.use.rate_per_s), share(bill.use.utilisation),
        *(_amount(part, answer) for part in parts), _amount(bill.per_result, answer),
    )  # fmt: skip


def _price(answer: Answer) -> Section:
    rows = [
        (
            name, _amount(each.ready_hour, answer), _amount(each.full_hour, answer),
            "never" if each.utilisation is None or each.utilisation > 1 else share(each.utilisation),
        )
        for name, each in answer.break_even
    ]  # fmt: skip
    columns = ("", "ready an hour", "full use brings", "pays from")
    prose = (
        "Ready capacity costs the same whether it is used or not; the price pays for it from this share of its use on.",
    )
    return Section("Price against ready capacity", prose, [Table(columns, rows)])


def _amount(pico: int | None, answer: Answer) -> str:
    """To six decimals: a result costs thousandths."""
    if pico is None or answer.plan.costs is None:
        return "-"
    step = money.PICO // 10**_DECIMALS
    rounded = (2 * pico + step) // (2 * step) * step
    return f"{money.format_amount(rounded)} {answer.plan.costs.currency}"


def facts(answer: Answer) -> Iterator[tuple[str, str]]:
    """What everything on the page holds for."""
    yield "replicas", "none keeps the promise" if answer.replicas is None else str(answer.replicas)
    yield "figures", "measured" if answer.is_measured else "published, not measured, +-30 %"
    yield "load", f"{number(answer.plan.load.rate_per_s)} requests/s"
