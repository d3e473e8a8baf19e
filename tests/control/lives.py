"""A replica at work for the tests of its life: the scripted engine or another one, and all that it told."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.control.engine_spec import EngineSpec
from headrace.control.engine_watch import EngineLimits
from headrace.control.launchers import Launcher
from headrace.control.launches import Adopted
from headrace.control.replica import EngineReplica
from headrace.control.status import ColdStart, ReplicaStatus
from headrace.control.weights import Weights
from headrace.core.clock import SystemClock
from headrace.core.deployment_terms import LifecycleTerms
from headrace.core.deployments import Artifact, EngineArgs
from headrace.core.fleet import ReplicaState, Task
from headrace.engines.kinds import KINDS
from headrace.engines.starting import Kind
from headrace.policies.replica_life import Restarts
from tests.control.rig import Engines, eventually, launching

PENDING, FETCHING, STARTING = ReplicaState.PENDING, ReplicaState.FETCHING, ReplicaState.STARTING
WARMING, READY, FAILED = ReplicaState.WARMING, ReplicaState.READY, ReplicaState.FAILED
AT_ONCE = Restarts(quick_s=0.01, first_s=0.01, ceiling_s=0.01)
OFTEN = EngineLimits(scrape_every_s=0.02)


@dataclass
class Life:
    """A replica at work, and all that it told."""

    replica: EngineReplica
    launcher: Launcher
    running: "asyncio.Task[None] | None" = None
    statuses: list[ReplicaStatus] = field(default_factory=list)
    error: Exception | None = None  # raised when it is told that it is ready

    def take(self, status: ReplicaStatus) -> None:
        """What has failed is gone by the time that it is told."""
        self.statuses.append(status)
        if status.state is FAILED:
            assert not any(held.is_running for held in self.launcher.inventory())
        if status.state is READY and self.error is not None:
            raise self.error

    @property
    def offers(self) -> bool:
        return bool(self.replica.deployment().replicas)

    @property
    def took(self) -> ColdStart:
        """Its last successful start."""
        found = self.replica.status().cold_start
        assert found is not None
        return found

    async def cancelled(self) -> None:
        """Cancelled now, and waited for."""
        assert self.running is not None
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running

    def states(self) -> list[ReplicaState]:
        passed: list[ReplicaState] = []
        for status in self.statuses:
            if passed[-1:] != [status.state]:
                passed.append(status.state)
        return passed

    async def failed(self, times: int = 1) -> ReplicaStatus:
        """Its status when it has failed that often."""
        await eventually(lambda: self.replica.status().failures >= times)
        return next(status for status in self.statuses if status.failures == times and status.code)


def scripted(
    *, terms: LifecycleTerms | None = None, artifacts: dict[str, Artifact] | None = None, **args: Any
) -> EngineSpec:
    return EngineSpec(
        deployment="chat",
        model_path=None,
        model_sha256="",
        task=Task.CHAT,
        slots=4,
        context_tokens=0,
        threads=0,
        engine="scripted",
        digest="sha256:1",
        args=EngineArgs(**args),
        artifacts=artifacts or {},
        terms=terms or LifecycleTerms(),
    )


@contextlib.asynccontextmanager
async def living(
    spec: EngineSpec,
    directory: Path,
    *,
    limits: EngineLimits | None = None,
    restarts: Restarts = AT_ONCE,
    weights: Weights | None = None,
    adopted: Adopted | None = None,
    kinds: dict[str, Kind] = KINDS,
) -> AsyncIterator[Life]:
    """A replica that is retired at the end, with nothing of it left."""
    with launching(Engines(directory)) as launcher:
        assert launcher is not None
        life: Life
        replica = EngineReplica(
            spec,
            weights=weights,
            adopted=adopted,
            launcher=launcher,
            clock=SystemClock(),
            chance=random.Random(1),
            limits=limits or OFTEN,
            restarts=restarts,
            changed=lambda status: life.take(status),
            kinds=kinds,
        )
        life = Life(replica, launcher)
        replica.leave()  # as a controller does that engines shall outlive
        life.running = running = asyncio.create_task(replica.run())
        try:
            yield life
        finally:
            replica.end()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            assert not any(held.is_running for held in launcher.inventory())


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())
