"""`headrace replay`: what does a server make of what was asked before, at the moments at which it was asked?"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from headrace import config
from headrace.cli import common, durations, section_text
from headrace.core.clock import SystemClock
from headrace.core.load_records import LoadRun
from headrace.core.workload import Workload
from headrace.evidence import load, load_page, requests
from headrace.evidence.load_terms import LoadTerms, Progress
from headrace.evidence.target import Target
from headrace.policies import load_report

_CLOCK = SystemClock()
_DURATION_S = 60.0
_VOID = 4
_STATUS_HELP = """
exit status: 0 it was replayed; 2 the operator must change something; 4 this machine didn't keep up with it, so its figures say
nothing of the server
"""


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "replay",
        _replay,
        help="send what a trace says to a server, when it says, and report what came of it",
        example="headrace replay day.csv --url http://127.0.0.1:8000 --model chat-small --key file:key.txt\n"
        "         headrace replay day.csv --speed 2 --html replay.html --url http://127.0.0.1:8000 --model chat-small",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    parser.add_argument(
        "file", metavar="FILE", help="a trace, as `headrace workload capture` writes one, or a workload"
    )
    parser.add_argument("--url", required=True, metavar="URL", help="an OpenAI-compatible server")
    parser.add_argument("--model", required=True, metavar="M", help="the model, as the server calls it")
    parser.add_argument("--key", default="", metavar="REF", help="its key: env:NAME or file:PATH")
    parser.add_argument(
        "--ca",
        default="",
        metavar="FILE",
        help="PEM file of the authorities that may sign the server's certificate (default: those of the system)",
    )
    parser.add_argument(
        "--certificate",
        default="",
        metavar="FILE",
        help="PEM file with the server's own certificate: it is trusted and no other, whatever its name is",
    )
    parser.add_argument(
        "--speed", type=common.above_zero, default=1.0, metavar="X", help="so many times as fast (default: 1)"
    )
    parser.add_argument(
        "--duration",
        type=durations.duration_s,
        metavar="SPAN",
        help="stop after so long, such as 10m (default: all of a trace, a workload's own, else 1m)",
    )
    parser.add_argument(
        "--records", type=Path, metavar="FILE", help="write what became of each request, as JSON"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report as a page that needs nothing else"
    )


def _replay(arguments: argparse.Namespace) -> int:
    workload = requests.load(arguments.file, data=config.data_directory(arguments.data))
    if arguments.speed != 1.0:
        workload = requests.at_speed(workload, arguments.speed)
    secret = config.resolve_secret(arguments.key, key="--key") if arguments.key else ""
    target = Target(arguments.url, arguments.model, secret, arguments.ca, arguments.certificate)
    terms = LoadTerms(
        duration_s=arguments.duration or requests.lasts_s(workload) or _DURATION_S,
        # Other words than in the last replay: a cache that knew them would answer faster than it ever will.
        nonce=int(_CLOCK.wall_s()),
    )
    run = uvloop.run(_run(target, workload, terms, _progress()))
    if common.progress_is_live():
        print(file=sys.stderr)  # what is redrawn is done with
    report = load_report.summarise(run)
    if arguments.records is not None:
        arguments.records.write_bytes(msgspec.json.encode(run))
    if arguments.html is not None:
        arguments.html.write_text(load_page.html(report, run), encoding="utf-8")
    if arguments.json:
        common.print_json(msgspec.to_builtins(report))
    else:
        section_text.print_sections(load_page.sections(report, run))
    return _VOID if report.generator.void else 0


async def _run(
    target: Target, workload: Workload, terms: LoadTerms, tell: Callable[[Progress], None]
) -> LoadRun:
    """Ctrl-C ends it early, with a report of what there is."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    return await load.run_load(target, workload, clock=_CLOCK, terms=terms, progress=tell, stop=stop)


def _progress() -> Callable[[Progress], None]:
    """On a terminal one line that is redrawn, elsewhere a line for each tenth."""
    is_live, tenths = common.progress_is_live(), 0

    def tell(at: Progress) -> None:
        nonlocal tenths
        said = f"{at.elapsed_s:.1f} of {at.duration_s:.1f} s, {at.sent:,} sent, {at.open:,} open"
        if is_live:
            print(f"\r{said}   ", end="", file=sys.stderr, flush=True)
        elif (now := int(10 * at.elapsed_s / at.duration_s)) > tenths:
            tenths = now
            print(said, file=sys.stderr, flush=True)

    return tell
