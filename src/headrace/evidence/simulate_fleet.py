"""A fleet on a virtual clock: replicas that start, work, drain and are lost, and whoever decides how many there should be.

What decides is never a copy. Requests go through the gateway's own policies (simulate_gateway.py), and the seam for the number
of replicas is `Scaler`: it sees what an autoscaler sees, as late and as incomplete as it sees it, and nothing else. A run
with the same seed is the same run; runs of different policies with the same seed meet the same starts and the same losses.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple, Protocol

from headrace.core.deployment_terms import ScaleTerms, SloTerms
from headrace.evidence.simulate_counts import Counted
from headrace.evidence.simulate_events import Events
from headrace.evidence.simulate_gateway import TICK_S, Gateway, Server
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_run import Run
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies.autoscale import ScaleDecision, decide
from headrace.policies.autoscale_memory import ScaleState
from headrace.policies.autoscale_proposals import Setting
from headrace.policies.autoscale_signals import FleetView, LoadSample, ReplicaView
from headrace.policies.cold_start import STARTS_MAX, ColdStart, figures

LOOK_S = 2.0
WALL_S = 1_700_006_400.0  # a midnight, so that a day of a budget begins with a run
# Control hears of the end of a process within milliseconds.
NOTICE_S = 0.02


class Wanted(NamedTuple):
    """How many replicas, and which go first where that is fewer."""

    replicas: int
    remove: Sequence[str] = ()


class Scaler(Protocol):
    """Who decides."""

    def __call__(
        self, sample: LoadSample | None, fleet: FleetView, *, now_s: float, wall_s: float
    ) -> Wanted: ...


class Fixed:
    """Always that many."""

    def __init__(self, replicas: int) -> None:
        self._wanted = Wanted(replicas)

    def __call__(self, sample: LoadSample | None, fleet: FleetView, *, now_s: float, wall_s: float) -> Wanted:
        return self._wanted


class Autoscaler:
    """The controller's own policy. State: its own.

    Attributes:
        decided: What it said, each with its moment.
    """

    def __init__(self, scale: ScaleTerms, slo: SloTerms) -> None:
        self._setting = Setting(scale, slo)
        self._state = ScaleState()
        self.decided: list[tuple[float, ScaleDecision]] = []

    def __call__(self, sample: LoadSample | None, fleet: FleetView, *, now_s: float, wall_s: float) -> Wanted:
        self._state, decision = decide(self._state, self._setting, sample, fleet, now_s=now_s, wall_s=wall_s)
        self.decided.append((now_s, decision))
        return Wanted(decision.replicas, decision.remove)


class Loss(NamedTuple):
    """So many ready replicas end at that moment, chosen by chance; others are started in their place."""

    at_s: float
    replicas: int = 1


class Sight(NamedTuple):
    """How well load is seen.

    Attributes:
        delay_looks: Reports are so many looks old.
        lost_share: Of the reports; the next one says what the lost one would have said, as counters do.
    """

    delay_looks: int = 0
    lost_share: float = 0.0


class _Life:
    """One replica, from its launch until it is gone."""

    __slots__ = ("epoch", "id", "is_draining", "is_stuck", "launched_s", "ready_s", "server", "stages_s")

    def __init__(self, id_: str, pace: Pace, launched_s: float, stages_s: dict[str, float]) -> None:
        self.id = id_
        self.launched_s = launched_s
        self.stages_s = stages_s
        self.server = Server(id_, pace)
        self.ready_s: float | None = None
        self.is_draining = False
        self.is_stuck = False
        self.epoch = 0

    @property
    def in_flight(self) -> int:
        return len(self.server.running)

    @property
    def serves(self) -> bool:
        return self.ready_s is not None and not self.is_draining


class FleetModel:
    """One run.

    State: `_lives` of all replicas that are there or on their way; `_works` not yet arrived, in their order.

    Args:
        works: In the order of their arrival; as many as there are in memory, or made as they come.
        replicas: Ready at the beginning.
        is_stuck: Asked at each launch with its number: whether that replica will never be ready.
        is_silent: Asked at each look with the moment: whether nobody reports.
    """

    def __init__(
        self,
        works: Iterable[Work],
        scaler: Scaler,
        *,
        pace: Pace | None = None,
        promise: Promise | None = None,
        replicas: int = 1,
        seed: int = 1,
        tick_s: float = LOOK_S,
        losses: Sequence[Loss] = (),
        sight: Sight | None = None,
        is_stuck: Callable[[int], bool] = lambda _: False,
        is_silent: Callable[[float], bool] = lambda _: False,
        digest: str = "sha256:model",
    ) -> None:
        self._works: Iterator[Work] = iter(works)
        self._next: Work | None = next(self._works, None)
        self._scaler = scaler
        self._pace = pace or Pace()
        self._starts = Random(f"{seed} starts")
        self._lost = Random(f"{seed} losses")
        self._tick_s = tick_s
        self._sight = sight or Sight()
        self._reports: deque[LoadSample] = deque()
        self._is_stuck = is_stuck
        self._is_silent = is_silent
        self._digest = digest
        self._events = Events()
        self.run_ = Run()
        self._gateway = Gateway(
            self._events,
            self.run_,
            promise=promise or Promise(),
            seed=seed,
            waits_for_first=not replicas,
        )
        self._lives: list[_Life] = []
        self._launches = 0
        self._cold_starts: deque[ColdStart] = deque(maxlen=STARTS_MAX)
        self._looked_s = 0.0
        self._wanted: int | None = None
        self._billed_s = 0.0
        self._end_s = math.inf
        self.epoch = 0
        for _ in range(replicas):
            life = self._launch(0.0, is_stuck=False)
            life.ready_s = 0.0
            self._cold_starts.append(self._measured(life))
        for loss in losses:
            self._events.plan(loss.at_s, self._lose, _Fault(loss.replicas))

    def run(self, *, until_s: float | None = None) -> Run:
        """To the end of the trace and of its last answer, or to that moment."""
        events, gateway = self._events, self._gateway
        if until_s is not None:
            self._end_s = until_s
        elif self._next is None:
            self._end_s = 0.0
        self._publish(0.0)
        events.plan(self._tick_s, FleetModel._look, self)
        events.plan(TICK_S, FleetModel._tick, self)
        last_s = 0.0
        while True:
            moment_s = events.next_s
            work = self._next
            if work is not None and (moment_s is None or work.arrival_s <= moment_s):
                events.now_s = last_s = work.arrival_s
                gateway.arrive(work, work.arrival_s)
                self._next = next(self._works, None)
                if self._next is None and until_s is None:
                    self._end_s = last_s + 1.0
            elif moment_s is not None:
                events.step()
            else:
                break
        self._bill(self._end_s)
        self.run_.seconds = self._end_s
        return self.run_

    def view(self, now_s: float) -> FleetView:
        """The fleet as an autoscaler sees it."""
        del now_s
        return FleetView(
            replicas=tuple(
                ReplicaView(
                    life.id,
                    life.launched_s,
                    life.ready_s,
                    life.in_flight,
                    is_draining=life.is_draining,
                    is_stuck=life.is_stuck,
                )
                for life in self._lives
            ),
            slots=self._pace.slots,
            cold_start=figures(
                tuple(self._cold_starts), deployment="model", digest=self._digest, hardware="model"
            ),
        )

    # Looks

    def _tick(self, now_s: float) -> None:
        self._gateway.tick(now_s)
        for life in [life for life in self._lives if life.is_draining and not life.in_flight]:
            self._remove(life, now_s)
        if self._next is not None or self._gateway.in_system or now_s < self._end_s:
            self._events.plan(now_s + TICK_S, FleetModel._tick, self)

    def _look(self, now_s: float) -> None:
        self._bill(now_s)
        wanted = self._scaler(self._report(now_s), self.view(now_s), now_s=now_s, wall_s=WALL_S + now_s)
        if wanted.replicas != self._wanted:
            self._wanted = wanted.replicas
            self.run_.sizes.append((now_s, wanted.replicas))
        there = [life for life in self._lives if not life.is_draining]
        surplus = len(there) - wanted.replicas
        for _ in range(-surplus):
            self._launch(now_s)
        if surplus > 0:
            for name in list(wanted.remove)[:surplus]:
                self._withdraw(next(life for life in there if life.id == name), now_s)
        self._count_ready(now_s)
        if now_s + self._tick_s <= self._end_s:
            self._events.plan(now_s + self._tick_s, FleetModel._look, self)

    def _report(self, now_s: float) -> LoadSample | None:
        """What the scaler is told."""
        if self._is_silent(now_s) or self._starts.random() < self._sight.lost_share:
            return None
        self._reports.append(
            self._gateway.counted.sample(
                self._looked_s,
                now_s,
                in_flight=sum(life.in_flight for life in self._lives),
                queued=self._gateway.queue_length(),
            )
        )
        self._gateway.counted = Counted()
        self._looked_s = now_s
        return self._reports.popleft() if len(self._reports) > self._sight.delay_looks else None

    # Replicas

    def _launch(self, now_s: float, *, is_stuck: bool | None = None) -> _Life:
        self._launches += 1
        vary = self._pace.spread
        stages_s = {
            stage: mean_s * (1.0 + vary * (2.0 * self._starts.random() - 1.0))
            for stage, mean_s in self._pace.stages_s.items()
        }
        life = _Life(f"model-{self._launches}", self._pace, now_s, stages_s)
        life.is_stuck = self._is_stuck(self._launches) if is_stuck is None else is_stuck
        self._lives.append(life)
        if is_stuck is None and not life.is_stuck:
            self._events.plan(now_s + sum(stages_s.values()), self._ready, life)
        return life

    def _ready(self, life: _Life, now_s: float) -> None:
        life.ready_s = now_s
        pace = self._pace
        if pace.slow_start_s:
            life.server.model.slow_down(pace.slowness, now_s)
            self._events.plan(now_s + pace.slow_start_s, self._warmed_up, life)
        self._cold_starts.append(self._measured(life))
        self._publish(now_s)

    def _warmed_up(self, life: _Life, now_s: float) -> None:
        self._gateway.slow_down(life.server, 1.0, now_s)

    def _measured(self, life: _Life) -> ColdStart:
        return ColdStart("model", self._digest, "model", life.stages_s, life.launched_s)

    def _lose(self, fault: "_Fault", now_s: float) -> None:
        serving = [life for life in self._lives if life.serves]
        for life in self._lost.sample(serving, min(fault.replicas, len(serving))):
            life.epoch += 1
            self._gateway.lose(life.server, now_s)
            self._events.plan(now_s + NOTICE_S, self._noticed, life)

    def _noticed(self, life: _Life, now_s: float) -> None:
        """Control has heard that a replica has ended, and starts another."""
        self._bill(now_s)
        is_missed = not life.is_draining
        self._remove(life, now_s)
        if is_missed:
            self._launch(now_s)

    def _withdraw(self, life: _Life, now_s: float) -> None:
        if life.ready_s is None or not life.in_flight:
            self._remove(life, now_s)
            return
        self.run_.removed_busy += 1
        life.is_draining = True
        self._publish(now_s)

    def _remove(self, life: _Life, now_s: float) -> None:
        self._bill(now_s)
        life.epoch += 1
        self._lives.remove(life)
        self.run_.cut += life.in_flight
        if life.serves:
            life.is_draining = True
            self._publish(now_s)
        self._gateway.forget(life.server)

    def _publish(self, now_s: float) -> None:
        cold = figures(tuple(self._cold_starts), deployment="model", digest=self._digest, hardware="model")
        expected_s = cold.p50_s if cold is not None else sum(self._pace.stages_s.values())
        self._count_ready(now_s)
        self._gateway.publish(
            (life.server for life in self._lives if life.serves), now_s, ready_in_s=expected_s
        )

    # Accounts

    def _bill(self, now_s: float) -> None:
        until_s = min(now_s, self._end_s)
        self.run_.replica_s += len(self._lives) * max(0.0, until_s - self._billed_s)
        self._billed_s = max(self._billed_s, until_s)

    def _count_ready(self, now_s: float) -> None:
        ready = sum(life.serves for life in self._lives)
        if not self.run_.ready or self.run_.ready[-1][1] != ready:
            self.run_.ready.append((now_s, ready))


class _Fault:
    __slots__ = ("epoch", "replicas")

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.epoch = 0
