"""How is a load test kept? One file with its report and every record, for whoever judges, repeats or describes it later."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.config import files
from headrace.core.errors import ConfigError
from headrace.core.load_records import LoadRecord, LoadRun, Outcome
from headrace.core.workload import Arrived
from headrace.policies.load_joining import Joined
from headrace.policies.load_report import LoadReport

SUFFIX = ".json"
# Of a million records.
BYTES_MAX = 1024 * 1024 * 1024
_IS_NONE = "not a load test, as `headrace load --records` writes one"


class LoadFile(msgspec.Struct, frozen=True):
    """All of it.

    Attributes:
        joined: What the service itself has of the same requests; None where that can't be known.
    """

    report: LoadReport
    run: LoadRun
    joined: Joined | None = None


class _Records(msgspec.Struct, frozen=True):
    """What is read again: the report can be made of it."""

    run: LoadRun


def encode(report: LoadReport, run: LoadRun, joined: Joined | None = None) -> bytes:
    return msgspec.json.encode(LoadFile(report, run, joined)) + b"\n"


def read(path: Path) -> LoadRun:
    """The run that is in it. Raises ConfigError."""
    try:
        run = msgspec.json.decode(files.read(path, bytes_max=BYTES_MAX), type=_Records).run
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: {_IS_NONE}: {error}") from error
    if len({record.number for record in run.records}) < len(run.records):
        raise ConfigError(f"{path}: {_IS_NONE}: a request is there twice")
    return run


def arrivals(run: LoadRun) -> Iterator[Arrived]:
    """Its requests as a trace: what was intended, and which callers left when; what the server made of them is no part of that."""
    turns = Counter(record.conversation for record in run.records)
    first_s = min((record.due_s for record in run.records), default=0.0)
    for record in sorted(run.records, key=_due_s):
        yield Arrived(
            record.due_s - first_s,
            record.planned_input_tokens or record.input_tokens,
            record.planned_output_tokens or record.output_tokens,
            conversation=str(record.conversation) if turns[record.conversation] > 1 else "",
            is_streamed=record.is_streamed,
            cached_tokens=record.cached_tokens,
            cancel_after_s=_stayed_s(record),
        )


def _due_s(record: LoadRecord) -> float:
    return record.due_s


def _stayed_s(record: LoadRecord) -> float | None:
    if record.outcome is not Outcome.CANCELLED or record.sent_s is None:
        return None
    return record.ended_s - record.sent_s
