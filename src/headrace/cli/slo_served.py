"""What did a running service's callers get of what is promised? By its ledger, and by what it has turned away."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.app import refused
from headrace.cli import durations
from headrace.config import slos
from headrace.core import moments
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.slo import Slo
from headrace.policies import slo as promises
from headrace.policies import slo_requests
from headrace.policies.slo import Attainment
from headrace.stores.opening import open_database
from headrace.stores.usage_report import Group, UsageReport

Ask = Callable[[str], Mapping[str, Any]]
"""What the admin port answers at a path. Raises HeadraceError where no service runs."""

GLANCE_S = (300.0, 3600.0)
"""Over which `headrace status` looks back."""
GLANCE_REQUESTS_MAX = 50_000
"""A glance is quick: with more than that in its longest time it is left to `headrace slo check`."""
_MINUTE_S = 60.0


def served(slo: Slo, report: UsageReport, ask: Ask, *, since_s: float) -> tuple[Attainment, list[str]]:
    """How all that came since then fared, and what of it can't be known."""
    notes = []
    try:
        turned_away = ask(
            f"{refused.PATH}?model={quote(slo.deployment)}&since={quote(durations.utc(since_s))}"
        )
    except HeadraceError:
        turned_away = {}
        notes = ["No service runs here: what was turned away leaves no record and isn't counted."]
    else:
        if moments.unix_s(turned_away["known_from"]) > since_s + _MINUTE_S:
            notes = [
                f"What was turned away before {turned_away['known_from']} isn't known, and isn't counted."
            ]
    records = report.each(model=slo.deployment, since_s=since_s)
    alike = slo_requests.of_refusals(turned_away.get("reasons", {}))
    return promises.attainment(slo, map(slo_requests.of_usage, records), alike=alike), notes


def glance(data: Path, deployments: Sequence[str], ask: Ask, *, now_s: float) -> list[dict[str, Any]]:
    """Of each of these that has a file in `slos/` here: how its promises fared lately, for `headrace status`."""
    wanted = list(_promised(deployments))
    if not any(isinstance(slo, Slo) for _, slo in wanted):
        return [{"file": str(path), "problem": slo} for path, slo in wanted]
    with closing(UsageReport(open_database(data, must_exist=True))) as report:
        counts = {
            row.group[0]: row.requests
            for row in report.summary(since_s=now_s - GLANCE_S[-1], group_by=(Group.MODEL,))
        }
        return [
            {"file": str(path), **_glanced(slo, report, ask, counts.get(slo.deployment, 0), now_s=now_s)}
            if isinstance(slo, Slo)
            else {"file": str(path), "problem": slo}
            for path, slo in wanted
        ]


def _promised(deployments: Sequence[str]) -> Iterator[tuple[Path, Slo | str]]:
    """Each file about one of these, or what is wrong with it: a mistake in a file must not hide what runs."""
    try:
        files = slos.find([])
    except ConfigError:
        return
    for path in files:
        try:
            slo = slos.load(path)
        except ConfigError as error:
            yield path, str(error)
        else:
            if slo.deployment in deployments:
                yield path, slo


def _glanced(slo: Slo, report: UsageReport, ask: Ask, count: int, *, now_s: float) -> dict[str, Any]:
    if count > GLANCE_REQUESTS_MAX:
        return {
            "deployment": slo.deployment,
            "problem": f"{count:,} requests in an hour are too many for a glance; see `headrace slo check`",
        }
    short, long = (served(slo, report, ask, since_s=now_s - span_s)[0] for span_s in GLANCE_S)
    return {
        "deployment": slo.deployment,
        "window_s": GLANCE_S[-1],
        "intended": long.intended,
        "promises": [
            {
                "name": each.promise.name,
                "verdict": each.verdict.value,
                "counted": each.tally.counted,
                "share": each.share.estimate,
                "burn_rates": {"5m": before.budget.burn_rate, "1h": each.budget.burn_rate},
                "budget_left_share": each.budget.left_share,
            }
            for before, each in zip(short.kept, long.kept, strict=True)
        ],
    }
