"""What went wrong in other projects when replicas went and controllers came, as scenarios: none of it happens here.

The real loop of the fleet over real books, on a clock that is turned by hand, with engines that do as they are told; each
names the thread that it was learned from. Which test retells which thread is in docs/internals/neighbours.md.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headrace.core.clock import ManualClock
from headrace.core.ids import ReplicaId
from headrace.stores.fleet import Change, ReplicaRow
from tests.control.scripted_fleet import DRAIN_S, Controller, Machine, controller

ONE, TWO = ReplicaId("chat-0"), ReplicaId("chat-1")
Scenario = Callable[[Controller, ManualClock], Coroutine[Any, Any, None]]


def played(data: Path, scenario: Scenario, *, replicas: int, lingers: bool = False) -> None:
    """With so many replicas that are ready, on a machine where nothing was before."""

    async def play() -> None:
        clock = ManualClock()
        async with controller(data, Machine(lingers=lingers), clock, replicas=replicas) as made:
            await made.ready(*range(replicas))
            await scenario(made, clock)

    asyncio.run(play())


# Replicas that go


def test_ray_63995_one_that_drains_is_left_by_all_before_it_is_asked_what_it_does(tmp_path: Path) -> None:
    """It said that it was drained, and accepted until it was killed: a count of zero means something once nobody sends any more."""

    async def scenario(fleet: Controller, clock: ManualClock) -> None:
        before, busy = fleet.snapshots[-1].version, (0, fleet.generation(0), 1)
        await fleet.hears(busy)
        await fleet.wants(1)
        assert fleet.offered == {ONE}
        await fleet.hears(busy, version=before)
        assert TWO in fleet.machine.running, "a gateway may still send it something"
        await fleet.hears(busy, (1, fleet.generation(1), 1))
        assert TWO in fleet.machine.running, "and one has"
        await fleet.hears(busy)
        assert set(fleet.machine.running) == {ONE}

    played(tmp_path, scenario, replicas=2)


def test_knative_15211_nothing_is_sent_to_one_that_ends_and_its_answers_are_not_cut(tmp_path: Path) -> None:
    """Traffic reached pods that were terminating. Here no snapshot has one of them, however long its last answer takes."""

    async def scenario(fleet: Controller, clock: ManualClock) -> None:
        await fleet.hears((0, fleet.generation(0), 2), (1, fleet.generation(1), 1))
        await fleet.wants(1)
        since = len(fleet.snapshots) - 1
        for _ in range(5):
            clock.advance(DRAIN_S / 6)
            await fleet.hears((0, fleet.generation(0), 2), (1, fleet.generation(1), 1))
            assert TWO in fleet.machine.running
        assert not any(
            replica.id == TWO
            for snapshot in fleet.snapshots[since:]
            for target in snapshot.deployments.values()
            for replica in target.replicas
        )
        clock.advance(DRAIN_S / 6)
        await fleet.looks()
        assert TWO not in fleet.machine.running, "a drain has an end too"

    played(tmp_path, scenario, replicas=2)


def test_ray_61551_what_was_counted_for_a_process_that_is_gone_holds_no_other_one(tmp_path: Path) -> None:
    """REPORTS 77. Counts leaked, and pinned replicas for good: here a count is of one process, and ends with it."""

    async def scenario(fleet: Controller, clock: ManualClock) -> None:
        leaked, busy = (1, fleet.generation(1), 3), (0, fleet.generation(0), 1)
        await fleet.engines[TWO].launches_again()
        await fleet.ready(1)
        await fleet.hears(busy, leaked)
        await fleet.wants(1)
        await fleet.hears(busy, leaked)
        assert set(fleet.machine.running) == {ONE}

    played(tmp_path, scenario, replicas=2)


def test_ray_43034_of_four_those_that_load_are_cancelled_at_once_and_none_that_serves(tmp_path: Path) -> None:
    """REPORTS 79. Boots of minutes, and a downscale in the middle of them: it killed who served."""

    async def scenario(fleet: Controller, clock: ManualClock) -> None:
        await fleet.hears((0, fleet.generation(0), 4), (1, fleet.generation(1), 4))
        await fleet.wants(4)
        assert len(fleet.machine.running) == 4
        await fleet.wants(2)
        assert set(fleet.machine.running) == fleet.offered == {ONE, TWO}

    played(tmp_path, scenario, replicas=2)


def test_triton_4764_what_was_unloaded_is_gone_when_its_process_is_and_not_before(tmp_path: Path) -> None:
    """triton#3621, ollama#4443, ollama#7606: it was off the list, and its memory was still taken. Here its place in the books is
    taken as long as anything of it runs, so nobody starts in memory that isn't free."""

    async def scenario(fleet: Controller, clock: ManualClock) -> None:
        await fleet.hears()
        await fleet.wants(0)
        await fleet.hears()
        assert (set(fleet.machine.running), set(fleet.rows), fleet.gone) == ({ONE}, {ONE}, [])
        await fleet.wants(1)
        assert set(fleet.rows) == {ONE, TWO}, "it is no replica that comes back"
        fleet.machine.freed.set()
        await fleet.looks()
        assert (set(fleet.machine.running), set(fleet.rows), fleet.gone) == ({TWO}, {TWO}, [ONE])

    played(tmp_path, scenario, replicas=1, lingers=True)


# Controllers that come


