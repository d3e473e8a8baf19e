"""The controller: what runs is made what should run, in a process of its own, which may end at any moment.

    python -m headrace.app.controller

Started by the service with one end of a socket pair as standard input. What it published stays in force while it is gone,
and the next one goes on from it, with the engines that run. It never outlives the service; only `Stop` makes it end engines.
"""

import asyncio
import os
import random
import signal
import socket
import sys
from typing import assert_never

import uvloop

from headrace.app import controller_link as wire
from headrace.app.control_plane import ControlPlane
from headrace.app.controller_link import ControllerLink, Down
from headrace.app.pair import VERSION, LinkLines
from headrace.app.process import calm_the_collector, die_with_parent
from headrace.control.fleet import Before
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, HeadraceError, leaves
from headrace.telemetry.logs import Log
from headrace.telemetry.merging import add, forget_minima, state_of
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.strays import capture_strays

REPORT_EVERY_S = 1.0
LINK_FD = 0


class Controller:
    """State: the link, and once the service has said what to keep true, the control plane; `_stop` when it is to end,
    `_gone` when the service is gone; `_is_report_due` between a change and its report."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()
        self._metrics = Metrics()
        forget_minima(self._metrics)
        self._started: asyncio.Future[wire.Start] = self._loop.create_future()
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._link: ControllerLink
        self._plane: ControlPlane | None = None
        self._asked: asyncio.Queue[wire.Reconfigure] = (
            asyncio.Queue()
        )  # one at a time, by who waits for the answer
        self._is_report_due = False

    async def run(self, end: socket.socket) -> int:
        """Until told to stop, or the service is gone. Returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._stop.set)
        self._link = await wire.controller_end(end, received=self._received, lost=self._lost)
        self._link.send(wire.Hello(VERSION, os.getpid()))
        is_well = False
        try:
            await self._keep(await self._started)
            is_well = True
        except* HeadraceError as errors:  # of an operator's making, or another controller has taken over
            self._link.send(wire.Refused(str(leaves(errors)[0])))
        finally:
            self._report()
            self._link.close()
            await self._gone.wait()
        return 0 if is_well else 1

    async def _keep(self, start: wire.Start) -> None:
        log = Log(LinkLines(self._link), self._clock)
        capture_strays(log)
        add(self._metrics, start.metrics)
        self._plane = plane = ControlPlane(
            start.config,
            start.data,
            start.models,
            lifeline_fd=start.lifeline_fd,
            before=Before(
                start.is_first, start.snapshot, {status.replica: status for status in start.replicas}
            ),
            remembered=start.upstreams,
            publish=lambda snapshot: self._link.send(wire.Published(snapshot)),
            found=lambda replica: self._link.send(wire.Found(replica)),
            tell=lambda text: self._link.send(wire.Tell(text)),
            changed=self._changed,
            metrics=self._metrics,
            log=log,
            clock=self._clock,
            chance=random.Random(os.urandom(32)),
        )
        calm_the_collector()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(plane.run(), name="control"),
                    tasks.create_task(self._report_regularly(log), name="reports"),
                    tasks.create_task(self._reconfigure(plane), name="configuration"),
                ]
                await self._stop.wait()
                for task in running:
                    task.cancel()
        except* Exception as errors:
            for error in leaves(errors):
                if not isinstance(error, HeadraceError):
                    log.internal_error(error, where="controller")
            raise

    def _lost(self) -> None:
        """The service is gone."""
        self._gone.set()
        self._end()

    def _end(self) -> None:
        self._stop.set()
        if not self._started.done():
            self._started.set_exception(ConfigError("the service ends"))

    def _received(self, message: Down) -> None:
        match message:
            case wire.Start():
                self._started.set_result(message)
            case wire.Load(load):
                if self._plane is not None:
                    self._plane.loaded(load)
            case wire.Reconfigure():
                self._asked.put_nowait(message)
            case wire.Stop():
                if self._plane is not None:
                    self._plane.end()
                self._end()
            case _:
                assert_never(message)

    async def _reconfigure(self, plane: ControlPlane) -> None:
        while True:
            asked = await self._asked.get()
            silent, problem = [], ""
            try:
                silent = await plane.reconfigure(asked.config)
            except ConfigError as error:  # a file that the service could read, and that has changed since
                problem = error.message
            self._link.send(wire.Reconfigured(asked.version, plane.snapshot, silent, problem))

    def _changed(self) -> None:
        """Reported once for all changes of one turn of the loop."""
        if not self._is_report_due:
            self._is_report_due = True
            self._loop.call_soon(self._report)

    async def _report_regularly(self, log: Log) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            log.tick()
            self._report()

    def _report(self) -> None:
        self._is_report_due = False
        plane = self._plane
        if plane is not None and plane.is_settled:
            self._link.send(
                wire.Report(
                    list(plane.replicas()),
                    plane.remember(),
                    state_of(self._metrics),
                    plane.rows(),
                    plane.epoch,
                    plane.problem,
                )
            )


async def _run() -> int:
    return await Controller().run(socket.socket(fileno=LINK_FD))


if __name__ == "__main__":
    die_with_parent()
    sys.exit(uvloop.run(_run()))
