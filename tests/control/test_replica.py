"""One replica from its start to its end, with real processes: what makes it ready, what takes it out, and why it failed."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.control.engine_watch import EngineLimits
from headrace.control.launches import Adopted
from headrace.core.deployment_terms import LifecycleTerms, ReadyTerms
from headrace.core.fleet import Task
from headrace.engines.kinds import KINDS
from headrace.engines.starting import Asked, Command, Kind
from headrace.stores.fleet import LeaseLost
from tests.control.lives import (
    FAILED,
    PENDING,
    READY,
    STARTING,
    WARMING,
    living,
    run,
    scripted,
)
from tests.control.rig import eventually

# Ready


@pytest.mark.slow
def test_a_port_that_is_open_long_before_it_is_ready_gets_no_request(tmp_path: Path) -> None:
    """REPORTS 81 and 86: nothing is offered while it answers 503; then it is, and its start is known by stage."""

    async def scenario() -> None:
        async with living(scripted(load_s=0.3, ready_after_s=0.5), tmp_path) as life:
            await eventually(lambda: life.states()[-1:] == [WARMING])
            assert not life.offers
            await eventually(lambda: life.offers)
            assert life.states() == [STARTING, WARMING, READY]
            took = life.took
            assert took.load_s >= 0.3
            assert took.warm_s >= 0.5
            assert life.replica.deployment().retry_after_s == took.total_s

    run(scenario)


@pytest.mark.slow
def test_ready_means_the_answer_that_was_asked_for(tmp_path: Path) -> None:
    """E4: a server that answers, but nonsense, is not ready."""
    terms = LifecycleTerms(ready=ReadyTerms("What is the capital of France?", 8, expect="Paris"))

    async def scenario() -> None:
        async with living(scripted(terms=terms, answer="Rome"), tmp_path / "wrong") as life:
            status = await life.failed()
            assert status.code == "canary_failed"
            assert "doesn't contain 'Paris'" in status.reason
            assert READY not in life.states()
        async with living(scripted(terms=terms, answer="It is Paris."), tmp_path / "right") as life:
            await eventually(lambda: life.offers)

    run(scenario)


@pytest.mark.slow
def test_a_canary_that_is_never_answered_is_no_readiness(tmp_path: Path) -> None:
    """vllm#39863: the port answers and the list of models is there, though the core is dead."""
    terms = LifecycleTerms(ready=ReadyTerms(timeout_s=0.3))

    async def scenario() -> None:
        async with living(scripted(terms=terms, fault="stall:0"), tmp_path) as life:
            status = await life.failed()
            assert status.code == "canary_failed"
            assert "no answer within 0.3 s" in status.reason

    run(scenario)


def test_an_embedding_model_is_asked_for_an_embedding(tmp_path: Path) -> None:
    """And what its file says of its life goes with it to the gateway."""
    terms = LifecycleTerms(slow_start_s=42.0)

    async def scenario() -> None:
        spec = replace(scripted(terms=terms), task=Task.EMBEDDINGS, version=3)
        async with living(spec, tmp_path) as life:
            await eventually(lambda: life.offers)
            offered = life.replica.deployment()
            assert offered.key == "chat@v3"
            assert offered.replicas[0].slow_start_s == 42.0

    run(scenario)


# Stages that take too long


def test_a_start_without_progress_is_given_up_and_a_rollout_can_see_that_it_waits_in_vain(
    tmp_path: Path,
) -> None:
    terms = LifecycleTerms(start_stall_s=0.5)

    async def scenario() -> None:
        async with living(scripted(terms=terms, load_fault="hang"), tmp_path) as life:
            status = await life.failed()
            assert (status.state, status.code, status.is_stuck) == (FAILED, "start_stalled", True)
            assert "did not open its port, and neither wrote nor took memory" in status.reason

    run(scenario)


def test_a_start_has_a_budget_too(tmp_path: Path) -> None:
    terms = LifecycleTerms(start_timeout_s=0.5)

    async def scenario() -> None:
        async with living(scripted(terms=terms, ready_after_s=600.0), tmp_path) as life:
            status = await life.failed()
            assert (status.code, status.is_stuck) == ("start_timeout", True)
            assert "within 0.5 s of its launch" in status.reason

    run(scenario)


