"""Which requests came, and when? Reads the traces of others and our own, line by line.

A trace is a table with a line of headings (CSV), or lines of JSON. Columns are known by their headings:

    arrival_s, arrival_ms       TIMESTAMP (a date and a time; Azure)    Timestamp (seconds; BurstGPT)    timestamp (ms; Mooncake)
    input_tokens                ContextTokens (Azure)                   Request tokens (BurstGPT)        input_length (Mooncake)
    output_tokens               GeneratedTokens (Azure)                 Response tokens (BurstGPT)       output_length (Mooncake)
    conversation                                                        Session ID (BurstGPT)
    hash_ids (lines of JSON), is_streamed, cached_tokens, cancel_after_ms

Only the time is required; others may be missing, or empty in some lines. A load test's file (`.json`) is read as one too: what it asked.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, TypeVar

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.usage import TOKENS_MAX
from headrace.core.workload import Arrived
from headrace.evidence import load_file

SUFFIXES = (".csv", ".jsonl", load_file.SUFFIX)
SPAN_MAX_S = 1e9

T = TypeVar("T")

_Row = Mapping[str, Any]
_TRUE, _FALSE = ("true", "True", "1", True), ("false", "False", "0", False)


def read(path: Path) -> Iterator[Arrived]:
    """Every request, the first at 0. Raises ConfigError naming file, line and column, also where lines aren't in order."""
    found = load_file.arrivals(load_file.read(path)) if path.suffix == load_file.SUFFIX else _listed(path)
    first = next(found, None)
    if first is None:
        raise ConfigError(f"{path}: no requests in it")
    yield first
    yield from found


def _listed(path: Path) -> Iterator[Arrived]:
    first_s = last_s = None
    for line, row in _rows(path):
        try:
            at_s = _time(row)
            arrived = _arrived(row, at_s)
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"{path}: line {line}: {error}") from error
        if last_s is not None and at_s < last_s:
            raise ConfigError(f"{path}: line {line}: it came before the line above it; sort them by time")
        first_s, last_s = at_s if first_s is None else first_s, at_s
        if at_s - first_s > SPAN_MAX_S:
            raise ConfigError(
                f"{path}: line {line}: it came {at_s - first_s:g} s after the first; no trace is that long"
            )
        yield arrived._replace(at_s=at_s - first_s)


def rate_per_s(path: Path) -> float:
    """The mean of the whole trace. Raises ConfigError where all its requests come at once."""
    count, last_s = 0, 0.0
    for arrived in read(path):
        count, last_s = count + 1, arrived.at_s
    if not last_s:
        raise ConfigError(f"{path}: all its requests come at once, which has no rate to change")
    return (count - 1) / last_s


def at_rate(path: Path, rate: float) -> Iterator[Arrived]:
    """The same, faster or slower, so that its mean rate is this one; callers who leave still do so after the same time.

    Reads the file twice.
    """
    speed = rate / rate_per_s(path)
    return (arrived._replace(at_s=arrived.at_s / speed) for arrived in read(path))


COLUMNS = (
    "arrival_ms",
    "input_tokens",
    "output_tokens",
    "conversation",
    "is_streamed",
    "cached_tokens",
    "cancel_after_ms",
)
"""Of a table of ours; it has no place for blocks."""


def write(file: TextIO, trace: Iterable[Arrived]) -> None:
    """Writes a table that `read` reads, into a file that doesn't change line ends."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in trace:
        streamed = None if row.is_streamed is None else "true" if row.is_streamed else "false"
        cancel_ms = None if row.cancel_after_s is None else f"{row.cancel_after_s * 1000:.1f}"
        table.writerow(
            (f"{row.at_s * 1000:.1f}", row.input_tokens, row.output_tokens, row.conversation, streamed,
             row.cached_tokens, cancel_ms)
        )  # fmt: skip


def _rows(path: Path) -> Iterator[tuple[int, _Row]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            if path.suffix == ".jsonl":
                yield from _json_rows(path, lines)
            else:
                table = csv.DictReader(lines)
                yield from ((table.line_num, row) for row in table)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: no trace: {error}") from error


def _json_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, _Row]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise ConfigError(f"{path}: line {number}: no object of JSON: {error}") from error


def _time(row: _Row) -> float:
    for heading, seconds in _TIMES.items():
        if (said := row.get(heading)) not in (None, ""):
            try:
                at_s = seconds(said)
            except (ValueError, TypeError):
                at_s = math.nan
            if not math.isfinite(at_s):
                raise ValueError(f"`{heading}`: {said!r} is no time")
            return at_s
    raise ValueError(f"no time of arrival: it has none of the columns {', '.join(_TIMES)}")


def _date(said: str) -> float:
    """A date and a time, in UTC where no zone is named."""
    at = datetime.fromisoformat(said)
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


_TIMES: dict[str, Callable[[Any], float]] = {
    "arrival_s": float,
    "arrival_ms": lambda said: float(said) / 1000.0,
    "TIMESTAMP": _date,
    "Timestamp": float,
    "timestamp": lambda said: float(said) / 1000.0,
}


def _arrived(row: _Row, at_s: float) -> Arrived:
    return Arrived(
        at_s,
        _column(row, ("input_tokens", "ContextTokens", "Request tokens", "input_length"), _tokens),
        _column(row, ("output_tokens", "GeneratedTokens", "Response tokens", "output_length"), _tokens),
        _column(row, ("hash_ids",), _blocks) or (),
        _column(row, ("conversation", "Session ID"), str) or "",
        _column(row, ("is_streamed",), _truth),
        _column(row, ("cached_tokens",), _tokens),
        _column(row, ("cancel_after_ms",), _wait_s),
    )


def _column(row: _Row, headings: tuple[str, ...], read_as: Callable[[Any], T]) -> T | None:
    for heading in headings:
        if (said := row.get(heading)) not in (None, ""):
            try:
                return read_as(said)
            except (ValueError, TypeError) as error:
                raise ValueError(f"`{heading}`: {error}") from error
    return None


def _wait_s(said: Any) -> float:
    wait_s = float(said) / 1000.0
    if not 0.0 <= wait_s <= SPAN_MAX_S:
        raise ValueError(f"nobody waits for {said} ms")
    return wait_s


def _tokens(said: Any) -> int:
    tokens = int(said)
    if not isinstance(said, str) and (isinstance(said, bool) or tokens != said):
        raise ValueError(f"{said!r} is no number of tokens")
    if not 0 <= tokens <= TOKENS_MAX:
        raise ValueError(f"{tokens} tokens can't be true")
    return tokens


def _blocks(said: Any) -> tuple[int, ...]:
    return msgspec.convert(said, tuple[int, ...])


def _truth(said: Any) -> bool:
    if said in _TRUE or said in _FALSE:
        return said in _TRUE
    raise ValueError(f"{said!r} is neither true nor false")
