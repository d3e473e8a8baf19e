"""How is a moment written for people and programs alike? ISO 8601, in UTC."""

import math
from datetime import UTC, datetime


def utc(unix_s: float) -> str:
    """With milliseconds. Rounded down, so that a moment never shows as a later one."""
    milliseconds = math.floor(unix_s * 1000)
    return (
        datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def unix_s(text: str) -> float:
    """Unix seconds of a date or time in ISO 8601, which is UTC unless it says otherwise. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
