"""What can one replica do? More and more callers, lengths of several kinds, until more load brings no more; quality and memory beside.

    sweep     closed loops of 1, 2, 4, 8 ... callers, for each kind of lengths, until the end is shown (policies/saturation.py)
    confirm   open loops at shares of what was found: what a closed loop can do must also be done for callers who don't wait
    hold      the knee's load again, as long as cases of quality are asked beside it; memory over that time
    fit       the pace of all levels that don't queue, for whoever simulates

Each level begins with a warm-up that doesn't count, of more than one whole request, and its drain doesn't count either.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.core.capacity import (
    CapacityRecord,
    Hardware,
    Level,
    MemoryUse,
    QualityUnderLoad,
    Saturation,
)
from headrace.core.clock import Clock
from headrace.core.load_records import LoadRun
from headrace.core.verdicts import Interval
from headrace.core.workload import ArrivalKind, Arrivals, Workload, constant
from headrace.evidence.memory_watch import MemoryWatch
from headrace.policies import drift, load_levels, pace, saturation
from headrace.policies.quality import Mark, judge_pairs
from headrace.policies.saturation import Knee, Point

CONFIRM_SHARES = (0.5, 0.8, 0.95)
HELD_MIN_S = 30.0
"""A load that was held for less says nothing of memory: what grows in the first seconds is a start, and no drift."""
MARGIN, ALPHA = 0.05, 0.05
_ASKED_AT_ONCE = 2
_WARMUP_REQUESTS = 1.5
_WINDOW_REQUESTS = 10


class Shape(msgspec.Struct, frozen=True):
    """Lengths that are asked for together."""

    name: str
    input_tokens: int
    output_tokens: int


SHAPES = (
    Shape("short-short", 64, 32),
    Shape("long-short", 512, 32),
    Shape("short-long", 64, 128),
    Shape("long-long", 512, 128),
)


@dataclass(frozen=True, slots=True)
class Terms:
    """How it is measured.

    Attributes:
        level_s: Of a level, what counts at least; level_max_s: with requests so long that few fit into it.
        callers_max: Where a sweep ends that shows no end.
        limit_s: Of all sweeps together; what isn't begun by then is left out, and said to be unproven.
        confirm: Shares of what was found, as open loops; of the first shape.
        hold_s: How long the knee's load is held at least, for memory to show whether it grows.
        margin: By how much smaller a share of right answers beside the load is agreed to.
    """

    shapes: tuple[Shape, ...] = SHAPES
    level_s: float = 10.0
    level_max_s: float = 60.0
    callers_max: int = 64
    limit_s: float = 900.0
    confirm: tuple[float, ...] = CONFIRM_SHARES
    hold_s: float = 60.0
    margin: float = MARGIN
    seed: int = 1


class Drive(Protocol):
    """Drives one load and returns what became of its requests: evidence.load.run_load, with a target."""

    async def __call__(
        self,
        workload: Workload,
        *,
        duration_s: float,
        warmup_s: float,
        concurrency: int | None,
        rate_per_s: float | None,
        nonce: int,
    ) -> LoadRun: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured; see CapacityRecord."""

    model: str
    digest: str = ""
    runtime: str = ""
    hardware: Hardware = field(default_factory=lambda: Hardware(cpu="", cores=0, memory_bytes=0))
    flags: dict[str, str] = field(default_factory=dict)
    slots: int = 0
    planned: dict[str, int] = field(default_factory=dict)
    command: str = ""
    version: str = ""


Ask = Callable[[int], Awaitable[Sequence[Mark]]]
"""Puts cases of quality to the model, so many at once, and says what became of each, in their order."""
Tell = Callable[[str], None]
IsSlow = Callable[[LoadRun], bool]


