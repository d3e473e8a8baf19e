"""How are counts between edges drawn?"""

from collections.abc import Sequence
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
    frame,
    scale,
    tick,
)


class Histogram(NamedTuple):
    """Counts between edges, one column each; several layers lie upon each other.

    Attributes:
        edges: One more than each layer has counts.
    """

    title: str
    x: Axis
    y: Axis
    edges: Sequence[float]
    layers: Sequence[tuple[str, Sequence[float]]]


def drawn(plot: Histogram) -> str:
    heights = [sum(column) for column in zip(*(counts for _, counts in plot.layers), strict=True)]
    across = scale(plot.x, plot.edges, start=LEFT, end=WIDTH - RIGHT, from_zero=False)
    if plot.x.high is None and plot.edges:
        across = across._replace(high=max(plot.edges))
    up = scale(plot.y, heights, start=HEIGHT - BOTTOM, end=TOP, from_zero=True)
    parts = list(frame(plot.x, plot.y, across, up))
    for column, (left, right) in enumerate(zip(plot.edges, plot.edges[1:], strict=False)):
        x, width = across.at(left), max(1.0, across.at(right) - across.at(left) - 1)
        floor = 0.0
        for index, (name, counts) in enumerate(plot.layers):
            if not counts[column]:
                continue
            top, bottom = up.at(floor + counts[column]), up.at(floor)
            floor += counts[column]
            said = f"{tick(plot.x, left)} to {tick(plot.x, right)}: {name} {tick(plot.y, counts[column])}"
            parts.append(
                f'<rect class="f{index % COLOURS}" x="{x}" y="{top}" width="{width:.1f}" height="{bottom - top:.1f}">'
                f"<title>{escape(said)}</title></rect>\n"
            )
    return "".join(parts)


def said(plot: Histogram) -> str:
    sums = "; ".join(f"{name} {tick(plot.y, sum(counts))} in all" for name, counts in plot.layers)
    reach = f"{tick(plot.x, plot.edges[0])} to {tick(plot.x, plot.edges[-1])}" if plot.edges else "nothing"
    return f"{plot.y.label} by {plot.x.label}, {reach}: {sums}."
