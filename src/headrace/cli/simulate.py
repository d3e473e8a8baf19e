"""`headrace simulate`: how would a fleet fare under a workload? On a virtual clock, by the policies that serve it."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace import config
from headrace.cli import common, section_text
from headrace.config import slos
from headrace.core.capacity_plan import PromiseTerms, ReplicaTerms
from headrace.core.errors import ConfigError
from headrace.core.slo import Slo
from headrace.core.verdicts import Interval
from headrace.evidence import page, requests, simulate, simulate_load, tables
from headrace.evidence.numbers import number, seconds, share
from headrace.evidence.page import Section, Table
from headrace.evidence.simulate import Case, Figures
from headrace.policies.quality_report import STATUS
from headrace.stores.capacity import CapacityStore
from headrace.stores.opening import open_local

_STATUS_HELP = """
exit status: 0 the promise holds; 1 it doesn't; 2 the operator must change something; 3 not enough runs to say
"""
_KEPT, _EXCUSED = "attainment", "excused"
_SHOWN = (
    (_KEPT, "kept", share), (_EXCUSED, "too long to be promised", share), ("refused", "refused", share), ("busy", "slots in use", share),
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
        "--runs",
        type=common.positive,
        default=simulate.RUNS,
        metavar="N",
        help=f"each with a seed of its own (default: {simulate.RUNS})",
    )
    add_one("--seed", type=common.positive, default=1, metavar="N", help="of the first run (default: 1)")
    add_one(
        "--lose",
        type=common.positive,
        default=0,
        metavar="N",
        help="replicas that are lost as counting begins",
    )
    _add_replica(parser)
    _add_promise(parser)
    add_one("--csv", metavar="FILE", help="write every figure as a row")
    add_one("--html", metavar="FILE", help="write the same as one page that needs nothing else")


def _add_replica(parser: argparse.ArgumentParser) -> None:
    add_one = parser.add_argument
    add_one(
        "--record",
        metavar="ID",
        help="the pace of a replica, as `headrace measure` found it: a number, or a model for its newest",
    )
    add_one(
        "--slots",
        type=common.positive,
        default=16,
        metavar="N",
        help="without a record: requests that a replica runs at once (default: 16)",
    )
    add_one(
        "--prefill", type=common.above_zero, metavar="N", help="without a record: tokens of prompts a second"
    )
    add_one(
        "--step",
        type=common.above_zero,
        metavar="MS",
        help="without a record: a step, in which every answer gets a token",
    )
    add_one(
        "--step-per-active", type=common.above_zero, default=0.0, metavar="MS",
        help="without a record: what each answer adds to a step (default: 0)",
    )  # fmt: skip


def _add_promise(parser: argparse.ArgumentParser) -> None:
    add_one = parser.add_argument
    add_one("--ttft", type=common.above_zero, metavar="S", help="promised time to the first token")
    add_one("--tpot", type=common.above_zero, metavar="S", help="promised time for each further token")
    add_one("--total", type=common.above_zero, metavar="S", help="promised time to the end")
    add_one(
        "--share",
        type=_share,
        default=0.99,
        metavar="P",
        help="of the requests that are promised it (default: 0.99)",
    )
    add_one("--slo", metavar="NAME", help="what is promised, instead: a file, or the name of one in slos/")


def _share(text: str) -> float:
    value = common.above_zero(text)
    if value >= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}: a share between 0 and 1; 0.99 is 99 of 100")
    return value


def _simulate(arguments: argparse.Namespace) -> int:
    workload = requests.load(arguments.workload, data=config.data_directory(arguments.data))
    replica = _replica(arguments)
    slo, notes = _slo(arguments)
    terms = PromiseTerms(
        share=arguments.share, ttft_s=arguments.ttft, tpot_s=arguments.tpot, total_s=arguments.total
    )
    case = Case(
        simulate_load.of_workload(workload, seconds=arguments.duration, rate_per_s=arguments.rate),
        simulate_load.pace_of(replica),
        simulate_load.promise_of(terms) if slo is None else simulate_load.promise_of_slo(slo),
        arguments.duration,
        arguments.share,
        slo,
        arguments.lose,
    )
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    figures = simulate.replicate(case, arguments.replicas, seeds=seeds)
    basis = "measured" if arguments.record else "given figures, not measured"
    section = _section(figures, workload.name, basis, [_bounds(arguments), *notes])
    if arguments.csv:
        rows = [(each.field, *msgspec.structs.astuple(each.figure), basis) for each in _lines(figures)]
        text = tables.csv_text(("figure", "mean", "from", "to", "basis"), rows)
        Path(arguments.csv).write_text(text, encoding="utf-8")
    if arguments.html:
        facts = [("replicas", str(figures.replicas)), ("figures", basis)]
        Path(arguments.html).write_text(
            page.page(f"Simulation: {workload.name}", [section], facts=facts), encoding="utf-8"
        )
    if arguments.json:
        named = {**figures._asdict(), "kept": [each._asdict() for each in figures.kept]}
        common.print_json(
            {"verdict": figures.verdict.value, "basis": basis, "is_measured": arguments.record is not None}
            | msgspec.to_builtins(named)
        )
    else:
        section_text.print_sections([section])
    return STATUS[figures.verdict]


def _slo(arguments: argparse.Namespace) -> tuple[Slo | None, list[str]]:
    """What is promised, if a file of its own says it, and what of that isn't judged here."""
    if not arguments.slo:
        return None, []
    if given := [name for name in ("ttft", "tpot", "total") if getattr(arguments, name) is not None]:
        raise ConfigError(
            f"--slo says what is promised: leave out {', '.join(f'--{name}' for name in given)}"
        )
    return simulate_load.simulated(slos.load(slos.named(arguments.slo)))


def _bounds(arguments: argparse.Namespace) -> str:
    """What a request must be within, in words."""
    if arguments.slo:
        return f"Promised is {slos.named(arguments.slo)}, each of its promises by itself; kept are all of them together."
    bounds = (("TTFT", arguments.ttft), ("TPOT", arguments.tpot), ("total", arguments.total))
    within = ", ".join(f"{name} {seconds(bound)}" for name, bound in bounds if bound is not None)
    return f"Promised is an answer within {within}." if within else "Promised is a whole answer, in any time."


class _Line(NamedTuple):
    """A figure by the name that programs and people know it by, and how it is written for these."""

    field: str
    name: str
    promised: float | None
    figure: Interval
    write: Callable[[float | None], str]


def _lines(figures: Figures) -> Iterator[_Line]:
    together = next((each.share for each in figures.kept if each.name == simulate.TOGETHER), None)
    for field, name, write in _SHOWN:
        if field == _EXCUSED and together is not None:
            continue
        yield _Line(field, name, together if field == _KEPT else None, getattr(figures, field), write)
        if field == _KEPT and together is None:
            for each in figures.kept:
                yield _Line(each.name, f"- {each.name}", each.share, each.reached, share)


def _section(figures: Figures, name: str, basis: str, notes: Sequence[str]) -> Section:
    rows = [
        (
            line.name,
            "" if line.promised is None else share(line.promised),
            *map(line.write, msgspec.structs.astuple(line.figure)),
        )
        for line in _lines(figures)
    ]
    prose = (
        f"{figures.runs} runs, {number(figures.requests)} requests counted, the first {share(simulate.WARMUP_SHARE)} of each run"
        " left out; bounds by Student's t (95 %), a run being one sample.",
        *notes,
    )
    table = Table(("", "promised", "mean", "from", "to"), rows)
    return Section(f"{name} on {figures.replicas} replicas ({basis})", prose, [table], (), figures.verdict)


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
