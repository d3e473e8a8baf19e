"""A fleet on a virtual clock: replicas with slots, a queue, cold starts, and whoever decides how many there should be.

It is simple on purpose, so that what it shows is what the decision did. A replica computes prompts one after another, and
answers beside each other, the slower the more there are. Requests wait in one queue and start on the ready replica with the
least to do. A replica that is launched passes its stages and is then ready; one that is taken away drains.

The seam is `Scaler`: it sees what an autoscaler sees, and nothing else. A run with the same seed is the same run.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from headrace.policies.autoscale_signals import Counts, FleetView, LoadSample, ReplicaView
from headrace.policies.cold_start import ColdStart, figures

TICK_S = 2.0
WALL_S = 1_700_006_400.0  # a midnight, so that a day of a budget begins with a run


class Work(NamedTuple):
    """One request, as a trace has it."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """How one replica works.

    Attributes:
        prefill_tokens_per_s: One prompt at a time.
        decode_s: Between two tokens of an answer that is alone.
        crowding: What each further answer adds to that, as a share of it.
        stages_s: Mean of each stage of a cold start.
        spread: Starts vary by this share around the mean.
        slow_start_s, slowness: For so long after it is ready a replica takes so many times as long.
    """

    slots: int = 16
    prefill_tokens_per_s: float = 8000.0
    decode_s: float = 0.02
    crowding: float = 0.03
    stages_s: dict[str, float] = field(
        default_factory=lambda: {"starting": 5.0, "loading": 20.0, "warming": 5.0}
    )
    spread: float = 0.2
    slow_start_s: float = 0.0
    slowness: float = 2.0


@dataclass(frozen=True, slots=True)
class Promise:
    """What counts as served well, and how long requests wait before they are turned away."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1
    queue_max: int = 1000
    wait_max_s: float = 30.0


class Wanted(NamedTuple):
    """How many replicas, and which go first where that is fewer; () leaves the choice to the model."""

    replicas: int
    remove: Sequence[str] = ()


class Scaler(Protocol):
    """Who decides."""

    def __call__(
        self, sample: LoadSample | None, fleet: FleetView, *, now_s: float, wall_s: float
    ) -> Wanted: ...


@dataclass(slots=True, eq=False)
class _Replica:
    id: str
    launched_s: float
    starts: dict[str, float]
    ready_s: float | None = None
    in_flight: int = 0
    prefill_free_s: float = 0.0
    is_draining: bool = False
    is_stuck: bool = False


