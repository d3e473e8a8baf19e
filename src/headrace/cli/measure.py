"""`headrace measure`: what can one replica do, and at which load does more bring no more?"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import headrace
from headrace import config
from headrace.app.planning import Planner
from headrace.cli import common, durations, identity, models, section_text, status, target
from headrace.config import slos
from headrace.core.capacity import CapacityRecord
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, HeadraceError, leaves
from headrace.core.load_records import LoadRun
from headrace.core.verdicts import Verdict
from headrace.core.workload import Workload
from headrace.evidence import cases as case_files
from headrace.evidence import load, measure, measure_report, page, quality
from headrace.evidence.asking import Asker
from headrace.evidence.load_terms import LoadTerms
from headrace.evidence.measure import Measurement, Shape, Subject, Terms
from headrace.evidence.memory_watch import MemoryWatch
from headrace.evidence.target import Target
from headrace.policies import slo as promises
from headrace.policies import slo_requests
from headrace.policies.quality import Mark, SetKind
from headrace.stores.capacity import CapacityStore
from headrace.stores.deployments import open_deployments
from headrace.stores.opening import open_local
from headrace.telemetry import hardware

_CLOCK = SystemClock()
_STATUS_HELP = """
exit status: 0 an end was shown, and all asked for was measured; 1 memory grows at constant load, or answers are worse beside the
load; 2 the operator must change something; 3 no end was shown: it can do at least this, or too few cases to tell; 4 nothing could
be measured
"""


class Replicas(NamedTuple):
    """What is measured, as far as it is known here; nothing of a server that others run."""

    digest: str = ""
    slots: int = 0
    pids: tuple[int, ...] = ()


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "measure",
        _measure,
        help="find what a replica can do: more and more callers, short and long, until more bring no more; or show what was found",
        example="headrace measure --deployment chat-small --quality document-assistant\n"
        "         headrace measure list\n         headrace measure show chat-small --html capacity.html",
        with_json=True,
        with_config=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    parser.add_argument(
        "action", nargs="?", choices=["run", "list", "show"], default="run", metavar="ACTION",
        help="run (the default), list what was measured, or show one record",
    )  # fmt: skip
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="with show: a record's number, or a model for its newest"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write it as one page that needs nothing else"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the record as JSON")
    _add_what(parser)
    _add_how(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deployment", metavar="D", help="a deployment of the service that runs on the data directory"
    )
    parser.add_argument("--url", metavar="URL", help="instead, any OpenAI-compatible server")
    parser.add_argument("--model", metavar="M", help="with --url: the model, as the server calls it")
    parser.add_argument(
        "--key",
        default="",
        metavar="REF",
        help="the key: env:NAME or file:PATH (default: the one that the running service asks itself with)",
    )
    parser.add_argument(
        "--ca", default="", metavar="FILE", help="PEM file of the authorities that may sign its certificate"
    )
    parser.add_argument(
        "--certificate",
        default="",
        metavar="FILE",
        help="PEM file with the server's own certificate, trusted and no other",
    )
    parser.add_argument(
        "--quality",
        metavar="FILE|NAME",
        help="a tuning set whose cases are asked at rest and beside the load",
    )
    parser.add_argument(
        "--cases", type=common.positive, metavar="N", help="only so many of them, spread over the set"
    )
    parser.add_argument(
        "--margin",
        type=_margin,
        default=measure.MARGIN,
        metavar="X",
        help=f"how much smaller the share of right answers may be beside the load (default: {measure.MARGIN})",
    )
    parser.add_argument(
        "--slo", type=Path, metavar="FILE", help="a load by which this is broken is past the end"
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths", type=_lengths, default=measure.SHAPES, metavar="IN/OUT,...",
        help="tokens of prompts and answers, the first pair being the main one (default: 64/32,512/32,64/128,512/128)",
    )  # fmt: skip
    parser.add_argument(
        "--level",
        type=durations.duration_s,
        default=10.0,
        metavar="SPAN",
        help="what counts of a level (default: 10s)",
    )
    parser.add_argument(
        "--callers-max",
        type=common.positive,
        default=64,
        metavar="N",
        help="where a sweep without an end stops (default: 64)",
    )
    parser.add_argument(
        "--time-limit",
        type=durations.duration_s,
        default=900.0,
        metavar="SPAN",
        help="for all sweeps (default: 15m)",
    )
    parser.add_argument(
        "--hold",
        type=durations.duration_s,
        default=60.0,
        metavar="SPAN",
        help="how long the full load is held at least, for memory to show whether it grows (default: 60s)",
    )
    parser.add_argument(
        "--seed", type=common.positive, default=1, metavar="N", help="of what is asked (default: 1)"
    )
    parser.add_argument("--no-keep", action="store_true", help="don't keep the record in the data directory")


def _measure(arguments: argparse.Namespace) -> int:
    if arguments.action == "run":
        return _run(arguments)
    with closing(CapacityStore(open_local(config.data_directory(arguments.data)))) as store:
        if arguments.action == "list":
            kept = store.records()
            if arguments.json:
                common.print_json([{"number": n, **msgspec.to_builtins(record)} for n, record in kept])
            else:
                table = measure_report.listed(kept, [durations.utc(record.measured_s) for _, record in kept])
                common.print_table(table.rows, headings=table.columns)
            return 0
        if not arguments.name:
            raise ConfigError("say which: a number or a model, as `headrace measure list` shows them")
        _tell(arguments, store.require(arguments.name).record)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    data = config.data_directory(arguments.data)
    asked, found = _target(arguments, data), Replicas()
    if not arguments.url:
        _refuse_growth(asked.model, data)
        found = _replicas(asked.model, data)
        if len(found.pids) > 1:
            print(
                f"{asked.model} has {len(found.pids)} replicas: what is measured is what they do together",
                file=sys.stderr,
            )
    _refuse_deaf(asked)
    record = _measured(arguments, data, found, asked)
    if not arguments.url and _replicas(asked.model, data) != found:
        raise HeadraceError(f"replicas of {asked.model} came or went while it was measured: measure it again")
    if not arguments.no_keep and record.levels:
        with closing(CapacityStore(open_local(data))) as store:
            number = store.add(record)
        print(f"kept as number {number}: headrace measure show {number}", file=sys.stderr)
    _tell(arguments, record)
    return _status(record)


def _target(arguments: argparse.Namespace, data: Path) -> Target:
    """Raises ConfigError, HeadraceError."""
    key = config.resolve_secret(arguments.key, key="--key") if arguments.key else ""
    if not arguments.url:
        return target.of_service(
            data, model=arguments.deployment, key=key, ca_file=arguments.ca, certificate=arguments.certificate
        )
    if not arguments.model or arguments.deployment:
        raise ConfigError("--url goes with --model, and not with --deployment")
    return Target(arguments.url, arguments.model, key, arguments.ca, arguments.certificate)


def _replicas(name: str, data: Path) -> Replicas:
    """Of a deployment that is ready."""
    _, now = status.fetch(data)
    rows = [each for each in now["deployments"] if each["model"] == name and each["ready"]]
    replicas = [replica for each in rows for replica in each["replicas"]]
    return Replicas(
        rows[0]["revision"] if rows else "",
        sum(replica["slots_max"] for replica in replicas),
        tuple(replica["pid"] for replica in replicas if replica["pid"]),
    )


def _refuse_growth(name: str, data: Path) -> None:
    """Raises ConfigError where replicas would be added while one is measured."""
    with closing(open_deployments(data, clock=_CLOCK, actor=identity.actor())) as store:
        applied = store.wanted().get(name)
    if (
        applied is not None
        and applied.spec.scale.mode == "act"
        and applied.spec.scale.max > applied.spec.scale.min
    ):
        scale = applied.spec.scale
        raise ConfigError(
            f"{name} may grow from {scale.min} to {scale.max} replicas under load, and one is to be measured: apply it with"
            ' `scale.max` = `scale.min` or `scale.mode` = "advise" for that time'
        )


def _refuse_deaf(asked: Target) -> None:
    """One question before all others. Raises HeadraceError where it isn't answered: a sweep of refusals measures nothing."""
    asker = _asker(asked, deadline_s=60.0)
    reply = asyncio.run(asker.ask([{"role": "user", "content": "ping"}], output_tokens_max=1))
    if reply.error.startswith(("401", "403")):
        raise ConfigError(
            f"{asked.url} doesn't take this key ({reply.error}); name one with --key env:NAME or file:PATH"
        )
    if reply.error and reply.error != "not_an_answer":
        raise HeadraceError(f"{asked.model} at {asked.url} doesn't answer: {reply.error}")


