"""What does a service make of a load? Sends what a workload plans to any OpenAI-compatible server, and keeps a record of each request."""

import asyncio
import contextlib
import gc
import platform
import resource
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

import headrace
from headrace.core.clock import Clock
from headrace.core.load_records import GeneratorProcess, Lateness, LoadRecord, LoadRun, Window
from headrace.core.workload import ArrivalKind, Workload, at_rate, closed
from headrace.evidence import requests
from headrace.evidence.load_loops import ClosedLoop, Loop, OpenLoop
from headrace.evidence.load_sender import Sender
from headrace.evidence.load_terms import Keep, Part, Progress, Tell
from headrace.evidence.load_terms import LoadTerms as LoadTerms  # for callers of this module
from headrace.evidence.prompts import UNLEARNED, Measure, Prompts
from headrace.evidence.target import Target as Target  # for callers of this module
from headrace.policies import quantiles
from headrace.policies.workload_plan import Planned

TELL_EVERY_S = 0.25
# In a run's environment, where a connection couldn't be made.
COMPLAINT = "last connection that failed"
# From when all is ready to the first request, so that every process has heard when that is.
LEAD_S = 0.05
# A generator that hasn't sent by then what was due does so no more: its figures mean nothing anyway.
BEHIND_MAX_S = 10.0

_OTHER_FILES = 128
_LESSONS = 6
_LESSON_LIMIT_S = 30.0
_OTHER_NONCE = 1 << 40  # questions to learn from must not be those of the run: a cache would know them


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a run one process does: every conversation whose number leaves `process` when divided by `processes`."""

    process: int = 0
    processes: int = 1

    def of(self, count: int) -> int:
        """Its share of something countable; all processes together have all of it."""
        return count // self.processes + (self.process < count % self.processes)


WHOLE = Share()


async def run_load(
    target: Target,
    workload: Workload,
    *,
    clock: Clock,
    terms: LoadTerms,
    progress: Tell | None = None,
    stop: asyncio.Event | None = None,
) -> LoadRun:
    """A whole run in this process and event loop.

    Args:
        progress: Told four times a second how far it is.
        stop: When it is set, nothing more is sent, what is open is hung up on, and the run ends with what there is.

    Raises:
        ConfigError: The target's URL or certificate, or the workload's trace, can't be used.
    """
    target.trust()  # what is wrong with it is said before anything is begun
    terms = within_trace(workload, terms)
    measure = await learned(target, workload, clock=clock, terms=terms)
    began_at_s = clock.wall_s()
    part = await run_part(
        target, workload, clock=clock, terms=terms, measure=measure, progress=progress, stop=stop
    )
    return gathered(target, workload, terms, [part], began_at_s=began_at_s)


async def learned(target: Target, workload: Workload, *, clock: Clock, terms: LoadTerms) -> Measure:
    """How many tokens the model makes of a word, from a few short answers; as planned where it doesn't count or doesn't answer."""
    if not terms.learns_lengths:
        return UNLEARNED
    prompts = Prompts(workload, nonce=terms.nonce + _OTHER_NONCE)
    plan = requests.requests(
        msgspec.structs.replace(workload, seed=workload.seed + 1), rate_per_s=terms.rate_per_s
    )
    lessons = islice((planned for planned in plan if planned.turn == 1), _LESSONS)
    told: asyncio.Queue[tuple[Planned, LoadRecord]] = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        sender = _sender(target, workload, prompts, clock=clock, tasks=tasks, terms=terms, share=WHOLE)
        sender.told = lambda planned, record: told.put_nowait((planned, record))
        sender.begin(clock.now_s())
        try:
            async with asyncio.timeout(min(_LESSON_LIMIT_S, terms.deadline_s)):
                for planned in lessons:
                    short = planned._replace(
                        output_tokens=1, is_streamed=False, cancel_after_s=None, cancel_after_tokens=None
                    )
                    sender.send(short, sender.payload(short), due_s=clock.now_s(), is_cold=True)
                    _, record = await told.get()
                    if record.input_tokens is None:
                        break
                    prompts.learn(short, record.input_tokens)
        except TimeoutError:
            pass  # a server that is as slow as that says in the run itself what it is
        finally:
            sender.hang_up_all("lesson_over")
            sender.close()
    return prompts.settle()


async def run_part(
    target: Target,
    workload: Workload,
    *,
    clock: Clock,
    terms: LoadTerms,
    measure: Measure = UNLEARNED,
    share: Share = WHOLE,
    begin: Callable[[], Awaitable[float]] | None = None,
    progress: Tell | None = None,
    keep: Keep | None = None,
    stop: asyncio.Event | None = None,
) -> Part:
    """What one process does of a run.

    Args:
        begin: Called when all is made ready; says when the run begins, by the clock. None begins as soon as this one is.
        keep: Gets the records from time to time, so that they outlive this process; the part has only the last ones then.
    """
    prompts = Prompts(workload, nonce=terms.nonce, measure=measure)
    prompts.settle()
    terms = msgspec.structs.replace(terms, open_max=_with_descriptors(terms.open_max, share))
    async with asyncio.TaskGroup() as tasks:
        sender = _sender(target, workload, prompts, clock=clock, tasks=tasks, terms=terms, share=share)
        try:
            loop = _loop(sender, workload, terms, share, clock=clock)
            with _calm_collector():
                began_s = clock.now_s() + LEAD_S if begin is None else await begin()
                await asyncio.sleep(max(0.0, began_s - clock.now_s()))
                sender.begin(began_s)
                loop.begin(began_s)
                ended = await _until_over(loop, sender, terms, began_s, clock, progress, keep, stop)
        finally:
            sender.close()
    return Part(
        share.process,
        sender.records,
        min(ended.took_s, terms.duration_s),
        ended.cpu_share,
        sent=sender.sent,
        is_stopped=ended.is_stopped,
        complaint=sender.complaint,
    )


def _with_descriptors(open_max: int, share: Share) -> int:
    """As many of them as this process may have sockets for; the kernel's soft limit is raised as far as it goes.

    A request for which there is no socket would look like one that the server didn't take.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = share.of(open_max) + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return open_max
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return min(open_max, max(1, allowed - _OTHER_FILES) * share.processes)


