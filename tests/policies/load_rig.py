"""Records of a load test that never took place."""

import random
from collections.abc import Sequence
from typing import Any

from headrace.core.load_records import Gaps, GeneratorProcess, Lateness, LoadRecord, LoadRun, Outcome, Window


def record(number: int = 0, *, due_s: float | None = None, took_s: float = 1.0, **fields: Any) -> LoadRecord:
    """One that was due at its number, sent at once and streamed: its first token after a tenth of the time."""
    due = float(number) if due_s is None else due_s
    known: dict[str, Any] = {
        "sent_s": due,
        "first_s": due + took_s / 10,
        "last_s": due + took_s,
        "ended_s": due + took_s,
        "outcome": Outcome.OK,
        "is_streamed": True,
        "output_tokens": 11,
        "input_tokens": 100,
        **fields,
    }
    return LoadRecord(number, due, **known)


def unsuccessful(number: int, outcome: Outcome, *, took_s: float = 0.001, **fields: Any) -> LoadRecord:
    nothing = {"first_s": None, "last_s": None, "output_tokens": None, "input_tokens": None}
    return record(number, took_s=took_s, outcome=outcome, **(nothing | fields))


def gaps(*values_s: float) -> Gaps:
    found = Gaps(0, 0.0, 0.0, {})
    for value_s in values_s:
        found.observe(value_s)
    return found


def run_of(records: Sequence[LoadRecord], **fields: Any) -> LoadRun:
    known: dict[str, Any] = {
        "workload": "chat",
        "digest": "sha256:0",
        "seed": 1,
        "url": "http://127.0.0.1:1",
        "model": "m",
        "began_at_s": 0.0,
        "duration_s": 1000.0,
        "window": Window(0.0, 1000.0),
        "records": list(records),
        "lateness": Lateness(0.0001, 0.001, 0.002),
        "processes": [GeneratorProcess(0, len(records), 0.2)],
        "is_closed": False,
    }
    return LoadRun(**(known | fields))


def latencies(chance: random.Random, count: int) -> list[float]:
    return [chance.lognormvariate(0.0, 0.5) for _ in range(count)]
