"""`headrace capacity`: how many replicas does a load need, does the promise hold on them, and what does a result cost?"""

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, section_text
from headrace.config import capacity as files
from headrace.config import slos
from headrace.core.capacity_plan import CapacityPlan
from headrace.core.errors import ConfigError
from headrace.core.slo import Slo
from headrace.evidence import (
    capacity,
    capacity_memory,
    capacity_report,
    page,
    simulate,
    simulate_load,
    tables,
)
from headrace.evidence.numbers import number
from headrace.policies.quality_report import STATUS
from headrace.stores.capacity import CapacityStore
from headrace.stores.opening import open_local
from headrace.stores.registry import ModelStore

_STATUS_HELP = """
exit status: 0 the promise holds wherever it was tried; 1 it doesn't, or a result costs more than the SLO says; 2 the operator must
change something; 3 not enough runs to say
"""


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "capacity",
        _capacity,
        help="say how many replicas a load needs, whether the promise holds on them, and what a qualified result costs",
        example="headrace capacity capacity/founding-example.toml\n"
        "         headrace capacity capacity/published-8b.toml --record MODEL --html plan.html\n"
        "         headrace capacity capacity/document-assistant.toml --slo chat-small --rate 0.1",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    parser.add_argument("file", metavar="FILE", help="the plan, as docs/reference/capacity-file.md has it")
    parser.add_argument(
        "--record",
        metavar="ID",
        help="what `headrace measure` found, in place of `[replica]`: a number, or a model for its newest",
    )
    parser.add_argument(
        "--slo",
        metavar="NAME",
        help="what is promised, in place of `[promise]`: a file, or the name of one in slos/",
    )
    parser.add_argument(
        "--rate", type=common.above_zero, metavar="R", help="another mean rate, in requests/s"
    )
    parser.add_argument(
        "--runs", type=common.positive, default=simulate.RUNS, metavar="N",
        help=f"of each simulation (default: {simulate.RUNS})",
    )  # fmt: skip
    parser.add_argument(
        "--requests",
        type=common.positive,
        default=5000,
        metavar="N",
        help="of each run, about (default: 5000)",
    )
    parser.add_argument("--csv", metavar="FILE", help="write every figure as a row")
    parser.add_argument("--html", metavar="FILE", help="write the same as one page that needs nothing else")


def _capacity(arguments: argparse.Namespace) -> int:
    plan = files.load(Path(arguments.file))
    if arguments.rate is not None:
        plan = msgspec.structs.replace(
            plan, load=msgspec.structs.replace(plan.load, rate_per_s=arguments.rate)
        )
    is_measured = arguments.record is not None
    slo, notes = _slo(plan, arguments)
    promise = simulate_load.promise_of(plan.promise) if slo is None else simulate_load.promise_of_slo(slo)
    plan, memory = capacity_memory.resolve(
        plan, ModelStore(config.data_directory(arguments.data) / "models"), tpot_s=promise.tpot_s,
        is_measured=is_measured,
    )  # fmt: skip
    if is_measured:
        plan = _measured(plan, arguments)
    answer = capacity.answer(
        plan, slo=slo, memory=memory, is_measured=is_measured, runs=arguments.runs, requests_max=arguments.requests,
        progress=_tell,
    )  # fmt: skip
    sections, lead = capacity_report.sections(answer), [*capacity_report.lead(answer), *notes]
    if arguments.csv:
        rows = [(name, value, capacity_report.basis(answer)) for name, value in _flat(_facts(answer), "")]
        Path(arguments.csv).write_text(tables.csv_text(("figure", "value", "basis"), rows), encoding="utf-8")
    if arguments.html:
        text = page.page(
            f"Capacity: {plan.name}", sections, lead=lead, facts=list(capacity_report.facts(answer)),
            foot=(f"`{_command(arguments)}`",),
        )  # fmt: skip
        Path(arguments.html).write_text(text, encoding="utf-8")
    if arguments.json:
        common.print_json(
            {"verdict": answer.verdict.value, "basis": capacity_report.basis(answer), **_facts(answer)}
        )
    else:
        print("\n".join(lead), end="\n\n")
        section_text.print_sections(sections)
    return STATUS[answer.verdict]


def _slo(plan: CapacityPlan, arguments: argparse.Namespace) -> tuple[Slo | None, list[str]]:
    """What is promised, if a file of its own says it, and what of that isn't judged here."""
    if not (named := arguments.slo or plan.promise.slo):
        return None, []
    slo, notes = simulate_load.simulated(slos.load(slos.named(named)))
    simulate_load.refuse_lengths(slo, plan.load)
    if plan.costs is not None and slo.cost.max_pico is not None and slo.cost.currency != plan.costs.currency:
        raise ConfigError(
            f"a qualified result may cost so many {slo.cost.currency} by the SLO, and `costs.currency` is"
            f" {plan.costs.currency}: nothing converts them; write both in one"
        )
    peak = plan.load.rate_per_s * plan.load.peak
    most = slo.load.requests_per_s_max
    if most is not None and peak > most:
        notes.append(f"The SLO holds up to {number(most)} requests/s, and the peak is {number(peak)}.")
    return slo, notes


def _command(arguments: argparse.Namespace) -> str:
    """What repeats it, wherever the same files are."""
    given = [
        (f"--{name}", str(value))
        for name in ("record", "slo", "rate", "runs", "requests")
        if (value := getattr(arguments, name)) is not None
    ]
    return shlex.join(["headrace", "capacity", arguments.file, *(word for pair in given for word in pair)])


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every leaf by its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{name}[{index}]")
    else:
        yield name, value


def _facts(answer: capacity.Answer) -> dict[str, Any]:
    """Everything by name; amounts are pico-units of the currency."""
    facts: dict[str, Any] = msgspec.to_builtins(_named(answer))
    return facts


def _named(value: Any) -> Any:
    """Tuples with names as tables, whatever they are in."""
    if hasattr(value, "_asdict"):
        return {name: _named(each) for name, each in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _named(each) for name, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, tuple | list) else value


def _measured(plan: CapacityPlan, arguments: argparse.Namespace) -> CapacityPlan:
    data = config.data_directory(arguments.data)
    with closing(CapacityStore(open_local(data))) as store:
        record = store.require(arguments.record).record
    try:
        replica = simulate_load.measured(record, start_s=plan.replica.start_s)
    except ValueError as error:
        raise ConfigError(f"record {arguments.record}: {error}") from error
    return msgspec.structs.replace(plan, replica=replica)


def _tell(line: str) -> None:
    if common.progress_is_live():
        print(line, file=sys.stderr, flush=True)
