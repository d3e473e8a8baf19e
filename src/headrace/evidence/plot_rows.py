"""How are things that stand one below the other compared: estimates with their bounds, and wholes with their parts?"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from headrace.core.verdicts import Interval
from headrace.evidence.plot_axes import (
    BOTTOM,
    COLOURS,
    RIGHT,
    WIDTH,
    Axis,
    Limit,
    Scale,
    bottom_axis,
    scale,
    tick,
)

_ROW = 26
_NAMES_WIDTH = 190
_NAME_CHARACTERS = 27


class Intervals(NamedTuple):
    """Estimates with their bounds, one row each, beside what they are held against; a bound that is None is open."""

    title: str
    x: Axis
    rows: Sequence[tuple[str, Interval]]
    limits: Sequence[Limit] = ()


class Parts(NamedTuple):
    """What wholes consist of: one bar each, of parts that add up."""

    title: str
    x: Axis
    names: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float]]]


def height(rows: Sequence[object]) -> int:
    return 10 + _ROW * len(rows) + BOTTOM


def drawn_intervals(plot: Intervals) -> str:
    values = [
        value
        for _, interval in plot.rows
        for value in (interval.estimate, interval.low, interval.high)
        if value is not None
    ]
    across = scale(
        plot.x,
        [*values, *(limit.value for limit in plot.limits)],
        start=_NAMES_WIDTH,
        end=WIDTH - RIGHT,
        from_zero=False,
    )
    reach = across.high - across.low
    if not across.is_log and plot.x.low is None:
        across = across._replace(low=across.low - 0.04 * reach)
    bottom = 10 + _ROW * len(plot.rows)
    parts = list(bottom_axis(plot.x, across, bottom=bottom, left=_NAMES_WIDTH))
    parts += (
        f'<path class="limit" d="M{across.at(limit.value)} 4V{bottom}"><title>{escape(limit.name)}</title></path>\n'
        for limit in plot.limits
    )
    for row, (name, interval) in enumerate(plot.rows):
        y = 10 + _ROW * row + _ROW / 2
        parts.append(_row_name(name, y))
        parts += _whisker(plot.x, name, interval, across, y)
    return "".join(parts)


def _whisker(axis: Axis, name: str, interval: Interval, across: Scale, y: float) -> Iterator[str]:
    if interval.estimate is None:
        yield f'<text class="tick" x="{_NAMES_WIDTH + 8}" y="{y + 4}">not known</text>\n'
        return
    low = across.start if interval.low is None else across.at(interval.low)
    high = across.end if interval.high is None else across.at(interval.high)
    yield f'<path class="l0" d="M{low} {y}H{high}"/>'
    for bound, at in ((interval.low, low), (interval.high, high)):
        if bound is not None:
            yield f'<path class="l0" d="M{at} {y - 4}v8"/>'
    yield (
        f'<circle class="f0" cx="{across.at(interval.estimate)}" cy="{y}" r="4.5">'
        f"<title>{escape(f'{name}: {_said(axis, interval)}')}</title></circle>\n"
    )


def _row_name(name: str, y: float) -> str:
    shown = name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 1]}…"
    title = f"<title>{escape(name)}</title>" if shown != name else ""
    return f'<text class="row" x="{_NAMES_WIDTH - 10}" y="{y + 4}" text-anchor="end">{escape(shown)}{title}</text>'


def _said(axis: Axis, interval: Interval) -> str:
    if interval.estimate is None:
        return "not known"
    low, high = ("open" if bound is None else tick(axis, bound) for bound in (interval.low, interval.high))
    return f"{tick(axis, interval.estimate)} ({low} to {high})"


def said_of_intervals(plot: Intervals) -> str:
    rows = [f"{name}: {_said(plot.x, interval)}." for name, interval in plot.rows]
    limits = [f"{limit.name}: {tick(plot.x, limit.value)}." for limit in plot.limits]
    return f"{plot.x.label}. {' '.join([*rows, *limits])}"


def drawn_parts(plot: Parts) -> str:
    across = scale(
        plot.x,
        [sum(values) for _, values in plot.rows],
        start=_NAMES_WIDTH,
        end=WIDTH - RIGHT,
        from_zero=True,
    )
    parts = list(bottom_axis(plot.x, across, bottom=10 + _ROW * len(plot.rows), left=_NAMES_WIDTH))
    for row, (name, values) in enumerate(plot.rows):
        y = 10 + _ROW * row
        parts.append(_row_name(name, y + _ROW / 2))
        done = 0.0
        for index, value in enumerate(values):
            left, right = across.at(done), across.at(done + value)
            done += value
            if right > left:
                said = f"{name}, {plot.names[index]}: {tick(plot.x, value)}"
                parts.append(
                    f'<rect class="f{index % COLOURS}" x="{left}" y="{y + 4}" width="{right - left:.1f}" height="{_ROW - 8}">'
                    f"<title>{escape(said)}</title></rect>\n"
                )
    return "".join(parts)


def said_of_parts(plot: Parts) -> str:
    rows = []
    for name, values in plot.rows:
        each = ", ".join(
            f"{part} {tick(plot.x, value)}" for part, value in zip(plot.names, values, strict=True)
        )
        rows.append(f"{name}: {each}.")
    return f"{plot.x.label}. {' '.join(rows)}"
