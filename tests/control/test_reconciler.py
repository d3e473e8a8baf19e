"""The reconciler with real processes that stand in for engines: what is published, when, and what a failing engine gets."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.control.engine_watch import EngineLimits
from headrace.control.reconciler import Reconciler
from headrace.core.errors import ConfigError
from headrace.core.fleet import ReplicaState, Task
from headrace.policies.replica_life import Restarts
from tests.control.rig import (
    Record,
    eventually,
    fake_engines,
    is_running,
    parent_of,
    reconciling,
    spec,
    visible_to_others,
)

PENDING, STARTING, WARMING = ReplicaState.PENDING, ReplicaState.STARTING, ReplicaState.WARMING
READY, DRAINING, STOPPED, FAILED = (
    ReplicaState.READY,
    ReplicaState.DRAINING,
    ReplicaState.STOPPED,
    ReplicaState.FAILED,
)
AT_ONCE = Restarts(quick_s=0.01, first_s=0.01, ceiling_s=0.01)


def test_a_deployment_is_published_before_its_engine_is_ready_and_without_replica(tmp_path: Path) -> None:
    """Callers hear "come back" during a start, never "no such model"."""

    async def scenario() -> None:
        record = Record()
        async with reconciling(record, engines=[spec()], launcher=fake_engines(tmp_path)):
            await eventually(lambda: record.replicas("model"))
        assert record.snapshots[0].deployments["model"].replicas == ()
        assert record.states() == [STARTING, WARMING, READY, DRAINING, STOPPED]

    asyncio.run(scenario())


def test_a_ready_engine_is_published_with_its_key_traits_and_measured_cold_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        record = Record()
        async with reconciling(record, engines=[spec()], launcher=fake_engines(tmp_path)) as reconciler:
            (replica,) = await eventually(lambda: record.replicas("model"))
            (status,) = reconciler.status()
            assert replica.authorization.startswith("Bearer ")
            assert replica.traits.partitions_slots
            assert status.cold_start is not None
            offered = record.snapshots[-1].deployments["model"]
            assert offered.retry_after_s == status.cold_start.total_s
            assert offered.context_tokens == 800, "what the model can do, not what was asked for"
            key = replica.authorization.removeprefix("Bearer ")
            assert key not in repr(record.snapshots) + repr(record.statuses)
            assert status.pid is not None
            assert key.encode() not in visible_to_others(status.pid)

    asyncio.run(scenario())


def test_a_killed_engine_leaves_the_snapshot_at_once_and_comes_back_as_a_new_generation(
    tmp_path: Path,
) -> None:
    """T1, the fleet's part: gone within a second of the kill, back only after readiness."""

    async def scenario() -> None:
        record = Record()
        engines = fake_engines(tmp_path)
        async with reconciling(record, engines=[spec()], launcher=engines, restarts=AT_ONCE) as reconciler:
            (before,) = await eventually(lambda: record.replicas("model"))
            pid = reconciler.status()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed_s = time.monotonic()
            await eventually(lambda: not record.replicas("model"))
            assert record.published_s[-1] - killed_s < 5.0  # a second, and a machine that others use
            (after,) = await eventually(lambda: record.replicas("model"))
            status = reconciler.status()[0]
            assert (before.generation, after.generation, status.restarts) == (0, 1, 1)
            assert before.authorization != after.authorization
            assert any("SIGKILL" in status.reason for status in record.statuses)
        versions = [snapshot.version for snapshot in record.snapshots]
        assert versions == list(range(1, len(versions) + 1))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("behaviour", "reason"), [("crash", "ended with status 1; it broke"), ("mute", "failed its canary")]
)
def test_an_engine_that_never_gets_ready_is_failed_with_its_reason_and_tried_again(
    tmp_path: Path, behaviour: str, reason: str
) -> None:
    """An open port is not readiness: only the right kind of answer is."""

    async def scenario() -> None:
        record = Record()
        engines = fake_engines(tmp_path, behaviour)
        async with reconciling(record, engines=[spec()], launcher=engines, restarts=AT_ONCE) as reconciler:
            await eventually(lambda: reconciler.status()[0].generation >= 2)
        failed = [status for status in record.statuses if status.state is FAILED]
        assert all(reason in status.reason for status in failed), failed
        assert len(failed) >= 2
        assert not record.replicas("model")
        assert READY not in record.states()

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["silent", "stuck"])
def test_an_engine_that_lives_without_progress_is_replaced(tmp_path: Path, behaviour: str) -> None:
    """T20, the slow half: a probe that never answers, or one that answers while work waits and nothing moves."""

    async def scenario() -> None:
        record = Record()
        limits = EngineLimits(scrape_every_s=0.02, scrape_s=0.1, last_canary_s=0.3, silence_max_s=0.3)
        async with reconciling(
            record,
            engines=[spec()],
            launcher=fake_engines(tmp_path, behaviour),
            engine_limits=limits,
            restarts=AT_ONCE,
        ) as reconciler:
            await eventually(lambda: record.replicas("model"))
            first = reconciler.status()[0].pid
            await eventually(lambda: reconciler.status()[0].generation == 1)
            assert first is not None
            assert not is_running(first)
        assert any("no sign of life" in status.reason for status in record.statuses)

    asyncio.run(scenario())


