"""How is a figure written for people? With its unit, and with no more digits than it bears; None is "-"."""

import math
from collections.abc import Callable

Writer = Callable[[float | None], str]

_SHARE_DIGITS_MAX = 9
_SCALES_S = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds(value: float | None) -> str:
    """In the unit that suits it: "1.25 s", "48 ms", "350 µs"."""
    if value is None:
        return "-"
    scale, unit = next((each for each in _SCALES_S if abs(value) >= each[0] * 0.9995), _SCALES_S[-1])
    return f"{number(value / scale)} {unit}" if value else "0"


def share(value: float | None) -> str:
    """Of one, in percent: "12.5 %". What isn't all of it doesn't read as all: "99.95 %"."""
    if value is not None and 0.99 < value < 1.0:
        # As many digits as what is missing needs.
        digits = min(_SHARE_DIGITS_MAX, -math.floor(math.log10((1.0 - value) * 100.0)) + 1)
        return f"{f'{value * 100:.{digits}f}'.rstrip('0').rstrip('.')} %"
    return "-" if value is None else f"{number(value * 100)} %"


def number(value: float | None) -> str:
    """Three digits or all of a larger whole, thousands apart: "0.125", "48.3", "12,500"."""
    if value is None:
        return "-"
    if not value:
        return "0"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size < 1e-4:
        return f"{value:.3g}"
    digits = 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.1 else 5
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")
