"""How does a rollout go that somebody waits for? Each decision about it as a line, and how it ended as an exit status."""

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from headrace.cli import identity, status
from headrace.core.deployments import AppliedVersion
from headrace.stores import fleet
from headrace.stores.deployments import DeploymentStore, open_deployments
from headrace.stores.fleet import FleetStore, KeptDecision

FAILED = 1
ROLLOUT = "rollout"
LOOK_EVERY_S = 0.25
LOST = frozenset({"rolled_back", "aborted", "superseded"})


def follow(data: Path, versions: Mapping[str, int]) -> int | None:
    """Until every one of these deployments serves with that version, or one of them never will: then FAILED.

    It has no limit of its own: each rollout has (`rollout.max_duration_s`). Raises HeadraceError when the service ends.
    """
    with (
        closing(open_deployments(data, clock=identity.CLOCK)) as store,
        closing(fleet.open_fleet(data, clock=identity.CLOCK)) as kept,
    ):
        targets = {name: store.version(name, version) for name, version in versions.items() if version}
        told = {name: _newest(kept, name) for name in targets}
        is_lost = False
        while targets:
            for name, target in list(targets.items()):
                news = [each for each in kept.decisions(deployment=name) if each.seq > told[name]]
                for decision in news:
                    identity.note(f"{name}: {decision.decision.kind} {decision.decision.reason}")
                    told[name] = decision.seq
                if _serves(data, kept, target):
                    identity.note(f"{name}: version {target.version} serves")
                    del targets[name]
                elif why := _ended(store, target, news):
                    identity.note(f"{name}: version {target.version} does not serve: {why}")
                    is_lost = True
                    del targets[name]
            if targets:
                time.sleep(LOOK_EVERY_S)
    return FAILED if is_lost else None


def _newest(kept: FleetStore, name: str) -> int:
    return max((each.seq for each in kept.decisions(deployment=name, most=1)), default=0)


def _serves(data: Path, kept: FleetStore, target: AppliedVersion) -> bool:
    """Whether it is the accepted version and callers' requests reach a replica of it."""
    row = kept.deployments().get(target.name)
    if row is None or row.accepted != target.version:
        status.fetch(data)  # raises where nobody is there to go on
        return False
    _, now = status.fetch(data)
    return any(
        each.get("revision") == target.revision.digest and each.get("ready", 0) > 0
        for each in now.get("deployments", [])
        if each.get("model") in (target.name, target.key)
    )


def _ended(store: DeploymentStore, target: AppliedVersion, news: list[KeptDecision]) -> str:
    """Why it will not serve; "" while it may."""
    if (wish := store.require(target.name)).version != target.version:
        return f"version {wish.version} is wanted now ({wish.reason})" if wish.version else "it was removed"
    for each in news:
        if each.decision.kind == ROLLOUT and (result := _result(each, target.version)) in LOST:
            return f"{result.replace('_', ' ')} ({each.decision.reason})"
    return ""


def _result(kept: KeptDecision, version: int) -> str:
    """How the rollout of that version ended, "" where this decision didn't end it."""
    outcome = msgspec.json.decode(kept.decision.outcome)
    if not isinstance(outcome, dict) or outcome.get("candidate") != version:
        return ""
    return str(outcome.get("result") or "")