def within_trace(workload: Workload, terms: LoadTerms) -> LoadTerms:
    """The same, but for no longer than a trace goes on."""
    if terms.concurrency is not None:
        return terms
    lasts_s = requests.at_most_s(workload, terms.duration_s, rate_per_s=terms.rate_per_s)
    return msgspec.structs.replace(terms, duration_s=lasts_s)


def _lasted_s(workload: Workload, terms: LoadTerms, parts: list[Part]) -> float:
    """How long requests were due: as long as was asked, or until there were enough of them, or it was stopped."""
    last = max((record.number for part in parts for record in part.records), default=-1)
    is_enough = last + 1 >= min(terms.requests_max, workload.requests_max or terms.requests_max)
    if is_enough or any(part.is_stopped for part in parts) or all(part.lost for part in parts):
        return max((part.ended_s for part in parts), default=0.0)
    return terms.duration_s


@contextlib.contextmanager
def _calm_collector() -> Iterator[None]:
    """What is alive now isn't looked at for cycles, and the rest seldom: a full collection would hold up a thousand sends.

    Sending makes hardly any cycles, and what it keeps is bounded.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def gathered(
    target: Target, workload: Workload, terms: LoadTerms, parts: list[Part], *, began_at_s: float
) -> LoadRun:
    """All parts as one run, its requests in the order of the plan."""
    records = sorted(
        (record for part in parts for record in part.records),
        key=lambda record: (record.due_s, record.number),
    )
    duration_s = _lasted_s(workload, terms, parts)
    # A run that was stopped before its warm-up was over has nothing that counts.
    window = Window(min(terms.warmup_s, duration_s), duration_s)
    return LoadRun(
        workload=workload.name,
        digest=workload.digest,
        seed=workload.seed,
        url=target.url,
        model=target.model,
        began_at_s=began_at_s,
        duration_s=duration_s,
        window=window,
        records=records,
        lateness=_lateness(records, window),
        processes=[
            GeneratorProcess(
                part.process,
                part.sent,
                round(part.cpu_share, 4),
                lost=part.lost,
            )
            for part in parts
        ],
        is_closed=_is_closed(workload, terms),
        rate_per_s=terms.rate_per_s or workload.arrivals.rate_per_s,
        concurrency=_callers(workload, terms) if _is_closed(workload, terms) else None,
        is_stopped=any(part.is_stopped for part in parts),
        environment=_environment(parts),
    )


def planned_of(workload: Workload, terms: LoadTerms, share: Share = WHOLE) -> Iterator[tuple[Planned, bool]]:
    """The requests of that process, each with whether nobody before it, in any process, had its shared beginning."""
    plan = requests.requests(driven(workload, terms), duration_s=terms.duration_s)
    seen: set[int | None] = set()
    for planned in takewhile(lambda planned: planned.number < terms.requests_max, plan):
        is_cold = planned.turn == 1
        if is_cold and planned.prefix_tokens:
            is_cold = planned.prefix_group not in seen
            seen.add(planned.prefix_group)
        if planned.conversation % share.processes == share.process:
            yield planned, is_cold


def driven(workload: Workload, terms: LoadTerms) -> Workload:
    """The workload with the arrivals that the terms set instead of its own."""
    if terms.concurrency is not None:
        think_s = workload.arrivals.think_s if workload.arrivals.kind is ArrivalKind.CLOSED else 0.0
        return closed(workload, terms.concurrency, think_s=think_s)
    if terms.rate_per_s is not None:
        return at_rate(workload, terms.rate_per_s)
    return workload


class _Ended(NamedTuple):
    took_s: float
    cpu_share: float
    is_stopped: bool


async def _until_over(
    loop: Loop,
    sender: Sender,
    terms: LoadTerms,
    began_s: float,
    clock: Clock,
    progress: Tell | None,
    keep: Keep | None,
    stop: asyncio.Event | None,
) -> _Ended:
    """How long requests were sent, and what that cost; what comes after the last one was sent is no measure of either."""
    cpu_s, took_s, cpu_share = _cpu_s(), 0.0, None
    is_stopped = False
    while True:
        is_over = loop.finished.done()
        elapsed_s = clock.now_s() - began_s
        if cpu_share is None:
            took_s = max(elapsed_s, 1e-6)
            if is_over or not loop.is_sending or elapsed_s >= terms.duration_s:
                cpu_share = (_cpu_s() - cpu_s) / took_s
        if progress is not None:
            progress(_progress(sender, terms, elapsed_s))
        if keep is not None:
            keep(sender.taken())
        if is_over:
            return _Ended(took_s, cpu_share or 0.0, is_stopped)
        if stop is not None and stop.is_set() and not is_stopped:
            is_stopped = True
            loop.stop("stopped")
            sender.hang_up_all("stopped")
        elif elapsed_s >= terms.duration_s + BEHIND_MAX_S and loop.is_sending:
            loop.stop("behind")
        await asyncio.wait({loop.finished}, timeout=TELL_EVERY_S)


def _progress(sender: Sender, terms: LoadTerms, elapsed_s: float) -> Progress:
    late_by_s, sender.late_by_s = sender.late_by_s, 0.0
    return Progress(
        elapsed_s, terms.duration_s, sender.sent, sender.open_count, dict(sender.outcomes), late_by_s
    )


def _loop(sender: Sender, workload: Workload, terms: LoadTerms, share: Share, *, clock: Clock) -> Loop:
    plan = planned_of(workload, terms, share)
    if not _is_closed(workload, terms):
        return OpenLoop(sender, plan, duration_s=terms.duration_s, clock=clock)
    return ClosedLoop(
        sender,
        plan,
        callers=share.of(_callers(workload, terms)),
        think_s=driven(workload, terms).arrivals.think_s,
        duration_s=terms.duration_s,
        seed=f"{workload.seed} {share.process}",
        clock=clock,
    )


def _sender(
    target: Target,
    workload: Workload,
    prompts: Prompts,
    *,
    clock: Clock,
    tasks: asyncio.TaskGroup,
    terms: LoadTerms,
    share: Share,
) -> Sender:
    callers = share.of(_callers(workload, terms)) if _is_closed(workload, terms) else 0
    return Sender(
        target,
        prompts,
        clock=clock,
        tasks=tasks,
        open_max=max(1, share.of(terms.open_max), callers),
        deadline_s=terms.deadline_s,
        process=share.process,
    )


def _is_closed(workload: Workload, terms: LoadTerms) -> bool:
    return driven(workload, terms).arrivals.kind is ArrivalKind.CLOSED


def _callers(workload: Workload, terms: LoadTerms) -> int:
    return driven(workload, terms).arrivals.concurrency or 1


def _lateness(records: list[LoadRecord], window: Window) -> Lateness:
    late_by_s = [
        record.late_by_s for record in records if record.late_by_s is not None and window.holds(record)
    ]
    if not late_by_s:
        return Lateness()
    late_by_s.sort()
    return Lateness(
        quantiles.nearest_rank(late_by_s, 0.5), quantiles.nearest_rank(late_by_s, 0.99), late_by_s[-1]
    )


def _cpu_s() -> float:
    """Of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _environment(parts: list[Part]) -> dict[str, str]:
    said = {
        "headrace": headrace.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    complaints = [part.complaint for part in parts if part.complaint]
    return said | ({COMPLAINT: complaints[-1]} if complaints else {})
