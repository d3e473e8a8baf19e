"""What does the fleet look like that the last controller left? Replicas, states and decisions, written by one controller at a time.

Whoever takes the lease makes its epoch one greater, and every write names the writer's: a controller that was replaced, and
doesn't know it yet, changes nothing any more. One `Change` is one transaction, so no row is ever half of what it should be.
"""

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.core.ids import ReplicaId
from headrace.policies.cold_start import ColdStart
from headrace.policies.decisions import Decision
from headrace.stores import opening
from headrace.stores.database import Database, Row

# Of each kind; the oldest go first.
DECISIONS_MAX = 2000
# Of each deployment.
COLD_STARTS_MAX = 100
_FORGET_EVERY = 100


class LeaseLost(HeadraceError):
    """Another controller has taken the lease."""


class ReplicaRow(NamedTuple):
    """A replica that there should be, or that still has to end.

    Attributes:
        generation, token: Of its last launch; 0 and "" before the first.
        decided_s: When it was decided on, by the machine's monotonic clock.
        failures: Starts in a row that failed, or lives that ended soon.
    """

    id: ReplicaId
    deployment: str
    version: int
    generation: int = 0
    token: str = ""
    is_draining: bool = False
    decided_s: float = 0.0
    failures: int = 0


class DeploymentRow(NamedTuple):
    """What is kept of a deployment's rollouts; `rollout` is its driver's own."""

    name: str
    accepted: int | None
    rollout: str


class KeptDecision(NamedTuple):
    """A decision as it was stored, at that Unix time."""

    seq: int
    at_s: float
    epoch: int
    decision: Decision


class Lease(NamedTuple):
    """Who acts."""

    epoch: int
    holder: str
    taken_s: float


class Change(msgspec.Struct):
    """What is written together; scales by name and version, None where one is gone."""

    replicas: dict[ReplicaId, ReplicaRow | None] = {}
    deployments: dict[str, DeploymentRow | None] = {}
    scales: dict[tuple[str, int], str | None] = {}
    decisions: list[Decision] = []

    def __bool__(self) -> bool:
        return bool(self.replicas or self.deployments or self.scales or self.decisions)


