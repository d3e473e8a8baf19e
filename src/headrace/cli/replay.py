"""`headrace replay`: what does a server make of what was asked before, at the moments at which it was asked?"""

import argparse
from typing import Any

from headrace import config
from headrace.cli import common, durations, load_run, target
from headrace.evidence import requests
from headrace.evidence.load_terms import LoadTerms

_DURATION_S = 60.0


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "replay",
        _replay,
        help="send what a trace says to a server, when it says, and report what came of it",
        example="headrace replay day.csv\n"
        "         headrace replay day.csv --speed 2 --html replay.html --url http://127.0.0.1:8000 --model chat-small --key file:key.txt",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{load_run.STATUS_HELP}"
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a trace, as `headrace workload capture` writes one, a load test's --records, or a workload",
    )
    target.add_options(parser)
    parser.add_argument(
        "--speed", type=common.above_zero, default=1.0, metavar="X", help="so many times as fast (default: 1)"
    )
    parser.add_argument(
        "--duration",
        type=durations.duration_s,
        metavar="SPAN",
        help="stop after so long, such as 10m (default: all of a trace, a workload's own, else 1m)",
    )
    load_run.add_outputs(parser)


def _replay(arguments: argparse.Namespace) -> int:
    load_run.check_outputs(arguments)
    workload = requests.load(arguments.file, data=config.data_directory(arguments.data))
    if arguments.speed != 1.0:
        workload = requests.at_speed(workload, arguments.speed)
    terms = LoadTerms(
        duration_s=arguments.duration or requests.lasts_s(workload) or _DURATION_S,
        # Other words than in the last replay: a cache that knew them would answer faster than it ever will.
        nonce=load_run.nonce(),
    )
    run = load_run.drive(target.chosen(arguments), workload, terms)
    return load_run.tell(arguments, run)
