"""Where does one worker stand? Its place, and what is known of the process that has it now."""

import asyncio
import contextlib
from collections import deque

from headrace.app.link import Link
from headrace.app.report import PlaneReport
from headrace.telemetry.merging import MetricsState


class Seat:
    """The place of one worker, and the process that has it now.

    State: `link` and `process` while there is a process; `is_linked` once it was told what to serve, `is_up` while it accepts connections; `report` and `counted`, its
    last ones; `answers`, questions that wait for one. `recorded` counts the records that came from the process, and `owed` has
    for each group of them its number in the ledger and the process's own, until that is told to be committed.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.restarts = 0
        self.cut = 0
        self.is_done = False
        self.pid: int | None = None
        self.process: asyncio.subprocess.Process | None = None
        self.link: Link | None = None
        self.is_linked = False
        self.is_up = False
        self.keys = 0
        self.started_s = 0.0
        self.ready_s: float | None = None
        self.heard_s = 0.0
        self.refusal = ""
        self.verdict = ""
        self.report: PlaneReport | None = None
        self.counted: MetricsState = {}
        self.answers: dict[int, asyncio.Future[None]] = {}
        self.recorded = 0
        self.owed: deque[tuple[int, int]] = deque()

    def begin(self, now_s: float) -> None:
        """A new process."""
        self.is_done = self.is_linked = self.is_up = False
        self.ready_s = self.report = None
        self.started_s = self.heard_s = now_s
        self.refusal = self.verdict = ""
        self.recorded = 0
        self.owed.clear()

    def kill(self, why: str) -> None:
        self.verdict = why
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
