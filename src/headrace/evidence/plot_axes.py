"""Where does a value lie on a plot, and what stands beside its axes?"""

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum
from html import escape
from typing import NamedTuple

from headrace.evidence import numbers

WIDTH, HEIGHT = 720, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 26, 40
COLOURS = 7
"""How many the page has; after them they come again, and dashes tell them apart."""


class Kind(StrEnum):
    """What an axis counts, which is how its ticks are written."""

    NUMBER = "number"
    SECONDS = "seconds"
    SHARE = "share"


class Axis(NamedTuple):
    """One direction. Bounds that aren't given are those of what is shown; a logarithmic axis has only values above 0."""

    label: str
    kind: Kind = Kind.NUMBER
    is_log: bool = False
    low: float | None = None
    high: float | None = None


class Limit(NamedTuple):
    """A horizontal line that what is shown is held against."""

    value: float
    name: str


class Scale(NamedTuple):
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        way = (value - low) / (high - low)
        return round(self.start + min(1.0, max(0.0, way)) * (self.end - self.start), 1)


def scale(axis: Axis, values: Iterable[float], *, start: float, end: float, from_zero: bool) -> Scale:
    known = [value for value in values if math.isfinite(value) and (value > 0 or not axis.is_log)]
    low = axis.low if axis.low is not None else min(known, default=1.0 if axis.is_log else 0.0)
    high = axis.high if axis.high is not None else max(known, default=low)
    if axis.is_log:
        if high <= low:
            low, high = low / 2, low * 2
    else:
        if axis.low is None and from_zero:
            low = min(0.0, low)
        if high <= low:
            high = low + (abs(low) or 1.0)
        if axis.high is None:
            high += 0.04 * (high - low)
    return Scale(low, high, start, end, axis.is_log)


def ticks(low: float, high: float, *, is_log: bool = False, wanted: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, about as many as wanted."""
    if is_log:
        return _log_ticks(low, high, wanted)
    step = 10.0 ** math.floor(math.log10((high - low) / wanted))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= wanted)
    first = math.ceil(low / step - 1e-9)
    return [
        round(index * step, 12) + 0.0
        for index in range(first, first + wanted + 2)
        if index * step <= high * (1 + 1e-9)
    ]


def _log_ticks(low: float, high: float, wanted: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    shown: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        marks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        shown = [mark for mark in marks if low * (1 - 1e-9) <= mark <= high * (1 + 1e-9)]
        if len(shown) <= wanted + 2:
            break
    return shown if len(shown) >= 2 else [low, high]


def tick(axis: Axis, value: float) -> str:
    match axis.kind:
        case Kind.SECONDS:
            return numbers.seconds(value)
        case Kind.SHARE:
            return numbers.share(value)
        case Kind.NUMBER:
            return numbers.number(value)


def frame(x: Axis, y: Axis, across: Scale, up: Scale) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for value in ticks(up.low, up.high, is_log=up.is_log, wanted=5):
        at = up.at(value)
        yield f'<path class="grid" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick" x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{tick(y, value)}</text>\n'
    yield from bottom_axis(x, across, bottom=bottom, left=LEFT)
    yield f'<text class="axis" x="4" y="12">{escape(y.label)}</text>\n'


def bottom_axis(axis: Axis, across: Scale, *, bottom: float, left: float) -> Iterator[str]:
    yield f'<path class="edge" d="M{left} {bottom}H{WIDTH - RIGHT}"/>'
    for value in ticks(across.low, across.high, is_log=across.is_log, wanted=8):
        at = across.at(value)
        anchor = "end" if at > WIDTH - RIGHT - 14 else "middle"
        yield f'<path class="edge" d="M{at} {bottom}v4"/>'
        yield f'<text class="tick" x="{at}" y="{bottom + 16}" text-anchor="{anchor}">{tick(axis, value)}</text>\n'
    yield f'<text class="axis" x="{WIDTH - RIGHT}" y="{bottom + 34}" text-anchor="end">{escape(axis.label)}</text>\n'
