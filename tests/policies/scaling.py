"""An autoscaler without a fleet: looks in, decisions out, and replicas that are there as soon as they are wanted, or never."""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.deployment_terms import (
    BudgetTerms,
    DownTerms,
    PanicTerms,
    ScaleTerms,
    SloTerms,
    TargetTerms,
    UpTerms,
)
from headrace.policies.autoscale import ScaleDecision, ScaleState, Setting, decide
from headrace.policies.autoscale_guards import Guard
from headrace.policies.autoscale_signals import FleetView, LoadSample, ReplicaView
from headrace.policies.cold_start import Figures

WALL_S = 1_700_006_400.0  # a midnight
TICK_S = 2.0


def setting(
    *, slo: SloTerms | None = None, budget: BudgetTerms | None = None, first_wait_max_s: float | None = None,
    inflight: float = 4.0, **scale: Any,
) -> Setting:  # fmt: skip
    """Four requests for each replica, windows of 20 and 4 seconds, a minute before anything is taken away."""
    known: dict[str, Any] = {
        "min": 1,
        "max": 20,
        "window_s": 20.0,
        "target": TargetTerms(inflight=inflight),
        "panic": PanicTerms(4.0, 2.0),
        "up": UpTerms(0.0, 10.0),
        "down": DownTerms(60.0, 1, 0.8),
    }
    return Setting(
        ScaleTerms(**(known | scale)), slo or SloTerms(), budget or BudgetTerms(), first_wait_max_s
    )


def ready(
    count: int, *, since_s: float = -1000.0, in_flight: int = 0, first: int = 1
) -> tuple[ReplicaView, ...]:
    return tuple(ReplicaView(f"m-{n}", since_s, since_s, in_flight) for n in range(first, first + count))


def starting(
    count: int, *, since_s: float = 0.0, first: int = 100, is_stuck: bool = False
) -> tuple[ReplicaView, ...]:
    return tuple(ReplicaView(f"m-{n}", since_s, is_stuck=is_stuck) for n in range(first, first + count))


def cold(*totals_s: float) -> Figures:
    return Figures(tuple(sorted(totals_s)), ())


def fleet(*replicas: ReplicaView, slots: int = 8, start_s: float | None = 10.0) -> FleetView:
    return FleetView(replicas, slots, None if start_s is None else cold(start_s))


def guards_of(decision: ScaleDecision) -> list[Guard]:
    return [note.guard for note in decision.guards]


class Looks:
    """Asks again and again, TICK_S apart.

    State: the autoscaler's own, the time, and the last decision.
    """

    def __init__(self, agreed: Setting, fleet: FleetView, *, now_s: float = 0.0) -> None:
        self.setting = agreed
        self.fleet = fleet
        self.now_s = now_s
        self.state = ScaleState()
        self.decisions: list[ScaleDecision] = []

    @property
    def last(self) -> ScaleDecision:
        return self.decisions[-1]

    def look(self, seconds: float = TICK_S, *, is_silent: bool = False, **sample: Any) -> ScaleDecision:
        """The same load for so many seconds; the last decision. The fleet stays as it is, whatever is decided."""
        for _ in range(max(1, round(seconds / TICK_S))):
            before_s, self.now_s = self.now_s, self.now_s + TICK_S
            seen = None if is_silent else LoadSample(before_s, self.now_s, **sample)
            self.state, decision = decide(
                self.state, self.setting, seen, self.fleet, now_s=self.now_s, wall_s=WALL_S + self.now_s
            )
            self.decisions.append(decision)
        return self.last

    def follow(self, seconds: float = TICK_S, **sample: Any) -> ScaleDecision:
        """As `look`, and after each decision there is what it wanted, ready at once."""
        for _ in range(max(1, round(seconds / TICK_S))):
            decision = self.look(**sample)
            gone = set(decision.remove)
            kept = [replica for replica in self.fleet.replicas if replica.id not in gone]
            self.have((*kept, *self._new(decision.replicas - len(kept))))
        return self.last

    def have(self, replicas: Sequence[ReplicaView]) -> None:
        self.fleet = msgspec.structs.replace(self.fleet, replicas=tuple(replicas))

    def _new(self, count: int) -> tuple[ReplicaView, ...]:
        taken = [int(replica.id.removeprefix("m-")) for replica in self.fleet.replicas]
        return ready(max(0, count), since_s=self.now_s, first=max(taken, default=0) + 1)
