"""How does a capacity plan read? As sections of a page, which say of every figure where it comes from."""

from collections.abc import Iterator, Sequence

from headrace.core import money
from headrace.core.verdicts import Interval, Verdict
from headrace.evidence.capacity import Answer, Option, Situation
from headrace.evidence.capacity_memory import Fitting
from headrace.evidence.numbers import number, seconds, share
from headrace.evidence.page import WORDS, Section, Table
from headrace.evidence.plot_axes import Axis, Kind, Limit
from headrace.evidence.plot_lines import Lines, Series
from headrace.evidence.simulate import TOGETHER
from headrace.policies.capacity import Occupancy, Sizing
from headrace.policies.cost import Bill
from headrace.policies.memory_plan import MIB

PUBLISHED = "From published figures, not measured: take everything as right to 30 %, and measure one replica before you promise."
_DECIMALS = 6


def sections(answer: Answer) -> list[Section]:
    """The whole answer."""
    found = [_law(answer), _chance(answer), _simulated(answer)]
    if answer.memory:
        found.insert(0, _memory(answer))
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


def _memory(answer: Answer) -> Section:
    rows = [_fitting(each) for each in answer.memory]
    columns = (
        "", "devices", "usable MiB", "weights MiB", "before requests MiB", "KiB a token", "tokens a request", "MiB a request",
        "fit", "at once", "bound by",
    )  # fmt: skip
    prose = (
        "What weights, workspace and the engine leave is for the cache. A request holds its prompt and what it has of its answer:"
        " in the mean of those that are there at one moment, of which long ones are the more. So many fit that there is room in 99"
        " moments of 100. Until an engine has started and told what it really has, take it as right to 30 %.",
    )
    return Section("What fits the memory", prose, [Table(columns, rows)])


def _fitting(each: Fitting) -> tuple[str, ...]:
    room = each.room
    return (
        each.name, str(each.memory.devices), _mib(room.usable_bytes), _mib(room.weights_bytes),
        _mib(room.fixed_bytes), number(room.token_bytes / 1024), number(room.held.mean),
        number(room.request_bytes / MIB), f"{room.requests:,}", f"{each.at_once:,}", each.bound,
    )  # fmt: skip


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.0f}"


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
    if answer.is_bound_by_prompts:
        tokens, per_s = answer.plan.load.input_tokens, answer.plan.replica.prefill_tokens_per_s
        prose.append(
            f"One replica computes prompts one after another, {number(per_s / tokens)} of {number(tokens)} tokens a second at"
            " most: that is less than its slots could answer, and the simulation goes by it."
        )
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
    tables = [_occupied(answer.fleets, "By the mean" if answer.tail_fleets else "")]
    if answer.tail_fleets:
        tables.insert(
            0, _occupied(answer.tail_fleets, "Bound by the tail: as if each request took as long as that")
        )
    prose = [
        "At the mean load. A replica is full by chance before the fleet is (Poisson), unless one queue gives each free slot to"
        " its first (Erlang C). What is spare pays for uneven spread, bursts and a lost replica, hardly for chance.",
    ]
    if answer.is_bound_by_prompts:
        prose.append(
            "These are slots, of which there are more than enough: what is short here is time for prompts."
        )
    return Section("What chance and a loss do", prose, tables)


def _occupied(fleets: Sequence[Occupancy], caption: str) -> Table:
    rows = [
        (
            str(each.replicas), share(each.utilisation) if each.is_stable else f"{share(each.utilisation)}: unstable",
            _seldom(each.full_share), _seldom(each.waiting_share),
            share(each.utilisation_after_loss) if each.replicas > 1 else "none left", _seldom(each.full_share_after_loss),
        )
        for each in fleets
    ]  # fmt: skip
    columns = (
        "replicas",
        "utilisation",
        "full, spread by chance",
        "wait, one queue",
        "with one lost",
        "then full",
    )
    return Table(columns, rows, caption)


def _seldom(chance: float) -> str:
    """Nobody needs to know how much less than one in a hundred million."""
    return "< 1e-06 %" if 0.0 <= chance < 1e-8 else share(chance)


def _simulated(answer: Answer) -> Section:
    if answer.replicas is None:
        return Section(
            "Simulation", tables=(), verdict=answer.verdict,
            says="no number of such replicas keeps the promise: one request alone may take too long",
        )  # fmt: skip
    promises = answer.situations[0].figures.kept
    rows = [_situation(each) for each in answer.situations]
    names = [
        each.name if each.name == TOGETHER else f"{each.name}: {share(each.share)} promised"
        for each in promises
    ]
    columns = ("load", "requests/s", *names, "refused", "busy", "TTFT p99", "total p99", "verdict")
    series = [
        Series(
            promise.name,
            [(i, each.figures.kept[at].reached.estimate) for i, each in enumerate(answer.situations)],
            [_band(each.figures.kept[at].reached) for each in answer.situations],
        )
        for at, promise in enumerate(promises)
    ]
    plot = Lines(
        "Share of the requests that are served as promised, by load in the order of the table", Axis("load"),
        Axis("kept", kind=Kind.SHARE), series,
        limits=[Limit(least, f"promised: {share(least)}") for least in sorted({each.share for each in promises})],
    )  # fmt: skip
    prose = (
        f"A fleet of {answer.replicas} on a virtual clock, its requests dispatched by the policies that the gateway goes by:"
        f" {answer.situations[0].figures.runs} runs of each load, bounds by Student's t (95 %). {_promised(answer)} What the gateway"
        " itself takes isn't in it.",
    )
    return Section(
        "Simulation", prose, [Table(columns, rows)], [plot], answer.verdict, f"{answer.replicas} replicas"
    )


