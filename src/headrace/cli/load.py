"""`headrace load`: what does a service make of a load, as its callers see it?"""

import argparse
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, durations, load_run, target
from headrace.core import workload as core_workload
from headrace.core.errors import ConfigError
from headrace.core.workload import Workload
from headrace.evidence import load_processes, requests
from headrace.evidence.load_terms import OPEN_MAX, LoadTerms
from headrace.evidence.target import Target
from headrace.policies import load_ramp, load_report
from headrace.policies.load_ramp import Step

DURATION_S, STEP_S = 60.0, 10.0
_WARMUP_MAX_S = 30.0


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "load",
        _load,
        help="send a load to a server, on a schedule that nothing puts off, and report what its callers saw",
        example="headrace load --rate 5 --duration 2m\n"
        "         headrace load --url http://127.0.0.1:8000 --model chat --key env:KEY --workload small --concurrency 8 --html load.html",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{load_run.STATUS_HELP}"
    target.add_options(parser)
    _add_what(parser)
    _add_how(parser)
    load_run.add_outputs(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload",
        default=requests.DEFAULT,
        metavar="FILE|NAME",
        help=f"what is asked, and when: a workload, a trace, or an earlier run's --records (default: {requests.DEFAULT})",
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
    parser.add_argument(
        "--seed", type=common.positive, metavar="N", help="of the workload (default: the workload's own)"
    )
    parser.add_argument(
        "--same-texts",
        action="store_true",
        help="ask exactly what an earlier run asked, and meet what its caches kept; else only lengths are the same",
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--duration",
        type=durations.duration_s,
        metavar="SPAN",
        help="how long requests are due (default: the workload's, all of a trace, else 60s; of a step with --ramp: 10s), at most until"
        " a trace is at its end",
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


def _load(arguments: argparse.Namespace) -> int:
    if arguments.processes > load_processes.PROCESSES_MAX:
        raise ConfigError(f"--processes must be at most {load_processes.PROCESSES_MAX}")
    if arguments.ramp and arguments.concurrency:
        raise ConfigError("--ramp raises a rate, which --concurrency has none of")
    if arguments.ramp and (arguments.records or arguments.csv or arguments.html):
        raise ConfigError(
            "--records, --csv and --html are of one run, and --ramp makes several; run the rate that it finds by itself"
        )
    load_run.check_outputs(arguments)
    workload = requests.load(arguments.workload, data=config.data_directory(arguments.data))
    if arguments.seed:
        workload = msgspec.structs.replace(workload, seed=arguments.seed)
    terms = _terms(arguments, workload)
    aimed = target.chosen(arguments)
    if arguments.ramp:
        return _climb(arguments, aimed, workload, terms)
    run = load_run.drive(aimed, workload, terms, processes=arguments.processes)
    return load_run.tell(arguments, run)


def _terms(arguments: argparse.Namespace, workload: Workload) -> LoadTerms:
    default_s = STEP_S if arguments.ramp else requests.lasts_s(workload) or DURATION_S
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
        nonce=0 if arguments.same_texts else load_run.nonce(),
    )


# A ramp


def _climb(arguments: argparse.Namespace, aimed: Target, workload: Workload, terms: LoadTerms) -> int:
    """Step by step, until goodput stays behind."""
    rate_per_s = arguments.rate or workload.arrivals.rate_per_s or 1.0
    steps: list[Step] = []
    is_stopped = False
    while not is_stopped and (next_per_s := load_ramp.next_rate(steps, first_per_s=rate_per_s)) is not None:
        # A step asks nothing that an earlier one asked: a cache would know it.
        step = msgspec.structs.replace(terms, rate_per_s=next_per_s, nonce=terms.nonce + len(steps))
        asked = core_workload.at_rate(workload, next_per_s)
        run = load_run.drive(aimed, asked, step, processes=arguments.processes)
        is_stopped = run.is_stopped
        steps.append(load_ramp.step(run, load_report.summarise(run), rate_per_s=next_per_s, before=steps))
    _tell_ramp(arguments, steps, step_s=terms.duration_s)
    if is_stopped:
        return load_run.INTERRUPTED
    return load_run.VOID if steps[-1].is_void else load_run.DONE


def _tell_ramp(arguments: argparse.Namespace, steps: list[Step], *, step_s: float) -> None:
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
    print(f"\n{said}, by steps of {step_s:g} s")
