"""When does somebody have to know that a promise is being broken? Rules for Prometheus, made of an SLO.

An alert by error rate alone is too early or too late: one failed request in a quiet minute wakes somebody, and half a percent
more all month spends the whole budget unseen. So alerts go by how fast the error budget burns, over a long window, so that it
matters, and over a short one beside it, so that it goes on. That is the multiwindow, multi-burn-rate method.

Source: Google, The Site Reliability Workbook (2018), chapter 5, whose table is this one for a window of 30 days.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.core.slo import Metric, Slo
from headrace.policies.slo import FAILURES, Promise, promises
from headrace.policies.slo_requests import OUR_REASONS

MISSES_MIN = 3
"""Fewer misses than this in the long window wake nobody: where little is asked, one is a large share by chance."""

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
UNSEEN_S = 5 * _MINUTE_S
_SCRAPED_AGAIN_S = 2 * _MINUTE_S
"""A Prometheus that begins anew has seen nothing of anybody until its first scrapes."""


class Alarm(NamedTuple):
    """One pair of windows, and how much of the whole budget goes in the long one before somebody is told.

    Attributes:
        severity: `page` for at once, `ticket` for the next working day.
    """

    severity: str
    budget_share: float
    long_s: int
    short_s: int


ALARMS = (
    Alarm("page", 0.02, _HOUR_S, 5 * _MINUTE_S),
    Alarm("page", 0.05, 6 * _HOUR_S, 30 * _MINUTE_S),
    Alarm("ticket", 0.10, _DAY_S, 2 * _HOUR_S),
    Alarm("ticket", 0.10, 3 * _DAY_S, 6 * _HOUR_S),
)


class Rule(NamedTuple):
    """One rule of a group: it records `record`, or raises `alert`.

    Attributes:
        for_s: How long it must hold before anybody is told.
    """

    name: str
    expr: str
    labels: Mapping[str, str]
    is_alert: bool = False
    annotations: Mapping[str, str] = {}
    for_s: int = 0


class Group(NamedTuple):
    """Rules that are evaluated one after the other, each on what those before it recorded.

    Attributes:
        notes: What somebody should know who reads the file.
    """

    name: str
    rules: tuple[Rule, ...]
    notes: tuple[str, ...]


def burn_rate(alarm: Alarm, slo: Slo) -> float:
    """The factor over even spending at which that share of the budget goes in the long window; at least 1.

    budget_share x window / long: 14.4 for 2 % in an hour, of 30 days.
    """
    return max(1.0, alarm.budget_share * slo.window_s / alarm.long_s)


def miss_share(alarm: Alarm, promise: Promise, slo: Slo) -> float:
    """Share of misses above which it is raised. Half way from what is allowed to all of them is always enough: of a promise to 90
    of 100, 14 times the allowed misses would be more requests than there are, and an outage would wake nobody."""
    return min((1.0 + promise.miss_share_max) / 2, burn_rate(alarm, slo) * promise.miss_share_max)


def groups(slo: Slo, *, seconds: Sequence[float], token_seconds: Sequence[float]) -> Group:
    """All rules of one SLO.

    Args:
        seconds, token_seconds: Upper edges of the buckets of headrace's histograms; those of gaps are finer.
    """
    rules: list[Rule] = []
    notes: list[str] = []
    alarms = [alarm for alarm in ALARMS if alarm.long_s <= slo.window_s]
    if not alarms:
        notes.append(
            f"{slo.deployment} has no alerts: its error budget is of less than {span(ALARMS[0].long_s)}"
        )
    windows = sorted({window for alarm in alarms for window in (alarm.long_s, alarm.short_s)})
    for window_s in windows:
        rules += _ended(slo, span(window_s))
    for promise in promises(slo):
        edges = seconds
        if promise.objective is not None and promise.objective.metric in _OF_GAPS:
            edges = token_seconds
        edge_s = _edge(promise, edges)
        if promise.objective is not None and edge_s is None:
            notes.append(f"{promise.name} is not watched: no bucket of the histogram is that short")
            continue
        notes += _notes(promise, edge_s)
        for window_s in windows:
            rules += _recorded(slo, promise, edge_s, window_s)
        rules += (_alert(slo, promise, alarm) for alarm in alarms)
    return Group(f"headrace-slo-{slo.deployment}", tuple(rules), tuple(notes))


_OF_GAPS = (Metric.ITL, Metric.TPOT)


def _edge(promise: Promise, edges: Sequence[float]) -> float | None:
    """The last edge up to the bound: a bound between two edges is watched at the tighter one."""
    bound = promise.objective
    return None if bound is None else max((edge for edge in edges if edge <= bound.within_s), default=None)


def _notes(promise: Promise, edge_s: float | None) -> Iterator[str]:
    if promise.objective is None or edge_s is None:
        return
    if edge_s < promise.objective.within_s:
        yield f"{promise.name} is watched at {edge_s * 1000:g} ms, the next tighter bucket of the histogram"
    if promise.objective.metric in _OF_GAPS:
        yield (
            f"{promise.name} is watched by the share of gaps in streams that are longer, as no metric knows single"
            " requests by it; `headrace slo check` judges requests"
        )


def _rate(series: str, window: str) -> str:
    """Per second. A series that nothing was ever counted in is nothing, and not missing."""
    return f"sum(rate({series}[{window}])) or vector(0)"


def _ended(slo: Slo, window: str) -> Iterator[Rule]:
    """What all promises share: what was delivered, and what went wrong by our fault, with and without a beginning."""
    series = f'headrace_requests_total{{model="{slo.deployment}",outcome=~"%s",reason=~"%s"}}'
    ours = "|".join(OUR_REASONS)
    for name, outcomes, reasons in (
        (_DELIVERED, "delivered", "ok"),
        (_FAILED, "refused|failed|broken", ours),
        (_UNBEGUN, "refused|failed", ours),
    ):
        yield Rule(name + window, _rate(series % (outcomes, reasons), window), {"deployment": slo.deployment})


_DELIVERED, _FAILED, _UNBEGUN = (f"headrace:slo_{name}:rate" for name in ("delivered", "failed", "unbegun"))
_MISSES, _COUNTED = "headrace:slo_misses:rate", "headrace:slo_counted:rate"


def _recorded(slo: Slo, promise: Promise, edge_s: float | None, window_s: int) -> Iterator[Rule]:
    """Misses and counted requests per second over one window."""
    labels = {"deployment": slo.deployment, "objective": promise.name}
    window = span(window_s)
    for name, expr in zip((_MISSES, _COUNTED), _expressions(slo, promise, edge_s, window), strict=True):
        yield Rule(name + window, expr, labels)


def _expressions(slo: Slo, promise: Promise, edge_s: float | None, window: str) -> tuple[str, str]:
    """What missed it, and what was counted."""
    delivered, failed, unbegun = (
        f'sum({name}{window}{{deployment="{slo.deployment}"}})' for name in (_DELIVERED, _FAILED, _UNBEGUN)
    )
    if promise.objective is None or edge_s is None:
        return failed, f"{failed} + {delivered}"
    metric = promise.objective.metric
    name, model = _HISTOGRAMS[metric], f'model="{slo.deployment}"'
    if metric is Metric.TOTAL:
        model += ',outcome="delivered"'
    within = _rate(f'{name}_bucket{{{model},le="{float(edge_s)}"}}', window)
    if metric is Metric.TOTAL:
        return f"{failed} + clamp_min({delivered} - ({within}), 0)", f"{failed} + {delivered}"
    begun = _rate(f"{name}_count{{{model}}}", window)
    slow = f"clamp_min(({begun}) - ({within}), 0)"
    if metric is Metric.TTFT:
        # What broke had begun, and is counted with what began.
        return f"{failed} + {slow}", f"{unbegun} + ({begun})"
    return slow, begun


_HISTOGRAMS = {
    Metric.TTFT: "headrace_ttft_seconds",
    Metric.TOTAL: "headrace_request_seconds",
    Metric.ITL: "headrace_itl_seconds",
    Metric.TPOT: "headrace_itl_seconds",
}


def _alert(slo: Slo, promise: Promise, alarm: Alarm) -> Rule:
    """Both windows above the share, and more misses than chance makes."""
    share = miss_share(alarm, promise, slo)
    long, short = span(alarm.long_s), span(alarm.short_s)
    which = f'{{deployment="{slo.deployment}",objective="{promise.name}"}}'

    def above(window: str) -> str:
        return f"{_MISSES}{window}{which} > {share:.6g} * {_COUNTED}{window}{which}"

    enough = f"{_MISSES}{long}{which} * {alarm.long_s} >= {MISSES_MIN}"
    spent = share * alarm.long_s / (promise.miss_share_max * slo.window_s)
    told = "fail, are refused or break" if promise.name == FAILURES else f"miss {promise.name}"
    return Rule(
        "HeadraceSloBurns",
        f"{above(long)} and {above(short)} and {enough}",
        {"severity": alarm.severity, "deployment": slo.deployment, "objective": promise.name, "window": long},
        is_alert=True,
        annotations={
            "summary": f"{slo.deployment}: more than {share * 100:.3g} % of the requests {told}",
            "description": (
                f"Over {long} and over the last {short}; {promise.miss_share_max * 100:g} % is allowed. At this rate {spent:.0%} of"
                f" the error budget of {slo.window_days:g} days goes every {long}. `headrace slo check` says which"
                " requests, and docs/concepts/slo.md what to do."
            ),
        },
    )


def unseen() -> Group:
    """What no burn rate tells: a service that is gone counts nothing, and so misses nothing."""
    window = span(UNSEEN_S)
    return Group(
        "headrace-slo-unseen",
        (
            Rule(
                "HeadraceSloUnseen",
                f"absent_over_time(headrace_build_info[{window}])",
                {"severity": "page"},
                is_alert=True,
                annotations={
                    "summary": f"no metrics of headrace for {window}: whether its promises are kept is not known",
                    "description": "It doesn't run, or Prometheus doesn't reach it; `headrace status` says which.",
                },
                for_s=_SCRAPED_AGAIN_S,
            ),
        ),
        (),
    )


def span(seconds: int) -> str:
    """As Prometheus writes it."""
    for unit, of_s in (("d", _DAY_S), ("h", _HOUR_S), ("m", _MINUTE_S)):
        if seconds % of_s == 0:
            return f"{seconds // of_s}{unit}"
    return f"{seconds}s"


def as_yaml(found: Sequence[Group], *, heading: Sequence[str] = ()) -> str:
    """A file of rules. Text stands between single quotes, so that nothing in it means anything to YAML."""
    # A name of a file may have a line break in it.
    lines = [*(f"# {' '.join(line.split())}" for line in heading), "groups:"]
    for group in found:
        lines += [f"  # {note}." for note in group.notes]
        lines += [f"  - name: {_quoted(group.name)}", "    rules:"]
        for rule in group.rules:
            lines.append(f"      - {'alert' if rule.is_alert else 'record'}: {_quoted(rule.name)}")
            lines.append(f"        expr: {_quoted(rule.expr)}")
            if rule.for_s:
                lines.append(f"        for: {_quoted(span(rule.for_s))}")
            for name, pairs in (("labels", rule.labels), ("annotations", rule.annotations)):
                if pairs:
                    lines.append(f"        {name}:")
                    lines += [f"          {key}: {_quoted(value)}" for key, value in pairs.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
