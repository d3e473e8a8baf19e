"""`headrace load`: what does a service make of a load, as its callers see it?"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, durations, section_text, target
from headrace.cli.load_progress import LoadProgress
from headrace.core import workload as core_workload
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, leaves
from headrace.core.load_records import LoadRun
from headrace.core.workload import Workload
from headrace.evidence import load_page, load_processes, requests
from headrace.evidence.load_terms import OPEN_MAX, LoadTerms
from headrace.evidence.target import Target
from headrace.policies import load_ramp, load_report
from headrace.policies.load_ramp import Step
from headrace.policies.load_report import LoadReport

_CLOCK = SystemClock()
DONE, VOID, INTERRUPTED = 0, 4, 130
DURATION_S, STEP_S = 60.0, 10.0
_WARMUP_MAX_S = 30.0
_STATUS_HELP = """
exit status: 0 done; 2 the operator must change something; 4 the run is void: the generator was late, short of CPU, or didn't send
what was due; 130 stopped by Ctrl-C, after a report of what there was
"""


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "load",
        _load,
        help="send a load to a server, on a schedule that nothing puts off, and report what its callers saw",
        example="headrace load --rate 5 --duration 2m\n"
        "         headrace load http://127.0.0.1:8000 --model chat --key env:KEY --workload small --concurrency 8 --html load.html",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    target.add_options(parser)
    _add_what(parser)
    _add_how(parser)
    _add_where(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--workload",
        default=requests.DEFAULT,
        metavar="FILE|NAME",
        help=f"what is asked, and when (default: {requests.DEFAULT})",
    )
    what.add_argument(
        "--trace",
        metavar="FILE",
        help="requests as a trace has them: CSV, or lines of JSON; see headrace workload",
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--rate",
        type=common.above_zero,
        metavar="R",
        help="requests per second on average, whatever becomes of them (default: the workload's)",
    )
    pace.add_argument(
        "--concurrency",
        type=common.positive,
        metavar="N",
        help="so many callers instead, each of whom waits for an answer before it asks again",
    )
    parser.add_argument(
        "--ramp",
        action="store_true",
        help="raise the rate step by step, from --rate on, until goodput doesn't follow any more",
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--duration",
        type=durations.duration_s,
        metavar="SPAN",
        help="how long requests are due (default: the workload's, else 60s; of a step with --ramp: 10s), at most until a trace is at"
        " its end",
    )
    parser.add_argument(
        "--warmup",
        type=durations.duration_s,
        metavar="SPAN",
        help="requests of that time at the start don't count (default: a tenth of the duration, at most 30s)",
    )
    parser.add_argument(
        "--deadline",
        type=durations.duration_s,
        default=60.0,
        metavar="SPAN",
        help="of a request whose workload says none (default: 60s)",
    )
    parser.add_argument(
        "--processes",
        type=common.positive,
        default=1,
        metavar="N",
        help=f"of the generator, at most {load_processes.PROCESSES_MAX} (default: 1)",
    )
    parser.add_argument(
        "--open-max",
        type=common.positive,
        default=OPEN_MAX,
        metavar="N",
        help=f"requests that may be open at once; what is due beyond that counts as unsent (default: {OPEN_MAX})",
    )
    parser.add_argument(
        "--seed", type=common.positive, metavar="N", help="of the workload (default: the workload's own)"
    )
    parser.add_argument(
        "--same-texts",
        action="store_true",
        help="ask exactly what an earlier run asked, and meet what its caches kept; else only lengths are the same",
    )


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="write the whole run as JSON, for headrace slo check --load",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every request as a row")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write the report with plots as a page that needs nothing else",
    )


def _load(arguments: argparse.Namespace) -> int:
    if arguments.processes > load_processes.PROCESSES_MAX:
        raise ConfigError(f"--processes must be at most {load_processes.PROCESSES_MAX}")
    if arguments.ramp and arguments.concurrency:
        raise ConfigError("--ramp raises a rate, which --concurrency has none of")
    workload = _workload(arguments)
    aimed = target.chosen(arguments)
    if arguments.ramp:
        return _climb(arguments, aimed, workload)
    run = _driven(arguments, aimed, workload, _terms(arguments, workload))
    report = load_report.summarise(run)
    _write(arguments, run, report)
    if arguments.json:
        print(load_page.as_json(report, run).decode())
    else:
        section_text.print_sections(load_page.sections(report, run))
    if run.is_stopped:
        return INTERRUPTED
    return VOID if report.generator.void else DONE


def _workload(arguments: argparse.Namespace) -> Workload:
    workload = requests.load(
        arguments.trace or arguments.workload, data=config.data_directory(arguments.data)
    )
    return msgspec.structs.replace(workload, seed=arguments.seed) if arguments.seed else workload


def _terms(arguments: argparse.Namespace, workload: Workload) -> LoadTerms:
    default_s = STEP_S if arguments.ramp else workload.duration_s or DURATION_S
    duration_s = arguments.duration or default_s
    if arguments.concurrency is None:
        duration_s = requests.at_most_s(workload, duration_s, rate_per_s=arguments.rate)
    warmup_s = min(duration_s / 10, _WARMUP_MAX_S) if arguments.warmup is None else arguments.warmup
    if warmup_s >= duration_s:
        raise ConfigError("--warmup must be shorter than --duration")
    return LoadTerms(
        duration_s=duration_s,
        rate_per_s=arguments.rate,
        concurrency=arguments.concurrency,
        warmup_s=warmup_s,
        open_max=arguments.open_max,
        deadline_s=arguments.deadline,
        nonce=0 if arguments.same_texts else int(_CLOCK.wall_s() * 1000),
    )


def _driven(arguments: argparse.Namespace, aimed: Target, workload: Workload, terms: LoadTerms) -> LoadRun:
    progress = LoadProgress()
    try:
        return load_processes.drive(
            aimed, workload, terms, clock=_CLOCK, processes=arguments.processes, progress=progress.tell
        )
    except BaseExceptionGroup as errors:
        raise leaves(errors)[0] from None
    finally:
        progress.end()


def _write(arguments: argparse.Namespace, run: LoadRun, report: LoadReport) -> None:
    if arguments.records:
        arguments.records.write_bytes(msgspec.json.encode(run))
    if arguments.csv:
        arguments.csv.write_text(load_page.records_csv(run), encoding="utf-8")
    if arguments.html:
        page = load_page.html(report, run, command=shlex.join(["headrace", *sys.argv[1:]]))
        arguments.html.write_text(page, encoding="utf-8")


# A ramp


def _climb(arguments: argparse.Namespace, aimed: Target, workload: Workload) -> int:
    """Step by step, until goodput stays behind."""
    terms = _terms(arguments, workload)
    rate_per_s = arguments.rate or workload.arrivals.rate_per_s or 1.0
    steps: list[Step] = []
    while (next_per_s := load_ramp.next_rate(steps, first_per_s=rate_per_s)) is not None:
        # A step asks nothing that an earlier one asked: a cache would know it.
        step = msgspec.structs.replace(terms, rate_per_s=next_per_s, nonce=terms.nonce + len(steps))
        run = _driven(arguments, aimed, core_workload.at_rate(workload, next_per_s), step)
        report = load_report.summarise(run)
        steps.append(load_ramp.step(run, report, rate_per_s=next_per_s, before=steps))
        if run.is_stopped:
            _tell_ramp(arguments, steps)
            return INTERRUPTED
    _tell_ramp(arguments, steps)
    return VOID if steps[-1].is_void else DONE


def _tell_ramp(arguments: argparse.Namespace, steps: list[Step]) -> None:
    most_per_s = load_ramp.followed(steps)
    if arguments.json:
        common.print_json({"followed_per_s": most_per_s, "steps": msgspec.to_builtins(steps)})
        return
    common.print_table(
        [
            (
                each.rate_per_s,
                each.intended_per_s,
                each.goodput_per_s,
                f"{each.good_share:.1%}",
                each.ttft_p50_s,
                each.total_p50_s,
                "void" if each.is_void else "followed" if each.is_followed else "behind",
            )
            for each in sorted(steps)
        ],
        headings=("rate/s", "intended/s", "goodput/s", "share", "ttft p50", "total p50", ""),
    )
    said = (
        "no rate was followed" if most_per_s is None else f"goodput follows up to {most_per_s:g} requests/s"
    )
    print(f"\n{said}, by steps of {arguments.duration or STEP_S:g} s")
