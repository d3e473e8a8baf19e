"""How does a load come from several processes? The plan is divided by conversations, all begin at one moment, and records are put together.

A process that is lost takes with it only what it hadn't reported: that counts as unsent, and the run says so.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator
from itertools import takewhile

import uvloop

from headrace.core.clock import Clock
from headrace.core.load_records import LoadRecord, LoadRun
from headrace.core.workload import Workload
from headrace.evidence import load, load_call, load_link
from headrace.evidence.load import Share
from headrace.evidence.load_link import Begin, Done, Ear, Kept, Ready, Setup, Stop, say
from headrace.evidence.load_sender import GRACE_S
from headrace.evidence.load_terms import LoadTerms, Part, Progress, Tell, together
from headrace.evidence.prompts import Measure
from headrace.evidence.target import Target

PROCESSES_MAX = 64
START_LIMIT_S = 60.0
# From when all are ready to the first request: a message has to reach each of them.
_LEAD_S = 0.2
_END_LIMIT_S = 30.0
_EXIT_LIMIT_S = 5.0


def drive(
    target: Target,
    workload: Workload,
    terms: LoadTerms,
    *,
    clock: Clock,
    processes: int = 1,
    progress: Tell | None = None,
) -> LoadRun:
    """A whole run, from one process or several. Ctrl-C ends it with what there is; a second one breaks it off.

    Raises: ConfigError as load.run_load does.
    """
    return uvloop.run(_drive(target, workload, terms, clock=clock, processes=processes, progress=progress))


async def _drive(
    target: Target,
    workload: Workload,
    terms: LoadTerms,
    *,
    clock: Clock,
    processes: int,
    progress: Tell | None,
) -> LoadRun:
    stop = asyncio.Event()
    with _stopped_by_ctrl_c(stop):
        if processes == 1:
            return await load.run_load(
                target, workload, clock=clock, terms=terms, progress=progress, stop=stop
            )
        return await run_processes(
            target, workload, clock=clock, terms=terms, processes=processes, progress=progress, stop=stop
        )


@contextlib.contextmanager
def _stopped_by_ctrl_c(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    # Only the main thread may: whoever runs it in another has its own way to stop.
    with contextlib.suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, RuntimeError):
            loop.remove_signal_handler(signal.SIGINT)


async def run_processes(
    target: Target,
    workload: Workload,
    *,
    clock: Clock,
    terms: LoadTerms,
    processes: int,
    progress: Tell | None = None,
    stop: asyncio.Event | None = None,
) -> LoadRun:
    """As load.run_load, by so many children of this process."""
    assert 1 <= processes <= PROCESSES_MAX
    target.trust()  # what is wrong with it is said once, and before any process is started
    terms = load.within_trace(workload, terms)
    measure = await load.learned(target, workload, clock=clock, terms=terms)
    began_at_s = clock.wall_s()
    children = [_Child(Share(number, processes)) for number in range(processes)]
    async with asyncio.TaskGroup() as tasks:
        for child in children:
            await child.start(_setup(target, workload, terms, measure, child.share))
            tasks.create_task(child.attend())
        await _all_ready(children)
        began_s = clock.now_s() + _LEAD_S
        for child in children:
            child.say(Begin(began_s))
        await _watch(children, workload, terms, began_s, clock, progress, stop)
    took_s = min(terms.duration_s, clock.now_s() - began_s)
    parts = [child.result(workload, terms, took_s) for child in children]
    return load.gathered(target, workload, terms, parts, began_at_s=began_at_s)


async def _all_ready(children: list["_Child"]) -> None:
    try:
        async with asyncio.timeout(START_LIMIT_S):
            for child in children:
                await child.is_ready.wait()
    except TimeoutError:
        for child in children:
            if not child.is_ready.is_set():
                child.kill("not ready in time")


async def _watch(
    children: list["_Child"],
    workload: Workload,
    terms: LoadTerms,
    began_s: float,
    clock: Clock,
    progress: Tell | None,
    stop: asyncio.Event | None,
) -> None:
    """Until all have ended; none of them may take longer than its last request can."""
    is_stopped = False
    longest_s = max(terms.deadline_s, workload.deadline_s or 0.0) + GRACE_S
    end_s = began_s + terms.duration_s + load.BEHIND_MAX_S + longest_s + _END_LIMIT_S
    while not all(child.has_ended.is_set() for child in children):
        await asyncio.sleep(load.TELL_EVERY_S)
        if progress is not None:
            progress(together([child.progress for child in children]))
        if stop is not None and stop.is_set() and not is_stopped:
            is_stopped = True
            for child in children:
                child.say(Stop())
        if clock.now_s() > end_s:
            for child in children:
                child.kill("it didn't come to an end")


def _setup(target: Target, workload: Workload, terms: LoadTerms, measure: Measure, share: Share) -> Setup:
    return Setup(
        target.url,
        target.model,
        target.key,
        target.ca_file,
        target.certificate,
        workload,
        terms,
        (measure.tokens_per_word, measure.overhead_tokens, measure.lessons),
        share.process,
        share.processes,
    )


class _Child:
    """One process, as it is seen from the one that started it.

    State: `_records` are what it has reported, `_part` is its last word; `_lost`, why it has none.
    """

    def __init__(self, share: Share) -> None:
        self.share = share
        self.is_ready = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.progress = Progress()
        self._records: list[LoadRecord] = []
        self._part: Part | None = None
        self._lost = ""

    async def start(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                # `-P`: a folder named headrace in the current directory must not be run in our place.
                *(sys.executable, "-P", "-m", "headrace.evidence.load_child"),
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._ear = Ear(reader, load_link.Up)
        self.say(setup)

    def say(self, message: load_link.Down) -> None:
        say(self._writer, message)

    def kill(self, why: str) -> None:
        """Ends it at once, if it hasn't ended."""
        if self._process.returncode is None and self._part is None:
            self._lost = self._lost or why
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def attend(self) -> None:
        """Hears it to its end."""
        try:
            while self._part is None:
                match await self._ear.hear():
                    case Ready():
                        self.is_ready.set()
                    case Kept(progress, records):
                        self.progress = progress
                        self._records += records
                    case Done(part):
                        self._part = part
                    case _:
                        break
        except ValueError as error:
            self._lost = f"it didn't make sense: {error}"
        finally:
            self._writer.close()
            await self._end()
            self.is_ready.set()
            self.has_ended.set()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_EXIT_LIMIT_S):
                status = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            status = await self._process.wait()
        if self._part is None and not self._lost:
            self._lost = _how(status)

    def result(self, workload: Workload, terms: LoadTerms, took_s: float) -> Part:
        """What came of it. Of one that was lost, what it hasn't reported is unsent, as far as the plan says what that is."""
        if self._part is not None:
            part = self._part
            return Part(
                part.process,
                self._records + part.records,
                part.ended_s,
                part.cpu_share,
                part.sent,
                part.is_stopped,
                part.complaint,
            )
        known = {record.number for record in self._records}
        missing = [
            load_call.unsent(
                planned,
                "process_lost",
                due_s=planned.due_s,
                now_s=took_s,
                process=self.share.process,
            )
            for planned in takewhile(
                lambda planned: planned.due_s is not None and planned.due_s < took_s,
                (planned for planned, _ in load.planned_of(workload, terms, self.share)),
            )
            if planned.number not in known and planned.due_s is not None
        ]
        return Part(
            self.share.process,
            self._records + missing,
            took_s,
            0.0,
            sent=sum(record.sent_s is not None for record in self._records),
            lost=self._lost,
        )


def _how(status: int) -> str:
    """A process, by its exit status as asyncio has it: negative for a signal."""
    if -status in signal.valid_signals():
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