def test_gpustack_2595_what_no_book_knows_is_ended_before_it_holds_a_gpu_for_a_month(tmp_path: Path) -> None:
    """gpustack#1020, gpustack#1261, ray#42861: after a partition old engines went on, beside those that replaced them."""

    async def play() -> None:
        machine, clock = Machine(), ManualClock()
        async with controller(tmp_path, machine, clock, replicas=1) as first:
            await first.ready(0)
        machine.running |= {
            ReplicaId("chat-7"): "unknown",
            ReplicaId("gone-0"): "of a deployment that was removed",
        }
        async with controller(tmp_path, machine, clock, replicas=1, snapshot=first.snapshots[-1]) as second:
            await second.looks()
            assert sorted(machine.fenced) == ["chat-7", "gone-0"]
            assert (set(machine.running), second.offered) == ({ONE}, {ONE})
            assert machine.launched == [ONE], "what is known goes on as it was"

    asyncio.run(play())


def test_gpustack_1261_one_with_another_token_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Something runs under the right name, and isn't what was launched: it gets no request, and a launch takes its place."""

    async def play() -> None:
        machine, clock = Machine(), ManualClock()
        async with controller(tmp_path, machine, clock, replicas=1) as first:
            await first.ready(0)
        machine.running[ONE] = "another"
        async with controller(tmp_path, machine, clock, replicas=1, snapshot=first.snapshots[-1]) as second:
            await second.looks()
            assert (machine.launched, second.offered) == ([ONE, ONE], set())
            assert second.generation(0) > first.generation(0)
            assert second.rows[ONE].token == machine.running[ONE] != "another"

    asyncio.run(play())


def test_skypilot_8564_of_two_controllers_the_older_one_stops_and_touches_nothing(tmp_path: Path) -> None:
    """Recovery started two of them. Here the older one ends at its next look, and what it ran is the newer one's."""

    async def play() -> None:
        machine, clock = Machine(), ManualClock()
        async with controller(tmp_path, machine, clock, replicas=1) as first:
            await first.ready(0)
            async with controller(
                tmp_path, machine, clock, replicas=1, snapshot=first.snapshots[-1]
            ) as second:
                first.wished.replicas = 5
                first.fleet.wake()
                await first.was_replaced.wait()
                assert (set(machine.running), machine.launched) == ({ONE}, [ONE])
                await second.wants(2)
                assert set(machine.running) == set(second.rows) == {ONE, TWO}

    asyncio.run(play())


@pytest.mark.parametrize("is_draining", [False, True], ids=["to start", "to end"])
def test_skypilot_8563_a_row_without_an_engine_is_where_recovery_goes_on(
    tmp_path: Path, is_draining: bool
) -> None:
    """skypilot#8547: recovery crashed on what it had half written, and cleaned up by deleting the service. A controller that dies
    between two steps leaves rows of engines that never were, or are no more; who serves is not touched."""

    async def play() -> None:
        machine, clock = Machine(), ManualClock()
        async with controller(tmp_path, machine, clock, replicas=1) as first:
            await first.ready(0)
            row = ReplicaRow(TWO, "chat", 0, decided_s=clock.now_s(), is_draining=is_draining)
            first.books.write(Change(replicas={TWO: row}))
        async with controller(tmp_path, machine, clock, replicas=2, snapshot=first.snapshots[-1]) as second:
            await second.looks()
            assert set(machine.running) == set(second.rows) == {ONE, TWO}
            assert (machine.launched, machine.fenced) == ([ONE, TWO], [])
            assert not any(each.is_draining for each in second.rows.values())
            assert second.offered == {ONE}

    asyncio.run(play())


def test_skypilot_9683_a_controller_that_fails_to_come_up_deletes_nothing(tmp_path: Path) -> None:
    """A boot that took too long fell through to the clean-up, which removed the service. Here three that can't prepare what is
    wanted leave books and engines as they were, and launch nothing beside them."""

    async def play() -> None:
        machine, clock = Machine(), ManualClock()
        async with controller(tmp_path, machine, clock, replicas=1) as first:
            await first.ready(0)
            rows, running = first.rows, dict(machine.running)
        for _ in range(3):
            async with controller(
                tmp_path, machine, clock, replicas=1, snapshot=first.snapshots[-1], lacks="no such key"
            ) as next_one:
                await next_one.looks()
                assert (next_one.rows, machine.running) == (rows, running)
        assert (machine.launched, machine.fenced) == ([ONE], [])

    asyncio.run(play())


def test_xinference_2402_what_serves_goes_on_under_the_next_controller(tmp_path: Path) -> None:
    """Who restarted the supervisor had to restart every worker and deploy every model again."""

    async def play() -> None:
        machine, clock = Machine(), ManualClock()
        async with controller(tmp_path, machine, clock, replicas=2) as first:
            await first.ready(0, 1)
        async with controller(tmp_path, machine, clock, replicas=2, snapshot=first.snapshots[-1]) as second:
            await second.looks()
            assert len(machine.launched) == 2
            assert second.snapshots == [first.snapshots[-1]], "not even the snapshot is another one"

    asyncio.run(play())


def test_xinference_5428_what_died_while_nobody_looked_is_started_again(tmp_path: Path) -> None:
    """What was to be started by itself was forgotten with the worker that had it. Here it is wanted until somebody says otherwise."""

    async def play() -> None:
        machine, clock = Machine(), ManualClock()
        async with controller(tmp_path, machine, clock, replicas=2) as first:
            await first.ready(0, 1)
        machine.running.clear()
        async with controller(tmp_path, machine, clock, replicas=2, snapshot=first.snapshots[-1]) as second:
            await second.looks()
            assert second.offered == set(), "nobody is sent to what is not there"
            assert set(machine.running) == {ONE, TWO}
            await second.ready(0, 1)
            assert second.offered == {ONE, TWO}

    asyncio.run(play())