@dataclass(slots=True)
class Run:
    """What came of it.

    Attributes:
        served_well, late, refused: Requests by how they ended; late ones were answered, and not as promised.
        cut: Requests whose replica was taken from under them.
        changes: How often the wanted number changed.
        sizes: Wanted numbers, each with the moment from which it was wanted.
        ready: Ready replicas, each with the moment from which there were that many.
        busy_s: Seconds of slots that were taken.
        removed_busy: Replicas that were taken away while they had work, and drained.
        ends: Of each request its arrival, and whether it was served well.
    """

    served_well: int = 0
    late: int = 0
    refused: int = 0
    cut: int = 0
    replica_s: float = 0.0
    sizes: list[tuple[float, int]] = field(default_factory=list)
    ready: list[tuple[float, int]] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    removed_busy: int = 0
    ends: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.served_well + self.late + self.refused + self.cut

    def end(self, work: Work, *, is_well: bool) -> None:
        self.ends.append((work.arrival_s, is_well))

    def worst_minute(self, *, requests_min: int = 20) -> float:
        """The least attainment of any minute with so many arrivals."""
        minutes: dict[int, list[bool]] = {}
        for arrival_s, is_well in self.ends:
            minutes.setdefault(int(arrival_s // 60), []).append(is_well)
        return min(
            (sum(each) / len(each) for each in minutes.values() if len(each) >= requests_min), default=1.0
        )

    @property
    def attainment(self) -> float:
        return self.served_well / self.requests if self.requests else 1.0

    @property
    def changes(self) -> int:
        return max(0, len(self.sizes) - 1)

    @property
    def replica_hours(self) -> float:
        return self.replica_s / 3600


class FleetModel:
    """One run.

    State: `_events` is a heap of (moment, order, what to do); `_queue` holds what waits; counters since the last look.

    Args:
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
        tick_s: float = TICK_S,
        is_stuck: Callable[[int], bool] = lambda _: False,
        is_silent: Callable[[float], bool] = lambda _: False,
        digest: str = "sha256:model",
    ) -> None:
        self._works = sorted(works)
        self._scaler = scaler
        self._pace = pace or Pace()
        self._promise = promise or Promise()
        self._chance = Random(seed)
        self._tick_s = tick_s
        self._is_stuck = is_stuck
        self._is_silent = is_silent
        self._digest = digest
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._queue: deque[tuple[float, Work]] = deque()
        self._replicas: list[_Replica] = []
        self._launches = 0
        self._cold_starts: list[ColdStart] = []
        self._looked_s = 0.0
        self._arrived = self._ended = self._prompt = self._cached = 0
        self._service_s = 0.0
        self._ttft: Counter[float] = Counter()
        self._wait: Counter[float] = Counter()
        self._itl: Counter[float] = Counter()
        self._wanted: int | None = None
        self._billed_s = 0.0
        self.now_s = 0.0
        self.run_ = Run()
        for _ in range(replicas):
            replica = self._launch(0.0, is_stuck=False)
            replica.ready_s = 0.0
            self._cold_starts.append(self._measured(replica))

    def run(self, *, until_s: float | None = None) -> Run:
        """To the end of the trace and of its last answer, or to that moment."""
        end_s = until_s if until_s is not None else (self._works[-1].arrival_s + 1.0 if self._works else 0.0)
        for work in self._works:
            self._at(work.arrival_s, lambda now_s, work=work: self._arrive(work, now_s))  # type: ignore[misc]
        tick_s = self._tick_s
        while tick_s <= end_s:
            self._at(tick_s, self._look)
            tick_s += self._tick_s
        while self._events:
            moment_s, _, act = heapq.heappop(self._events)
            if moment_s <= end_s:
                self._bill(moment_s)
            self.now_s = moment_s
            act(moment_s)
        self._bill(end_s)
        for _, work in self._queue:
            self._refuse(work)
        return self.run_

    def view(self, now_s: float) -> FleetView:
        """The fleet as an autoscaler sees it."""
        del now_s
        return FleetView(
            replicas=tuple(
                ReplicaView(
                    replica.id, replica.launched_s, replica.ready_s, replica.in_flight,
                    is_draining=replica.is_draining, is_stuck=replica.is_stuck,
                )
                for replica in self._replicas
            ),
            slots=self._pace.slots,
            cold_start=figures(self._cold_starts, deployment="model", digest=self._digest, hardware="model"),
        )  # fmt: skip

    # Requests

    def _arrive(self, work: Work, now_s: float) -> None:
        self._arrived += 1
        if len(self._queue) >= self._promise.queue_max:
            self._refuse(work)
            return
        self._queue.append((now_s, work))
        self._start_waiting(now_s)

    def _refuse(self, work: Work) -> None:
        self.run_.refused += 1
        self.run_.end(work, is_well=False)

    def _start_waiting(self, now_s: float) -> None:
        while self._queue:
            since_s, work = self._queue[0]
            if now_s - since_s > self._promise.wait_max_s:
                self._queue.popleft()
                self._refuse(work)
                continue
            free = [r for r in self._replicas if self._serves(r) and r.in_flight < self._pace.slots]
            if not free:
                return
            self._queue.popleft()
            self._start(
                min(free, key=lambda replica: (replica.in_flight, replica.prefill_free_s)),
                work,
                since_s,
                now_s,
            )

    def _start(self, replica: _Replica, work: Work, since_s: float, now_s: float) -> None:
        pace = self._pace
        replica.in_flight += 1
        assert replica.ready_s is not None
        slow = pace.slowness if now_s - replica.ready_s < pace.slow_start_s else 1.0
        begin_s = max(now_s, replica.prefill_free_s)
        first_s = begin_s + slow * (work.prompt_tokens - work.cached_tokens) / pace.prefill_tokens_per_s
        replica.prefill_free_s = first_s
        itl_s = slow * pace.decode_s * (1.0 + pace.crowding * (replica.in_flight - 1))
        end_s = first_s + max(0, work.output_tokens - 1) * itl_s
        ttft_s = first_s - since_s
        self._wait[_edge(now_s - since_s)] += 1
        self._at(end_s, lambda at_s: self._end(replica, work, now_s, ttft_s, itl_s, at_s))

    def _end(
        self, replica: _Replica, work: Work, started_s: float, ttft_s: float, itl_s: float, now_s: float
    ) -> None:
        replica.in_flight -= 1
        self._ended += 1
        self._service_s += now_s - started_s
        self.run_.busy_s += now_s - started_s
        self._prompt += work.prompt_tokens
        self._cached += work.cached_tokens
        self._ttft[_edge(ttft_s)] += 1
        self._itl[_edge(itl_s)] += 1
        self.run_.ttfts_s.append(ttft_s)
        is_cut = replica not in self._replicas
        is_well = not is_cut and ttft_s <= self._promise.ttft_s and itl_s <= self._promise.tpot_s
        self.run_.cut += is_cut
        self.run_.served_well += is_well
        self.run_.late += not is_cut and not is_well
        self.run_.end(work, is_well=is_well)
        if replica.is_draining and not replica.in_flight:
            self._remove(replica)
        self._start_waiting(now_s)

    # Replicas

    def _look(self, now_s: float) -> None:
        while self._queue and now_s - self._queue[0][0] > self._promise.wait_max_s:
            self._refuse(self._queue.popleft()[1])
        sample = None if self._is_silent(now_s) else self._sample(now_s)
        wanted = self._scaler(sample, self.view(now_s), now_s=now_s, wall_s=WALL_S + now_s)
        if wanted.replicas != self._wanted:
            self._wanted = wanted.replicas
            self.run_.sizes.append((now_s, wanted.replicas))
        there = [replica for replica in self._replicas if not replica.is_draining]
        for _ in range(wanted.replicas - len(there)):
            self._launch(now_s)
        for name in (
            list(wanted.remove)[: len(there) - wanted.replicas] if len(there) > wanted.replicas else ()
        ):
            self._withdraw(next(replica for replica in there if replica.id == name))
        self._count_ready(now_s)

    def _launch(self, now_s: float, *, is_stuck: bool | None = None) -> _Replica:
        self._launches += 1
        vary = self._pace.spread
        starts = {
            stage: mean_s * (1.0 + vary * (2.0 * self._chance.random() - 1.0))
            for stage, mean_s in self._pace.stages_s.items()
        }
        replica = _Replica(f"model-{self._launches}", now_s, starts)
        replica.is_stuck = self._is_stuck(self._launches) if is_stuck is None else is_stuck
        self._replicas.append(replica)
        if is_stuck is None and not replica.is_stuck:
            self._at(now_s + sum(starts.values()), lambda at_s: self._ready(replica, at_s))
        return replica

    def _ready(self, replica: _Replica, now_s: float) -> None:
        if replica not in self._replicas:
            return
        replica.ready_s = now_s
        self._cold_starts.append(self._measured(replica))
        self._count_ready(now_s)
        self._start_waiting(now_s)

    def _measured(self, replica: _Replica) -> ColdStart:
        return ColdStart("model", self._digest, "model", replica.starts, replica.launched_s)

    def _withdraw(self, replica: _Replica) -> None:
        if replica.ready_s is None or not replica.in_flight:
            self._remove(replica)
            return
        self.run_.removed_busy += 1
        replica.is_draining = True

    def _remove(self, replica: _Replica) -> None:
        self._replicas.remove(replica)

    def _serves(self, replica: _Replica) -> bool:
        return replica.ready_s is not None and not replica.is_draining

    # Accounts

    def _bill(self, now_s: float) -> None:
        self.run_.replica_s += len(self._replicas) * max(0.0, now_s - self._billed_s)
        self._billed_s = max(self._billed_s, now_s)

    def _count_ready(self, now_s: float) -> None:
        ready = sum(map(self._serves, self._replicas))
        if not self.run_.ready or self.run_.ready[-1][1] != ready:
            self.run_.ready.append((now_s, ready))

    def _sample(self, now_s: float) -> LoadSample:
        sample = LoadSample(
            self._looked_s, now_s,
            arrived=self._arrived, ended=self._ended, service_s=self._service_s,
            in_flight=sum(replica.in_flight for replica in self._replicas), queued=len(self._queue),
            prompt_tokens=self._prompt, cached_tokens=self._cached,
            ttft=_counts(self._ttft), queue_wait=_counts(self._wait), itl=_counts(self._itl),
        )  # fmt: skip
        self._looked_s = now_s
        self._arrived = self._ended = self._prompt = self._cached = 0
        self._service_s = 0.0
        self._ttft, self._wait, self._itl = Counter(), Counter(), Counter()
        return sample

    def _at(self, moment_s: float, act: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (moment_s, self._order, act))


def _edge(seconds: float) -> float:
    """The upper edge of its class: ten a decade, from a millisecond."""
    return 10 ** (math.ceil(10 * math.log10(max(seconds, 0.001)) - 1e-9) / 10)


def _counts(counter: Counter[float]) -> Counts:
    return tuple(sorted(counter.items()))


def fixed(replicas: int) -> Scaler:
    """Always that many."""

    def scaler(sample: LoadSample | None, fleet: FleetView, *, now_s: float, wall_s: float) -> Wanted:
        return Wanted(replicas)

    return scaler
