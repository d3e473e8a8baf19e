"""`headrace drill`: does a service recover from failures as it should? Rehearsed in one of its own, never in the one that runs."""

import argparse
import difflib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.evidence import drill_run
from headrace.evidence.drill import EMBEDDED, SCRIPTED, Drill
from headrace.evidence.drill_report import Check, DrillReport, Requests
from headrace.evidence.drill_run import Terms
from headrace.evidence.drills import DRILLS

ALL, LIST = "all", "list"
PASSED, FAILED = 0, 1
_LINES_SHOWN = 20
# What two small engines on a small machine answer with room to spare.
EMBEDDED_PACE = {"rate_per_s": 0.5, "settle_s": 6.0, "deadline_s": 60.0}


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "drill",
        _drill,
        help="rehearse a failure under load in a service of its own, and measure the recovery; exit status 1 where a bound is missed",
        example="headrace drill list\n         headrace drill replica-loss\n         headrace drill all --json",
        with_json=True,
    )
    parser.add_argument("name", metavar="NAME", help=f"the drill, `{ALL}` for each of them, or `{LIST}`")
    parser.add_argument(
        "--engine",
        choices=(SCRIPTED, EMBEDDED),
        default=SCRIPTED,
        help="what answers: the scripted engine, or the embedded one with the default chat model, which is read from the"
        " model store of DIR (default: scripted)",
    )


def _drill(arguments: argparse.Namespace) -> int:
    if arguments.name == LIST:
        _list(as_json=arguments.json)
        return PASSED
    drills = _named(arguments.name)
    terms = Terms()
    if arguments.engine == EMBEDDED:
        models = config.data_directory(arguments.data) / "models"
        if not models.is_dir():
            raise ConfigError(f"{models}: no model store; fill it with `headrace models pull`")
        terms = Terms(EMBEDDED, models=models, **EMBEDDED_PACE)
        if arguments.name == ALL:
            drills = [drill for drill in drills if not drill.is_scripted_only]
    reports = []
    for drill in drills:
        report = common.run(
            drill_run.rehearse(
                drill,
                terms,
                clock=SystemClock(),
                command=shlex.join(["headrace", "drill", drill.name, "--engine", arguments.engine]),
                progress=_tell,
            )
        )
        reports.append(report)
        if not arguments.json:
            _print(report)
    if arguments.json:
        shown: object = reports if arguments.name == ALL else reports[0]
        print(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
    elif len(reports) > 1:
        _print_summary(reports)
    return PASSED if all(report.verdict == "pass" for report in reports) else FAILED


def _named(name: str) -> Sequence[Drill]:
    if name == ALL:
        return tuple(DRILLS.values())
    if name not in DRILLS:
        near = difflib.get_close_matches(name, DRILLS, n=1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        raise ConfigError(f"no drill {name!r}; {hint}there are {', '.join(DRILLS)}, and `{ALL}`")
    return (DRILLS[name],)


def _list(*, as_json: bool) -> None:
    if as_json:
        common.print_json(
            [
                {
                    "name": drill.name,
                    "question": drill.question,
                    "simulated": drill.simulated,
                    "bounds": msgspec.to_builtins(drill.bounds),
                }
                for drill in DRILLS.values()
            ]
        )
    else:
        common.print_table(
            [(drill.name, drill.question) for drill in DRILLS.values()], headings=("drill", "")
        )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(report: DrillReport) -> None:
    print(f"{report.drill}: {report.question}\n{report.simulated}\n")
    if report.requests is not None:
        _print_requests(report.requests)
        common.print_table(
            [_row(check) for check in report.checks], headings=("figure", "measured", "at most", "")
        )
        print("\nwhat the operator was told, in seconds from the fault:")
        for line in report.told[:_LINES_SHOWN]:
            facts = " ".join(
                f"{name}={value}" for name, value in line.fields.items() if value not in (None, "")
            )
            print(f"  {line.after_s:7.2f}  {line.event}  {facts}")
        if len(report.told) > _LINES_SHOWN:
            print(f"           and {len(report.told) - _LINES_SHOWN} more lines, in --json")
        for code, after_s in report.codes.items():
            print(f"  {after_s:7.2f}  headrace status: {code}")
    why = f": {report.detail}" if report.detail else ""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    print(f"\n{report.verdict}{why}")
    print(f"{report.machine}; {versions}; {report.began}; {report.took_s:.1f} s; {report.command}\n")


def _print_requests(counted: Requests) -> None:
    fates = ", ".join(f"{count} {fate}" for fate, count in counted.fates.items())
    print(f"{counted.sent} requests: {fates}")
    for name, latency in (("before", counted.before), ("after", counted.after)):
        if latency is not None:
            print(
                f"  {name}: p50 {latency.p50_s:.3f} s, p95 {latency.p95_s:.3f} s, at most {latency.max_s:.3f} s"
            )
    for reason, count in counted.reasons.items():
        print(f"  {count} {reason}")
    print()


def _row(check: Check) -> tuple[object, ...]:
    measured = "never" if check.value is None else f"{check.value:g}"
    return check.what, measured, f"{check.at_most:g}", "" if check.is_met else "MISSED"


def _print_summary(reports: Sequence[DrillReport]) -> None:
    """One line for each drill."""
    common.print_table(
        [(report.drill, report.verdict, report.detail or None) for report in reports],
        headings=("drill", "verdict", "why"),
    )
