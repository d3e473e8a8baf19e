"""How do people write a span of time or a moment? `30d`, `24h`, `2026-11-01`."""

import argparse
import re
from datetime import UTC, datetime

from headrace.core.moments import utc as utc  # for those who read and write both

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
# What comes of a span must still be a date that people can be shown.
_LONGEST_S = 100 * 366 * 86_400
_DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhdw])")


def duration_s(text: str) -> float:
    """Seconds in `90s`, `30m`, `24h`, `30d` or `2w`, at most 100 years; an argparse type."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: a number and one of s, m, h, d, w, such as 24h")
    span_s = float(match[1]) * _UNIT_S[match[2]]
    if span_s > _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r}: longer than 100 years")
    return span_s


def moment(text: str) -> datetime | float:
    """A date or time in ISO 8601, UTC unless it says otherwise, or a duration back from now; an argparse type."""
    if _DURATION.fullmatch(text):
        return duration_s(text)
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a date such as 2026-11-01, a time such as 2026-11-01T12:00Z, or a span such as 24h"
        ) from None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def unix_s(moment: datetime | float, *, now_s: float) -> float:
    """Unix seconds of what `moment` read."""
    return moment.timestamp() if isinstance(moment, datetime) else now_s - moment
