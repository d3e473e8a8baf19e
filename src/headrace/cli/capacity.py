"""`headrace capacity`: how many replicas does a load need, does the promise hold on them, and what does a result cost?"""

import argparse
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, section_text
from headrace.config import capacity as files
from headrace.core.capacity_plan import CapacityPlan
from headrace.core.errors import ConfigError
from headrace.evidence import capacity, capacity_report, page, simulate, simulate_load
from headrace.policies.quality_report import STATUS
from headrace.stores.capacity import CapacityStore
from headrace.stores.opening import open_local

_STATUS_HELP = """
exit status: 0 the promise holds wherever it was tried; 1 it doesn't; 2 the operator must change something; 3 not enough runs to
say
"""


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "capacity",
        _capacity,
        help="say how many replicas a load needs, whether the promise holds on them, and what a qualified result costs",
        example="headrace capacity capacity/founding-example.toml\n"
        "         headrace capacity capacity/published-8b.toml --record 3 --html plan.html",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    parser.add_argument("file", metavar="FILE", help="the plan")
    parser.add_argument(
        "--record",
        metavar="ID",
        help="a measurement by `headrace measure`, which takes the place of `[replica]`",
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
    parser.add_argument("--html", metavar="FILE", help="write the same as one page that needs nothing else")


def _capacity(arguments: argparse.Namespace) -> int:
    plan = files.load(Path(arguments.file))
    if arguments.rate is not None:
        plan = msgspec.structs.replace(
            plan, load=msgspec.structs.replace(plan.load, rate_per_s=arguments.rate)
        )
    if arguments.record is not None:
        plan = _measured(plan, arguments)
    answer = capacity.answer(
        plan, is_measured=arguments.record is not None, runs=arguments.runs, requests_max=arguments.requests,
        progress=_tell,
    )  # fmt: skip
    sections, lead = capacity_report.sections(answer), capacity_report.lead(answer)
    if arguments.html:
        command = shlex.join(["headrace", "capacity", arguments.file])
        text = page.page(
            f"Capacity: {plan.name}", sections, lead=lead, facts=list(capacity_report.facts(answer)),
            foot=(f"`{command}`",),
        )  # fmt: skip
        Path(arguments.html).write_text(text, encoding="utf-8")
    if arguments.json:
        common.print_json({"verdict": answer.verdict.value, **msgspec.to_builtins(_facts(answer))})
    else:
        print("\n".join(lead), end="\n\n")
        section_text.print_sections(sections)
    return STATUS[answer.verdict]


def _facts(answer: capacity.Answer) -> dict[str, Any]:
    """Everything by name; amounts are pico-units of the currency."""
    return {
        name: [_named(each) for each in value] if isinstance(value, tuple) and not hasattr(value, "_asdict") else _named(value)
        for name, value in answer._asdict().items()
    }  # fmt: skip


def _named(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _named(each) for name, each in value._asdict().items()}
    return [_named(each) for each in value] if isinstance(value, tuple) else value


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
