"""`headrace slo`: what is promised, whether it is kept, and when somebody has to know."""

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common
from headrace.config import slos
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.load_records import LoadRun
from headrace.core.slo import Slo
from headrace.core.verdicts import Verdict
from headrace.evidence import page, slo_report
from headrace.policies import slo as promises
from headrace.policies import slo_alerts, slo_requests
from headrace.policies.quality_report import STATUS
from headrace.policies.slo_requests import Reach
from headrace.stores.deployments import DeploymentStore
from headrace.stores.opening import open_local
from headrace.stores.sqlite import DATABASE_NAME
from headrace.telemetry.metrics import SECONDS, TOKEN_SECONDS

_STATUS_HELP = """
exit status of check: 0 every promise is proven; 1 one is refuted; 2 the operator must change something; 3 not enough samples, or
not the load that was promised; 4 it could not be judged
"""


def add(commands: Any) -> None:
    """Registers the command group."""
    group = common.command(
        commands,
        "slo",
        None,
        help="show what is promised, check whether it is kept, and make alerts of it",
        example="headrace slo show\n         headrace slo check slos/chat-small.toml --load run.json",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = common.command(
        actions,
        "show",
        _show,
        help="say in words what files promise",
        example="headrace slo show slos/chat-small.toml",
        with_json=True,
    )
    show.add_argument("files", nargs="*", metavar="FILE", help="files or folders (default: slos/)")
    _add_check(actions)
    alerts = common.command(
        actions,
        "alerts",
        _alerts,
        help="write rules for Prometheus that tell when an error budget burns too fast",
        example="headrace slo alerts slos/ --out alerts.yml",
        with_data=False,
    )
    alerts.add_argument("files", nargs="*", metavar="FILE", help="files or folders (default: slos/)")
    alerts.add_argument("--out", metavar="FILE", help="where to (default: standard output)")


def _add_check(actions: Any) -> None:
    check = common.command(
        actions,
        "check",
        _check,
        help="say of each promise whether it is proven, refuted, or short of samples, and what of the error budget is left",
        example="headrace slo check slos/chat-small.toml --load run.json",
        with_json=True,
    )
    check.epilog = f"{check.epilog}\n{_STATUS_HELP}"
    check.add_argument("file", metavar="FILE", help="what is promised")
    check.add_argument(
        "--load", required=True, metavar="RUN", help="a load test, as `headrace load --records RUN` wrote it"
    )
    check.add_argument("--html", metavar="FILE", help="write the same as one page that needs nothing else")


def _show(arguments: argparse.Namespace) -> None:
    files = slos.find(arguments.files)
    found = [(path, slo, _at_odds(slo, arguments)) for path in files for slo in [slos.load(path)]]
    if arguments.json:
        common.print_json(
            [
                {"file": str(path), **msgspec.to_builtins(slo), "contradictions": odds}
                for path, slo, odds in found
            ]
        )
        return
    for number, (path, slo, odds) in enumerate(found):
        print(
            f"{'' if number == 0 else chr(10)}{slo.deployment} ({path}){f': {slo.about}' if slo.about else ''}"
        )
        for line in (*slo_report.promised(slo), *(f"AT ODDS with the deployment: {each}" for each in odds)):
            print(f"  {line}")


def _check(arguments: argparse.Namespace) -> int:
    slo = slos.load(Path(arguments.file))
    run = _read(Path(arguments.load))
    if run.model != slo.deployment:
        raise ConfigError(
            f"{arguments.load} is of the model `{run.model}`, and {arguments.file} of `{slo.deployment}`"
        )
    found = promises.attainment(slo, slo_requests.of_run(run))
    reached = slo_requests.reach(slo.load, run)
    verdict = slo_requests.at_reach(found.verdict, reached)
    odds = _at_odds(slo, arguments)
    notes = [*_REACHED[reached], *(f"At odds with the deployment: {each}." for each in odds)]
    shown = slo_report.section(found, heading=f"{slo.deployment}: {Path(arguments.load).name}", prose=notes)
    shown = shown._replace(verdict=verdict)
    if verdict is not found.verdict:
        shown = shown._replace(
            says=f"{slo_report.WORDS[found.verdict]}, but not at the load that was promised"
        )
    _tell(arguments, slo, shown, facts={
        **slo_report.facts(slo, found), "verdict": verdict.value, "load": reached.value, "contradictions": odds,
    })  # fmt: skip
    return STATUS[verdict]


_REACHED: dict[Reach, Sequence[str]] = {
    Reach.THERE: (),
    Reach.BELOW: (
        "The load was below the one up to which the promise holds: what was kept says nothing of that one.",
    ),
    Reach.ABOVE: ("The load was above the one up to which the promise holds: what was missed breaks none.",),
}


def _tell(arguments: argparse.Namespace, slo: Slo, shown: page.Section, *, facts: dict[str, Any]) -> None:
    if arguments.html:
        title = f"Is kept what is promised of {slo.deployment}?"
        Path(arguments.html).write_text(
            page.page(title, [shown], lead=tuple(slo_report.promised(slo))), encoding="utf-8"
        )
    if arguments.json:
        common.print_json(facts)
        return
    print(f"{shown.heading}\n")
    for table in shown.tables:
        common.print_table(table.rows, headings=table.columns)
    print()
    for line in (*shown.prose, f"{(shown.verdict or Verdict.ERROR).value}: {shown.says}"):
        print(line)


def _alerts(arguments: argparse.Namespace) -> None:
    files = slos.find(arguments.files)
    found = [slos.load(path) for path in files]
    text = slo_alerts.as_yaml(
        [slo_alerts.groups(slo, seconds=SECONDS, token_seconds=TOKEN_SECONDS) for slo in found],
        heading=(
            "Rules for Prometheus, made by `headrace slo alerts` of " + ", ".join(map(str, files)) + ".",
            "docs/concepts/slo.md says what they mean. Make them again when a file changes.",
        ),
    )
    if arguments.out:
        Path(arguments.out).write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def _read(path: Path) -> LoadRun:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LoadRun)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a load test's records ({error})") from error


def _at_odds(slo: Slo, arguments: argparse.Namespace) -> list[str]:
    """What the deployment says that is in force, where there is one."""
    data = config.data_directory(arguments.data)
    if not (data / DATABASE_NAME).exists():
        return []
    with closing(DeploymentStore(open_local(data), clock=SystemClock())) as store:
        wanted = store.wanted().get(slo.deployment)
    return [] if wanted is None else list(promises.contradictions(slo, wanted.spec.slo))