class Measurement:
    """One measurement, from its first level to its record.

    State: `_levels` that were done; `_nonce`, so that no level asks what another has asked; `_revisions` that answered.

    Args:
        ask: None asks none.
        is_slow: Whether a level is beyond what its caller promises.
    """

    def __init__(
        self,
        drive: Drive,
        subject: Subject,
        *,
        terms: Terms,
        clock: Clock,
        memory: MemoryWatch,
        ask: Ask | None = None,
        is_slow: IsSlow = lambda run: False,
        tell: Tell = lambda line: None,
    ) -> None:
        self._drive = drive
        self._subject = subject
        self._terms = terms
        self._clock = clock
        self._memory = memory
        self._ask = ask
        self._is_slow = is_slow
        self._tell = tell
        self._levels: list[Level] = []
        self._nonce = 0
        self._began_s = 0.0
        self._revisions: set[str] = set()

    async def run(self) -> CapacityRecord:
        """The whole of it."""
        self._began_s = self._clock.now_s()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._memory.watch())
            try:
                return await self._measured()
            finally:
                watch.cancel()

    async def _measured(self) -> CapacityRecord:
        idle_bytes = self._memory.look()
        idle: Sequence[Mark] | None = None
        if self._ask is not None:
            self._tell("quality, with nothing else to do")
            idle = await self._ask(_ASKED_AT_ONCE)
        swept = [await self._sweep(shape) for shape in self._terms.shapes]
        found = [each for each in swept if each is not None]
        if found:
            found[0] = await self._confirm(found[0])
        held_from_s, loaded = await self._hold(found[0] if found else None)
        quality = None
        if idle is not None and loaded is not None:
            self._note_quality(loaded)
            quality = under_load(idle, loaded, margin=self._terms.margin)
        return self._record(found, quality, idle_bytes, held_from_s)

    # Levels

    async def _sweep(self, shape: Shape) -> Saturation | None:
        """Until more callers bring no more; None where the time is over before it began."""
        points: list[Point] = []
        done: list[Level] = []
        while (callers := saturation.next_callers(points, callers_max=self._terms.callers_max)) is not None:
            if self._is_over:
                self._tell(f"{shape.name}: the time is over before an end was shown")
                break
            level, run = await self._level(shape, callers=callers, after=done)
            done.append(level)
            points.append(point(level, is_slow=self._is_slow(run)))
        if not points:
            return None
        return _saturation(shape, saturation.knee(points), done)

    async def _level(
        self,
        shape: Shape,
        *,
        callers: int | None = None,
        rate_per_s: float | None = None,
        after: Sequence[Level] = (),
    ) -> tuple[Level, LoadRun]:
        warmup_s, window_s = self._times(shape, callers or 1, after)
        began_s = self._clock.now_s()
        self._nonce += 1
        run = await self._drive(
            workload(shape, seed=self._terms.seed),
            duration_s=warmup_s + window_s,
            warmup_s=warmup_s,
            concurrency=callers,
            rate_per_s=rate_per_s,
            nonce=self._nonce,
        )
        self._revisions |= {record.revision for record in run.records if record.revision}
        level = load_levels.level(run, shape=shape.name, memory_bytes=self._memory.peak(since_s=began_s))
        self._levels.append(level)
        self._tell(said(level))
        return level, run

    def _times(self, shape: Shape, callers: int, after: Sequence[Level]) -> tuple[float, float]:
        """How long to warm up and to count, by how long requests took so far; twice as many callers may take twice as long."""
        alike = after or [level for level in self._levels if level.shape == shape.name] or self._levels
        known = [level for level in alike if level.total.p50.estimate]
        if not known:
            return self._warmup_s, self._terms.level_s
        last = known[-1]
        took_s = (last.total.p50.estimate or 0.0) * max(
            1.0, callers / max(last.concurrency, last.in_flight, 1.0)
        )
        window_s = min(max(self._terms.level_s, _WINDOW_REQUESTS * took_s), self._terms.level_max_s)
        return min(max(self._warmup_s, _WARMUP_REQUESTS * took_s), self._terms.level_max_s), window_s

    @property
    def _warmup_s(self) -> float:
        """At least."""
        return self._terms.level_s / 5

    @property
    def _is_over(self) -> bool:
        return self._clock.now_s() - self._began_s >= self._terms.limit_s

    async def _confirm(self, found: Saturation) -> Saturation:
        """The highest rate that was kept up with, of callers who don't wait for each other."""
        shape = next(each for each in self._terms.shapes if each.name == found.shape)
        most = found.requests_per_s.estimate or 0.0
        confirmed = None
        for share in self._terms.confirm if most > 0 else ():
            if self._is_over:
                break
            _, run = await self._level(shape, rate_per_s=share * most)
            if load_levels.keeps_up(run, callers=found.concurrency):
                confirmed = max(confirmed or 0.0, share * most)
        return msgspec.structs.replace(found, confirmed_rate_per_s=confirmed)

    async def _hold(self, found: Saturation | None) -> tuple[float, Sequence[Mark] | None]:
        """The knee's load again, as long as cases are asked beside it. Returns when it began, and what became of the cases."""
        began_s = self._clock.now_s()
        if found is None:
            return began_s, None
        shape = next(each for each in self._terms.shapes if each.name == found.shape)
        self._tell(f"{shape.name}: holding the load of {found.concurrency} callers")
        before = len(self._levels)
        kept: list[Level] = []
        async with asyncio.TaskGroup() as group:
            # Few beside many: the load is to be that of the knee, and what the cases add isn't.
            beside = max(1, min(_ASKED_AT_ONCE, found.concurrency // 4))
            asked = group.create_task(_answered(self._ask, beside))
            while True:
                is_beside = not asked.done()
                level, _ = await self._level(shape, callers=found.concurrency)
                kept = [level] if is_beside else kept
                held_s = self._clock.now_s() - began_s
                # Answers have limits of their own; without an end in sight they get them with nothing beside.
                if (asked.done() and held_s >= self._terms.hold_s) or held_s >= self._terms.limit_s:
                    break
        self._levels[before:] = kept  # of many that are alike the last one that had cases beside it
        return began_s, asked.result()

    def _note_quality(self, marks: Sequence[Mark]) -> None:
        """At the level where it was asked: the last one."""
        self._levels[-1] = msgspec.structs.replace(
            self._levels[-1], quality_right=marks.count(Mark.RIGHT), quality_asked=len(marks)
        )

    # What came of it

    def _record(
        self,
        found: Sequence[Saturation],
        quality: QualityUnderLoad | None,
        idle_bytes: int,
        held_from_s: float,
    ) -> CapacityRecord:
        subject, ended_s = self._subject, self._clock.now_s()
        slots = subject.slots or max((each.concurrency for each in found), default=1)
        levels = held_out(self._levels, slots=slots)
        alone = [
            level for level in levels if not level.quality_asked
        ]  # else its callers weren't all that it had
        held = [sample for sample in self._memory.samples if sample[0] >= held_from_s]
        is_long = ended_s - held_from_s >= HELD_MIN_S
        return CapacityRecord(
            model=subject.model,
            digest=subject.digest or (self._revisions.pop() if len(self._revisions) == 1 else ""),
            runtime=subject.runtime,
            hardware=subject.hardware,
            flags=subject.flags,
            slots=slots,
            levels=tuple(levels),
            saturation=tuple(found),
            pace=pace.fit(alone, slots=slots),
            memory=MemoryUse(
                planned=subject.planned,
                idle_bytes=idle_bytes,
                peak_bytes=self._memory.peak(),
                slope_bytes_per_s=drift.slope(held if is_long else ()),
                held_s=round(ended_s - held_from_s, 3),
                samples=len(self._memory.samples),
            ),
            quality=quality,
            measured_s=self._clock.wall_s(),
            took_s=round(ended_s - self._began_s, 3),
            command=subject.command,
            seed=self._terms.seed,
            workload=", ".join(f"{s.name} {s.input_tokens}/{s.output_tokens}" for s in self._terms.shapes),
            version=subject.version,
        )


def workload(shape: Shape, *, seed: int) -> Workload:
    """Streams of those lengths; who drives it says when they are due."""
    return Workload(
        name=f"measure-{shape.name}",
        arrivals=Arrivals(ArrivalKind.CLOSED, concurrency=1),
        input_tokens=constant(shape.input_tokens),
        output_tokens=constant(shape.output_tokens),
        seed=seed,
    )


def under_load(idle: Sequence[Mark], loaded: Sequence[Mark], *, margin: float) -> QualityUnderLoad:
    """Are the answers beside the load as good as those at rest? Case by case: most of a set shows the model, and not the load."""
    both = list(zip(idle, loaded, strict=True))
    return QualityUnderLoad(
        cases=len(both),
        idle_right=idle.count(Mark.RIGHT),
        loaded_right=loaded.count(Mark.RIGHT),
        idle_only=both.count((Mark.RIGHT, Mark.WRONG)),
        loaded_only=both.count((Mark.WRONG, Mark.RIGHT)),
        idle_errors=idle.count(Mark.ERROR),
        loaded_errors=loaded.count(Mark.ERROR),
        judgement=judge_pairs(loaded, idle, margin=margin, alpha=ALPHA),
    )


def point(level: Level, *, is_slow: bool = False) -> Point:
    """A level as the sweep sees it."""
    asked = level.completed + level.failed
    return Point(level.concurrency, level.throughput, level.failed / asked if asked else 1.0, is_slow)


def held_out(levels: Sequence[Level], *, slots: int) -> list[Level]:
    """One level that a pace isn't fitted to, but tried on: of the last lengths the one with most callers that don't queue."""
    within = [
        level
        for level in levels
        if 0 < level.concurrency <= slots and level.completed and not level.quality_asked
    ]
    if len({level.shape for level in within}) < 2:
        return list(levels)
    last = list(dict.fromkeys(level.shape for level in within))[-1]
    of_last = [level for level in within if level.shape == last]
    chosen = max(of_last, key=lambda level: level.concurrency)
    return [msgspec.structs.replace(each, is_held_out=True) if each is chosen else each for each in levels]


def said(level: Level) -> str:
    """A level as a line of progress."""
    load = f"{level.concurrency} callers" if level.concurrency else f"{level.rate_per_s or 0.0:.2f} per s"
    failed = f", {level.failed} failed" if level.failed else ""
    p95 = level.total.p95.estimate
    took = "" if p95 is None else f", 95 % within {p95:.2f} s"
    return f"{level.shape}, {load}: {level.requests_per_s:.2f} requests/s, {level.output_tokens_per_s:.1f} tokens/s{took}{failed}"


def _saturation(shape: Shape, knee: Knee, levels: Sequence[Level]) -> Saturation:
    at = next(level for level in levels if level.concurrency == knee.callers)
    tokens = (
        None if rate is None else rate * at.output_tokens for rate in msgspec.structs.astuple(knee.per_s)
    )
    return Saturation(
        shape=shape.name,
        bound=knee.bound,
        concurrency=knee.callers,
        requests_per_s=knee.per_s,
        output_tokens_per_s=Interval(*tokens),
        service_s=at.total.p50.estimate or 0.0,
    )


async def _answered(ask: Ask | None, at_once: int) -> Sequence[Mark] | None:
    return None if ask is None else await ask(at_once)