def _promised(answer: Answer) -> str:
    if answer.slo is not None:
        return f"Promised is the SLO of {answer.slo.deployment}, each of its promises by itself."
    promise = answer.plan.promise
    bounds = (("TTFT", promise.ttft_s), ("TPOT", promise.tpot_s), ("total", promise.total_s))
    within = ", ".join(f"{name} {seconds(bound)}" for name, bound in bounds if bound is not None)
    return (
        f"{share(promise.share)} are to be answered {f'within {within}' if within else 'whole, in any time'}."
    )


def _situation(each: Situation) -> tuple[str, ...]:
    figures = each.figures
    return (
        each.name, number(each.rate_per_s), *(_bounded(kept.reached) for kept in figures.kept),
        share(figures.refused.estimate), share(figures.busy.estimate), seconds(figures.ttft_p99_s.estimate),
        seconds(figures.total_p99_s.estimate), WORDS[each.verdict],
    )  # fmt: skip


def _bounded(interval: Interval) -> str:
    band = _band(interval)
    return share(interval.estimate) + ("" if band is None else f" ({share(band[0])} to {share(band[1])})")


def _band(interval: Interval) -> tuple[float, float] | None:
    if interval.low is None or interval.high is None:
        return None
    return max(0.0, interval.low), min(1.0, interval.high)


def _options(answer: Answer) -> Section:
    lacks = {each.name: each.lacks for each in answer.memory}
    rows = [
        (
            _basis(each, answer), str(each.at_once or "-"),
            str(each.replicas or ("does not fit" if lacks.get(each.name) else "none keeps the promise")),
            _amount(each.per_hour, answer), _amount(each.per_result, answer),
        )
        for each in answer.options
    ]  # fmt: skip
    columns = ("", "at once", "replicas", "an hour", "a qualified result")
    prose = [
        "For the same load and promise, each with its own simulation. What a smaller or quantised model answers worse is in"
        " the results only as far as `accepted` says so.",
        *(f"{name} does not fit: {lack}." for name, lack in lacks.items() if lack),
    ]
    return Section("What else would do", prose, [Table(columns, rows)])


def _basis(option: Option, answer: Answer) -> str:
    """A measured replica beside published ones isn't one of them."""
    return option.name if option.is_measured == answer.is_measured else f"{option.name} (published figures)"


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
        " the promise, and accepted by the quality check; everything else that was paid for is divided by those. Used is a share"
        " of what the fleet can do at most; what is wasted, on results that don't qualify, is part of the hardware and the network.",
    )
    verdict, says = _affordable(answer)
    return Section("What a qualified result costs", prose, [Table(columns, rows)], (), verdict, says)


def _affordable(answer: Answer) -> tuple[Verdict | None, str]:
    """Against the bound of the SLO, if it has one."""
    if answer.slo is None or answer.is_affordable is None:
        return None, ""
    verdict = Verdict.PASS if answer.is_affordable else Verdict.FAIL
    return verdict, f"{_amount(answer.slo.cost.max_pico, answer)} at most, at the normal load"


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
            name, _amount(each.ready_hour, answer), _amount(each.full_hour, answer), _amount(each.network_hour, answer),
            "never" if each.utilisation is None or each.utilisation > 1 else share(each.utilisation),
        )
        for name, each in answer.break_even
    ]  # fmt: skip
    columns = ("", "ready an hour", "full use brings", "its network", "pays from")
    prose = (
        "Ready capacity costs the same whether it is used or not; the price pays for it from this share of its use on."
        " Only results that qualify are counted as sold.",
    )
    return Section("Price against ready capacity", prose, [Table(columns, rows)])


def _amount(pico: int | None, answer: Answer) -> str:
    """To six decimals: a result costs thousandths."""
    if pico is None or answer.plan.costs is None:
        return "-"
    step = money.PICO // 10**_DECIMALS
    rounded = (2 * pico + step) // (2 * step) * step
    return f"{money.format_amount(rounded)} {answer.plan.costs.currency}"


def basis(answer: Answer) -> str:
    """What every figure of it rests on."""
    return "measured" if answer.is_measured else "published figures, not measured, +-30 %"


def facts(answer: Answer) -> Iterator[tuple[str, str]]:
    """What everything on the page holds for."""
    yield "replicas", "none keeps the promise" if answer.replicas is None else str(answer.replicas)
    yield "figures", basis(answer)
    yield "load", f"{number(answer.plan.load.rate_per_s)} requests/s"