# Ends


def test_a_start_without_memory_has_a_reason_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with living(scripted(load_fault="out_of_memory"), tmp_path) as life:
            status = await life.failed()
            assert (status.code, status.is_stuck) == ("out_of_memory", True)
            assert "failed to allocate 1 TB" in status.reason

    run(scenario)


def test_an_engine_that_ran_out_of_memory_for_real_is_known_by_its_last_words(tmp_path: Path) -> None:
    """E8. The limit stands in for a machine that is full."""
    code = "import sys; print('loading', file=sys.stderr); x = bytearray(10**10)"

    def command(asked: Asked, port: int, key: str) -> Command:
        return Command(("sh", "-c", f'ulimit -v 500000; exec "{sys.executable}" -c "{code}"'))

    async def scenario() -> None:
        kinds = {"scripted": Kind("scripted", "scripted", command, speaks_reports=True)}
        async with living(scripted(), tmp_path, kinds=kinds) as life:
            status = await life.failed()
            assert (status.code, status.reason) == ("out_of_memory", "ended with status 1; MemoryError")

    run(scenario)


@pytest.mark.slow
def test_one_that_says_that_it_cant_load_and_lives_on_is_ended(tmp_path: Path) -> None:
    """It has its time to end by itself, and no more."""
    said = '{"state": "failed", "pid": 1, "reason": "no such layer"}'

    def command(asked: Asked, port: int, key: str) -> Command:
        return Command(("sh", "-c", f"echo '{said}'; exec sleep 600"))

    async def scenario() -> None:
        kinds = {"scripted": Kind("scripted", "scripted", command, speaks_reports=True)}
        async with living(scripted(), tmp_path, kinds=kinds) as life:
            status = await life.failed()
            assert (status.code, status.reason) == ("load_failed", "failed to load: no such layer")

    run(scenario)


@pytest.mark.slow
def test_a_crash_loop_is_told_and_a_single_crash_is_not(tmp_path: Path) -> None:
    terms = LifecycleTerms(restarts_max=3)

    async def scenario() -> None:
        async with living(scripted(terms=terms, lives_s=0.2), tmp_path) as life:
            first = await life.failed(1)
            assert (first.state, first.code, first.is_stuck) == (PENDING, "crashed", False)
            third = await life.failed(3)
            assert (third.state, third.code, third.is_stuck) == (FAILED, "crashed", True)
            assert life.replica.status().restarts >= 2

    run(scenario)


def test_what_an_engine_cant_do_is_a_reason_and_not_a_crash(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with living(scripted(gpu_layers=3), tmp_path) as life:
            status = await life.failed()
            assert (status.code, status.is_stuck) == ("unsuitable", True)
            assert "revision.args.gpu_layers" in status.reason

    run(scenario)


# In service


@pytest.mark.slow
def test_one_that_says_it_cant_serve_is_out_until_it_says_twice_that_it_can(tmp_path: Path) -> None:
    """REPORTS 88, T22: the same process comes back as the same generation, so what is counted on it stays counted."""

    async def scenario() -> None:
        async with living(scripted(fault="health_down@3-8"), tmp_path) as life:
            await eventually(lambda: life.offers)
            (before,) = life.replica.deployment().replicas
            pid = life.replica.status().pid
            await eventually(lambda: not life.offers)
            assert life.statuses[-1].state is WARMING
            await eventually(lambda: life.offers)
            assert life.replica.deployment().replicas == (before,)
            assert (life.replica.status().pid, life.replica.status().failures) == (pid, 0)
            assert life.states() == [STARTING, WARMING, READY, WARMING, READY]

    run(scenario)


@pytest.mark.slow
def test_a_health_page_that_flaps_takes_nothing_out(tmp_path: Path) -> None:
    """T22: one bad answer between good ones proves nothing."""

    async def scenario() -> None:
        async with living(scripted(fault="health_down@1/2"), tmp_path) as life:
            await eventually(lambda: life.offers)
            await eventually(lambda: len(life.statuses) > 20)
            assert life.states() == [STARTING, WARMING, READY]

    run(scenario)


@pytest.mark.slow
def test_a_stopped_process_that_goes_on_is_offered_as_before(tmp_path: Path) -> None:
    """REPORTS 88: silence is no death until it lasts."""
    limits = EngineLimits(scrape_every_s=0.02, scrape_s=0.1)

    async def scenario() -> None:
        async with living(scripted(), tmp_path, limits=limits) as life:
            await eventually(lambda: life.offers)
            pid = life.replica.status().pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.5)
            os.kill(pid, signal.SIGCONT)
            seen = len(life.statuses)
            await eventually(lambda: len(life.statuses) > seen + 2)
            assert life.states() == [STARTING, WARMING, READY]
            assert life.replica.status().pid == pid

    run(scenario)