def test_a_slow_scrape_alone_never_removes_an_engine(tmp_path: Path) -> None:
    """T21: scrapes time out again and again, far from the limit of silence, and nothing happens to the replica."""

    async def scenario() -> None:
        record = Record()
        limits = EngineLimits(scrape_every_s=0.01, scrape_s=0.03, silence_max_s=60.0)
        launcher = fake_engines(tmp_path, "silent")
        async with reconciling(record, engines=[spec()], launcher=launcher, engine_limits=limits):
            await eventually(lambda: record.replicas("model"))
            await asyncio.sleep(0.4)
            assert record.replicas("model")
            assert record.states()[-1] is READY

    asyncio.run(scenario())


def test_cancelling_the_reconciler_ends_every_engine(tmp_path: Path) -> None:
    async def scenario() -> int:
        record = Record()
        async with reconciling(record, engines=[spec()], launcher=fake_engines(tmp_path)) as reconciler:
            await eventually(lambda: record.replicas("model"))
            pid = reconciler.status()[0].pid
            assert pid is not None
        assert not record.replicas("model")
        return pid

    assert not is_running(asyncio.run(scenario()))


def test_an_engine_outlives_neither_its_lifeline_nor_its_stop(tmp_path: Path) -> None:
    """Kill -9 of the lifeline itself: the engine's group is ended by who launched it."""

    async def scenario() -> None:
        record = Record()
        engines = fake_engines(tmp_path)
        async with reconciling(record, engines=[spec()], launcher=engines, restarts=AT_ONCE) as reconciler:
            await eventually(lambda: record.replicas("model"))
            pid = reconciler.status()[0].pid
            assert pid is not None
            os.kill(parent_of(pid), signal.SIGKILL)
            await eventually(lambda: reconciler.status()[0].generation == 1)
            assert not is_running(pid)

    asyncio.run(scenario())


def test_the_log_of_the_previous_run_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        launcher = fake_engines(tmp_path, "crash")
        record = Record()
        engine = spec("org/model")  # a name that is no file name
        async with reconciling(record, engines=[engine], launcher=launcher, restarts=AT_ONCE) as reconciler:
            await eventually(lambda: reconciler.status()[0].generation >= 1)
            previous = tmp_path / "org_model-0.log.1"
            await eventually(lambda: previous.exists() and previous.read_text() == "it broke\n")

    asyncio.run(scenario())


def test_two_engines_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'model' is given 2 times"):
        asyncio.run(_construct(tmp_path))


async def _construct(logs: Path) -> Reconciler:
    async with reconciling(Record(), engines=[spec(), spec()], launcher=fake_engines(logs)) as reconciler:
        return reconciler


@pytest.mark.parametrize(
    "change",
    [
        {"model_sha256": "1" * 64},
        {"slots": 3},
        {"context_tokens": 2048},
        {"task": Task.EMBEDDINGS},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_revision_changes_with_all_that_makes_the_answers_and_with_nothing_else(
    change: dict[str, Any],
) -> None:
    assert replace(spec(), **change).revision() != spec().revision()
    elsewhere = replace(spec(), model_path=Path("elsewhere"), threads=9)
    assert elsewhere.revision() == spec().revision()
