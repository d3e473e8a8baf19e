"""The workers, as the service sees them: started, watched, replaced when they end, and asked what they do."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, assert_never

from headrace.app import link as wire
from headrace.app.answers import AnswerDesk
from headrace.app.gateway_parts import answer_bounds, answer_table, shadow_limiter
from headrace.app.link import Up
from headrace.app.pair import VERSION, Line
from headrace.app.plane_loads import PlaneLoads
from headrace.app.process import how_it_ended
from headrace.app.records import journal_of
from headrace.app.report import PlaneReport
from headrace.app.seats import Seat
from headrace.config import Config
from headrace.control.authority import Authority
from headrace.control.budgets import BudgetAuthority
from headrace.control.shared_rates import SharedRates
from headrace.core.chance import Chance
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.fleet import FleetSnapshot
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.leases import (
    AskEscrow,
    AskRate,
    Return,
    ReturnEscrow,
    ReturnRate,
    Shadowed,
    TellQuotas,
    Want,
)
from headrace.core.load import PlaneLoad
from headrace.core.signing import KeySet
from headrace.core.tenant import RateUnit
from headrace.gateway import shadow
from headrace.gateway.listener import reserve_port
from headrace.policies.levels import Level
from headrace.policies.limits import LevelUse
from headrace.policies.restart import RestartPolicy
from headrace.policies.shadow import ShadowView
from headrace.stores.ledger import Ledger
from headrace.telemetry import merging
from headrace.telemetry.logs import Log
from headrace.telemetry.merging import MetricsState
from headrace.telemetry.metrics import Metrics

# `-P`: a folder named headrace in the current directory must not be run in our place.
COMMAND = (sys.executable, "-P", "-m", "headrace.app.worker")
TICK_S = 0.25
ANSWER_LIMIT_S = 0.5
# A worker whose loop has said nothing for this long serves nobody; what it holds is taken back by ending it.
SILENCE_MAX_S = 5.0
START_LIMIT_S = 60.0
STOP_GRACE_S = 10.0


class Workers:
    """Owner of the worker processes. One of them may end at any moment: what it held goes back to the authority, what it
    counted stays counted, and another one takes its place.

    State: `_sockets` reserve the port, so that it stays ours while no worker listens; `_gone` counts what ended workers had
    counted.
    """

    def __init__(
        self,
        config: Config,
        data: Path,
        *,
        ledger: Ledger,
        budgets: BudgetAuthority,
        shared_rates: SharedRates | None,
        metrics: Metrics,
        log: Log,
        tell: Callable[[str], None],
        key_missing: Callable[[str], None],
        clock: Clock,
        chance: Chance,
    ) -> None:
        count = config.server.workers
        self._config = config
        self._config_version = 1
        self._data = data
        self._ledger = ledger
        self._budgets = budgets
        self._metrics = metrics
        self._log = log
        self._tell = tell
        self._key_missing = key_missing
        self._clock = clock
        self._chance = chance
        # Short: while none of them is up the port is closed, and what killed one may come again and again.
        self._restarts = RestartPolicy(first_s=0.1, ceiling_s=2.0, steady_s=2.0)
        self._authority = Authority(
            workers=count,
            clock=clock,
            shared_rates=shared_rates,
            hosts=1 if shared_rates is None else config.limits.hosts_max,
        )
        self._shadow = shadow_limiter(metrics, log)
        self._answers = AnswerDesk(answer_table(config.idempotency), clock=clock)
        self._loads = PlaneLoads()
        self._seats = [Seat(number) for number in range(count)]
        self._sockets: list[socket.socket] = []
        self._snapshot = FleetSnapshot()
        self._key_sets: dict[str, KeySet] = {}
        self._gone = Metrics()
        merging.forget_minima(self._metrics)
        merging.forget_minima(self._gone)
        self._questions = 0
        self._draining = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._told = (False, False)
        self._all_up = asyncio.Event()
        self.ticked_s = clock.now_s()

    # What the service asks of a front; see app/service.py.

    async def run(self, *, opened: Callable[[int], None]) -> None:
        server = self._config.server
        try:
            self._sockets = reserve_port(server.host, server.port)
        except OSError as error:
            raise ConfigError(
                f"public port {server.host}:{server.port} can't be opened: {error}; "
                "choose another with --port or `server.port`"
            ) from None
        try:
            async with asyncio.TaskGroup() as tasks:
                for seat in self._seats:
                    tasks.create_task(self._keep(seat), name=f"worker {seat.number}")
                tasks.create_task(self._tick(), name="workers")
                await self._all_up.wait()
                opened(self._port)
        finally:
            for each in self._sockets:
                each.close()

    def publish(self, snapshot: FleetSnapshot) -> None:
        self._snapshot = snapshot
        for seat in self._seats:
            if seat.is_linked and seat.link is not None:
                seat.link.send(wire.Publish(snapshot))
        self._authority.publish(snapshot)

    def reload(self, config: Config, version: int, snapshot: FleetSnapshot) -> None:
        self._config, self._config_version, self._snapshot = config, version, snapshot
        self._answers.go_by(answer_bounds(config.idempotency))
        for seat in self._seats:
            if seat.is_linked and seat.link is not None:
                seat.link.send(wire.Reload(config, version, snapshot))
        self._authority.publish(snapshot)

    def take_keys(self, key_set: KeySet) -> None:
        self._key_sets[key_set.issuer] = key_set
        for seat in self._seats:
            if seat.is_linked and seat.link is not None:
                seat.link.send(wire.Keys(key_set))

    def found(self, replica: ReplicaId) -> None:
        for seat in self._seats:
            if seat.is_linked and seat.link is not None:
                seat.link.send(wire.Found(replica))

    @property
    def key_count(self) -> int:
        return min(seat.keys for seat in self._seats)

    async def drain(self) -> int:
        """Every worker drains; returns how many requests were cut."""
        self._draining.set()
        for seat in self._seats:
            if seat.is_up and seat.link is not None:
                seat.link.send(wire.Drain())
            else:
                seat.kill("stopped before it served")
        until_s = self._clock.now_s() + self._config.server.drain_s + STOP_GRACE_S
        while not all(seat.is_done for seat in self._seats):
            if self._clock.now_s() > until_s:
                for seat in self._seats:
                    seat.kill("did not end")
            await asyncio.sleep(0.01)
        return sum(seat.cut for seat in self._seats)

    def end_drain(self) -> None:
        for seat in self._seats:
            if seat.link is not None:
                seat.link.send(wire.EndDrain())

    def close(self) -> None:
        """Nothing is left once `run` has ended."""

    async def reports(self) -> list[PlaneReport]:
        """What every worker that serves is doing now; of one that doesn't answer at once, what it said last."""
        self._questions += 1
        asked = [seat for seat in self._seats if seat.is_up and seat.link is not None]
        for seat in asked:
            assert seat.link is not None
            seat.answers[self._questions] = asyncio.get_running_loop().create_future()
            seat.link.send(wire.AskReport(self._questions))
        number = self._questions
        if asked:
            await asyncio.wait([seat.answers[number] for seat in asked], timeout=ANSWER_LIMIT_S)
        for seat in asked:
            seat.answers.pop(number, None)
        return [seat.report for seat in self._seats if seat.is_up and seat.report is not None]

    async def counted(self) -> Sequence[MetricsState]:
        """What all workers have counted, those that are gone as well."""
        await self.reports()
        for seat in self._seats:
            self._metrics.worker_up.labels(str(seat.number)).set(seat.is_up)
            self._metrics.worker_restarts.labels(str(seat.number)).set(seat.restarts)
        return [merging.state_of(self._gone), *(seat.counted for seat in self._seats)]

    async def limit_uses(self, levels: Sequence[Level]) -> list[LevelUse]:
        """How much of each is in use, by what the authority has lent and the workers have in progress."""
        busy = [report.busy_subjects for report in await self.reports()]
        return [
            LevelUse(
                sum(counts.get(level.subject, 0) for counts in busy),
                *(self._authority.view(level, unit) for unit in RateUnit),
            )
            for level in levels
        ]

    def shadow_view(self, tenant: TenantId) -> ShadowView:
        return self._shadow.view(tenant, now_s=self._clock.now_s())

    def load(self) -> PlaneLoad:
        """What all workers together have to do, as of their last reports, and have done."""
        return self._loads.together()

    def rows(self) -> list[dict[str, Any]]:
        """One row of status for each worker, as of its last report."""
        return [
            {
                "worker": seat.number,
                "state": "ready" if seat.is_up else "starting" if seat.pid else "down",
                "pid": seat.pid,
                "restarts": seat.restarts,
                "reason": seat.verdict,
                "connections": seat.report.connections if seat.report else 0,
                "in_flight": seat.report.in_progress - seat.report.waiting if seat.report else 0,
                "queued": seat.report.waiting if seat.report else 0,
                "config_version": seat.report.config_version if seat.report else 0,
            }
            for seat in self._seats
        ]

    # The life of a worker.

    async def _keep(self, seat: Seat) -> None:
        quick_failures = 0
        while True:
            reason, status = await self._live(seat)
            if seat.refusal and not self._all_up.is_set():
                raise ConfigError(seat.refusal)
            if self._draining.is_set():
                seat.is_done = True
                return
            ready_for_s = 0.0 if seat.ready_s is None else self._clock.now_s() - seat.ready_s
            quick_failures = self._restarts.quick_failures(quick_failures, ready_for_s=ready_for_s)
            delay_s = self._restarts.delay_s(quick_failures, self._chance)
            self._log.event(
                "worker.lost",
                worker=seat.number,
                pid=seat.pid,
                reason=reason,
                exit_status=status,
                in_flight=seat.report.in_progress if seat.report else 0,
                restarts=seat.restarts,
                restart_in_s=delay_s,
            )
            self._tell(f"lost         worker {seat.number}: {reason}; starting it again")
            seat.pid = None
            seat.verdict = reason
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._draining.wait()
                    seat.is_done = True
                    return
            seat.restarts += 1

    async def _live(self, seat: Seat) -> tuple[str, int | None]:
        """One process from start to end; returns why it ended, and its exit status."""
        seat.begin(self._clock.now_s())
        ours, theirs = socket.socketpair()
        gone = asyncio.Event()
        try:
            with theirs:
                seat.link = await wire.service_end(
                    ours, received=lambda message: self._received(seat, message), lost=gone.set
                )
                seat.process = await asyncio.create_subprocess_exec(
                    *COMMAND,
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in a terminal is for the service, which drains first
                )
        except OSError as error:
            ours.close()
            return f"cannot be started: {error}", None
        seat.pid = seat.process.pid
        self._log.event("worker.started", worker=seat.number, pid=seat.pid, restarts=seat.restarts)
        try:
            status = await self._end_of(seat.process, gone, seat)
            self._ledger.adopt(self._journal_of(seat.pid))
        finally:
            seat.kill(seat.verdict)
            self._ended(seat)
            seat.link.close()
        return seat.verdict or seat.refusal or seat.link.fault or how_it_ended(status), status

    async def _end_of(self, process: asyncio.subprocess.Process, gone: asyncio.Event, seat: Seat) -> int:
        """Waits until the link and the process have ended, whichever is first. Returns the exit status."""
        async with asyncio.TaskGroup() as tasks:
            exited = tasks.create_task(process.wait())
            cut = tasks.create_task(gone.wait())
            await asyncio.wait({exited, cut}, return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                self._ended(seat)
                await asyncio.wait({exited}, timeout=STOP_GRACE_S)
                if not exited.done():
                    seat.kill("closed its link and did not end")
            else:  # what it has sent is still to be read
                await asyncio.wait({cut}, timeout=STOP_GRACE_S)
                cut.cancel()
        return exited.result()

    def _journal_of(self, pid: int) -> Path:
        return journal_of(self._data, pid)

    def _ended(self, seat: Seat) -> None:
        """What the worker held is free again, and what it counted stays counted."""
        seat.is_linked = seat.is_up = False
        self._loads.lost(seat.number)
        self._authority.lost(seat.number)
        self._shadow.lost(seat.number, now_s=self._clock.now_s())
        self._budgets.lost(seat.number, journal=None if seat.pid is None else self._journal_of(seat.pid))
        self._answers.lost(seat.number)
        merging.add(self._gone, seat.counted)
        seat.counted = {}
        for answer in seat.answers.values():
            if not answer.done():
                answer.set_result(None)

    def _received(self, seat: Seat, message: Up) -> None:
        seat.heard_s = self._clock.now_s()
        match message:
            case Want() | Return() | AskRate() | ReturnRate():
                self._authority.received(seat.number, message)
            case Shadowed():
                shadow.judge(self._shadow, seat.number, message)
            case TellQuotas() | AskEscrow() | ReturnEscrow():
                self._budgets.received(seat.number, message)
            case wire.Begin() | wire.Keep() | wire.Drop():
                begun = self._answers.received(seat.number, message)
                if begun is not None and seat.link is not None:
                    seat.link.send(begun)
            case wire.Forget(tenant):
                self._answers.forget(tenant)
            case wire.Records(entries, settled):
                self._budgets.settled(seat.number, settled)
                for usage, executions in entries:
                    self._budgets.spend(usage)
                    self._ledger.append(usage, executions)
                self._owe(seat, len(entries))
            case wire.Replacement((usage, executions)):
                self._ledger.replace(usage, executions)
                self._owe(seat, 1)
            case wire.KeyMissing(issuer):
                self._key_missing(issuer)
            case Line(text):
                self._log.relay(text)
            case wire.Load(load):
                self._loads.reported(seat.number, load)
            case wire.Report(answers, plane, counted):
                seat.report, seat.counted = plane, counted
                if (answer := seat.answers.get(answers)) is not None and not answer.done():
                    answer.set_result(None)
            case wire.Hello(version):
                self._welcome(seat, version)
            case wire.Opened(keys):
                self._opened(seat, keys)
            case wire.Refused(text):
                seat.refusal = text
            case wire.Drained(cut):
                seat.cut = cut
                seat.verdict = "drained"
            case _:
                assert_never(message)

    def _welcome(self, seat: Seat, version: str) -> None:
        if version != VERSION:
            seat.kill(f"it is version {version}, this service {VERSION}: restart the service")
            return
        assert seat.link is not None
        seat.link.send(
            wire.Start(
                self._config,
                str(self._data),
                self._port,
                seat.number,
                len(self._seats),
                self._config_version,
            )
        )
        seat.link.send(wire.LedgerBehind(*self._ledger_state))
        # Before it opens the port: the first caller finds the models, and their slots.
        seat.link.send(wire.Publish(self._snapshot))
        for key_set in self._key_sets.values():
            seat.link.send(wire.Keys(key_set))
        seat.is_linked = True
        self._authority.joined(seat.number, seat.link.send)
        self._budgets.joined(seat.number, seat.link.send)

    def _opened(self, seat: Seat, keys: int) -> None:
        assert seat.link is not None
        seat.is_up, seat.keys = True, keys
        seat.ready_s = self._clock.now_s()
        self._log.event(
            "worker.ready", worker=seat.number, pid=seat.pid, elapsed_s=seat.ready_s - seat.started_s
        )
        if self._draining.is_set():
            seat.link.send(wire.Drain())
        if all(each.is_up for each in self._seats):
            self._all_up.set()

    @property
    def _port(self) -> int:
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def _tick(self) -> None:
        while True:
            before_s = self._clock.now_s()
            await asyncio.sleep(TICK_S)
            now_s = self.ticked_s = self._clock.now_s()
            self._log.tick()
            self._tell_behind()
            self._answers.tick()
            # Who was away himself has not listened, and can't say that somebody was silent.
            was_away = now_s - before_s > 4 * TICK_S
            for seat in self._seats:
                if was_away:
                    seat.heard_s = now_s
                elif seat.is_up and now_s - seat.heard_s > SILENCE_MAX_S:
                    seat.kill(f"stuck for {now_s - seat.heard_s:.0f} s")
                elif not seat.is_up and seat.pid and now_s - seat.started_s > START_LIMIT_S:
                    seat.kill(f"did not open the port within {START_LIMIT_S:.0f} s")

    def _tell_behind(self) -> None:
        state = self._ledger_state
        if state != self._told:
            self._told = state
            for seat in self._seats:
                if seat.link is not None:
                    seat.link.send(wire.LedgerBehind(*state))

    @property
    def _ledger_state(self) -> tuple[bool, bool]:
        """Whether it is behind, and whether it fails."""
        return self._ledger.is_behind, self._ledger.failed is not None

    def _owe(self, seat: Seat, count: int) -> None:
        """So many records came from the worker, and it waits to hear of their commit."""
        seat.recorded += count
        seat.owed.append((self._ledger.appended, seat.recorded))

    def committed(self, settled: int) -> None:
        """Called by the ledger's thread; see stores.ledger.Ledger."""
        self._loop.call_soon_threadsafe(self._tell_committed, settled)

    def _tell_committed(self, settled: int) -> None:
        for seat in self._seats:
            number = 0
            while seat.owed and seat.owed[0][0] <= settled:
                number = seat.owed.popleft()[1]
            if number and seat.link is not None:
                seat.link.send(wire.Committed(number))
