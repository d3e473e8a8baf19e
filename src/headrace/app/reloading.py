"""How is a changed headrace.toml put in force while everything runs? Read and checked whole, then everywhere as one version.

The controller says what is offered by it, and in that turn of the service's loop every data plane is told both. Nobody serves
by a part of it. Docs: docs/operate/reload.md.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.app import control_plane
from headrace.app.controller_link import Reconfigured
from headrace.app.controller_seat import ControllerSeat
from headrace.app.data_plane import check_certificate
from headrace.app.front import Front
from headrace.config import Asked, Config, reloading, resolve_secret
from headrace.control.admin_routes import AdminRoute, Reply, Turn, reply
from headrace.control.admin_routes import Asked as AdminAsked
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.fleet import FleetSnapshot
from headrace.core.roles import Role
from headrace.policies.reloading import Comparison, Reloaded
from headrace.stores import places
from headrace.stores.audit import Act, Action
from headrace.stores.database import DatabaseUnavailable
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

# The controller waits for the first answers of new servers, and no longer than this.
CONTROLLER_LIMIT_S = 2.0
EVERYWHERE_LIMIT_S = 5.0
LOOK_EVERY_S = 0.01
ANSWER_LIMIT_S = 30.0
NO_FILE = "this service was started without a configuration file: start it with --config FILE to reload it"

Read = Callable[[], Asked]


class Reloading:
    """Owner of which configuration is in force. State: `config` and its `version`; `_file`, what the file said when it was
    read for it; `_pending`, the keys that need a restart; `_problem`, why the last reload was refused, if it was.

    Args:
        config: What the service was started with; `file` is what its file alone said.
        read: What the operator asks for now; None where there is no file. Raises ConfigError.
        check: Raises ConfigError for what could never be kept true.
        switch: Puts a configuration with its version in force, and what is offered by it.
        publish: Gets a newer picture of the fleet.
        record: Writes an act into the audit log.
    """

    def __init__(
        self,
        config: Config,
        file: Config,
        read: Read | None,
        *,
        check: Callable[[Config], None],
        control: ControllerSeat,
        front: Front,
        switch: Callable[[Config, int, FleetSnapshot], None],
        publish: Callable[[FleetSnapshot], None],
        record: Callable[[Act], None],
        metrics: Metrics,
        log: Log,
        clock: Clock,
    ) -> None:
        self.config = config
        self.version = 1
        self._read = read
        self._check = check
        self._control = control
        self._front = front
        self._switch = switch
        self._publish = publish
        self._record = record
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._file = file
        self._pending: tuple[str, ...] = ()
        self._problem = ""
        self._turn = asyncio.Lock()

    def status(self) -> dict[str, Any]:
        """What `headrace status` shows of it."""
        return {
            "version": self.version,
            "restart_required": list(self._pending),
            "problem": self._problem,
        }

    async def reload(self, actor: str) -> Reloaded:
        """Reads the file again and puts in force what can be. Raises ConfigError, and then all stays as it was."""
        async with self._turn:
            started_s = self._clock.now_s()
            try:
                asked = await asyncio.to_thread(self._asked)
                found = reloading.compare(self.config, asked, before=self._file)
                config = reloading.in_force(self.config, asked.config)
                told = await self._put_in_force(config)
            except ConfigError as error:
                self._problem = error.message
                self._metrics.config_reloads.labels("refused").add()
                self._log.event("config.refused", error=error.message, actor=actor)
                raise
            act = self._act(config, found, actor)
            self.config, self._file, self._pending, self._problem = config, asked.file, found.restart, ""
            late = await self._until_everywhere()
            done = Reloaded(
                version=self.version,
                changed=found.changed,
                restart_required=found.restart,
                hidden=found.hidden,
                silent=told.silent if told is not None else [],
                late=late,
                is_controller_away=told is None,
                is_audited=await asyncio.to_thread(self._audited, act),
                elapsed_s=self._clock.now_s() - started_s,
            )
            self._tell(done, actor)
            return done

    def fill_gauges(self) -> None:
        """Sets the gauges of which configuration is in force."""
        self._metrics.config_version.labels().set(self.version)
        self._metrics.config_pending.labels().set(len(self._pending))

    def _asked(self) -> Asked:
        """Checked as at a start."""
        if self._read is None:
            raise ConfigError(NO_FILE)
        asked = self._read()
        self._check(asked.config)
        return asked

    async def _put_in_force(self, config: Config) -> Reconfigured | None:
        """Returns what the controller says, None where it says nothing. Raises ConfigError, and then all is as before."""
        version = self.version + 1
        told: asyncio.Future[Reconfigured] = asyncio.get_running_loop().create_future()

        def take(message: Reconfigured) -> None:
            # In this very turn: what the controller publishes next is newer, and must not come first.
            if message.version == version and not told.done():
                if not message.problem:
                    self._switch(config, version, message.snapshot)
                told.set_result(message)
            elif not message.problem:  # too late to be waited for
                self._publish(message.snapshot)

        message: Reconfigured | None = None
        if self._control.reconfigure(config, version, done=take):
            await asyncio.wait([told], timeout=CONTROLLER_LIMIT_S)
        if told.done():
            message = told.result()
            if message.problem:
                self._control.keep(self.config)
                raise ConfigError(message.problem)
        else:
            told.cancel()
            self._switch(config, version, self._control.snapshot)
        self.version = version
        return message

    async def _until_everywhere(self) -> int:
        """How many data planes don't go by it after all."""
        until_s = self._clock.now_s() + EVERYWHERE_LIMIT_S
        while True:
            late = sum(report.config_version != self.version for report in await self._front.reports())
            if not late or self._clock.now_s() > until_s:
                return late
            await asyncio.sleep(LOOK_EVERY_S)

    def _act(self, config: Config, found: Comparison, actor: str) -> Act:
        changes = reloading.changes(self.config, config, found.changed)
        return Act(
            self._clock.wall_s(), actor, Action.CONFIG_RELOAD, f"version {self.version}", changes=changes
        )

    def _audited(self, act: Act) -> bool:
        """An operator must be able to act while the database is away; then the log alone says who did."""
        try:
            self._record(act)
        except DatabaseUnavailable:
            return False
        return True

    def _tell(self, done: Reloaded, actor: str) -> None:
        self._metrics.config_reloads.labels("applied").add()
        self._log.event(
            "config.reloaded",
            config_version=done.version,
            changed=" ".join(done.changed),
            restart_required=" ".join(done.restart_required),
            hidden=" ".join(done.hidden),
            silent=" ".join(done.silent),
            late=done.late,
            elapsed_s=round(done.elapsed_s, 3),
            actor=actor,
        )


def check(config: Config) -> None:
    """Whether a service could be started with it, as far as that can be said beside one that runs. Raises ConfigError."""
    control_plane.check(config, ())
    check_certificate(config.server)
    for reference, key in (
        (config.stores.database, "stores.database"),
        (config.limits.store, "limits.store"),
    ):
        if reference:
            resolve_secret(reference, key=key)
    places.configured(config.models)


def route(ask: Callable[[str], Reloaded]) -> AdminRoute:
    """Where an operator asks. `ask` gets who it is and waits for the service's loop."""

    def answer(asked: AdminAsked) -> Reply:
        return reply(ask(asked.caller.actor))

    return AdminRoute("POST", "/admin/v1/config/reload", Role.OPERATOR, answer, turn=Turn.CONFIGURATION)
