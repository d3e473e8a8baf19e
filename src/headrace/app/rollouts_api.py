"""What can be said to the rollouts of a deployment over the admin port, and what is known of them?

A word is stored, and the controller answers it with a decision of its number; who says it waits for that for a moment.

Docs: docs/reference/admin-api.md.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from headrace.control.admin_reading import existing, names, parted
from headrace.control.admin_routes import AdminRoute, Asked, Reply, Turn, reply
from headrace.core import moments
from headrace.core.clock import Clock
from headrace.core.roles import Role
from headrace.policies.rollout_commands import Command
from headrace.policies.rollout_record import KIND
from headrace.stores.deployments import open_deployments
from headrace.stores.fleet import FleetStore, KeptDecision, open_fleet

ANSWER_LIMIT_S = 5.0
LOOK_EVERY_S = 0.05
DECISIONS_MAX = 50


class _Word(msgspec.Struct, forbid_unknown_fields=True):
    command: Command
    version: int | None = None


class RolloutsApi:
    """Answers out of the data directory, opened for each."""

    def __init__(self, data: Path, *, clock: Clock) -> None:
        self._data = data
        self._clock = clock

    def routes(self) -> tuple[AdminRoute, ...]:
        """The table."""
        path = "/admin/v1/deployments/{name}/rollout"
        return (
            _row("GET", path, Role.VIEWER, self._decisions),
            _row("POST", path, Role.OPERATOR, self._say, fields=names(_Word)),
        )

    def _decisions(self, asked: Asked) -> Reply:
        name = asked.named["name"]
        with (
            closing(open_deployments(self._data, clock=self._clock)) as deployments,
            closing(open_fleet(self._data, clock=self._clock)) as fleet,
        ):
            existing(deployments.require, name)
            found = fleet.decisions(deployment=name, kind=KIND, most=DECISIONS_MAX)
        return reply({"name": name, "decisions": [_told(each) for each in found]})

    def _say(self, asked: Asked) -> Reply:
        """Waits until the controller has heard it; it looks ten times a second."""
        said, _ = parted(asked.fields, _Word)
        name = asked.named["name"]
        with (
            closing(open_deployments(self._data, clock=self._clock, actor=asked.caller.actor)) as deployments,
            closing(open_fleet(self._data, clock=self._clock)) as fleet,
        ):
            existing(deployments.require, name)
            number = deployments.say(name, said.command, version=said.version)
            until_s = self._clock.now_s() + ANSWER_LIMIT_S
            while (answer := _answer(fleet, name, number)) is None and self._clock.now_s() < until_s:
                time.sleep(LOOK_EVERY_S)
        if answer is None:
            text = "the controller has not answered yet; it will do as it was told when it looks again"
            return reply({"word": number, "is_done": None, "text": text}, status=202)
        return reply(answer)


def _answer(fleet: FleetStore, name: str, number: int) -> Mapping[str, Any] | None:
    for kept in fleet.decisions(deployment=name, kind=KIND, most=DECISIONS_MAX):
        outcome: dict[str, Any] = msgspec.json.decode(kept.decision.outcome)
        if outcome.get("word") == number:
            return outcome
    return None


def _told(kept: KeptDecision) -> dict[str, Any]:
    return {
        "seq": kept.seq,
        "time": moments.utc(kept.at_s),
        "reason": kept.decision.reason,
        "outcome": kept.decision.outcome,
    }


def _row(
    method: str, path: str, role: Role, answer: Callable[[Asked], Reply], *, fields: tuple[str, ...] = ()
) -> AdminRoute:
    return AdminRoute(method, path, role, answer, fields=fields, turn=Turn.DEPLOYMENTS)