def test_the_gauges_of_an_engine_are_in_words_that_all_share(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with living(scripted(), tmp_path) as life:
            await eventually(lambda: life.replica.status().gauges)
            assert life.replica.status().gauges["kv_use"] == 0.0
            assert life.replica.status().gauges["tokens_predicted_total"] >= 1

    run(scenario)


def test_a_controller_that_ends_leaves_what_serves(tmp_path: Path) -> None:
    """E3."""

    async def scenario() -> None:
        async with living(scripted(), tmp_path) as life:
            await eventually(lambda: life.offers)
            await life.cancelled()
            (held,) = life.launcher.inventory()
            assert held.is_running
            await life.launcher.fence(held.replica)

    run(scenario)


def test_a_controller_that_fails_leaves_what_serves(tmp_path: Path) -> None:
    """E3: it was stopped, another one has taken over, and it learns so from the store as it notes that the engine is ready."""
    runs: list[bool] = []

    async def scenario() -> None:
        async with living(scripted(), tmp_path) as life:
            life.error = LeaseLost("another one has taken over")
            assert life.running is not None
            await asyncio.wait({life.running})
            (held,) = life.launcher.inventory()
            runs.append(held.is_running)
            await life.launcher.fence(held.replica)

    with pytest.raises(ExceptionGroup):
        run(scenario)
    assert runs == [True]


@pytest.mark.slow
def test_one_that_is_adopted_while_it_is_out_has_started_when_it_started(tmp_path: Path) -> None:
    """E3, E6: what it takes to come back, hours later perhaps, is no cold start that callers are told to wait for."""

    async def scenario() -> None:
        async with living(scripted(fault="health_down@3-10000"), tmp_path) as life:
            await eventually(lambda: life.offers)
            await eventually(lambda: not life.offers)
            await life.cancelled()
            before = life.replica.status()
            (held,) = life.launcher.inventory()
            engine = await life.launcher.adopt(held.replica, held.token)
            assert engine is not None
            async with living(scripted(), tmp_path, adopted=Adopted(engine, None, before)) as later:
                await eventually(lambda: later.offers)
                now = later.replica.status()
            assert (now.cold_start, now.ready_s) == (before.cold_start, before.ready_s)
            assert (now.pid, now.generation) == (before.pid, before.generation)

    run(scenario)


@pytest.mark.slow
def test_an_engine_that_is_being_ended_is_ended_whoever_loses_patience(tmp_path: Path) -> None:
    """It ignores SIGTERM, so that there is a time between being told and being gone; the cancellation falls into it."""

    def command(asked: Asked, port: int, key: str) -> Command:
        ours = KINDS["scripted"].command(asked, port, key)
        return replace(ours, arguments=("sh", "-c", 'trap "" TERM; exec "$@"', "sh", *ours.arguments))

    kinds = {"scripted": Kind("scripted", "scripted", command, speaks_reports=True)}
    terms = LifecycleTerms(start_stall_s=0.5, stop_grace_s=1.0)

    async def scenario() -> None:
        async with living(scripted(terms=terms, load_fault="hang"), tmp_path, kinds=kinds) as life:

            def is_told() -> bool:
                (held,) = life.launcher.inventory() or (None,)
                return held is not None and held.state is not None and held.state.was_told

            await eventually(is_told)
            await life.cancelled()
            assert not any(held.is_running for held in life.launcher.inventory())

    run(scenario)
