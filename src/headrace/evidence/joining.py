"""Where is a caller's time? The records of a load test beside those of the service's own ledger, which is read where it lies."""

from collections.abc import Iterator
from pathlib import Path

from headrace.core.load_records import LoadRun
from headrace.core.money import format_amount
from headrace.evidence import numbers
from headrace.evidence.page import Section, Table
from headrace.evidence.plots import Axis, Kind, Parts
from headrace.policies import load_joining
from headrace.policies.load_joining import PARTS, Inside, Joined, Split
from headrace.stores.opening import open_database
from headrace.stores.usage_report import UsageReport

# A clock may be set between the start of a run and a record's making; ids make up for it.
MARGIN_S = 60.0
_NAMES = {
    "generator": "held back by the generator",
    "way": "way there and back",
    "queue": "queue",
    "execution": "execution",
    "service": "checks and delivery",
}


def recorded(data: Path, run: LoadRun) -> dict[str, Inside]:
    """What the ledger in that data directory has of the requests of a run, by id. Raises ConfigError."""
    wanted = {record.request_id for record in run.records if record.request_id}
    report = UsageReport(open_database(data, must_exist=True))
    try:
        currencies = report.currencies()
        found = {}
        for usage in report.each(since_s=run.began_at_s - MARGIN_S):
            if usage.request_id not in wanted:
                continue
            executions = report.executions(usage.request_id)
            found[str(usage.request_id)] = Inside(
                usage.queue_wait_s,
                sum(execution.duration_s for execution in executions),
                usage.total_s,
                usage.attempts,
                usage.charge_pico,
                currencies.get(usage.price_version, ""),
            )
        return found
    finally:
        report.close()


def join(data: Path, run: LoadRun) -> Joined:
    """The requests of the window, joined."""
    records = (record for record in run.records if run.window.holds(record))
    return load_joining.join(records, recorded(data, run))


def section(joined: Joined) -> Section:
    """For a load report."""
    rows = [
        (
            name,
            *(numbers.seconds(getattr(split, f"{part}_s")) for part in PARTS),
            numbers.seconds(split.total_s),
        )
        for name, split in _splits(joined)
    ]
    columns = ("of whole answers", *(_NAMES[part] for part in PARTS), "total")
    table = Table(columns, rows, "Means, which add up; from the intended send", left=1)
    plot = Parts(
        "Where the time is",
        Axis("time", Kind.SECONDS),
        [_NAMES[part] for part in PARTS],
        [
            (name, [max(0.0, getattr(split, f"{part}_s")) for part in PARTS])
            for name, split in _splits(joined)
        ],
    )
    return Section("Whose time is it?", [*_prose(joined)], [table] if rows else [], [plot] if rows else [])


def _splits(joined: Joined) -> Iterator[tuple[str, Split]]:
    if joined.mean is not None and joined.slow is not None:
        yield "all", joined.mean
        yield "the slowest twentieth", joined.slow


def _prose(joined: Joined) -> Iterator[str]:
    missing = sum(joined.unmatched.values())
    yield (
        f"{joined.matched:,} requests were joined with the service's own records by their ids; {missing:,} ids have no record,"
        f" and {joined.nameless:,} answers had no id."
    )
    if missing:
        by = ", ".join(f"{count:,} {outcome}" for outcome, count in joined.unmatched.items())
        yield f"Without a record: {by}. What is refused before any work has none."
    if joined.misfits:
        yield f"Of {joined.misfits:,} whole answers the two accounts contradict each other; they are left out."
    if joined.retried:
        yield f"{joined.retried:,} took more than one attempt."
    if joined.charges:
        sums = ", ".join(f"{format_amount(pico)} {currency}" for currency, pico in joined.charges.items())
        yield f"Billed for them: {sums}."