def _asker(asked: Target, *, deadline_s: float) -> Asker:
    return Asker(
        asked.url, asked.model, key=asked.key, deadline_s=deadline_s, clock=_CLOCK,
        ca_file=asked.ca_file, certificate=asked.certificate,
    )  # fmt: skip


def _measured(arguments: argparse.Namespace, data: Path, found: Replicas, asked: Target) -> CapacityRecord:
    measurement = Measurement(
        _driver(asked),
        _subject(arguments, data, found, asked),
        terms=Terms(
            shapes=arguments.lengths,
            level_s=arguments.level,
            level_max_s=max(60.0, arguments.level),
            callers_max=arguments.callers_max,
            limit_s=arguments.time_limit,
            hold_s=arguments.hold,
            margin=arguments.margin,
            seed=arguments.seed,
        ),
        clock=_CLOCK,
        memory=MemoryWatch(found.pids, clock=_CLOCK),
        ask=_ask(arguments, data, asked),
        is_slow=_is_slow(arguments),
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    try:
        return asyncio.run(measurement.run())
    except BaseExceptionGroup as errors:
        # Of tasks that end together the first is the cause, and is told as if it had been alone.
        raise leaves(errors)[0] from None


def _driver(asked: Target) -> measure.Drive:
    async def drive(
        workload: Workload,
        *,
        duration_s: float,
        warmup_s: float,
        concurrency: int | None,
        rate_per_s: float | None,
        nonce: int,
    ) -> LoadRun:
        terms = LoadTerms(
            duration_s=duration_s,
            warmup_s=warmup_s,
            concurrency=concurrency,
            rate_per_s=rate_per_s,
            nonce=nonce,
            deadline_s=max(60.0, duration_s),
        )
        return await load.run_load(asked, workload, clock=_CLOCK, terms=terms)

    return drive


def _subject(arguments: argparse.Namespace, data: Path, found: Replicas, asked: Target) -> Subject:
    planned: dict[str, int] = {}
    flags: dict[str, str] = {}
    runtime = ""
    if not arguments.url:
        store = open_deployments(data, clock=_CLOCK, actor=identity.actor())
        with closing(store):
            applied = store.wanted().get(asked.model)
            if applied is not None:
                runtime = applied.revision.runtime or str(applied.revision.engine)
                given = msgspec.to_builtins(applied.revision.args)
                flags = {name: str(value) for name, value in given.items() if value not in (None, [], {})}
            planner = Planner(
                data, common.settings(arguments), store, clock=_CLOCK, progress=models.progress()
            )
            memory = planner.memory(asked.model)
        if memory is not None:
            planned = {
                "weights": memory.weights_bytes,
                "KV cache": memory.kv_bytes or 0,
                "workspace": memory.workspace_bytes,
                "process": memory.process_bytes,
            }
    return Subject(
        model=asked.model,
        digest=found.digest,
        runtime=runtime,
        hardware=hardware.described(),
        flags=flags,
        slots=found.slots,
        planned=planned,
        command=_command(arguments, asked),
        version=headrace.__version__,
    )


def _command(arguments: argparse.Namespace, asked: Target) -> str:
    what = f"--url {asked.url} --model {asked.model}" if arguments.url else f"--deployment {asked.model}"
    lengths = ",".join(f"{each.input_tokens}/{each.output_tokens}" for each in arguments.lengths)
    more = f" --quality {arguments.quality} --margin {arguments.margin:g}" if arguments.quality else ""
    if arguments.quality and arguments.cases:
        more += f" --cases {arguments.cases}"
    return (
        f"headrace measure {what} --lengths {lengths} --level {arguments.level:g}s"
        f" --callers-max {arguments.callers_max} --hold {arguments.hold:g}s --seed {arguments.seed}{more}"
    )


def _ask(arguments: argparse.Namespace, data: Path, asked: Target) -> measure.Ask | None:
    if not arguments.quality:
        return None
    cases = case_files.load(
        case_files.find(arguments.quality, SetKind.TUNING, data=data), expected=SetKind.TUNING
    )
    if arguments.cases:
        total = len(cases.cases)
        count = min(arguments.cases, total)
        spread = tuple(cases.cases[number * total // count] for number in range(count))
        cases = msgspec.structs.replace(cases, cases=spread)
    if case_files.needs_judge(cases.cases):
        raise ConfigError(f"{arguments.quality} has cases with a rubric, which `measure` has no judge for")

    async def ask(at_once: int) -> Sequence[Mark]:
        candidate = _asker(asked, deadline_s=120.0)
        report = await quality.run(
            cases, candidate=candidate, accepted=None, terms=quality.Terms(concurrency=at_once), clock=_CLOCK
        )
        return [case.candidate for case in report.cases]

    return ask


def _is_slow(arguments: argparse.Namespace) -> Callable[[LoadRun], bool]:
    if arguments.slo is None:
        return lambda run: False
    slo = slos.load(arguments.slo)

    def is_slow(run: LoadRun) -> bool:
        return promises.attainment(slo, slo_requests.of_run(run)).verdict is Verdict.FAIL

    return is_slow


def _tell(arguments: argparse.Namespace, record: CapacityRecord) -> None:
    shown = measure_report.sections(record)
    if arguments.out is not None:
        arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    if arguments.html is not None:
        foot = [f"`{record.command}`"] if record.command else []
        title = f"What one replica of {record.model} can do"
        arguments.html.write_text(
            page.page(title, shown, facts=measure_report.facts(record), foot=foot), encoding="utf-8"
        )
    if arguments.json:
        common.print_json(msgspec.to_builtins(record))
        return
    section_text.print_sections(shown)


def _status(record: CapacityRecord) -> int:
    if not record.saturation or not any(level.completed for level in record.levels):
        return 4
    if any(section.verdict is Verdict.FAIL for section in measure_report.sections(record)):
        return 1
    is_open = record.quality is not None and record.quality.judgement.verdict is not Verdict.PASS
    return 3 if is_open or not all(found.is_proven for found in record.saturation) else 0


def _margin(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a share above 0 and below 1, such as 0.05")
    return value


def _lengths(text: str) -> tuple[Shape, ...]:
    shapes = []
    for part in text.split(","):
        first, _, second = part.partition("/")
        if not (first.isdecimal() and second.isdecimal() and int(first) and int(second)):
            raise argparse.ArgumentTypeError(f"{part!r}: tokens of prompt and answer such as 512/128")
        shapes.append(Shape(part, int(first), int(second)))
    return tuple(shapes)
