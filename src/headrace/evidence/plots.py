"""How do figures look? Plots as inline SVG that need no script: axes, intervals, limits, light and dark by the page's colours.

Every plot has a text for those who can't see it, and its series differ in their dashes as well as in their colours.
"""

from html import escape

from headrace.evidence import plot_columns, plot_lines, plot_rows
from headrace.evidence.plot_axes import COLOURS, HEIGHT, WIDTH, Axis, Kind, Limit
from headrace.evidence.plot_columns import Histogram
from headrace.evidence.plot_lines import Lines, Series, Shape
from headrace.evidence.plot_rows import Intervals, Parts

__all__ = (
    "Axis",
    "Histogram",
    "Intervals",
    "Kind",
    "Limit",
    "Lines",
    "Parts",
    "Plot",
    "Series",
    "Shape",
    "figure",
)

Plot = Lines | Histogram | Intervals | Parts


def figure(plot: Plot, *, number: int) -> str:
    """The plot with its title and its legend; `number` tells it from the others of the page."""
    names = _legend(plot)
    # One name is the title's business, several are told apart.
    legend = "".join(_key(index, name, plot) for index, name in enumerate(names)) if len(names) > 1 else ""
    keys = f'<ul class="keys">{legend}</ul>' if legend else ""
    return f"<figure><figcaption>{escape(plot.title)}</figcaption>{keys}\n{_svg(plot, number)}</figure>"


def _legend(plot: Plot) -> list[str]:
    match plot:
        case Lines():
            return [series.name for series in plot.series]
        case Histogram():
            return [name for name, _ in plot.layers]
        case Parts():
            return list(plot.names)
        case Intervals():
            return []


def _key(index: int, name: str, plot: Plot) -> str:
    if isinstance(plot, Lines) and plot.shape is not Shape.DOTS:
        mark = f'<path class="l{index % COLOURS}" {plot_lines.dash(index)}d="M0 6H22"/>'
    else:
        mark = f'<rect class="f{index % COLOURS}" x="5" y="1" width="11" height="11" rx="2"/>'
    return f'<li><svg aria-hidden="true" width="22" height="12">{mark}</svg>{escape(name)}</li>'


def _svg(plot: Plot, number: int) -> str:
    height, body, says = _drawn(plot)
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t{number} d{number}">'
        f'<title id="t{number}">{escape(plot.title)}</title><desc id="d{number}">{escape(says)}</desc>\n'
        f"{body}</svg>"
    )


def _drawn(plot: Plot) -> tuple[int, str, str]:
    """How high it is, what is drawn, and what it says in words."""
    match plot:
        case Lines():
            return HEIGHT, plot_lines.drawn(plot), plot_lines.said(plot)
        case Histogram():
            return HEIGHT, plot_columns.drawn(plot), plot_columns.said(plot)
        case Intervals():
            return (
                plot_rows.height(plot.rows),
                plot_rows.drawn_intervals(plot),
                plot_rows.said_of_intervals(plot),
            )
        case Parts():
            return plot_rows.height(plot.rows), plot_rows.drawn_parts(plot), plot_rows.said_of_parts(plot)
