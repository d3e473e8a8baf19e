"""One replica of the fleet, as long as a controller holds it: its row in the store, its engine, and whether it may go."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from headrace.control.status import ReplicaStatus
from headrace.control.steering import ReplicaSeen
from headrace.core.clock import Clock
from headrace.core.deployments import AppliedVersion
from headrace.core.fleet import Deployment, Replica, ReplicaState
from headrace.core.ids import ReplicaId
from headrace.core.load import PlaneLoad
from headrace.stores.database import DatabaseUnavailable
from headrace.stores.fleet import FleetStore, ReplicaRow

# Ready for so long, it has left what it failed of before behind it.
STEADY_S = 60.0


class Kept(Protocol):
    """What keeps one replica: an engine of ours, or a watch of a server that others run."""

    @property
    def slots(self) -> int: ...

    def status(self) -> ReplicaStatus: ...

    def deployment(self) -> Deployment:
        """What is offered, with this replica alone, or without it while it isn't ready."""
        ...

    async def run(self) -> None:
        """Until cancelled."""
        ...

    def leave(self) -> None:
        """When it is cancelled, what runs goes on."""
        ...

    def end(self) -> None:
        """The same with its end after all."""
        ...


class Life:
    """Owner of the state below: the fleet's loop.

    State: `row`, as it stands in the store; `engine` once what it needs is here; `problem`, why that isn't so; `state` and
    `since_s`, its last change; `ready_s` while it is ready; `failures`, starts in a row that failed or lives that ended soon;
    `offered`, the generation that was offered last. When it drains: `hidden_from`, the first snapshot without it, and
    `must_end_s`; `is_ending` once its engine was told to.
    """

    def __init__(
        self, row: ReplicaRow, applied: AppliedVersion, *, changed: Callable[[], None], clock: Clock
    ) -> None:
        self.row = row
        self.applied = applied
        self.engine: Kept | None = None
        self.task: asyncio.Task[None] | None = None
        self.problem = ""
        self.failures = row.failures
        self.offered: int | None = None
        self.hidden_from: int | None = None
        self.must_end_s: float | None = None
        self.is_ending = False
        self._changed = changed
        self._clock = clock
        self.since_s = clock.now_s()
        self.ready_s: float | None = None
        self._state = ReplicaState.PENDING
        self._served_s = 0.0
        self._failed: int | None = None  # the last generation whose end was counted

    @property
    def id(self) -> ReplicaId:
        return self.row.id

    @property
    def is_ready(self) -> bool:
        return self.ready_s is not None

    def status(self) -> ReplicaStatus:
        if self.engine is None:
            state = ReplicaState.FAILED if self.problem else ReplicaState.FETCHING
            return ReplicaStatus(
                self.row.deployment,
                self.id,
                self.row.generation,
                state,
                self.problem,
                version=self.row.version,
                location=self.applied.spec.deployment.location,
            )
        status = self.engine.status()
        if self.row.is_draining and status.state is ReplicaState.READY:
            return replace(status, state=ReplicaState.DRAINING)
        return status

    def observed(self, status: ReplicaStatus) -> None:
        """Its engine has told something."""
        now_s = self._clock.now_s()
        if status.state is not self._state:
            if self.ready_s is not None:
                self._served_s = now_s - self.ready_s
            self._state, self.since_s = status.state, now_s
            self.ready_s = now_s if status.state is ReplicaState.READY else None
        has_ended = status.state in (ReplicaState.FAILED, ReplicaState.PENDING) and status.reason != ""
        if has_ended and status.generation != self._failed:
            self._failed = status.generation
            self.failures = 1 if self._served_s >= STEADY_S else self.failures + 1
            self._served_s = 0.0
        self._changed()

    def replica(self) -> Replica | None:
        """As it is offered; None while it isn't ready, or has to go."""
        if self.engine is None or self.row.is_draining:
            return None
        found = self.engine.deployment().replicas
        if not found:
            return None
        self.offered = found[0].generation
        return found[0]

    def seen(self, load: PlaneLoad) -> ReplicaSeen:
        status = self.status()
        return ReplicaSeen(
            id=self.id,
            version=self.row.version,
            generation=status.generation,
            state=status.state,
            launched_s=self.row.decided_s,
            since_s=self.since_s,
            reason=status.reason,
            ready_s=None if self.row.is_draining else self.ready_s,
            in_flight=load.in_flight(self.id, status.generation),
            slots=1 if self.engine is None else self.engine.slots,
            failures=self.failures,
            is_stuck=status.is_stuck or self.failures >= self.applied.spec.lifecycle.restarts_max,
            is_draining=self.row.is_draining,
            gauges=status.gauges,
        )

    def may_end(self, load: PlaneLoad, *, now_s: float) -> bool:
        """Whether nobody can have a request on it any more, or its time is over."""
        assert self.row.is_draining
        if self.offered is None or (self.must_end_s is not None and now_s >= self.must_end_s):
            return True
        if self.hidden_from is None or load.snapshot_version < self.hidden_from:
            return False
        return load.in_flight(self.id, self.offered) == 0

    @property
    def has_ended(self) -> bool:
        """It was to end, and nothing is left of it."""
        return self.is_ending and (self.task is None or self.task.done())

    def end(self) -> None:
        """Its engine is stopped within its grace."""
        self.is_ending = True
        if self.engine is not None:
            self.engine.end()
        if self.task is not None:
            self.task.cancel()


class StoredLaunches:
    """The launches of one replica, numbered by the store before they begin."""

    def __init__(self, store: FleetStore, life: Life) -> None:
        self._store = store
        self._life = life

    async def next(self, replica: ReplicaId) -> tuple[int, str]:
        try:
            generation, token = await asyncio.to_thread(
                self._store.next_launch, replica, failures=self._life.failures
            )
        except (DatabaseUnavailable, LookupError) as error:
            raise OSError(str(error)) from error
        self._life.row = self._life.row._replace(generation=generation, token=token)
        return generation, token
