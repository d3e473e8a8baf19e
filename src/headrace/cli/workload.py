"""`headrace workload`: what does a file of work mean, and which one describes what came?"""

import argparse
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import msgspec

from headrace import config
from headrace.cli import common, durations, section_text
from headrace.config import workloads
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.workload import ArrivalKind, Workload
from headrace.evidence import capture, page, requests, traces, workload_page
from headrace.policies import workload_fit, workload_summary
from headrace.stores.opening import open_database
from headrace.stores.usage_report import UsageReport

_CLOCK = SystemClock()

REQUESTS_MAX = 200_000
_CLOSED_REQUESTS = 1000
_SHOWN_S = 600.0


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "workload",
        None,
        help="show what a file of work means, or make one from a trace or from what this service got",
        example="headrace workload show document-assistant\n         headrace workload fit trace.csv --out mine.toml",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_show(actions)
    _add_fit(actions)
    _add_capture(actions)


def _add_show(actions: Any) -> None:
    show = common.command(
        actions,
        "show",
        _show,
        help="say what a workload or a trace comes to: requests over time, lengths, tokens",
        example="headrace workload show document-assistant --rate 5 --html workload.html",
        with_json=True,
    )
    show.add_argument("file", metavar="FILE", help="a workload or a trace: a file, or the name of a workload")
    show.add_argument(
        "--duration",
        type=durations.duration_s,
        metavar="SPAN",
        help="plan so much, such as 30m (default: the workload's own, else 10m, else all of a trace)",
    )
    show.add_argument(
        "--rate", type=common.above_zero, metavar="R", help="at so many requests per second instead"
    )
    show.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write the same, with plots, as a page that needs nothing else",
    )


def _add_fit(actions: Any) -> None:
    fit = common.command(
        actions,
        "fit",
        _fit,
        help="describe a trace as a workload, and say how well that does it",
        example="headrace workload fit trace.csv --name mine --out workloads/mine.toml",
        with_data=False,
        with_json=True,
    )
    fit.add_argument(
        "trace",
        metavar="TRACE",
        type=Path,
        help="CSV or lines of JSON; docs/reference/workload-file.md has the columns",
    )
    fit.add_argument("--name", help="of the workload (default: the trace's)")
    fit.add_argument(
        "--out", type=Path, metavar="FILE", help="write the workload; a file that is there is not overwritten"
    )
    fit.add_argument(
        "--html", type=Path, metavar="FILE", help="write what is shown as a page that needs nothing else"
    )


def _add_capture(actions: Any) -> None:
    capture_ = common.command(
        actions,
        "capture",
        _capture,
        help="make a trace of what this service got, from its ledger and so without any text",
        example="headrace workload capture --since 24h --model chat-small --out day.csv",
        with_json=True,
    )
    capture_.add_argument("--model", help="only requests for this model")
    capture_.add_argument("--tenant", help="only this tenant's")
    for option, what in (("since", "from then on"), ("until", "before then")):
        capture_.add_argument(
            f"--{option}",
            type=durations.moment,
            metavar="TIME",
            help=f"{what}: 2026-11-01, or a span back from now such as 24h",
        )
    capture_.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="write the trace, as CSV; a file that is there is not overwritten",
    )


