"""Do the books still agree? The service has itself checked again and again, and says what was found."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from headrace.control.counts import CounterWatch
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.fleet import FleetSnapshot
from headrace.policies.engine_counts import LONGEST_S, Stretch
from headrace.policies.reconciliation import Cause
from headrace.stores import sqlite
from headrace.stores.engine_counts import EngineCounts
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

# Windows overlap, so that nothing is missed between two of them, and hold a stretch of the engines' counters at least.
WINDOWS = 3.0
LISTED_MAX = 10
TIME_MAX_S = 600.0
_NICENESS = 19


class _Difference(msgspec.Struct):
    cause: str
    subject: str


class _Told(msgspec.Struct):
    """What we need of `headrace reconcile --json`."""

    counts: dict[str, int]
    differences: list[_Difference]


class Reconciliation:
    """Reads the engines' counters, and has the books of the last while compared, by the command that people use.

    In a process of its own: comparing takes as long as it takes, and would hold up the requests of this one.
    State: `_found`, the counts of the last comparison, so that the log tells of each finding once.

    Args:
        every_s: Pause between two comparisons; 0 for none, and then nothing is read either.
        read_every_s: Pause between two readings of the engines' counters.
    """

    def __init__(
        self,
        data: Path,
        *,
        every_s: float,
        read_every_s: float,
        metrics: Metrics,
        log: Log,
        clock: Clock,
    ) -> None:
        self._data = data
        self._every_s = every_s
        self._read_every_s = read_every_s
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._found: dict[str, int] = {}
        self._counters = CounterWatch(stretch_s=every_s, save=self._save, failed=self._failed, clock=clock)

    def publish(self, snapshot: FleetSnapshot) -> None:
        self._counters.publish(snapshot)

    async def run(self) -> None:
        """Until cancelled."""
        if not self._every_s:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._counters.round, self._read_every_s), name="counters")
            tasks.create_task(self._repeat(self._compare, self._every_s), name="reconciliation")

    async def _repeat(self, step: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await step()
            except Exception as error:  # noqa: BLE001 -- the task's edge: nobody's request depends on the books
                self._failed(error)

    async def _compare(self) -> None:
        self._tell(await self._ask())

    async def _ask(self) -> _Told:
        span_s = WINDOWS * self._every_s + LONGEST_S
        process = await asyncio.create_subprocess_exec(
            # `-P`: a folder named headrace in the current directory must not be run in our place.
            *(sys.executable, "-P", "-m", "headrace", "reconcile", "--json", "--limit", str(LISTED_MAX)),
            *("--since", f"{span_s:.0f}s", "--data", str(self._data)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)  # whoever serves goes first
        try:
            async with asyncio.timeout(TIME_MAX_S):
                told, complaint = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if not told:
            raise ConfigError(complaint.decode(errors="replace").strip()[-500:])
        return msgspec.json.decode(told, type=_Told)

    def _tell(self, told: _Told) -> None:
        self._metrics.reconciled_s.labels().set(self._clock.wall_s())
        for cause in Cause:
            count = told.counts.get(cause.value, 0)
            self._metrics.reconciliation_differences.labels(cause.value).set(count)
            if cause.is_fault and count > self._found.get(cause.value, 0):
                subjects = [each.subject for each in told.differences if each.cause == cause.value]
                self._log.event("books.differ", reason=cause.value, count=count, subjects=" ".join(subjects))
        self._found = told.counts

    def _save(self, stretches: Sequence[Stretch]) -> None:
        store = EngineCounts(sqlite.open_file(self._data / sqlite.DATABASE_NAME))
        try:
            store.save(stretches)
        finally:
            store.close()

    def _failed(self, error: Exception) -> None:
        self._metrics.internal_errors.labels("reconciliation").add()
        self._log.event("books.unread", error=f"{type(error).__name__}: {error}")