class FleetStore:
    """Safe to call from several threads. State: `epoch`, of the lease that was taken; 0 for who only reads."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.epoch = 0

    def close(self) -> None:
        self._database.close()

    # The lease

    def take_lease(self, holder: str) -> int:
        """From now on this is who writes, and nobody else; returns the epoch."""
        row = self._database.row(
            'INSERT INTO controller_lease ("only", epoch, holder, taken_s, generation) VALUES (1, 1, ?, ?, 0)'
            ' ON CONFLICT ("only") DO UPDATE SET epoch = controller_lease.epoch + 1, holder = excluded.holder,'
            " taken_s = excluded.taken_s RETURNING epoch",
            (holder, self._clock.wall_s()),
        )
        assert row is not None, "RETURNING has a row"
        self.epoch = int(row[0])
        return self.epoch

    def hold(self) -> None:
        """Raises LeaseLost where another controller has taken over."""
        self._hold()

    def lease(self) -> Lease | None:
        """None where there never was a controller."""
        row = self._database.row("SELECT epoch, holder, taken_s FROM controller_lease")
        return None if row is None else Lease(*row)

    # What the last controller left

    def replicas(self) -> list[ReplicaRow]:
        rows = self._database.rows(
            "SELECT id, deployment, version, generation, token, is_draining, decided_s, failures"
            " FROM replica ORDER BY id"
        )
        return [ReplicaRow(*row)._replace(is_draining=bool(row[5])) for row in rows]

    def deployments(self) -> dict[str, DeploymentRow]:
        rows = self._database.rows("SELECT name, accepted, rollout FROM deployment_state ORDER BY name")
        return {row[0]: DeploymentRow(*row) for row in rows}

    def scales(self) -> dict[tuple[str, int], str]:
        rows = self._database.rows("SELECT name, version, scale FROM scale_state")
        return {(name, version): scale for name, version, scale in rows}

    # What this one writes

    def write(self, change: Change) -> None:
        """All of it or nothing. Raises LeaseLost, and DatabaseUnavailable as on a full disk."""
        with self._database.transaction():
            self._hold()
            for id_, replica in change.replicas.items():
                self._put_replica(id_, replica)
            for name, deployment in change.deployments.items():
                self._database.execute("DELETE FROM deployment_state WHERE name = ?", (name,))
                if deployment is not None:
                    self._database.execute(
                        "INSERT INTO deployment_state (name, accepted, rollout, epoch) VALUES (?, ?, ?, ?)",
                        (*deployment, self.epoch),
                    )
            for (name, version), scale in change.scales.items():
                self._put_scale(name, version, scale)
            for decision in change.decisions:
                self._put_decision(decision)

    def next_launch(self, replica: ReplicaId, *, failures: int = 0) -> tuple[int, str]:
        """Generation and token of a launch that is to begin, which none had before. Raises LookupError without its row."""
        token = secrets.token_hex(16)
        with self._database.transaction():
            self._hold()
            row = self._database.row(
                "UPDATE controller_lease SET generation = generation + 1 RETURNING generation"
            )
            assert row is not None, "there is a lease"
            found = self._database.execute(
                "UPDATE replica SET generation = ?, token = ?, failures = ?, epoch = ? WHERE id = ?",
                (row[0], token, failures, self.epoch, replica),
            )
            if not found:
                raise LookupError(f"no replica {replica} is wanted")
        return int(row[0]), token

    def note_start(self, start: ColdStart) -> None:
        """What a start took; the oldest of its deployment are forgotten."""
        with self._database.transaction():
            self._hold()
            self._database.execute(
                "INSERT INTO cold_start (deployment, digest, hardware, at_s, stages) VALUES (?, ?, ?, ?, ?)",
                (
                    start.deployment,
                    start.digest,
                    start.hardware,
                    start.at_s,
                    msgspec.json.encode(start.stages).decode(),
                ),
            )
            self._database.execute(
                "DELETE FROM cold_start WHERE deployment = ? AND number <= (SELECT number FROM cold_start"
                " WHERE deployment = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (start.deployment, start.deployment, COLD_STARTS_MAX),
            )

    # What was decided

    def starts(self, digest: str, *, most: int = COLD_STARTS_MAX) -> list[dict[str, float]]:
        """What the last starts of that revision took, by stage in seconds; the newest first."""
        rows = self._database.rows(
            "SELECT stages FROM cold_start WHERE digest = ? ORDER BY number DESC LIMIT ?", (digest, most)
        )
        return [msgspec.json.decode(row[0], type=dict[str, float]) for row in rows]

    def all_starts(self) -> list[ColdStart]:
        """Every start that is kept, the newest last."""
        rows = self._database.rows(
            "SELECT deployment, digest, hardware, stages, at_s FROM cold_start ORDER BY number"
        )
        return [
            ColdStart(row[0], row[1], row[2], msgspec.json.decode(row[3], type=dict[str, float]), row[4])
            for row in rows
        ]

    def decisions(
        self, *, deployment: str | None = None, kind: str | None = None, most: int = 100
    ) -> list[KeptDecision]:
        """The newest, the oldest of them first."""
        given = {
            column: value
            for column, value in (("deployment", deployment), ("kind", kind))
            if value is not None
        }
        where = " AND ".join(["seq > 0", *(f"{column} = ?" for column in given)])
        rows = self._database.rows(
            "SELECT seq, at_s, epoch, kind, deployment, reason, inputs, outcome FROM decision"
            f" WHERE {where} ORDER BY seq DESC LIMIT ?",
            (*given.values(), most),
        )
        return [_kept(row) for row in reversed(rows)]

    def _hold(self) -> None:
        """Inside the transaction of every write."""
        row = self._database.row("SELECT epoch, holder FROM controller_lease")
        if row is None or row[0] != self.epoch:
            raise LeaseLost(f"the controller {row and row[1]} has taken over (epoch {row and row[0]})")

    def _put_replica(self, id_: ReplicaId, replica: ReplicaRow | None) -> None:
        if replica is None:
            self._database.execute("DELETE FROM replica WHERE id = ?", (id_,))
            return
        # Generation and token are `next_launch`'s alone: a launch may have been under way when this was decided.
        self._database.execute(
            "INSERT INTO replica (id, deployment, version, generation, token, is_draining, decided_s, failures, epoch)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET is_draining = excluded.is_draining,"
            " decided_s = excluded.decided_s, epoch = excluded.epoch",
            [int(value) if isinstance(value, bool) else value for value in (*replica, self.epoch)],
        )

    def _put_scale(self, name: str, version: int, scale: str | None) -> None:
        self._database.execute("DELETE FROM scale_state WHERE name = ? AND version = ?", (name, version))
        if scale is not None:
            self._database.execute(
                "INSERT INTO scale_state (name, version, scale, epoch) VALUES (?, ?, ?, ?)",
                (name, version, scale, self.epoch),
            )

    def _put_decision(self, decision: Decision) -> None:
        row = self._database.row(
            "INSERT INTO decision (at_s, epoch, kind, deployment, reason, inputs, outcome) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " RETURNING seq",
            (
                self._clock.wall_s(),
                self.epoch,
                decision.kind,
                decision.deployment,
                decision.reason,
                bytes(decision.inputs).decode(),
                bytes(decision.outcome).decode(),
            ),
        )
        # By its number and not by ours: controllers that never live long must not keep everything.
        if row is not None and row[0] % _FORGET_EVERY == 0:
            self._forget_decisions()

    def _forget_decisions(self) -> None:
        """By number, and not by age: a clock that is wrong for a moment must not cost the record of a year."""
        for (kind,) in self._database.rows("SELECT DISTINCT kind FROM decision"):
            self._database.execute(
                "DELETE FROM decision WHERE kind = ? AND seq <= (SELECT seq FROM decision WHERE kind = ?"
                " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (kind, kind, DECISIONS_MAX),
            )


def open_fleet(data: Path, *, clock: Clock) -> FleetStore:
    """The store of that data directory."""
    return FleetStore(opening.open_local(data), clock=clock)


def lowest_free(deployment: str, taken: Iterable[str]) -> ReplicaId:
    """The next replica's id: few ids come again and again, so that metrics have few series."""
    names = set(taken)
    number = 0
    while (id_ := f"{deployment}-{number}") in names:
        number += 1
    return ReplicaId(id_)


def _kept(row: Row) -> KeptDecision:
    seq, at_s, epoch, kind, deployment, reason, inputs, outcome = row
    return KeptDecision(
        seq,
        at_s,
        epoch,
        Decision(kind, deployment, reason, msgspec.Raw(inputs.encode()), msgspec.Raw(outcome.encode())),
    )
