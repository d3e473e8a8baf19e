"""`headrace simulate`: how would a fleet fare under a workload? On a virtual clock, by the policies that serve it."""

import argparse
from contextlib import closing
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common
from headrace.core.capacity_plan import PromiseTerms, ReplicaTerms
from headrace.core.errors import ConfigError
from headrace.core.verdicts import Interval
from headrace.evidence import requests, simulate, simulate_load
from headrace.evidence.numbers import number, seconds, share
from headrace.evidence.simulate import Case, Figures
from headrace.policies.quality_report import STATUS
from headrace.stores.capacity import CapacityStore
from headrace.stores.opening import open_local

_STATUS_HELP = """
exit status: 0 the promise holds; 1 it doesn't; 2 the operator must change something; 3 not enough runs to say
"""
_SHOWN = (
    ("attainment", "kept", share), ("refused", "refused", share), ("busy", "slots in use", share),
    ("ttft_p50_s", "TTFT p50", seconds), ("ttft_p99_s", "TTFT p99", seconds),
    ("total_p50_s", "total p50", seconds), ("total_p99_s", "total p99", seconds),
)  # fmt: skip


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "simulate",
        _simulate,
        help="play a workload to a fleet on a virtual clock, whose requests go through the gateway's own policies",
        example="headrace simulate --workload document-assistant --replicas 4 --record 3\n"
        "         headrace simulate --replicas 8 --rate 5 --slots 16 --prefill 8000 --step 20 --step-per-active 0.5 --ttft 2",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    add_one = parser.add_argument
    add_one(
        "--workload",
        default=requests.DEFAULT,
        metavar="W",
        help=f"file, trace or name (default: {requests.DEFAULT})",
    )
    add_one("--replicas", type=common.positive, required=True, metavar="N", help="of the fleet")
    add_one("--rate", type=common.above_zero, metavar="R", help="another mean rate, in requests/s")
    add_one(
        "--duration", type=common.above_zero, default=600.0, metavar="S", help="of each run (default: 600)"
    )
    add_one(
        "--runs", type=common.positive, default=simulate.RUNS, metavar="N", help=f"default: {simulate.RUNS}"
    )
    add_one("--seed", type=common.positive, default=1, metavar="N", help="of the first run (default: 1)")
    add_one(
        "--lose",
        type=common.positive,
        default=0,
        metavar="N",
        help="replicas that are lost as counting begins",
    )
    add_one("--record", metavar="ID", help="a measurement by `headrace measure`: the pace of a replica")
    add_one(
        "--slots",
        type=common.positive,
        default=16,
        metavar="N",
        help="without a record: at once (default: 16)",
    )
    add_one(
        "--prefill", type=common.above_zero, metavar="N", help="without a record: tokens of prompts a second"
    )
    add_one("--step", type=common.above_zero, metavar="MS", help="without a record: a step in ms")
    add_one(
        "--step-per-active", type=common.above_zero, default=0.0, metavar="MS",
        help="without a record: what each answer adds to a step (default: 0)",
    )  # fmt: skip
    add_one("--ttft", type=common.above_zero, metavar="S", help="promised time to the first token")
    add_one("--tpot", type=common.above_zero, metavar="S", help="promised time for each further token")
    add_one(
        "--share",
        type=_share,
        default=0.99,
        metavar="P",
        help="of the requests that are promised it (default: 0.99)",
    )


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"between 0 and 1, got {text}")
    return value


def _simulate(arguments: argparse.Namespace) -> int:
    workload = requests.load(arguments.workload, data=config.data_directory(arguments.data))
    replica = _replica(arguments)
    case = Case(
        simulate_load.of_workload(workload, seconds=arguments.duration, rate_per_s=arguments.rate),
        simulate_load.pace_of(replica),
        simulate_load.promise_of(PromiseTerms(arguments.share, arguments.ttft, arguments.tpot)),
        arguments.duration,
        arguments.lose,
    )
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    figures = simulate.replicate(case, arguments.replicas, seeds=seeds)
    verdict = figures.verdict(arguments.share)
    if arguments.json:
        common.print_json(
            {"verdict": verdict.value, "is_measured": arguments.record is not None}
            | msgspec.to_builtins(figures._asdict())
        )
        return STATUS[verdict]
    source = "measured" if arguments.record else "given figures, not measured"
    print(f"{workload.name} on {arguments.replicas} replicas ({source}): {figures.runs} runs,"
          f" {number(figures.requests)} requests counted, the first {share(simulate.WARMUP_SHARE)} of each run left out\n")  # fmt: skip
    common.print_table(list(_rows(figures)), headings=("", "mean", "from", "to"))
    print(f"\n{verdict.value}: {share(arguments.share)} are promised")
    return STATUS[verdict]


def _rows(figures: Figures) -> list[tuple[str, ...]]:
    rows = []
    for field, name, written in _SHOWN:
        interval: Interval = getattr(figures, field)
        rows.append((name, *(written(each) for each in (interval.estimate, interval.low, interval.high))))
    return rows


def _replica(arguments: argparse.Namespace) -> ReplicaTerms:
    if arguments.record is None:
        if arguments.prefill is None or arguments.step is None:
            raise ConfigError("give --record ID, or --prefill and --step: nothing is known of a replica")
        return ReplicaTerms(
            arguments.slots, prefill_tokens_per_s=arguments.prefill, step_s=arguments.step / 1000,
            step_per_active_s=arguments.step_per_active / 1000,
        )  # fmt: skip
    with closing(CapacityStore(open_local(config.data_directory(arguments.data)))) as store:
        record = store.require(arguments.record).record
    try:
        return simulate_load.measured(record, start_s=60.0)
    except ValueError as error:
        raise ConfigError(f"record {arguments.record}: {error}") from error