def _show(arguments: argparse.Namespace) -> None:
    workload = requests.load(arguments.file, data=config.data_directory(arguments.data))
    duration_s = arguments.duration or workload.duration_s
    is_closed = workload.arrivals.kind is ArrivalKind.CLOSED and arguments.rate is None
    if (
        duration_s is None
        and workload.arrivals.kind is not ArrivalKind.TRACE
        and workload.requests_max is None
    ):
        duration_s = _SHOWN_S
    planned = requests.requests(workload, duration_s=duration_s, rate_per_s=arguments.rate)
    shown = islice(planned, _CLOSED_REQUESTS if is_closed else REQUESTS_MAX)
    found = workload_summary.summarise(shown)
    if arguments.json:
        common.print_json(
            {
                "digest": workload.digest,
                "workload": msgspec.to_builtins(workload),
                "planned": msgspec.to_builtins(found),
            }
        )
    sections = workload_page.sections(workload, found)
    if not arguments.json:
        print(f"{workload.name}{': ' if workload.about else ''}{workload.about}\n{workload.digest}\n")
        section_text.print_sections(sections)
        if found.requests == REQUESTS_MAX:
            print(f"\nOnly the first {REQUESTS_MAX:,} requests; --duration says how many seconds are meant.")
    if arguments.html is not None:
        _write_page(arguments.html, f"Workload {workload.name}", sections, workload)


def _fit(arguments: argparse.Namespace) -> None:
    name = arguments.name or workloads.of_trace(arguments.trace).name
    try:
        found = workload_fit.fit(traces.read(arguments.trace), name=name)
    except ValueError as error:
        raise ConfigError(f"{arguments.trace}: {error}") from error
    text = workloads.toml(found.workload)
    workloads.parse(text, file="the fitted workload")
    sections = workload_page.fit_sections(found)
    if arguments.json:
        common.print_json(msgspec.to_builtins(found))
    else:
        section_text.print_sections(sections)
    if arguments.html is not None:
        _write_page(
            arguments.html, f"Workload {name}, fitted to {arguments.trace.name}", sections, found.workload
        )
    if arguments.out is not None:
        with _new(arguments.out) as file:
            file.write(text)
        if not arguments.json:
            print(
                f"\n{arguments.out} is written; `headrace workload show {arguments.out}` says what it means."
            )


def _capture(arguments: argparse.Namespace) -> None:
    if arguments.out.suffix != ".csv":
        raise ConfigError(f"--out {arguments.out}: a trace is written as CSV; name it .csv")
    now_s = _CLOCK.wall_s()
    since_s, until_s = (
        None if moment is None else durations.unix_s(moment, now_s=now_s)
        for moment in (arguments.since, arguments.until)
    )
    report = UsageReport(open_database(config.data_directory(arguments.data), must_exist=True))
    try:
        if arguments.tenant is not None:
            report.require_tenant(arguments.tenant)
        records = report.each(
            since_s=since_s, until_s=until_s, tenant=arguments.tenant, model=arguments.model
        )
        found = capture.capture(records, secret=secrets.token_bytes(32))
    finally:
        report.close()
    if not found.trace:
        raise ConfigError("the ledger has no requests for a chat or completion model in that time")
    with _new(arguments.out) as file:
        traces.write(file, found.trace)
    if arguments.json:
        facts = msgspec.to_builtins(found)
        common.print_json(
            {
                **facts,
                "trace": str(arguments.out),
                "requests": len(found.trace),
                "cannot_know": found.cannot_know,
            }
        )
        return
    print(f"{arguments.out}: {len(found.trace):,} requests in {found.trace[-1].at_s:,.0f} s")
    if not found.is_whole:
        print(f"Only the first {capture.REQUESTS_MAX:,}; --since and --until narrow it down.")
    if found.others:
        print(f"{found.others:,} requests of other endpoints are left out.")
    print("\nWhat it can't know:")
    for line in found.cannot_know:
        print(f"  {line}")
    print(f"\n`headrace workload fit {arguments.out}` describes it.")


@contextmanager
def _new(path: Path) -> Iterator[TextIO]:
    """A file that isn't there yet: nobody's own lines are lost."""
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            yield file
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already; name another file") from error


def _write_page(path: Path, title: str, sections: list[page.Section], workload: Workload) -> None:
    lead = [workload.about] if workload.about else []
    path.write_text(
        page.page(
            title, sections, lead=lead, facts=[("digest", workload.digest), ("seed", str(workload.seed))]
        ),
        encoding="utf-8",
    )
