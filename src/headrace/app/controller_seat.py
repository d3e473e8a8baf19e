"""The controller, as the service sees it: started, watched, replaced when it ends, and quoted from its last report."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from headrace.app import controller_link as wire
from headrace.app.controller_link import ControllerLink, Up
from headrace.app.pair import VERSION, Line
from headrace.app.process import how_it_ended
from headrace.config import Config
from headrace.control.launchers import Lifeline
from headrace.control.status import ReplicaStatus
from headrace.control.upstreams import Remembered
from headrace.core.chance import Chance
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.fleet import Deployment, FleetSnapshot, ReplicaState
from headrace.core.ids import ReplicaId
from headrace.core.load import PlaneLoad
from headrace.policies.restart import RestartPolicy
from headrace.stores.registry import StoredModel
from headrace.telemetry.logs import Log
from headrace.telemetry.merging import MetricsState
from headrace.telemetry.metrics import Metrics

# `-P`: a folder named headrace in the current directory must not be run in our place.
COMMAND = (sys.executable, "-P", "-m", "headrace.app.controller")
TICK_S = 0.25
# One that has said nothing for so long is behind, and for so long does nothing any more: it is ended, and another one goes on.
BEHIND_S = 3.0
SILENCE_MAX_S = 15.0
START_LIMIT_S = 60.0
# Longer than every engine has to end; and for one that is behind as it is asked to.
STOP_GRACE_S = 20.0
STOP_GRACE_BEHIND_S = 1.0


class ControllerSeat:
    """Owner of the controller process. It may end at any moment: what it published stays in force, and another one takes its
    place and goes on from what it last reported.

    State: `_link` and `_process` while there is a process, `_is_up` once it has reported; `_snapshot`, `_replicas`, `_upstreams`
    and `_counted`, the newest of any controller, which the next one gets; `first_report` is set once it is known what is offered at all.

    Args:
        publish: Gets every new snapshot.
        found: Gets the id of a server that answers a probe after it had not answered one.
        tell: Gets lines for the person who started the service.
        first_ready: Called once, when the first replica is ready.
    """

    def __init__(
        self,
        config: Config,
        data: Path,
        models: Sequence[StoredModel],
        *,
        publish: Callable[[FleetSnapshot], None],
        found: Callable[[ReplicaId], None],
        tell: Callable[[str], None],
        first_ready: Callable[[], None],
        metrics: Metrics,
        log: Log,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._config = config
        self._data = data
        self._models = list(models)
        self._publish = publish
        self._found = found
        self._tell = tell
        self._first_ready = first_ready
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._chance = chance
        self._restart_policy = RestartPolicy(first_s=0.1, ceiling_s=5.0, steady_s=10.0)
        self._link: ControllerLink | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._is_up = False
        self._is_refused = False
        self._was_ready = False
        self._restarts = 0
        self._started_s = self._heard_s = clock.now_s()
        self._up_s: float | None = None
        self._verdict = ""
        self._reason = ""
        self._snapshot = FleetSnapshot()
        self._replicas: list[ReplicaStatus] = []
        self._upstreams: dict[ReplicaId, Remembered] = {}
        self._counted: MetricsState = {}
        self._rows: list[dict[str, Any]] = []
        self._epoch = 0
        self._problem = ""
        self._lifeline = Lifeline()
        self._is_first = True
        self._reconfigured: Callable[[wire.Reconfigured], None] = lambda message: None
        self.first_report = asyncio.Event()

    @property
    def deployments(self) -> Mapping[str, Deployment]:
        """What is offered."""
        return self._snapshot.deployments

    def replicas(self) -> Sequence[ReplicaStatus]:
        """Every replica as it was last reported."""
        return self._replicas

    def rows(self) -> list[dict[str, Any]]:
        """Every deployment that the controller keeps, as it was last reported."""
        return self._rows

    def reconfigure(self, config: Config, version: int, *, done: Callable[[wire.Reconfigured], None]) -> bool:
        """Another version of the configuration. `done` is called in the turn in which the controller says what is offered by it.

        False: nobody is there who could say; the next controller begins with it.
        """
        self._config = config
        self._reconfigured = done
        if self._link is None or not self._is_up:
            return False
        self._link.send(wire.Reconfigure(version, config))
        return True

    def keep(self, config: Config) -> None:
        """The next controller begins with that one: the controller can't go by another."""
        self._config = config

    @property
    def snapshot(self) -> FleetSnapshot:
        """What is offered, as it was published last."""
        return self._snapshot

    def loaded(self, load: PlaneLoad) -> None:
        """What all data planes together have to do."""
        if self._link is not None and self._is_up:
            self._link.send(wire.Load(load))

    def close(self) -> None:
        """Every engine that is still there ends."""
        self._lifeline.close()

    def counted(self) -> list[MetricsState]:
        """What all controllers have counted: each goes on from the one before."""
        self._metrics.controller_up.labels().set(self._is_up)
        self._metrics.controller_restarts.labels().set(self._restarts)
        return [self._counted]

    def status(self) -> dict[str, Any]:
        """What `headrace status` shows of it."""
        silent_s = self._clock.now_s() - self._heard_s
        return {
            "state": "ready" if self._is_up else "starting" if self._process else "down",
            "pid": self._process and self._process.pid,
            "restarts": self._restarts,
            "reason": self._reason,
            "is_behind": not self._is_up or self._is_silent(),
            "silent_s": silent_s,
            "epoch": self._epoch,
            "problem": self._problem,
            "snapshot_version": self._snapshot.version,
        }

    def _is_silent(self) -> bool:
        return self._clock.now_s() - self._heard_s > BEHIND_S

    async def run(self) -> None:
        """Until cancelled; then every engine is stopped within its grace. Raises ConfigError where the first one can't work."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(), name="controller")
            tasks.create_task(self._watch(), name="controller watch")

    # The life of a controller.

    async def _keep(self) -> None:
        quick_failures = 0
        while True:
            status = await self._live()
            reason = self._reason
            if self._is_refused and not self.first_report.is_set():
                raise ConfigError(reason)
            up_for_s = 0.0 if self._up_s is None else self._clock.now_s() - self._up_s
            quick_failures = self._restart_policy.quick_failures(quick_failures, ready_for_s=up_for_s)
            delay_s = self._restart_policy.delay_s(quick_failures, self._chance)
            self._log.event(
                "controller.lost",
                reason=reason,
                exit_status=status,
                restarts=self._restarts,
                restart_in_s=delay_s,
            )
            self._tell(f"lost         controller: {reason}; starting it again")
            await asyncio.sleep(delay_s)
            self._restarts += 1

    async def _live(self) -> int | None:
        """One process from start to end; returns its exit status. `_reason` then says why it ended."""
        self._verdict, self._is_refused, self._up_s = "", False, None
        self._started_s = self._heard_s = self._clock.now_s()
        ours, theirs = socket.socketpair()
        gone = asyncio.Event()
        try:
            with theirs:
                self._link = await wire.service_end(ours, received=self._received, lost=gone.set)
                self._process = await asyncio.create_subprocess_exec(
                    *COMMAND,
                    stdin=theirs.fileno(),
                    pass_fds=(self._lifeline.reading_fd,),
                    stdout=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in a terminal is for the service, which drains first
                )
        except OSError as error:
            ours.close()
            self._reason = f"cannot be started: {error}"
            return None
        process = self._process
        self._log.event("controller.started", pid=process.pid, restarts=self._restarts)
        try:
            status = await process.wait()
            with contextlib.suppress(TimeoutError):  # what it has sent is still to be read
                async with asyncio.timeout(TICK_S):
                    await gone.wait()
            self._reason = self._verdict or self._link.fault or how_it_ended(status)
            return status
        finally:
            await self._end(process, gone)

    async def _end(self, process: asyncio.subprocess.Process, gone: asyncio.Event) -> None:
        """Also one that still works: it ends its engines first."""
        assert self._link is not None
        if process.returncode is None:
            self._link.send(wire.Stop())
            try:
                # Engines that it doesn't end are ended by their lifeline.
                async with asyncio.timeout(STOP_GRACE_BEHIND_S if self._is_silent() else STOP_GRACE_S):
                    await process.wait()
                    await gone.wait()
            except TimeoutError:
                self._kill("did not end")
                await process.wait()
        self._is_up = False
        self._process = None
        self._link.close()

    async def _watch(self) -> None:
        while True:
            before_s = self._clock.now_s()
            await asyncio.sleep(TICK_S)
            now_s = self._clock.now_s()
            if now_s - before_s > 4 * TICK_S:  # who was away himself can't say that somebody was silent
                self._heard_s = now_s
            elif self._is_up and now_s - self._heard_s > SILENCE_MAX_S:
                self._kill(f"stuck for {now_s - self._heard_s:.0f} s")
            elif not self._is_up and self._process and now_s - self._started_s > START_LIMIT_S:
                self._kill(f"did not begin within {START_LIMIT_S:.0f} s")

    def _kill(self, why: str) -> None:
        self._verdict = why
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _received(self, message: Up) -> None:
        self._heard_s = self._clock.now_s()
        match message:
            case wire.Published(snapshot):
                self._snapshot = snapshot
                self._publish(snapshot)
            case wire.Reconfigured():
                self._snapshot = message.snapshot
                self._reconfigured(message)
            case wire.Found(replica):
                self._found(replica)
            case Line(text):
                self._log.relay(text)
            case wire.Tell(text):
                self._tell(text)
            case wire.Report():
                self._reported(message)
            case wire.Hello(version):
                self._welcome(version)
            case wire.Refused(text):
                self._verdict = text
                self._is_refused = True
            case _:
                assert_never(message)

    def _welcome(self, version: str) -> None:
        if version != VERSION:
            self._kill(f"it is version {version}, this service {VERSION}: restart the service")
            return
        assert self._link is not None
        self._link.send(
            wire.Start(
                self._config,
                self._data,
                self._models,
                self._lifeline.reading_fd,
                self._is_first,
                self._snapshot,
                self._replicas,
                self._upstreams,
                self._counted,
            )
        )

    def _reported(self, report: wire.Report) -> None:
        self._replicas, self._upstreams = report.replicas, report.upstreams
        self._counted, self._rows = report.metrics, report.deployments
        self._epoch, self._problem = report.epoch, report.problem
        self._is_first = False
        if not self._is_up:
            self._is_up, self._up_s = True, self._heard_s
        self.first_report.set()
        if not self._was_ready and any(status.state is ReplicaState.READY for status in report.replicas):
            self._was_ready = True
            self._first_ready()
