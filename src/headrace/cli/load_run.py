"""How do commands that send a load run it, and tell what came of it? On the terminal, as JSON, as rows, as a page, and by their exit status."""

import argparse
import shlex
import sys
import time
from pathlib import Path

from headrace import config
from headrace.cli import section_text
from headrace.cli.load_progress import LoadProgress
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, leaves
from headrace.core.load_records import LoadRun, Outcome
from headrace.core.workload import Workload
from headrace.evidence import joining, load, load_file, load_page, load_processes
from headrace.evidence.load_terms import LoadTerms
from headrace.evidence.target import Target
from headrace.policies import load_report
from headrace.policies.load_joining import Joined
from headrace.policies.load_report import Ended, LoadReport

CLOCK = SystemClock()
DONE, FAILED, VOID, INTERRUPTED = 0, 1, 4, 130
STATUS_HELP = """
exit status: 0 done; 1 no request got a whole answer in time; 2 the operator must change something; 4 the run is void, and its figures
say nothing of the server: the generator was late, short of CPU, or didn't send what was due; 130 stopped by Ctrl-C, after a report of what there was
"""
# The service writes its records in batches, after the caller has their answer.
_LEDGER_LIMIT_S, _LEDGER_LOOK_S = 3.0, 0.2


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """`--records`, `--csv`, `--html`."""
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="write the report with every request as JSON: for headrace slo check, replay and workload fit",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every request as a row")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write the report with plots as a page that needs nothing else",
    )


def check_outputs(arguments: argparse.Namespace) -> None:
    """Before the run: what can't be written after it would be lost. Raises ConfigError."""
    for option in ("records", "csv", "html"):
        path: Path | None = getattr(arguments, option)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ConfigError(f"--{option} {path}: name a file in a folder that exists")


def nonce() -> int:
    """Another one each time: what is asked then is in no cache."""
    return int(CLOCK.wall_s() * 1000)


def drive(aimed: Target, workload: Workload, terms: LoadTerms, *, processes: int = 1) -> LoadRun:
    """The run, with its progress on standard error."""
    progress = LoadProgress()
    try:
        return load_processes.drive(
            aimed, workload, terms, clock=CLOCK, processes=processes, progress=progress.tell
        )
    except BaseExceptionGroup as errors:
        # Of tasks that end together the first is the cause, and is told as if it had been alone.
        raise leaves(errors)[0] from None
    finally:
        progress.end()


def tell(arguments: argparse.Namespace, run: LoadRun) -> int:
    """Shows and writes what came of it; the exit status."""
    report = load_report.summarise(run)
    joined = None if arguments.url else _joined(config.data_directory(arguments.data), run)
    more = [joining.section(joined)] if joined is not None else []
    content = load_file.encode(report, run, joined)
    if arguments.json:
        print(content.decode(), end="")
    else:
        print(f"{load_page.asked(run).replace('`', '')}\n")
        section_text.print_sections([*load_page.sections(report, run), *more])
    try:
        if arguments.records:
            arguments.records.write_bytes(content)
        if arguments.csv:
            arguments.csv.write_text(load_page.records_csv(run), encoding="utf-8")
        if arguments.html:
            page = load_page.html(report, run, more=more, command=shlex.join(["headrace", *sys.argv[1:]]))
            arguments.html.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from error
    if run.is_stopped:
        return INTERRUPTED
    if report.generator.void:
        return VOID
    if not any(report.outcomes.get(outcome) for outcome in (Outcome.OK, Outcome.CANCELLED)):
        print(f"No request got a whole answer in time: {_most(report)}{_unreachable(run)}.", file=sys.stderr)
        return FAILED
    return DONE


def _most(report: LoadReport) -> str:
    """How most of them ended."""
    most = max(report.ended, key=_count)
    return f"{most.count:,} of {report.intended:,} {most.outcome} ({most.reason})"


def _unreachable(run: LoadRun) -> str:
    """Why a connection couldn't be made, where one couldn't."""
    why = run.environment.get(load.COMPLAINT)
    return f"; {why}" if why else ""


def _count(ended: Ended) -> int:
    return ended.count


def _joined(data: Path, run: LoadRun) -> Joined | None:
    """The service's side of it; None where its records can't be read."""
    until_s = CLOCK.now_s() + _LEDGER_LIMIT_S
    try:
        while True:
            joined = joining.join(data, run)
            if not joined.unmatched.get(Outcome.OK) or CLOCK.now_s() > until_s:
                return joined
            time.sleep(_LEDGER_LOOK_S)
    except ConfigError as error:
        print(f"The service's own records can't be read: {error}", file=sys.stderr)
        return None
