"""How do values over another, or over time, look?"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from html import escape
from typing import NamedTuple

from headrace.evidence.plot_axes import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Limit,
    Scale,
    frame,
    scale,
    tick,
)

_DASHES = ("", "7 4", "2 3", "9 3 2 3", "", "5 2", "1 4")
_SHOWN_POINTS = 640  # about one for each pixel of the width


class Series(NamedTuple):
    """What one line shows.

    Attributes:
        points: By rising x; a None interrupts the line.
        band: For each point between what and what the true value lies; None where that isn't known.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    band: Sequence[tuple[float, float] | None] = ()


class Shape(StrEnum):
    LINE = "line"
    STEPS = "steps"
    DOTS = "dots"


class Lines(NamedTuple):
    """Values over another, or over time. STEPS hold each value until the next point."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    shape: Shape = Shape.LINE
    limits: Sequence[Limit] = ()


def drawn(plot: Lines) -> str:
    points = [point for series in plot.series for point in series.points]
    bounds = [bound for series in plot.series for pair in series.band if pair is not None for bound in pair]
    heights = [y for _, y in points if y is not None]
    across = scale(plot.x, (x for x, _ in points), start=LEFT, end=WIDTH - RIGHT, from_zero=False)
    up = scale(
        plot.y,
        [*heights, *bounds, *(limit.value for limit in plot.limits)],
        start=HEIGHT - BOTTOM,
        end=TOP,
        from_zero=True,
    )
    parts = list(frame(plot.x, plot.y, across, up))
    for index, series in enumerate(plot.series):
        parts.append(_band(series, across, up, index))
    for index, series in enumerate(plot.series):
        if plot.shape is Shape.DOTS:
            parts += _dots(series, across, up, index)
        else:
            path = _path(series.points, across, up, is_stepped=plot.shape is Shape.STEPS)
            parts.append(f'<path class="l{index % COLOURS}" {dash(index)}d="{path}"/>\n')
    for limit in plot.limits:
        at = up.at(limit.value)
        parts.append(f'<path class="limit" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="limit" x="{LEFT + 6}" y="{at - 5}">{escape(limit.name)}</text>\n')
    return "".join(parts)


def _path(points: Sequence[tuple[float, float | None]], across: Scale, up: Scale, *, is_stepped: bool) -> str:
    drawn: list[str] = []
    is_begun = False
    for x, y in thinned(points, across.at):
        if y is None:
            is_begun = False
        elif not is_begun:
            drawn.append(f"M{across.at(x)} {up.at(y)}")
            is_begun = True
        elif is_stepped:
            drawn.append(f"H{across.at(x)}V{up.at(y)}")
        else:
            drawn.append(f"L{across.at(x)} {up.at(y)}")
    return "".join(drawn)


def thinned(
    points: Sequence[tuple[float, float | None]], at: Callable[[float], float]
) -> Sequence[tuple[float, float | None]]:
    """Of all points that fall on one pixel of the width the first, the lowest, the highest and the last: it looks the same."""
    if len(points) <= _SHOWN_POINTS:
        return points
    kept: list[tuple[float, float | None]] = []
    column: list[tuple[float, float | None]] = []
    for point in points:
        if column and int(at(point[0])) != int(at(column[0][0])):
            kept += _outline(column)
            column = []
        column.append(point)
    return kept + _outline(column)


def _outline(column: list[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    known = [(index, y) for index, (_, y) in enumerate(column) if y is not None]
    if not known:
        return column[:1]
    lowest, highest = min(known, key=_height), max(known, key=_height)
    return [column[index] for index in sorted({known[0][0], lowest[0], highest[0], known[-1][0]})]


def _height(point: tuple[int, float]) -> float:
    return point[1]


def _dots(series: Series, across: Scale, up: Scale, index: int) -> Iterator[str]:
    places = {(across.at(x), up.at(y)) for x, y in thinned(series.points, across.at) if y is not None}
    path = "".join(f"M{x} {y}h0" for x, y in sorted(places))
    yield f'<path class="d{index % COLOURS}" d="{path}"/>\n'


def _band(series: Series, across: Scale, up: Scale, index: int) -> str:
    """Each stretch of points of which both bounds are known is one area."""
    areas, stretch = [], list[tuple[float, float, float]]()
    for (x, _), bounds in [*zip(series.points, series.band, strict=False), ((0.0, None), None)]:
        if bounds is not None:
            stretch.append((across.at(x), up.at(bounds[0]), up.at(bounds[1])))
        elif stretch:
            over = "L".join(f"{x} {high}" for x, _, high in stretch)
            back = "L".join(f"{x} {low}" for x, low, _ in reversed(stretch))
            areas.append(f"M{over}L{back}Z")
            stretch = []
    return f'<path class="b{index % COLOURS}" d="{"".join(areas)}"/>' if areas else ""


def dash(index: int) -> str:
    dash = _DASHES[index % len(_DASHES)]
    return f'stroke-dasharray="{dash}" ' if dash else ""


def said(plot: Lines) -> str:
    said = []
    for series in plot.series:
        known = [y for _, y in series.points if y is not None]
        if known:
            reach = (
                f"{tick(plot.y, min(known))} to {tick(plot.y, max(known))}, last {tick(plot.y, known[-1])}"
            )
            said.append(f"{series.name}: {reach}.")
        else:
            said.append(f"{series.name}: nothing to show.")
    said += [f"{limit.name}: {tick(plot.y, limit.value)}." for limit in plot.limits]
    return f"{plot.y.label} over {plot.x.label}. {' '.join(said)}"
