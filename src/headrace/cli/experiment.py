"""`headrace experiment`: which level of what is varied is better, and by enough to matter?"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, section_text
from headrace.core.clock import SystemClock
from headrace.evidence import experiment, experiment_arms, experiment_page
from headrace.policies.experiments import ExperimentReport
from headrace.policies.quality_report import STATUS

_CLOCK = SystemClock()
_STATUS_HELP = """
exit status: 0 every level is decided; 2 the operator must change something; 3 not enough evidence of some level; 4 nothing could be
compared
"""


def add(commands: Any) -> None:
    """Registers the command and its subcommands."""
    parser = common.command(
        commands,
        "experiment",
        None,
        help="change one thing at a time of a deployment, with workload and quality set fixed, and say what is better",
        example="headrace experiment run experiments/slots.toml --html slots.html\n"
        "         headrace experiment show experiments/slots.toml",
        with_data=False,
    )
    subcommands = parser.add_subparsers(dest="experiment", metavar="COMMAND", required=True)
    for name, run, says in (
        ("run", _run, "do the repetitions that aren't done yet, and record the verdict"),
        ("show", _show, "say what the repetitions show that are done"),
    ):
        added = common.command(
            subcommands,
            name,
            run,
            help=says,
            example=f"headrace experiment {name} experiments/slots.toml",
            with_json=True,
        )
        added.epilog = f"{added.epilog}\n{_STATUS_HELP}"
        added.add_argument("file", type=Path, metavar="FILE", help="the experiment")
        added.add_argument(
            "--html", type=Path, metavar="FILE", help="write a page that needs nothing else, too"
        )


def _run(arguments: argparse.Namespace) -> int:
    data = config.data_directory(arguments.data)
    setting = experiment_arms.setting(arguments.file, data=data)
    kept = experiment.Kept(data, setting)
    return _told(arguments, common.run(experiment.run(setting, kept, clock=_CLOCK, tell=_tell)))


def _show(arguments: argparse.Namespace) -> int:
    data = config.data_directory(arguments.data)
    setting = experiment_arms.setting(arguments.file, data=data)
    repetitions = experiment.Kept(data, setting).repetitions()
    return _told(arguments, experiment.shown(setting, repetitions))


def _told(arguments: argparse.Namespace, report: ExperimentReport) -> int:
    if arguments.html is not None:
        command = shlex.join(["headrace", "experiment", "run", str(arguments.file)])
        arguments.html.write_text(experiment_page.html(report, command=command), encoding="utf-8")
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        section_text.print_sections(experiment_page.sections(report))
    return STATUS[report.verdict]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
