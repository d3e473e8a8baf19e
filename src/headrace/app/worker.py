"""One worker: a data plane in a process of its own, beside others on the same port.

    python -m headrace.app.worker

Started by the service with one end of a socket pair as standard input. It never outlives the service: when the pair ends,
the worker ends, and if it is too busy to notice, the kernel ends it.
"""

import asyncio
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import assert_never

import uvloop

from headrace.app import link as wire
from headrace.app.answers import SharedAnswers
from headrace.app.data_plane import DataPlane
from headrace.app.gateway_parts import Lender
from headrace.app.link import Down, Link
from headrace.app.pair import VERSION, LinkLines
from headrace.app.process import calm_the_collector, die_with_parent
from headrace.app.records import LinkRecords, open_journal
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, leaves
from headrace.core.leases import (
    Deny,
    Grant,
    GrantRate,
    LentEscrow,
    QuotasRead,
    Recall,
    RecallEscrow,
    Sated,
)
from headrace.telemetry.logs import Log
from headrace.telemetry.merging import state_of
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.strays import capture_strays

REPORT_EVERY_S = 1.0
LOAD_EVERY_S = 0.5
LINK_FD = 0


class Worker:
    """State: the link, and once the service has said what to serve, the data plane; `_early` is what came before it;
    `_stop` when it is to end, `_gone` when the service is gone."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()
        self._metrics = Metrics()
        self._started: asyncio.Future[wire.Start] = self._loop.create_future()
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._link: Link
        self._records: LinkRecords | None = None
        self._answers: SharedAnswers
        self._plane: DataPlane | None = None
        self._early: list[Down] = []

    async def run(self, end: socket.socket) -> int:
        """Until drained, or the service is gone. Returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._stop.set)
        self._link = await wire.worker_end(end, received=self._received, lost=self._lost)
        self._link.send(wire.Hello(VERSION, os.getpid()))
        cut: int | None = None
        try:
            cut = await self._serve(await self._started)
        except* ConfigError as errors:
            self._link.send(wire.Refused(str(leaves(errors)[0])))
        finally:
            if self._records is not None:
                self._records.flush()
            self._tell_load()
            self._send_report()
            if cut is not None:
                self._link.send(wire.Drained(cut))
            self._link.close()
            await self._gone.wait()
            if self._records is not None:
                self._records.close()
        return 1 if cut is None else 0

    async def _serve(self, start: wire.Start) -> int:
        """Returns how many requests were cut at the end."""
        log = Log(LinkLines(self._link), self._clock, worker=start.worker)
        capture_strays(log)
        self._answers = SharedAnswers(self._link, start.config.idempotency)
        data = Path(start.data)
        self._records = LinkRecords(
            self._link,
            open_journal(data, os.getpid(), start.config),
            is_lenient=start.config.ledger.is_lenient,
        )
        self._plane = plane = DataPlane(
            start.config,
            data,
            records=self._records,
            budgets=None,
            metrics=self._metrics,
            log=log,
            clock=self._clock,
            chance=random.Random(os.urandom(32)),
            key_missing=lambda issuer: self._link.send(wire.KeyMissing(issuer)),
            lender=Lender(
                self._link.send, self._records, self._answers, workers=start.workers, port=start.port
            ),
            config_version=start.config_version,
        )
        for message in self._early:
            self._received(message)
        calm_the_collector()
        cut = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(plane.run(opened=self._opened), name="data plane"),
                    tasks.create_task(self._report(), name="reports"),
                    tasks.create_task(self._tell_load_regularly(), name="loads"),
                ]
                await self._stop.wait()
                if not self._gone.is_set():
                    cut = await plane.drain()
                for task in running:
                    task.cancel()
        except* Exception as errors:
            for error in leaves(errors):
                if not isinstance(error, ConfigError):
                    log.internal_error(error, where="worker")
            raise
        finally:
            plane.close()
        return cut

    def _opened(self, port: int) -> None:
        assert self._plane is not None, "it has just opened the port"
        self._link.send(wire.Opened(self._plane.key_count))

    def _lost(self) -> None:
        """The service is gone. What it lent is somebody else's now, or nobody's, so nothing may go on."""
        self._gone.set()
        self._stop.set()
        if not self._started.done():
            self._started.set_exception(ConfigError("the service is gone"))

    def _received(self, message: Down) -> None:
        plane = self._plane
        match message:
            case wire.Start():
                self._started.set_result(message)
            case wire.Drain():
                self._stop.set()
            case wire.AskReport(number):
                self._send_report(number)
            case _ if plane is None or self._records is None:
                self._early.append(message)
            case wire.LedgerBehind(is_behind, is_failing):
                self._records.ledger_said(is_behind=is_behind, is_failing=is_failing)
            case wire.Committed(number):
                self._records.committed(number)
            case wire.EndDrain():
                plane.end_drain()
            case wire.Publish(snapshot):
                plane.publish(snapshot)
                self._tell_load()  # who withdraws a replica waits to hear that this has been heard
            case wire.Reload(config, version, snapshot):
                plane.reload(config, version, snapshot)
            case wire.Keys(key_set):
                plane.take_keys(key_set)
            case wire.Begun():
                self._answers.received(message)
            case wire.Found(replica):
                plane.found(replica)
            case Grant() | Recall() | Sated() | Deny() | GrantRate():
                plane.lent(message)
            case QuotasRead() | LentEscrow() | RecallEscrow():
                plane.lent(message)
            case _:
                assert_never(message)

    async def _tell_load_regularly(self) -> None:
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            self._tell_load()

    def _tell_load(self) -> None:
        if self._plane is not None:
            self._link.send(wire.Load(self._plane.load()))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self._send_report()

    def _send_report(self, answers: int = 0) -> None:
        if self._plane is not None:
            self._plane.fill_gauges()
            self._link.send(wire.Report(answers, self._plane.report(), state_of(self._metrics)))


async def _run() -> int:
    return await Worker().run(socket.socket(fileno=LINK_FD))


if __name__ == "__main__":
    die_with_parent()
    sys.exit(uvloop.run(_run()))
