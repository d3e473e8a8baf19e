"""`headrace slo`: what is promised, whether it is kept, and when somebody has to know."""

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace import config
from headrace.cli import common, durations, section_text, slo_served, status
from headrace.config import slos
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.slo import Slo
from headrace.core.verdicts import Verdict
from headrace.evidence import load_file, page, slo_cost, slo_report
from headrace.evidence.slo_cost import CostFound
from headrace.policies import load_report, slo_alerts, slo_requests
from headrace.policies import slo as promises
from headrace.policies.quality_report import STATUS, QualityReport
from headrace.policies.slo import Attainment
from headrace.policies.slo_requests import Reach
from headrace.stores.deployments import DeploymentStore
from headrace.stores.fleet import open_fleet
from headrace.stores.opening import open_database, open_local
from headrace.stores.sqlite import DATABASE_NAME
from headrace.stores.usage_report import UsageReport
from headrace.telemetry.metrics import SECONDS, TOKEN_SECONDS

_CLOCK = SystemClock()
Decoded = TypeVar("Decoded")
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
        example="headrace slo check slos/chat-small.toml --load run.json\n"
        "         headrace slo check slos/chat-small.toml --window 24h",
        with_json=True,
    )
    check.epilog = f"{check.epilog}\n{_STATUS_HELP}"
    check.add_argument("file", metavar="FILE", help="what is promised")
    what = check.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--load",
        metavar="RUN",
        help="a load test, as `headrace load --records RUN` or `headrace replay` wrote it",
    )
    what.add_argument(
        "--window",
        type=durations.duration_s,
        metavar="SPAN",
        help="what the service got that long until now, by its ledger and what it has turned away",
    )
    check.add_argument(
        "--quality",
        metavar="REPORT",
        help="a report of `headrace eval --json`: only its share of right answers counts as qualified",
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
    return _check_window(arguments, slo) if arguments.window is not None else _check_load(arguments, slo)


def _check_window(arguments: argparse.Namespace, slo: Slo) -> int:
    data, now_s = config.data_directory(arguments.data), _CLOCK.wall_s()
    spans = sorted({*(span for span in _BURN_S if span < arguments.window), arguments.window})
    with closing(UsageReport(open_database(data, must_exist=True))) as report:
        seen = {
            span: slo_served.served(
                slo, report, lambda path: status.fetch(data, path)[1], since_s=now_s - span
            )
            for span in spans
        }
    found, notes = seen[arguments.window]
    odds = _at_odds(slo, arguments)
    shown = slo_report.section(
        found,
        heading=f"{slo.deployment}: the last {slo_alerts.span(round(arguments.window))}",
        prose=[*notes, *(f"At odds with the deployment: {each}." for each in odds)],
    )
    names = [slo_alerts.span(round(span)) for span in spans]
    burns = [
        (
            kept.promise.name,
            {name: seen[span][0].kept[i].budget.burn_rate for name, span in zip(names, spans, strict=True)},
        )
        for i, kept in enumerate(found.kept)
    ]
    shown = shown._replace(tables=(*shown.tables, slo_report.burned(burns, names)))
    cost = _cost(arguments, slo, found, window_s=(now_s - arguments.window, now_s))
    verdict = slo_cost.with_cost(found.verdict, cost)
    facts = {
        **slo_report.facts(slo, found),
        "verdict": verdict.value,
        "burn_rates": dict(burns),
        "cost": msgspec.to_builtins(cost),
        "notes": notes,
        "contradictions": odds,
    }
    _tell(arguments, slo, slo_cost.beside(shown, slo, cost), facts=facts)
    return STATUS[verdict]


_BURN_S = (300.0, 3600.0, 6 * 3600.0, 86_400.0, 3 * 86_400.0)


def _check_load(arguments: argparse.Namespace, slo: Slo) -> int:
    run = load_file.read(Path(arguments.load))
    if run.model != slo.deployment:
        raise ConfigError(
            f"{arguments.load} is of the model `{run.model}`, and {arguments.file} of `{slo.deployment}`"
        )
    found = promises.attainment(slo, slo_requests.of_run(run))
    reached = slo_requests.reach(slo.load, run)
    faults = list(load_report.generator_faults(run))
    verdict = Verdict.ERROR if faults else slo_requests.at_reach(found.verdict, reached)
    odds = _at_odds(slo, arguments)
    notes = [
        *(f"The run says nothing of the service: {each}." for each in faults),
        *_REACHED[reached],
        *(f"At odds with the deployment: {each}." for each in odds),
    ]
    shown = slo_report.section(found, heading=f"{slo.deployment}: {Path(arguments.load).name}", prose=notes)
    shown = shown._replace(verdict=verdict)
    if verdict is not found.verdict:
        but = "by a generator that didn't keep up" if faults else "not at the load that was promised"
        shown = shown._replace(says=f"{slo_report.WORDS[found.verdict]}, but {but}")
    window_s = run.began_at_s + run.window.from_s, run.began_at_s + run.window.to_s
    cost = _cost(arguments, slo, found, window_s=window_s, is_quiet=reached is Reach.BELOW)
    verdict = slo_cost.with_cost(verdict, cost)
    _tell(arguments, slo, slo_cost.beside(shown, slo, cost), facts={
        **slo_report.facts(slo, found), "verdict": verdict.value, "load": reached.value, "generator_faults": faults,
        "cost": msgspec.to_builtins(cost), "contradictions": odds,
    })  # fmt: skip
    return STATUS[verdict]


_REACHED: dict[Reach, Sequence[str]] = {
    Reach.THERE: (),
    Reach.BELOW: (
        "The load was below the one up to which the promise holds: what was kept says nothing of that one.",
    ),
    Reach.ABOVE: ("The load was above the one up to which the promise holds: what was missed breaks none.",),
}


def _cost(
    arguments: argparse.Namespace,
    slo: Slo,
    found: Attainment,
    *,
    window_s: tuple[float, float],
    is_quiet: bool = False,
) -> CostFound | None:
    """What a qualified result cost on this data directory in that time; None where nothing is promised of it."""
    if slo.cost.max_pico is None:
        return None
    data, known, right = config.data_directory(arguments.data), slo_cost.NO_ORDERS, None
    if (data / DATABASE_NAME).exists():
        with closing(open_fleet(data, clock=_CLOCK)) as store:
            known = slo_cost.orders(store, slo.deployment)
    if arguments.quality:
        report = _decoded(Path(arguments.quality), QualityReport, what="a report of `headrace eval --json`")
        right = report.candidate.share.estimate
    return slo_cost.judge(slo, found, known, window_s=window_s, right_share=right, is_quiet=is_quiet)


def _tell(arguments: argparse.Namespace, slo: Slo, shown: page.Section, *, facts: dict[str, Any]) -> None:
    if arguments.html:
        title = f"Is kept what is promised of {slo.deployment}?"
        _write(Path(arguments.html), page.page(title, [shown], lead=tuple(slo_report.promised(slo))))
    if arguments.json:
        common.print_json(facts)
        return
    section_text.print_sections([shown])


def _alerts(arguments: argparse.Namespace) -> None:
    files = slos.find(arguments.files)
    found = [slos.load(path) for path in files]
    by_deployment: dict[str, Path] = {}
    for path, slo in zip(files, found, strict=True):
        if (other := by_deployment.setdefault(slo.deployment, path)) is not path:
            # Prometheus takes none of the rules of a file that names one group twice.
            raise ConfigError(
                f"{other} and {path} are both of `{slo.deployment}`; a deployment has one SLO file"
            )
    text = slo_alerts.as_yaml(
        [
            *(slo_alerts.groups(slo, seconds=SECONDS, token_seconds=TOKEN_SECONDS) for slo in found),
            slo_alerts.unseen(),
        ],
        heading=(
            "Rules for Prometheus, made by `headrace slo alerts` of " + ", ".join(map(str, files)) + ".",
            "docs/concepts/slo.md says what they mean. Make them again when a file changes.",
        ),
    )
    if arguments.out:
        _write(Path(arguments.out), text)
    else:
        print(text, end="")


def _decoded(path: Path, kind: type[Decoded], *, what: str) -> Decoded:
    """Raises ConfigError for a file that can't be read or is something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not {what} ({error})") from error


def _write(path: Path, text: str) -> None:
    """A file that can't be written is no promise that was broken, which exit status 1 says."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _at_odds(slo: Slo, arguments: argparse.Namespace) -> list[str]:
    """What the deployment says that is in force, where there is one."""
    data = config.data_directory(arguments.data)
    if not (data / DATABASE_NAME).exists():
        return []
    with closing(DeploymentStore(open_local(data), clock=_CLOCK)) as store:
        wanted = store.wanted().get(slo.deployment)
    return [] if wanted is None else list(promises.contradictions(slo, wanted.spec.slo))
